"""What is said of a name that no accelerator has. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from orchestrator.core.accelerators import catalogue
from orchestrator.core.wording import nearest

_SUGGESTED = 5
_USUAL = ("cpu", "T4", "RTX4090", "A100", "H100")


def unknown_accelerator(what: str, given: str, *, own: Iterable[str] = (), also: Iterable[str] = ()) -> str:
    """`unknown accelerator 'RTX 4090'; did you mean 'RTX4090'? valid: …`. `what` as in `wording.unknown`;
    `own`: the user's names; `also`: other words that are valid there. The catalogue is too long to be listed,
    so only the closest names are."""
    mine, words = list(own), list(also)
    plain = re.sub(r"[\s_]|nvidia|geforce|tesla", "", given, flags=re.IGNORECASE)
    close = nearest(plain, (*catalogue, *mine, *words), _SUGGESTED)
    near = f"did you mean {close[0]!r}? " if close else ""
    shown = list(dict.fromkeys((*mine, *(each for each in close or _USUAL if each not in words))))
    more = "".join(f", {each}" for each in words)
    return (
        f"unknown {what}; {near}valid: a name of the catalogue or of the config's `accelerators`, such as "
        f"{', '.join(shown)}; several of a GPU, such as RTX4090x2{more}"
    )
