"""What a job would take on accelerators that the user does not have: `plan JOB --on T4x2`.

Decides which machine is assumed for an accelerator, and says so. The estimate is the router's own, on one
assumed offer. Asks no platform and writes nothing, and no routing ever sees what is assumed here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import spec
from orchestrator.client import routing
from orchestrator.core import route as routes
from orchestrator.core.accelerators import catalogue
from orchestrator.core.job import Job, Kind
from orchestrator.core.offer import Choice, Offer, Rejection, Traits
from orchestrator.core.wording import span, unknown
from orchestrator.errors import InputError
from orchestrator.platforms.kaggle.options import KaggleOptions

if TYPE_CHECKING:
    from orchestrator.client.client import Client

ASSUMED = "assumed"  # the platform's name, where there is no platform
KAGGLE = "kaggle"


@dataclass(frozen=True)
class Imagined:
    """The estimate for one accelerator. `assumed`: of what machine. `choice` None: it cannot run there, for
    the `reason`. `known`: the rate comes from a measurement, a claim or a bound; otherwise nobody knows how
    long it takes."""

    accelerator: str
    assumed: str
    choice: Choice | None = None
    known: bool = False
    reason: str = ""


def imagine(client: Client, job: str | os.PathLike[str], accelerators: Iterable[str]) -> tuple[Imagined, ...]:
    """See `Ahead.on`."""
    names = tuple(dict.fromkeys(accelerators))
    for name in names:
        if name not in catalogue:
            raise InputError(f"--on {name}: {unknown(f'accelerator {name!r}', name, catalogue)}")
    parsed = spec.load(Path(job)).job
    given = replace(parsed, route=replace(parsed.route, platforms=(), rules=()))
    now = client.clock.now()
    with client.ledgers.existing() as ledger:
        measurements = routing.measured(ledger, given)
    found = []
    for name in names:
        offer, assumed = _assumed(name)
        route = routes.route(given, [offer], now=now, measurements=measurements, allow_over_horizon=True)
        found.append(_imagined(given, name, assumed, route.chosen, route.rejections))
    return tuple(found)


def _imagined(
    job: Job, name: str, assumed: str, choice: Choice | None, rejections: tuple[Rejection, ...]
) -> Imagined:
    if choice is None:
        return Imagined(name, assumed, reason="; ".join(each.reason for each in rejections))
    return Imagined(name, assumed, choice, routing.rate_is_known(choice, job))


def _assumed(accelerator: str) -> tuple[Offer, str]:
    """A machine with this accelerator, and what is assumed of it."""
    limits = KaggleOptions()
    is_tpu = catalogue[accelerator].kind is Kind.TPU
    if accelerator in limits.accelerators and catalogue[accelerator].kind is not Kind.CPU:
        seconds = limits.tpu_session_seconds if is_tpu else limits.session_seconds
        traits = _traits(seconds, limits.wall_margin_seconds, limits.setup_seconds)
        return Offer(
            KAGGLE, accelerator, traits
        ), f"Kaggle: sessions of {span(seconds)}; its quota is not counted"
    return Offer(ASSUMED, accelerator, _traits()), "a machine that is always there, without a session limit"


def _traits(seconds: float | None = None, margin: float = 0.0, setup: float = 10.0) -> Traits:
    return Traits(
        session_seconds=seconds, wall_margin_seconds=margin, setup_seconds=setup, internet=True,
        custom_images=True,
    )  # fmt: skip
