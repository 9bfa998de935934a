"""Sends the ledger's notifications, in threads of its own: one that looks, and one for each target.

Decides in which order messages go, and when many become one. A target that hangs holds only its own thread.
What is sent and not yet recorded when the controller dies is sent again, with the same id. Must never be
waited for by a tick, nor hold an address longer than one attempt takes.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from orchestrator.clock import Clock
from orchestrator.core.delivery import (
    BURST,
    BURST_SECONDS,
    GATHERED_MIN,
    Answer,
    Delivery,
    State,
    pause_seconds,
    verdict,
)
from orchestrator.core.event import Event
from orchestrator.core.job import Job
from orchestrator.core.message import Digest, Message, digest, message
from orchestrator.core.notice import (
    Notice,
    Outgoing,
    Target,
    addressed,
    outgoing,
    quotas_low,
    schedule_missed,
)
from orchestrator.core.offer import Offer
from orchestrator.core.run import RunRecord
from orchestrator.errors import OrchestratorError
from orchestrator.ledger.notifications import Notifications, Row
from orchestrator.unforeseen import Unforeseen, raise_again

LOOK_SECONDS = 2.0
LANES_MAX = 32  # targets that are sent to at a time
ROWS_MAX = 2000  # of one target that become one message
TROUBLE_SECONDS = 30.0  # a target is left alone for so long after an error of ours, or of the ledger
PRUNE_SECONDS = 24 * 3600.0
PENDING_SECONDS = 900.0  # a controller that leaves when it is idle waits for news that are younger
LEAVE_SECONDS = 3.0  # for the attempts under way when the controller leaves

Send = Callable[[str, Message], Delivery]


@dataclass
class _Lane:
    """What is known of a target since this controller started. Times by the monotonic clock."""

    busy: bool = False
    until: float = 0.0  # left alone before
    failures: int = 0  # in a row
    ended: deque[float] = field(default_factory=lambda: deque(maxlen=BURST))  # the latest messages
    rested: bool = False  # after many messages; what came meanwhile is gathered
    retried: float | None = None  # when a person last wanted it to be tried at once; once is enough

    def lift(self, retried: float) -> None:
        """Ends its pause: a person says that it works again."""
        self.retried, self.until, self.failures = retried, 0.0, 0
        self.ended.clear()


class Notifier:
    """`address` looks a target's address up, by its name or a job's reference; it may raise an error of ours,
    which says what to do. `send` tries once, and raises nothing."""

    def __init__(
        self,
        notifications: Notifications,
        targets: Sequence[Target],
        address: Callable[[str], str],
        send: Send,
        clock: Clock,
        say: Callable[[str], None],
        unforeseen: Unforeseen = raise_again,
    ) -> None:
        self._notifications = notifications
        self._targets = tuple(targets)
        self._address = address
        self._send = send
        self._clock = clock
        self._say = say
        self._unforeseen = unforeseen
        self._lock = threading.Lock()
        self._lanes: dict[str, _Lane] = {}
        self._quotas: queue.SimpleQueue[tuple[Outgoing, ...]] = queue.SimpleQueue()
        self._told: set[str] = set()  # the ids of quotas that were low
        self._wake = threading.Event()
        self._stirred_at = -PENDING_SECONDS  # when a row was made last, by the monotonic clock
        self._waits = True  # whether rows younger than PENDING_SECONDS waited at the last look
        self._pruned_at: float | None = None
        self._leaving = self._gone = False

    # --- For the tick: nothing here blocks --------------------------------------------------------------

    def notices(self, before: RunRecord, event: Event, after: RunRecord) -> tuple[Outgoing, ...]:
        """The rows that the event makes, for the ledger to write with it. A bug here holds no run."""
        try:
            rows = outgoing(before, event, after, self._targets)
        except Exception as error:  # noqa: BLE001 the barrier: told, and the event is journalled without
            self._unforeseen(f"wording a notification of {after.run}", error)
            return ()
        if rows:
            self._stir()
        return rows

    def surveyed(self, offers: Sequence[Offer], now: float) -> None:
        """A platform has answered with these offers."""
        try:
            low = tuple(quotas_low(offers, now))
        except Exception as error:  # noqa: BLE001 the barrier: told, and the offers are used
            self._unforeseen("looking for low quotas", error)
            return
        for notice, window in low:
            rows = addressed(notice, self._targets, None, notice.platform, window)
            fresh = tuple(row for row in rows if row.id not in self._told)
            if fresh:
                self._told.update(row.id for row in fresh)
                self._quotas.put(fresh)
                self._stir()

    def missed(
        self, schedule: str, job: Job, planned: float, now: float, reason: str
    ) -> tuple[Outgoing, ...]:
        """The rows for a start of the schedule that did not happen, to write in the same transaction."""
        notice = schedule_missed(schedule, job.name, planned, now, reason)
        rows = addressed(notice, self._targets, job.notify, schedule, repr(planned))
        if rows:
            self._stir()
        return rows

    def _stir(self) -> None:
        self._stirred_at = self._clock.monotonic()
        self._wake.set()

    def pending(self) -> bool:
        """Whether something new waits to be sent, for which a controller that is idle should stay."""
        stirred = self._clock.monotonic() - self._stirred_at < 2 * LOOK_SECONDS  # committed and seen by then
        return stirred or self._waits

    # --- The thread that looks --------------------------------------------------------------------------

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Sends while the context is open. Leaving it waits for attempts under way, LEAVE_SECONDS at most."""
        thread = threading.Thread(target=self._work, name="notifying", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._leaving = True
            self._wake.set()
            thread.join(LEAVE_SECONDS)
            never, ends = threading.Event(), self._clock.monotonic() + LEAVE_SECONDS
            while self._busy() and self._clock.monotonic() < ends:
                self._clock.wait(never, 0.05)
            self._gone = True
            if self._waits_still(asked=not thread.is_alive()):
                self._say("notifications wait to be sent; the next controller sends them")

    def _waits_still(self, asked: bool) -> bool:
        """Whether rows wait as the controller leaves: the last look may be older than the last message."""
        if asked:  # else the ledger does not answer, and asking would wait for it too
            with contextlib.suppress(OrchestratorError, OSError):
                self._waits = self._notifications.waiting_since(self._clock.now() - PENDING_SECONDS)
        return self._waits

    def _work(self) -> None:
        while not self._leaving:
            self._wake.clear()
            try:
                self._look()
            except (OrchestratorError, OSError):
                pass  # the ledger does not answer, which the controller itself says
            except Exception as error:  # noqa: BLE001 the barrier: told, and looked again
                self._unforeseen("looking for notifications", error)
            self._clock.wait(self._wake, LOOK_SECONDS)

    def _look(self) -> None:
        now, monotonic = self._clock.now(), self._clock.monotonic()
        if self._pruned_at is None or monotonic - self._pruned_at >= PRUNE_SECONDS:
            self._notifications.prune(now)
            self._pruned_at = monotonic
        self._post_quotas()
        due = self._notifications.due(now)
        retried = self._notifications.retried()
        for target in sorted(due, key=lambda each: (due[each], each)):
            self._start(target, retried.get(target), monotonic)
        self._waits = self._notifications.waiting_since(now - PENDING_SECONDS)

    def _post_quotas(self) -> None:
        while not self._quotas.empty():
            rows = self._quotas.get_nowait()
            try:
                self._notifications.post(rows)
            except BaseException:
                self._quotas.put(rows)
                raise

    def _start(self, target: str, retried: float | None, monotonic: float) -> None:
        with self._lock:
            lane = self._lanes.setdefault(target, _Lane())
            if lane.busy:
                return
            if retried is not None and retried != lane.retried:
                lane.lift(retried)
            if lane.until > monotonic or self._count() >= LANES_MAX:
                return
            lane.busy = True
        thread = threading.Thread(target=self._serve, args=(target, lane), name="sending", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # this machine has no thread left
            lane.busy = False

    def _busy(self) -> bool:
        with self._lock:
            return self._count() > 0

    def _count(self) -> int:
        return sum(lane.busy for lane in self._lanes.values())

    # --- The thread of a target -------------------------------------------------------------------------

    def _serve(self, target: str, lane: _Lane) -> None:
        try:
            self._send_due(target, lane)
        except (OrchestratorError, OSError):
            lane.until = self._clock.monotonic() + TROUBLE_SECONDS
        except Exception as error:  # noqa: BLE001 the barrier: told, and the target is tried again
            self._unforeseen(f"sending notifications to {target}", error)
            lane.until = self._clock.monotonic() + TROUBLE_SECONDS
        finally:
            lane.busy = False
            self._wake.set()

    def _send_due(self, target: str, lane: _Lane) -> None:
        """Sends one message after the other, until one fails, none is due, or there were many lately."""
        while not self._leaving and not self._rests(lane):
            rows = self._notifications.due_of(target, self._clock.now(), ROWS_MAX)
            if not rows:
                lane.rested = False
                return
            if gathered := self._to_gather(lane, rows):
                self._gather(gathered)
                lane.rested = False
                continue
            found = self._attempt(rows[0])
            if self._gone:
                return  # the ledger is closed; it is sent again, with the same id
            self._record(rows[0], lane, found)
            if found.answer is Answer.LATER:
                return

    def _rests(self, lane: _Lane) -> bool:
        """Whether there were so many messages lately that the next ones are gathered first."""
        monotonic = self._clock.monotonic()
        if len(lane.ended) == BURST and monotonic - lane.ended[0] < BURST_SECONDS:
            lane.until, lane.rested = lane.ended[0] + BURST_SECONDS, True
            return True
        return False

    def _to_gather(self, lane: _Lane, rows: Sequence[Row]) -> list[Row]:
        """The rows that become one message. What was tried before may have arrived, so it keeps its id."""
        fresh = [row for row in rows if row.attempts == 0 and isinstance(row.body, Notice)]
        return fresh if len(fresh) >= (2 if lane.rested else GATHERED_MIN) else []

    def _gather(self, rows: Sequence[Row]) -> None:
        told = [Outgoing(row.id, row.target, row.body) for row in rows if isinstance(row.body, Notice)]
        identity, one = digest(told, self._clock.now())
        self._notifications.gather(rows, identity, one)

    def _attempt(self, row: Row) -> Delivery:
        if row.damaged:
            return Delivery(Answer.NEVER, row.damaged)
        if not isinstance(row.body, Notice | Digest):
            return Delivery(Answer.NEVER, "this version cannot read it: update the orchestrator")
        try:
            return self._send(self._address(row.target), message(row.id, row.body))
        except (OrchestratorError, OSError) as error:
            return Delivery(Answer.LATER, str(error))
        except Exception as error:  # noqa: BLE001 the barrier: told, and the other messages go on
            self._unforeseen(f"sending a notification to {row.target}", error)
            return Delivery(Answer.LATER, f"unexpected error ({type(error).__name__})")

    def _record(self, row: Row, lane: _Lane, found: Delivery) -> None:
        now, monotonic = self._clock.now(), self._clock.monotonic()
        becomes = verdict(row.id, row.created_at, row.attempts + 1, found, now)
        self._notifications.attempted(row, becomes, now)
        if becomes.state is State.DEAD:
            self._say(f"a notification to {row.target} is given up: {becomes.error}")
        if found.answer is not Answer.LATER:
            if lane.failures and found.answer is Answer.SENT:
                self._say(f"notifications to {row.target} can be sent again")
            lane.failures = 0
            lane.ended.append(monotonic)
            return
        if not lane.failures:
            self._say(f"a notification to {row.target} is not delivered, trying again: {becomes.error}")
        lane.failures += 1
        lane.until = monotonic + pause_seconds(row.id, lane.failures, found.wait_seconds)
