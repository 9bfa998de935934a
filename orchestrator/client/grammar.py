"""The grammar of values as users write them, for values outside of a job."""

from __future__ import annotations

from orchestrator.errors import InputError


def seconds(text: str) -> float:
    """The seconds of a duration as in a job (`90m`, `12h`, `30d`), or of 0. Raises InputError for others."""
    from pydantic import TypeAdapter, ValidationError

    from orchestrator.spec.fields import Duration

    if text.rstrip("smhd") == "0":
        return 0.0
    try:
        return float(TypeAdapter(Duration).validate_python(text))
    except (ValidationError, AssertionError):
        raise InputError(f"{text!r} is not a duration; give 0 or a duration such as 90m, 12h, 30d") from None
