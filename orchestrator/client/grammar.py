"""The grammar of values as users write them, for what reads them outside of a job."""

from __future__ import annotations

from orchestrator.errors import InputError


def seconds(text: str) -> float:
    """A duration as jobs have it (`90m`, `12h`, `30d`), and 0, in seconds. Raises InputError for another."""
    from pydantic import TypeAdapter, ValidationError

    from orchestrator.spec.fields import Duration

    if text.rstrip("smhd") == "0":
        return 0.0
    try:
        return float(TypeAdapter(Duration).validate_python(text))
    except (ValidationError, AssertionError):
        raise InputError(f"{text!r} is no duration; valid are 0, or as 90m, 12h, 30d") from None
