"""One session of a trial: started, watched and ended with the platform's own verbs.

Every wait has a name and a limit, and a line says what is waited for. Judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core import wire
from orchestrator.core.checkpoint import CheckpointRef, Manifest
from orchestrator.core.order import AgentStatus, Order, Result
from orchestrator.core.session import Sighting
from orchestrator.errors import NotFound, QuotaExhausted, Refused, Rejected, Transient
from orchestrator.platforms.kaggle.kernel import slug, timeout_seconds
from orchestrator.platforms.kaggle.memory import Known, Memory
from orchestrator.platforms.kaggle.options import KaggleOptions
from orchestrator.platforms.kaggle.outbox import KernelOutbox
from orchestrator.platforms.kaggle.platform import KagglePlatform
from orchestrator.platforms.platform import Sight
from orchestrator.platforms.trials.waiting import Unanswered, Waiting
from orchestrator.session.layout import INCARNATION, RESULT, STATUS
from orchestrator.session.outbox import Collected, collect
from orchestrator.session.staging import Materials

LAUNCHES_MAX = 4


@dataclass
class Stay:
    """A session by its order, with the options of its platform. It continues from the one `before`. `newest`
    is the newest checkpoint that was collected. `is_over`: whether Kaggle says that of a kernel.

    `told` is what its agent said last in the live log, at `told_at`. `looks` counts how often it was seen
    running. `is_hidden`: Kaggle took its kernel, and never showed it until the rest was removed.
    """

    order: Order
    options: KaggleOptions
    platform: KagglePlatform
    memory: Memory
    waiting: Waiting
    is_over: Callable[[str], bool]
    before: Stay | None = None
    newest: Manifest | None = None
    told: AgentStatus | None = None
    told_at: float = 0.0
    looks: int = 0
    is_hidden: bool = False
    _said: str = ""

    @property
    def session(self) -> str:
        return self.order.session

    @property
    def known(self) -> Known:
        return self.memory.of(self.session)

    @property
    def short(self) -> str:
        """Its name for a person, such as `s01`."""
        return self.session.rpartition("-")[2]

    @property
    def timeout(self) -> float:
        """The time-out that its push asks for."""
        return timeout_seconds(self.options, self.order)

    @property
    def own(self) -> str | None:
        """The newest checkpoint that it said it has saved itself."""
        name = None if self.told is None else self.told.checkpoint
        ref = None if name is None else CheckpointRef.parse(name)
        return name if ref is not None and ref.generation == self.order.generation else None

    @property
    def kernel(self) -> str:
        known = self.known
        return known.kernel or slug(self.session, max(1, known.attempt))

    @property
    def made(self) -> tuple[str, ...]:
        """What it may have on Kaggle: its kernel, if it was pushed, and its datasets."""
        known = self.known
        return (*([self.kernel] if known.pushed_at is not None else ()), *known.datasets)

    def start(self, materials: Materials, *, pause: float, tries: int = LAUNCHES_MAX) -> None:
        """Prepares and launches. A refusal that may pass is tried again after a pause."""
        for left in reversed(range(tries)):
            self.platform.prepare(self.order, materials)
            try:
                self.platform.launch(self.order)
            except QuotaExhausted:  # all slots are in use
                raise
            except (Refused, Transient, NotFound) as error:
                if not left:
                    raise
                self._say(f"{error}; trying again")
                self.waiting.pause(pause)
            else:
                return

    def look(self) -> Sight | None:
        """What is seen of it now; None if Kaggle does not say. Raises Transient."""
        try:
            sight = self.platform.observe([self.session]).get(self.session)
        except Transient as error:
            self._say(str(error))
            raise
        except Rejected as error:
            self._say(str(error))
            return None
        if sight is None:
            self._say("Kaggle does not show its status")
            return None
        self.looks += sight.sighting is Sighting.RUNNING
        self._listen(sight)
        step = "" if self.told is None or self.told.step is None else f", step {self.told.step}"
        detail = f": {sight.detail}" if sight.detail else ""
        self._say(f"{sight.sighting}{step}{detail}")
        return sight

    def _listen(self, sight: Sight) -> None:
        if sight.outbox is None or self.is_over(self.kernel):  # its log is not live any more
            return
        with suppress(ValueError):
            told = wire.decode(AgentStatus, sight.outbox.small(STATUS) or b"")
            if told != self.told:
                self.told, self.told_at = told, self.waiting.clock.monotonic()

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self.waiting.say(f"{self.short}: {text}")

    def until(self, what: str, seconds: float, done: Callable[[Sight], bool]) -> Sight:
        """Waits until a sight of it is `done`. Raises Late."""

        def look() -> Sight | None:
            sight = self.look()
            return sight if sight is not None and done(sight) else None

        return self.waiting.until(f"{self.short} {what}", seconds, look)

    def result(self, sight: Sight) -> Result | None:
        """What its agent left as the result, if it left one."""
        if sight.outbox is None:
            return None
        with suppress(ValueError):
            return wire.decode(Result, sight.outbox.small(RESULT) or b"")
        return None

    def collect(self, into: Path, seconds: float) -> Collected:
        """Brings all of its outbox here. Raises Late or Unanswered."""
        into.mkdir(parents=True, exist_ok=True)

        def bring() -> Collected | None:
            try:
                found = collect(self.platform.open(self.session), into, sync=False)
            except Transient as error:
                self._say(str(error))
                raise
            except NotFound as error:
                self._say(str(error))
                return None
            return None if found.more else found

        found = self.waiting.until(f"the output of {self.short}", seconds, bring)
        self.newest = found.manifests[-1] if found.manifests else None
        return found

    def outbox(self) -> KernelOutbox | None:
        """Its outbox if the session is over and Kaggle lists some of it. Raises Transient."""
        try:
            return self.platform.open(self.session)
        except Rejected:
            return None

    def keeps(self, checkpoint: str | None) -> bool:
        """Whether its output lists this checkpoint or a newer one; without a name, anything of its agent.
        Raises Transient."""
        outbox = self.outbox()
        if outbox is None or checkpoint is None:
            return outbox is not None and INCARNATION in outbox.names
        return any(name >= checkpoint for name in outbox.checkpoints())

    def remove(self, seconds: float) -> None:
        """Ends it, and removes what it left on Kaggle. Raises Late, and Unanswered as soon as Kaggle does not
        answer: a person who wants to end the trial should not wait for that."""

        def discarded() -> bool:
            try:
                self.platform.stop(self.session)  # whatever it says: nobody needs the output
                known = self.known  # `discard` forgets it
                self.platform.discard(self.session)
            except Transient as error:
                self._say(str(error))
                if error.retried:
                    raise Unanswered(str(error), operation="trial") from error
                raise
            self.is_hidden = known.accepted and not known.seen
            return True

        self.waiting.until(f"{self.short} to be deleted", seconds, discarded)
