"""What becomes of every run: a scene → a forecast for each. Pure."""

from __future__ import annotations

from orchestrator.core.forecast import forecast, view
from orchestrator.core.foreseen import Forecast
from orchestrator.core.offer import Offer
from orchestrator.core.run import RunRecord
from orchestrator.core.scene import Scene, Watched


def foresee(scene: Scene) -> dict[str, Forecast]:
    """The forecast of every run of which enough is known."""
    found = {}
    offers = {(offer.platform, offer.accelerator): offer for offer in scene.case.offers}
    for record in scene.running:
        expected = _running(scene, record, offers)
        if expected is not None:
            found[record.run] = expected
    return found


def _running(scene: Scene, record: RunRecord, offers: dict[tuple[str, str], Offer]) -> Forecast | None:
    if record.session is None:
        return None
    order = record.session.order
    watched = scene.watched.get(record.run) or Watched(record.run)
    return forecast(
        view(
            record, offers.get((order.platform, order.accelerator)),
            scene.measurements.get(record.job.name, ()), scene.now,
            pace=watched.pace, status=watched.status, turn=watched.turn,
        )
    )  # fmt: skip
