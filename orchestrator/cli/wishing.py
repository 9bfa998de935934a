"""`cancel`, `hold` and `release`: a user's wish, noted in the ledger; the controller grants it."""

from __future__ import annotations

from orchestrator.cli import controlling
from orchestrator.cli.call import Call, Exit
from orchestrator.cli.story import short_session
from orchestrator.core.event import Wish, Wished
from orchestrator.core.lifecycle import Phase
from orchestrator.core.run import RunRecord
from orchestrator.core.wording import span
from orchestrator.errors import AccessDenied, InputError
from orchestrator.ledger import Ledger


def cancel(call: Call) -> int:
    """Ends a run. Of a run that is over, or being cancelled, says so."""
    return _wish(call, Wish.CANCEL)


def hold(call: Call) -> int:
    """Lets a run save, leave its session, and wait for `release`."""
    return _wish(call, Wish.HOLD)


def release(call: Call) -> int:
    """Lets a held run go on; takes back a hold that is not done yet."""
    return _wish(call, Wish.RELEASE)


def _wish(call: Call, wish: Wish) -> int:
    discard = wish is not Wish.RELEASE and call.options.discard
    with call.home.runs() as ledger:
        record = ledger.record(ledger.find(call.options.run))
        granted = _granted(record, wish)
        if granted is None:
            if wish is not Wish.RELEASE and not discard:
                _refuse_loss(record, wish, call)
            if record.wish is not wish or record.fault or (discard and not record.discard):
                record = ledger.wish(record.run, Wished(call.clock.now(), wish, discard))
        if not record.phase.final and (granted is None or record.wish is not None):
            _ensure(call, ledger)
    text = granted or _asked_text(record, wish, call)
    call.out.document({"run": record.run, "phase": record.standing, "wish": record.wish,
                       "changed": granted is None, "text": text})  # fmt: skip
    call.out.say(f"{record.run} {text}")
    return Exit.OK


def _granted(record: RunRecord, wish: Wish) -> str | None:
    """In words, why there is nothing to ask for; None where there is. InputError for a wish in vain."""
    phase = record.standing
    if phase.final:
        if wish is Wish.CANCEL:
            return f"is {phase.value} already"
        raise InputError(f"{record.run} is {phase.value}: there is nothing to {wish.value}")
    if record.wish is Wish.CANCEL and wish is not Wish.CANCEL and not record.fault:
        raise InputError(f"{record.run} is being cancelled: there is nothing to {wish.value}")
    if wish is Wish.HOLD and phase is Phase.HELD and record.wish is None:
        return f"is held already: {record.standing_reason}"
    if wish is Wish.RELEASE and phase is not Phase.HELD and record.wish is None:
        return f"is not held; it is {phase.value}"
    return None


def _refuse_loss(record: RunRecord, wish: Wish, call: Call) -> None:
    """A session that is not durable mid-run is not stopped without a word about what is lost."""
    session = record.session
    if session is None or session.traits.durable_mid_run or record.discard or session.launched_at is None:
        return
    if record.phase not in (Phase.LAUNCHING, Phase.RUNNING):
        return
    since = session.runs_since or session.launched_at
    raise AccessDenied(
        f"{session.order.platform} brings nothing before a session ends: to {wish.value} {record.run} now "
        f"would lose {span(max(0.0, call.clock.now() - since))} of work in {session.name}.\n"
        f"To {wish.value} it nevertheless: {call.command(wish.value, record.run, '--discard')}"
    )


def _asked_text(record: RunRecord, wish: Wish, call: Call) -> str:
    show = call.command("show", record.run)
    if wish is Wish.RELEASE:
        return "goes on"
    end = "ends" if wish is Wish.CANCEL else "is held"
    session = record.session
    if session is None:
        return f"{end} now; its checkpoints stay"
    if record.phase is Phase.PREPARING:
        return f"{end} before session {short_session(session.name)} is launched; see `{show}`"
    if record.discard and not session.traits.durable_mid_run:
        return f"{end} once session {short_session(session.name)} is given up with all it did; see `{show}`"
    return f"{end} once session {short_session(session.name)} has saved and left; see `{show}`"


def _ensure(call: Call, ledger: Ledger) -> None:
    if ledger.owner() is None:
        controlling.ensure(call.home, call.clock, ledger)
        call.out.remark("no controller ran: one is started in the background")
