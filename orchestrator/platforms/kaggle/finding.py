"""Finds a session's kernel, also if Kaggle gave it another slug or does not show its status.

Three places can show it: its status, what Kaggle answered to the push, and the account's own list of kernels.
A kernel is gone only if none of them does. Changes nothing on Kaggle, and never decides that a session is
over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.clock import Clock
from orchestrator.platforms.kaggle.client import KaggleClient
from orchestrator.platforms.kaggle.kernel import origin, slug
from orchestrator.platforms.kaggle.memory import Known, Memory
from orchestrator.platforms.kaggle.options import KaggleOptions
from orchestrator.platforms.kaggle.values import Listed, Status

_LIST_SECONDS_MAX = 60.0


def other_name(given: str, asked: str) -> str:
    """What a person should know if Kaggle chose the name."""
    return f"Kaggle calls its kernel {given!r}, although {asked!r} was asked for"


@dataclass(frozen=True)
class Found:
    """One look for a session's kernel. `status` is None if Kaggle does not give it; `listed`: the account's
    list still has the kernel. `slug` is its slug, or the one that its next push asks for."""

    slug: str
    status: Status | None
    listed: bool = False

    @property
    def gone(self) -> bool:
        return self.status is None and not self.listed


class Finder:
    """Looks for kernels of one account. `home` is the id of ours."""

    def __init__(
        self,
        client: Callable[[], KaggleClient],
        memory: Memory,
        options: KaggleOptions,
        clock: Clock,
        *,
        home: Callable[[], str],
    ) -> None:
        self._client = client
        self._memory = memory
        self._options = options
        self._home = home
        self._clock = clock
        self._keep_seconds = min(_LIST_SECONDS_MAX, options.poll_seconds)
        self._list: tuple[float, tuple[Listed, ...]] | None = None

    def find(self, session: str, *, fresh: bool = False) -> Found:
        """Looks once. `fresh`: do not use a list that was read a moment ago."""
        known = self._memory.of(session)
        name = known.kernel or slug(session, max(1, known.attempt))
        status = self._client().status(name)
        if status is not None:
            self._saw(session, known, name)
            return Found(name, status)
        found = self._listed(session, name, known, fresh=fresh)
        if found is None:
            return Found(name, None)
        if found == name:
            self._saw(session, known, name)
            return Found(name, None, listed=True)
        self._memory.tell(session, f"Kaggle calls its kernel {found!r} now, and no longer {name!r}"
                          if known.kernel else other_name(found, name))  # fmt: skip
        self._memory.note(session, kernel=found, seen=True)
        return Found(found, self._client().status(found), listed=True)

    def may_appear(self, known: Known) -> bool:
        """Whether a kernel that nothing shows was pushed so recently, by this or an earlier controller, that
        it may still appear. What Kaggle has accepted exists, so that is waited for longer."""
        seconds = self._options.absence_seconds if known.accepted else self._options.visibility_seconds
        return known.pushed_at is not None and abs(self._clock.now() - known.pushed_at) <= seconds

    def forget_list(self) -> None:
        """For a push: a list from before does not show its kernel."""
        self._list = None

    def _saw(self, session: str, known: Known, name: str) -> None:
        if not known.seen or known.kernel != name:
            self._memory.note(session, kernel=name, seen=True)

    def _listed(self, session: str, name: str, known: Known, *, fresh: bool) -> str | None:
        """The kernel's slug in the account's list: by its slug, by its number, or by the title that the push
        asked for. A title alone could be a copy, so it counts only if the kernel's text is ours, and as long
        as Kaggle has not named the kernel."""
        kernels = self._kernels(fresh)
        if any(each.slug == name for each in kernels):
            return name
        if known.kernel_id:
            return next((each.slug for each in kernels if each.id == known.kernel_id), None)
        if known.kernel:
            return None
        titled = (each.slug for each in kernels if each.title == name)
        return next((each for each in titled if self._is_ours(each, session)), None)

    def _is_ours(self, name: str, session: str) -> bool:
        return origin(self._client().source(name) or "") == (self._home(), session)

    def _kernels(self, fresh: bool) -> tuple[Listed, ...]:
        now = self._clock.monotonic()
        if fresh or self._list is None or now - self._list[0] >= self._keep_seconds:
            self._list = now, self._client().kernels()
        return self._list[1]
