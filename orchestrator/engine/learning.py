"""What a session's end teaches: how fast its training was, and for how long its platform let it run.

Stores both in the ledger; the estimates of later sessions are based on them. Decides nothing.
"""

from __future__ import annotations

from orchestrator.core.draft import Inputs
from orchestrator.core.event import Ended
from orchestrator.core.lifetimes import lifetime
from orchestrator.core.run import RunRecord
from orchestrator.core.session import Session
from orchestrator.core.speed import Measurement
from orchestrator.core.watch import Watch
from orchestrator.engine.market import Market
from orchestrator.ledger import Ledger


def learn(ledger: Ledger, market: Market, record: RunRecord, ended: Ended, inputs: Inputs) -> None:
    """Learns from the end of the session that the record had before this decision."""
    session = record.session
    if session is None:
        return
    rate = _rate(session, inputs.watch, inputs.now)
    if rate is not None:
        ledger.add_measurement(record.job.name, rate)
    observation = inputs.watch.observation if inputs.watch else None
    reported = observation is not None and observation.result is not None
    lived = lifetime(session, ended, reported=reported, forgone=record.forgone or record.discard)
    if lived is not None:
        place = session.order.platform, session.order.accelerator
        ledger.add_lifetime(*place, lived)
        market.losses.add(place, lived)


def _rate(session: Session, watch: Watch | None, now: float) -> Measurement | None:
    """The measured rate, which takes precedence over every estimate."""
    status = watch.observation.status if watch and watch.observation else None
    if status is None or not status.steps_per_second or session.started_at is None:
        return None
    order = session.order
    return Measurement(
        accelerator=order.accelerator,
        precision=order.precision,
        micro_batch=order.micro_batch,
        samples_per_second=status.steps_per_second * order.global_batch,
        seconds=max(1.0, now - session.started_at),
        at=now,
        step=order.resume_step if status.step is None else status.step,  # it is the rate of the last steps
        own=order.own,
    )
