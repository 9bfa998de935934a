"""`cancel`, `hold` and `release`: records a user's wish in the ledger; the controller grants it.

Decides which wish is impossible, which is already granted, and which would lose work without consent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from orchestrator.client import live
from orchestrator.core import needs
from orchestrator.core.closing import PLATFORMS_DOING
from orchestrator.core.durable import is_durable
from orchestrator.core.event import Ended, Wished
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.core.offer import Uplink
from orchestrator.core.run import RunRecord
from orchestrator.core.wording import span
from orchestrator.errors import InputError, WorkWouldBeLost

if TYPE_CHECKING:
    from orchestrator.client.client import Client
    from orchestrator.ledger import Stored


class Then(StrEnum):
    """What happens next, for a wish."""

    NOTHING = "nothing"  # the wish was granted already
    AT_ONCE = "at once"  # there is no session to end
    UNLAUNCHED = "unlaunched"  # granted before its session is launched
    SAVED = "saved"  # granted once its session has saved and left
    REGAINED = "regained"  # granted once the config has again what the run needs
    AWAITED = "awaited"  # a release: what its session left is awaited again, because it was not given up
    MENDED = "mended"  # a release: its damaged row in the ledger was written again
    ABANDONED = "abandoned"  # at once: its session is given up, because the config lacks what it needs
    GIVEN_UP = "given up"  # granted once its session is dropped, with its work since its last checkpoint


@dataclass(frozen=True)
class WishAnswer:
    """The answer to a wish. If `changed` is False, it was granted already, and `reason` says why.

    `phase` is the run's present phase. `wish` is what the controller has yet to grant, and `then` is when it
    will. `session` has to end first; it is empty if there is none. `missing` is what the config
    must have again first, such as `store 'home'`. `left_on`: the platforms that the config no longer has and
    where something of the run stays.
    """

    run: str
    changed: bool
    phase: Phase
    wish: Wish | None
    then: Then
    session: str = ""
    reason: str = ""
    controller_started: bool = False
    missing: tuple[str, ...] = ()
    left_on: tuple[str, ...] = ()


def wish(client: Client, run: str, wish: Wish, *, discard: bool = False) -> WishAnswer:
    """Records the wish, unless it is already granted, and makes sure that a controller runs to grant it.

    Raises InputError for an impossible wish, and WorkWouldBeLost if it would lose work without `discard`.
    """
    started = False
    with client.ledgers.runs() as ledger:
        mended = ledger.mend(run, client.clock.now())
        before = record = ledger.record(run)
        if mended and wish is Wish.RELEASE and record.phase is not Phase.HELD:
            return WishAnswer(run, True, record.standing, record.wish, Then.MENDED)
        if wish is Wish.RELEASE and discard and not record.awaits:
            raise InputError(f"{run} does not wait for what a session left: release it without --discard")
        if wish is Wish.RELEASE and record.phase is Phase.FAILED and record.wish is None:
            _check_revival(record, ledger.history(run))
        granted = _is_granted(record, wish)
        missing = () if granted else record.missing
        if not granted:
            if wish is not Wish.RELEASE and not discard:
                _refuse_loss(client, record, wish)
            if record.wish is not wish or record.fault or (discard and not record.discard):
                record = ledger.wish(run, Wished(client.clock.now(), wish, discard))
        is_over = record.phase.final and record.wish is not Wish.RELEASE
        if not is_over and (not granted or record.wish is not None) and ledger.owner() is None:
            from orchestrator.client import controlling

            started = controlling.ensure(client.home, client.clock, ledger) is None
    session = record.session.name if record.session is not None else ""
    left_on: tuple[str, ...] = ()
    if granted:
        then = Then.NOTHING
    elif missing and record.wish is Wish.CANCEL and record.discard:
        then = Then.ABANDONED if needs.ends_at_once(record, missing) else _then(client, record, wish, before)
        missing, left_on = (), needs.left_there(record, missing)
    else:
        then = Then.REGAINED if missing else _then(client, record, wish, before)
    reason = record.standing_reason
    return WishAnswer(
        run, not granted, record.standing, record.wish, then, session, reason, started, missing, left_on
    )


def _is_granted(record: RunRecord, wish: Wish) -> bool:
    """Whether the wish is already granted. Raises InputError for an impossible wish."""
    phase = record.standing
    if phase.final:
        if wish is Wish.CANCEL:
            return record.wish is None
        if wish is Wish.RELEASE and phase is Phase.FAILED:
            return record.wish is Wish.RELEASE
        raise InputError(f"{record.run} is {phase.value}: there is nothing to {wish.value}")
    stands = record.stands and not record.missing
    if record.wish is Wish.CANCEL and wish is not Wish.CANCEL and not stands:
        raise InputError(f"{record.run} is being cancelled: there is nothing to {wish.value}")
    if (record.missing or record.awaits is not None) and record.phase is not Phase.HELD:
        return False  # it is held only until the config has it again, or until what it awaits is there
    held = phase is Phase.HELD
    return record.wish is None and ((wish is Wish.HOLD and held) or (wish is Wish.RELEASE and not held))


def _check_revival(record: RunRecord, history: Iterable[Stored]) -> None:
    """Raises InputError unless a platform, not the job, was the reason why the run failed."""
    ends = [stored.event for stored in history if isinstance(stored.event, Ended)]
    if not ends or ends[-1].outcome not in PLATFORMS_DOING:
        raise InputError(
            f"{record.run} failed by its own doing: `orchestrator why {record.run}` says how; fix it, then "
            f"`orchestrator retry {record.run} JOB`"
        )


def _refuse_loss(client: Client, record: RunRecord, wish: Wish) -> None:
    """Raises WorkWouldBeLost if stopping the session would lose work that is not durable mid-run."""
    session = record.session
    if session is None or record.discard or session.launched_at is None:
        return
    reading = live.read(client.home.folders, record.run, session.name)
    if is_durable(session.traits, None if reading is None else reading.observation.status):
        return
    if record.awaits is not None:
        return  # the wish is granted when what is awaited is there
    if record.phase not in (Phase.LAUNCHING, Phase.RUNNING):
        return
    now, since = client.clock.now(), session.runs_since or session.launched_at
    seconds = max(0.0, now - since)
    loss = f"{span(seconds)} of work in {session.name} are lost"
    why = f"{session.order.platform} returns nothing before a session ends"
    if session.traits.uplink is Uplink.STORE:
        heard = reading is not None and reading.observation.status is not None
        why = (
            f"{session.name} has not shipped its newest work to the home store"
            if heard
            else f"nothing was heard from {session.name} yet"
        )
    if reading is not None and reading.saves:
        seconds = max(0.0, min(now, session.wall_at or now) - since)
        loss = f"what {session.name} left is lost, up to {span(seconds)} of work"
        why = f"{session.name} is over, and {session.order.platform} still saves what it left"
    raise WorkWouldBeLost(
        f"{why}: if you {wish.value} {record.run} now, {loss}.",
        run=record.run,
        session=session.name,
        seconds=seconds,
    )


def _then(client: Client, record: RunRecord, wish: Wish, before: RunRecord) -> Then:
    session = record.session
    if before.awaits is not None and not record.forgone and not record.discard:
        return Then.AWAITED
    if wish is Wish.RELEASE or session is None:
        return Then.AT_ONCE
    if record.phase is Phase.PREPARING:
        return Then.UNLAUNCHED
    if not record.discard:
        return Then.SAVED
    reading = live.read(client.home.folders, record.run, session.name)
    status = None if reading is None else reading.observation.status
    return Then.SAVED if is_durable(session.traits, status) else Then.GIVEN_UP
