"""Notices when the config has changed and can be used, for a controller that then starts anew with it."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.client.home import Home
from orchestrator.client.wiring import Wired
from orchestrator.clock import Clock
from orchestrator.config import Config
from orchestrator.errors import OrchestratorError
from orchestrator.unforeseen import Reporter

_UNUSABLE = "the config has changed and cannot be used"
_DEFAULTS = "to go on with the defaults instead, run `orchestrator down`, then `orchestrator up`"
SETTLED_SECONDS = 1.0  # a file that has not changed for this long is complete


class ConfigChanges:
    """Returns, when called, whether the config has changed and can be used.

    A wrong config is reported once, and the controller continues with the old one. A file that is still being
    written does not count yet, because half of a file may be a valid config, too. A file that is gone or
    empty counts as wrong, because it is more often a mistake or a slow editor than a wish for the defaults,
    which know none of the user's platforms. `used`: the config that the controller has.
    """

    def __init__(
        self,
        home: Home,
        used: Config,
        clock: Clock,
        say: Callable[[str], None],
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self._home = home
        self._clock = clock
        self._say = say
        self._warn = warn or say
        self._unforeseen = Reporter(self._warn)
        self._was_empty = _is_empty(used)
        self._used = self._seen = self._newest = self._stamp()
        self._newest_at = clock.monotonic()

    def _stamp(self) -> tuple[int, int] | None:
        try:
            found = self._home.folders.config.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size

    @property
    def unread(self) -> bool:
        """Whether the file has changed and the change has not been looked at yet."""
        return self._stamp() != self._seen

    def __call__(self) -> bool:
        stamp, now = self._stamp(), self._clock.monotonic()
        if stamp != self._newest:
            self._newest, self._newest_at = stamp, now
        if stamp == self._seen or now - self._newest_at < SETTLED_SECONDS:
            return False
        self._seen = stamp
        if stamp == self._used and stamp is not None:
            self._say("the config is the old one again")
            return False
        try:
            wired = Wired.from_home(self._home.path, self._clock)
            if _is_empty(wired.config):
                self._tell_empty()
                return False
            wired.backends()
        except OrchestratorError as error:
            self._warn(f"{_UNUSABLE}; continuing with the old one:\n{error}")
            return False
        except Exception as error:  # noqa: BLE001 the barrier: told, and the old config still works
            self._warn(f"{_UNUSABLE}; continuing with the old one")
            self._unforeseen("reading the changed config", error)
            return False
        self._say("the config has changed")
        return True

    def _tell_empty(self) -> None:
        """A controller that has the defaults already goes on with them, and there is nothing to tell."""
        if not self._was_empty:
            path = self._home.folders.config
            told, advice = (
                ("has no settings", "fill it again") if path.exists() else ("is gone", "put it back")
            )
            self._warn(f"{_UNUSABLE}; continuing with the old one: {path} {told}: {advice}; {_DEFAULTS}")


def _is_empty(config: Config) -> bool:
    """Whether there is no file, or one without a single key, such as one with comments only."""
    return not config.document.tree
