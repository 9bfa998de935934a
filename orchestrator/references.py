"""References to secrets, `env:NAME` and `file:PATH`: the only form in which a config may mention one.

Decides how a reference is written and where it is looked up. Must never repeat what it found.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from orchestrator.errors import InputError
from orchestrator.files import read_own
from orchestrator.user import expanded

BYTES_MAX = 1 << 20
REFERENCE = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)|file:(.+)")


def resolve(reference: str, home: Path) -> str:
    """The secret that `env:NAME` or `file:PATH` (relative to `home`) refers to, without the line end.

    Raises InputError if it is not a reference, or refers to nothing.
    """
    match = REFERENCE.fullmatch(reference)
    if match is None:
        raise InputError("not a reference to a secret; valid: env:NAME or file:PATH")
    name, path = match.groups()
    if name is not None:
        value = os.environ.get(name, "")
        if not value:
            raise InputError(f"the environment variable {name} is not set; set it, or use file:PATH")
        return value
    place = home / expanded(Path(path))
    try:
        value = read_own(place, BYTES_MAX).decode("utf-8").strip()
    except (OSError, ValueError) as error:
        raise InputError(
            f"{place} cannot be read ({getattr(error, 'strerror', None) or 'not text'})"
        ) from None
    if not value:
        raise InputError(f"{place} is empty; write the value into it")
    return value
