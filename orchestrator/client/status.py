"""How runs are doing: the ledger's summary of each, with the newest reading of its session.

Starts fast: reads no record and no config.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.client.progress import Progress, progress
from orchestrator.core.lifecycle import FINAL, Phase
from orchestrator.errors import InputError
from orchestrator.ledger import Damaged, RunSummary

if TYPE_CHECKING:
    from orchestrator.client.client import Client
    from orchestrator.core.event import ActionFailed
    from orchestrator.core.foreseen import Forecast
    from orchestrator.core.gpu_use import GpuUse
    from orchestrator.ledger import Ledger

# What these do may fail, for example on a full disk, and is then tried again.
TRYING = frozenset({Phase.PREPARING, Phase.COLLECTING})
LAUNCHED = frozenset({Phase.LAUNCHING, Phase.RUNNING, Phase.STOPPING})


@dataclass(frozen=True)
class RunStatus(RunSummary):
    """The present state of a run in plain values. Times in unix seconds, durations in seconds.

    `step` is the last reported one, else the newest checkpoint's. `seconds_left` is the training time left
    at the present rate; `forecast` is when the run ends, with everything that lies between. `trouble`: why
    its platform does not answer at the moment. `waits_since`: since when its session has waited in the
    platform's queue. `read_at`: when its session was last read; its rate and its loss are of then.
    `launched_at`: its session's launch. `stalled_seconds`: for how long its training has stood at this
    step, if that is longer than expected. `in_slices`: it sleeps between the times that its schedule gives
    it, and its end is unknown. `gpu_use`: how busy its GPUs are. `failing`: what was done for it last, failed
    and is tried again. `saves_counted`: it is done, and `step` is how often its file without a number was
    saved. None stands for unknown, or not the case.
    """

    step: int = 0
    steps_per_second: float | None = None
    loss: float | None = None
    seconds_left: float | None = None
    trouble: str = ""
    waits_since: float | None = None
    forecast: Forecast | None = None
    in_slices: bool = False
    read_at: float | None = None
    launched_at: float | None = None
    stalled_seconds: float | None = None
    gpu_use: GpuUse | None = None
    failing: ActionFailed | None = None
    saves_counted: bool = False

    @property
    def values(self) -> dict[str, object]:
        """Its fields. None stands for a number that the ledger holds and that is damaged."""
        return {
            name: None if isinstance(value, Damaged) and not isinstance(value, str) else value
            for name, value in vars(self).items()
        }

    @property
    def progress(self) -> Progress:
        return Progress(self.step, self.steps_total, self.steps_per_second, self.loss, self.saves_counted)


def statuses(
    client: Client, *, all: bool, limit: int | None, after: str | None = None
) -> tuple[RunStatus, ...]:
    """See `Client.runs`."""
    if limit is not None and limit < 0:
        raise InputError(f"the limit of runs is {limit}; it must be 0 or more")
    phases = None if all else [phase for phase in Phase if phase not in FINAL]
    with client.ledgers.existing() as ledger:
        name = None if after is None or ledger is None else ledger.find(after)
        found = ledger.summaries(phases, limit, after=name) if ledger is not None else ()
        found = _judged(ledger, found) if ledger is not None else ()
        failing = _failing(ledger, found)
    foreseen = _foreseen(client, found)
    return tuple(_status(client, summary, foreseen, failing.get(summary.run)) for summary in found)


def status(client: Client, run: str) -> RunStatus:
    """See `Run.status`. Raises InputError if there is no run of this name."""
    with client.ledgers.runs() as ledger:
        for summary in _judged(ledger, ledger.summaries(run=run)):
            failing = _failing(ledger, [summary])
            return _status(client, summary, _foreseen(client, [summary]), failing.get(summary.run))
    raise InputError(f"there is no run called {run!r}; `orchestrator ps` lists them")


@dataclass(frozen=True)
class _Foreseen:
    """What the controller expects. `sliced`: the runs that sleep in between, and whose end it cannot tell."""

    forecasts: Mapping[str, Forecast]
    sliced: frozenset[str]


def _foreseen(client: Client, found: Iterable[RunSummary]) -> _Foreseen:
    if all(summary.phase in FINAL or summary.phase is Phase.HELD for summary in found):
        return _Foreseen({}, frozenset())
    from orchestrator.client import foreseen

    told = foreseen.newest(client.home.folders, client.clock.now())
    return _Foreseen({each.run: each.forecast for each in told.runs}, frozenset(told.sliced))


def _judged(ledger: Ledger, found: tuple[RunSummary, ...]) -> tuple[RunSummary, ...]:
    """With what is wrong with their records."""
    damaged = ledger.damaged(each.run for each in found)
    if not damaged:
        return found
    return tuple(replace(each, unreadable=damaged.get(each.run) or each.unreadable) for each in found)


def _failing(ledger: Ledger | None, found: Iterable[RunSummary]) -> Mapping[str, ActionFailed]:
    trying = [each.run for each in found if each.phase in TRYING and not each.unreadable]
    return ledger.failing(trying) if ledger is not None and trying else {}


def _status(
    client: Client, summary: RunSummary, foreseen: _Foreseen, failing: ActionFailed | None
) -> RunStatus:
    """The summary with its session's newest reading and its forecast."""
    if summary.unreadable:
        return RunStatus(**vars(summary))
    reading = None
    if summary.phase in LAUNCHED:
        from orchestrator.client import live

        reading = live.read(client.home.folders, summary.run, summary.session)
    found = progress(summary.steps_total, summary.accepted_step, reading, summary.phase, summary.reason)
    status = reading.observation.status if reading is not None else None
    return RunStatus(
        **vars(summary),
        step=found.step,
        steps_per_second=found.steps_per_second,
        loss=found.loss if reading is not None else _last_loss(client, summary),
        seconds_left=found.seconds_left,
        trouble=reading.trouble if reading is not None else "",
        waits_since=reading.waits_since if reading is not None else None,
        forecast=None if summary.phase in FINAL else foreseen.forecasts.get(summary.run),
        in_slices=summary.phase not in FINAL and summary.run in foreseen.sliced,
        read_at=reading.at if reading is not None else None,
        launched_at=reading.launched_at if reading is not None else None,
        stalled_seconds=reading.stalled_seconds if reading is not None else None,
        gpu_use=None if status is None else status.gpu_use,
        failing=failing,
        saves_counted=found.counted,
    )


def _last_loss(client: Client, summary: RunSummary) -> float | None:
    """The loss that the last session of a run that rests reported last."""
    if summary.phase not in FINAL and summary.phase is not Phase.HELD:
        return None
    from orchestrator.client import live

    last = live.last(client.home.folders, summary.run)
    return None if last is None or last.observation.status is None else last.observation.status.loss
