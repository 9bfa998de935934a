"""What a store can say about itself to `doctor`. Values only; must never know how it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class Remark:
    """One thing that was looked at. `advice`: what a person should do; empty if all is well."""

    what: str
    text: str
    advice: str = ""


@runtime_checkable
class Checkup(Protocol):
    """Optional, for a store that can report more than whether it works."""

    def checkup(self) -> tuple[Remark, ...]:
        """Looks at what may go wrong later, which may take seconds. Leaves nothing behind."""
