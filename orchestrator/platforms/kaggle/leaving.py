"""What an ended kernel has left: whether all of it is there yet, and how the session ended.

Kaggle shows outputs late, in parts, or not at all (docs/references/kaggle.md#output). What is incomplete is
looked at again, ever more rarely. Deletes nothing, and decides nothing about the run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from orchestrator.clock import Clock
from orchestrator.core.order import Outcome
from orchestrator.core.session import Sighting
from orchestrator.errors import BackendError, NotFound
from orchestrator.files import Odd
from orchestrator.platforms.kaggle import endings
from orchestrator.platforms.kaggle.client import KaggleClient
from orchestrator.platforms.kaggle.endings import COMPLETE
from orchestrator.platforms.kaggle.kernel import page
from orchestrator.platforms.kaggle.logs import Told, checkpoint_of
from orchestrator.platforms.kaggle.memory import Memory
from orchestrator.platforms.kaggle.options import KaggleOptions
from orchestrator.platforms.kaggle.outbox import KernelOutbox
from orchestrator.platforms.kaggle.values import Status
from orchestrator.platforms.platform import Sight
from orchestrator.session.layout import INCARNATION, RESULT, STATUS

_LOOKS = 4  # the longest pause is this part of the time that output is waited for
_PAUSE_SECONDS_MAX = 900.0


@dataclass
class _Wait:
    """How long an ended session has been waited for, when to look next, and what was seen last. Times are
    monotonic seconds. `settled`: the list did not change any more, and had what the agent had told of."""

    since: float
    pause: float
    look_at: float
    last: Sight
    names: frozenset[str] = frozenset()
    settled: bool = False


class Leavings:
    """The outputs of one account's ended kernels. Remembers in memory only how long it has waited."""

    def __init__(
        self, client: Callable[[], KaggleClient], memory: Memory, options: KaggleOptions, clock: Clock
    ) -> None:
        self._client = client
        self._memory = memory
        self._options = options
        self._clock = clock
        self._waits: dict[str, _Wait] = {}

    def sight(self, session: str, slug: str, status: Status, listen: Callable[[], Told]) -> Sight:
        """How the session ended, once that can be known; until then it is SAVING. `listen` returns what the
        session's runner has printed."""
        now = self._clock.monotonic()
        wait = self._waits.get(session)
        if wait is not None and now < wait.look_at:
            return wait.last
        waited, before = (0.0, None) if wait is None else (now - wait.since, wait.names)
        told = listen()
        seen, names, settled = self._look(session, slug, status, told, waited, before)
        if seen.sighting is not Sighting.SAVING:
            return seen
        seen = replace(seen, outbox=told.outbox, log=told.log, partial=True)
        if wait is None:
            pause = self._options.poll_seconds
            self._waits[session] = _Wait(now, pause, now + pause, seen, names)
        else:
            longest = min(_PAUSE_SECONDS_MAX, self._seconds(session) / _LOOKS)
            wait.pause = max(self._options.poll_seconds, min(2.0 * wait.pause, longest))
            wait.look_at, wait.last = now + wait.pause, seen
            wait.names, wait.settled = names, settled
        return seen

    def may_grow(self, session: str, slug: str, status: Status, listen: Callable[[], Told]) -> bool:
        """Whether more of the output may come, for a user who does not want to wait for what may never come:
        at most for `publish_seconds`, and only until the list has settled."""
        saving = self.sight(session, slug, status, listen).sighting is Sighting.SAVING
        if not saving:
            return False
        wait = self._waits[session]
        return not wait.settled and self._clock.monotonic() - wait.since < self._seconds(session)

    def forget(self, session: str) -> None:
        self._waits.pop(session, None)

    def must_come(self, session: str, status: Status) -> bool:
        """Whether an ended session has left something for certain, even if Kaggle does not show it, that is
        nowhere else: what was shipped is in the home store, except for the last minutes."""
        known = self._memory.of(session)
        return not known.shipped and (known.worked or status.state == COMPLETE)

    def _seconds(self, session: str) -> float:
        """How long to wait for what may never come."""
        late, unshipped = self._options.publish_seconds, self._options.unshipped_seconds
        return min(late, unshipped) if self._memory.of(session).shipped else late

    def _look(
        self,
        session: str,
        slug: str,
        status: Status,
        told: Told,
        waited: float,
        before: frozenset[str] | None,
    ) -> tuple[Sight, frozenset[str], bool]:
        """What it looks like after so many seconds, the files that are listed (`before`: at the last look),
        and whether that list has settled."""
        try:
            outbox = KernelOutbox(self._client(), slug)
        except NotFound:
            lists_none = f"Kaggle lists no output of {self._page(slug)}"
            over = self._memory.of(session).shipped and waited >= self._seconds(session)
            sighting = Sighting.ENDED if over else Sighting.SAVING
            return Sight(sighting, detail=lists_none), frozenset(), False
        names = outbox.names
        if INCARNATION in names:
            self._memory.note(session, worked=True)
        lacks = _lacking(outbox, status, told)
        listed = names == before if told.files is None else len(names - told.empty) >= told.files
        if RESULT in names and listed and not lacks:
            return self._ended(session, outbox), names, True
        settled = listed and not lacks and (told.status is not None or STATUS in names)
        if settled:  # a later list may be shorter
            self._memory.note(session, checkpoints=len(outbox.checkpoints()))
        if waited < self._seconds(session) or (lacks and self.must_come(session, status)):
            detail = f"{lacks or 'more may come'}; look at {self._page(slug)}"
            return Sight(Sighting.SAVING, detail=detail), names, settled
        if RESULT in names:
            return self._ended(session, outbox), names, True
        ending, detail = endings.how(
            status, outbox.log, self._options.session_seconds, self._client().quota()
        )
        return self._ended(session, outbox, ending, detail), names, True

    def _ended(
        self, session: str, outbox: KernelOutbox, ending: Outcome | None = None, detail: str = ""
    ) -> Sight:
        self._memory.note(session, checkpoints=len(outbox.checkpoints()))
        return Sight(Sighting.ENDED, outbox, ending, detail)

    def _page(self, slug: str) -> str:
        return page(self._client().username(), slug)


def _lacking(outbox: KernelOutbox, status: Status, told: Told) -> str:
    """What must be there and is not, in words; empty if nothing is known to be missing."""
    names = outbox.names
    if not names:
        return "its output is not visible yet"
    if status.state == COMPLETE and RESULT not in names:
        return "Kaggle reports it as complete, but its result is not visible yet"
    try:
        written = outbox.small(STATUS)
    except BackendError:
        return "its status cannot be read yet"
    except Odd:
        written = None
    for said in (told.status, written):
        newest = None if said is None else checkpoint_of(said)
        if newest is not None and not any(each >= newest for each in outbox.checkpoints()):  # or a newer one
            return f"its checkpoint {newest} is not visible yet"
    return ""
