"""What a session gets so that it can open the run's home store itself. Values only.

A store that sessions may open says so with `Portability`. Must never hold more than the narrowest credential
that works: what is in here leaves this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class Portable:
    """A store as a session opens it.

    `type` and `options` are like those in the config, with every reference resolved and every path absolute;
    `secret` holds the options that nobody may see. `packages` names the lists of packages that must be
    installed before it can be opened. `this_machine`: it can only be opened on the controller's own machine,
    because it is a folder or a server on loopback. `recipients`: objects are encrypted for these.
    """

    type: str
    options: Mapping[str, str] = field(default_factory=dict)
    secret: Mapping[str, str] = field(default_factory=dict, repr=False)
    packages: tuple[str, ...] = ()
    this_machine: bool = False
    recipients: tuple[str, ...] = ()


@runtime_checkable
class Portability(Protocol):
    """Optional, for a store that sessions can open."""

    def portable(self) -> Portable:
        """What a session needs to open this store. Raises Rejected with the reason and the remedy if this
        instance cannot be given away, such as one whose credential must not leave this machine."""


@runtime_checkable
class Placed(Protocol):
    """Optional, for a store that can tell where it is."""

    @property
    def this_machine(self) -> bool:
        """Whether it can only be opened on the controller's own machine, as in `Portable`. Reads no
        credential, and asks nobody."""


def is_on_this_machine(store: object) -> bool:
    """The same; False for a store that cannot tell."""
    return isinstance(store, Placed) and store.this_machine
