"""How well the end of a run is known 60 seconds after its start, on the real process platform.

    python -m benchmarks.forecast [--jobs 20] [--slots 2] [--seed 1] [--json]

Runs by hand only: jobs of 3 to 8 minutes, several at a time, take half an hour. Three platforms on this
machine have sessions of 70, 110 and 160 seconds and two slots each, so that every job crosses walls and most
wait for a slot. The jobs sleep, and differ in what makes an end hard to know: jitter, slow first steps in
every session, set-up, the time a save takes, phases in which a step costs more, and a declared cost that is
wrong by a factor of 1.5 or so. The forecast is the one
that `show` prints 60 seconds after the launch of the run's first session. Its error is its distance from the
true end, divided by the time from that launch to the true end; "of the rest" divides by the time that was
still to come. Fails if more than two of ten errors exceed 15 %, or more than two of ten ends lie outside the
range.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from orchestrator import Client
from orchestrator.clock import SystemClock
from orchestrator.core.accelerators import catalogue
from orchestrator.core.event import Launched
from orchestrator.core.foreseen import Forecast
from orchestrator.core.job import Precision

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "benchmarks" / "forecasting"
AFTER_SECONDS = 60.0
WALLS = {"short": 70, "middle": 110, "long": 160}
ERROR_MAX, SHARE_MIN = 0.15, 0.8
PATIENCE_SECONDS = 3600.0
CPU = catalogue["cpu"]
CLOCK = SystemClock()


@dataclass(frozen=True)
class Drawn:
    """One job: `seconds` of training in `steps` steps. `jitter` is the standard deviation of ln step time.
    For `slow` seconds each session is `slower` at first. A set-up and a save take seconds, too. `later` is
    the cost of a step of the second half, and `declared` the declared FLOPs, in terms of the true ones."""

    name: str
    platform: str
    seconds: float
    steps: int
    jitter: float
    slow: float
    slower: float
    setup: float
    save: float
    later: float
    declared: float

    def spec(self) -> str:
        step = self.seconds / (self.steps * (1 + self.later) / 2)
        flops = step * self.declared * CPU.mfu * CPU.peak_flops[Precision.FP32]
        cost = f"flops_per_step: {flops:.3e}"
        if self.later != 1.0:
            later = f"{{from: {self.steps // 2}, flops_per_step: {flops * self.later:.3e}}}"
            cost = f"phases: [{{from: 0, flops_per_step: {flops:.3e}}}, {later}]"
        words = (step, self.jitter, self.slow, self.slower, self.setup, self.save, self.later)
        return (
            f"name: {self.name}\nsource: .\n"
            f"command: {sys.executable} napping.py {{steps}} {' '.join(f'{word:g}' for word in words)}\n"
            f"work: {{total: {self.steps}, global_batch: 1, {cost}}}\n"
            "profiles: {default: {micro_batch: 1, precision: fp32}}\n"
        )  # fmt: skip


@dataclass(frozen=True)
class Row:
    """What came of a job. Times in seconds since its first launch; `end` and its range as forecast."""

    job: Drawn
    sessions: int
    truth: float
    made_at: float | None
    end: float | None
    low: float | None
    high: float | None

    @property
    def error(self) -> float | None:
        return None if self.end is None else (self.end - self.truth) / self.truth

    @property
    def error_of_rest(self) -> float | None:
        if self.end is None or self.made_at is None:
            return None
        return (self.end - self.truth) / (self.truth - self.made_at)

    @property
    def holds(self) -> bool:
        high = self.high if self.high is not None else float("inf")
        return self.low is not None and self.low <= self.truth <= high


def drawn(count: int, random: Random) -> Iterator[Drawn]:
    for number in range(count):
        yield Drawn(
            name=f"nap-{number:02d}",
            platform=random.choice(list(WALLS)),
            seconds=random.uniform(150.0, 420.0),
            steps=random.choice((80, 200, 600)),
            jitter=random.choice((0.05, 0.2, 0.4)),
            slow=random.choice((0.0, 5.0, 15.0)),
            slower=random.choice((2.0, 4.0)),
            setup=random.uniform(0.5, 8.0),
            save=random.uniform(0.2, 3.0),
            later=random.choice((1.0, 1.0, 1.6)),
            declared=random.lognormvariate(0.0, 0.4),
        )


@contextmanager
def controlled(home: Path, slots: int) -> Iterator[Client]:
    """A home with the platforms, and a controller of it."""
    lines = [
        f"  {name}: {{type: process, accelerator: cpu, session_seconds: {wall}, slots: {slots}}}"
        for name, wall in WALLS.items()
    ]
    (home / "config.yaml").write_text("\n".join(["platforms:", *lines]) + "\n")
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environ = {**os.environ, "ORCHESTRATOR_HOME": str(home), "PYTHONPATH": paths}
    with (home / "up.log").open("wb") as log:
        up = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "up"], env=environ, stdout=log, stderr=log, cwd=home
        )
        try:
            yield Client(home)
        finally:
            _end(Client(home))
            up.send_signal(signal.SIGTERM)
            up.wait(60)


def _end(client: Client) -> None:
    """Leaves no session behind, also after Ctrl-C."""
    for status in client.runs():
        client.run(status.run).cancel(discard=True)
    ends_at = CLOCK.monotonic() + 60.0
    while client.runs() and CLOCK.monotonic() < ends_at:
        CLOCK.wait(threading.Event(), 1.0)


def launched_at(client: Client, run: str) -> float | None:
    events = (stored.event for stored in client.run(run).history())
    return next((event.at for event in events if isinstance(event, Launched)), None)


def watched(client: Client, jobs: dict[str, Drawn]) -> Iterator[Row]:
    """Looks at each run 60 seconds after its launch, and at its end."""
    begun: dict[str, float] = {}
    told: dict[str, Forecast | None] = {}
    open_, never = set(jobs), threading.Event()
    gives_up_at = CLOCK.monotonic() + PATIENCE_SECONDS
    while open_ and CLOCK.monotonic() < gives_up_at:
        for status in client.runs(all=True):
            run = status.run
            if run not in open_:
                continue
            if run not in begun and status.phase.value not in ("queued", "preparing"):
                at = launched_at(client, run)
                begun |= {} if at is None else {run: at}
            if run in begun and run not in told and CLOCK.now() >= begun[run] + AFTER_SECONDS:
                told[run] = status.forecast
            if status.phase.final:
                open_.remove(run)
                yield _row(client, jobs[run], run, begun[run], told.get(run))
        CLOCK.wait(never, 1.0)


def _row(client: Client, job: Drawn, run: str, began: float, told: Forecast | None) -> Row:
    record = client.run(run).record()
    assert record.ended_at is not None, f"{run}: {record.reason}"
    since = [
        None if at is None else at - began
        for at in ((told.at, told.end, told.low, told.high) if told else (None,) * 4)
    ]
    return Row(job, record.generation, record.ended_at - began, *since)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--slots", type=int, default=2, help="of each platform")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="forecast-") as folder:
        home, source = Path(folder) / "home", Path(folder) / "source"
        for each in (home, source):
            each.mkdir(mode=0o700)
        (source / "napping.py").write_bytes((SOURCE / "napping.py").read_bytes())
        with controlled(home, options.slots) as client:
            jobs = {}
            for job in drawn(options.jobs, Random(options.seed)):
                path = source / f"{job.name}.yaml"
                path.write_text(job.spec())
                jobs[client.submit(path, platforms=job.platform).run.name] = job
            for row in watched(client, jobs):
                rows.append(row)
                if not options.json:
                    print(_text(row), flush=True)
    return _judged(rows, as_json=options.json)


def _text(row: Row) -> str:
    if row.end is None or row.error is None or row.error_of_rest is None:
        return f"{row.job.name}  {row.job.platform:6} {row.truth:5.0f} s  no forecast"
    high = "more" if row.high is None else f"{row.high:.0f}"
    return (
        f"{row.job.name}  {row.job.platform:6} {row.sessions} sessions  forecast {row.end:5.0f} s "
        f"({row.low:.0f} to {high})  truth {row.truth:5.0f} s  error {row.error:+6.1%} "
        f"({row.error_of_rest:+.1%} of the rest)  {'in range' if row.holds else 'OUT'}"
    )


def _judged(rows: list[Row], *, as_json: bool) -> int:
    errors = [abs(row.error) if row.error is not None else float("inf") for row in rows]
    rest = [abs(row.error_of_rest) if row.error_of_rest is not None else float("inf") for row in rows]
    within = sum(error <= ERROR_MAX for error in errors) / len(rows)
    holds = sum(row.holds for row in rows) / len(rows)
    figures = {
        "jobs": len(rows), "within": within, "holds": holds, "median_error": statistics.median(errors),
        "largest_error": max(errors), "median_error_of_rest": statistics.median(rest),
    }  # fmt: skip
    if as_json:
        print(json.dumps({**figures, "rows": [asdict(row) | {"error": row.error} for row in rows]}))
    else:
        print(
            f"{len(rows)} jobs: {within:.0%} within {ERROR_MAX:.0%} (median {figures['median_error']:.1%}, "
            f"largest {figures['largest_error']:.1%}); the range holds {holds:.0%}; median error of the rest "
            f"{figures['median_error_of_rest']:.1%}"
        )
    return 0 if within >= SHARE_MIN and holds >= SHARE_MIN else 1


if __name__ == "__main__":
    sys.exit(main())
