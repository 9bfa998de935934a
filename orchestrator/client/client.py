"""The one door: every question and every wish of a front end is a method here, and each method is short.

Imports lazily, so that a program that only lists runs loads neither the config nor any platform. Must never
print, parse arguments or exit.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from orchestrator.client.home import Home
from orchestrator.clock import Clock, SystemClock

if TYPE_CHECKING:
    from orchestrator.client.wiring import Wired


class Client:
    """One user's orchestrator: the runs of one home.

    `home` defaults to `$ORCHESTRATOR_HOME`, else the user's data folder; it need not exist yet. Raises
    InputError where it names a file. Threads may share a client: it holds no connection of its own.
    """

    def __init__(
        self, home: Home | str | os.PathLike[str] | None = None, *, clock: Clock | None = None
    ) -> None:
        self.home = home if isinstance(home, Home) else Home.of(os.fspath(home) if home is not None else None)
        self.clock: Clock = clock or SystemClock()

    def wired(self) -> Wired:
        """The user's platforms and stores. Raises SpecError or InputError for what is wrong in the config."""
        from orchestrator.client.wiring import Wired

        return Wired.from_home(self.home.path, self.clock)
