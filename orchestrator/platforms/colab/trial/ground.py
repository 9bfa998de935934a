"""Where a trial takes place: its sizes, its command line, and the one session that it runs there."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from orchestrator.clock import Clock
from orchestrator.core.job import Keep, Precision
from orchestrator.core.order import Order, session_name
from orchestrator.platforms.colab.machine import ROOT
from orchestrator.platforms.colab.memory import Memory
from orchestrator.platforms.colab.options import HOUR, MIB, ColabOptions
from orchestrator.platforms.colab.platform import ColabPlatform
from orchestrator.platforms.colab.runner import MARKER, Cli
from orchestrator.platforms.colab.trial import probe
from orchestrator.platforms.platform import Supplies
from orchestrator.platforms.trials import materials, training
from orchestrator.platforms.trials.waiting import Waiting
from orchestrator.session.staging import Materials, Shipping

ENDLESS = 10_000_000  # steps
LARGE_BYTES, ALIVE_SECONDS = 256 * MIB, 1800.0  # as the assumptions say
# The names of the trial's machines: the one for cells, the one for a session, one that is never made, and a
# second one that a notebook got against our assumption.
CELLS, SESSION, NONE, EXTRA = 1, 2, 3, 4


@dataclass(frozen=True)
class Scale:
    """How long things take, in seconds. `step`: one step of the training. A second cell gets `queue` to
    start, and a machine that was given back `gone` to disappear. It stays for `linger` after its session.
    Anything that no option limits may be as `late` as that. The long trial leaves a machine alone for
    `alive`, and uploads `large` bytes."""

    step: float
    queue: float
    gone: float
    linger: float
    late: float
    alive: float
    large: int

    @classmethod
    def of(cls, options: ColabOptions) -> Scale:
        """In proportion to the session limit if that is below an hour, as on a local Colab."""
        share = min(1.0, options.session_seconds / HOUR)
        return cls(
            step=max(0.1, 2 * share),
            queue=max(8.0, 45 * share),
            gone=max(5.0, 60 * share),
            linger=max(20.0, 90 * share),
            late=max(20.0, 300 * share),
            alive=max(2.0, ALIVE_SECONDS * share),
            large=max(MIB, int(LARGE_BYTES * share)),
        )

    def seconds(self, *, long: bool) -> float:
        """About how long a trial takes."""
        return 3 * self.queue + 2 * self.linger + (self.alive + self.late if long else 0.0)


@dataclass
class Ground:
    """`folder` is that of all trials, and `scratch` this trial's."""

    name: str
    run: str
    options: ColabOptions
    folder: Path
    scratch: Path
    supplies: Supplies
    clock: Clock
    scale: Scale
    cli: Cli
    waiting: Waiting

    def __post_init__(self) -> None:
        given = {
            "accelerators": ("cpu",), "high_mem": False, "linger_seconds": self.scale.linger,
            "uplink_seconds": min(self.options.uplink_seconds, max(1.0, self.scale.late / 20)),
        }  # fmt: skip
        self.options = self.options.model_copy(update=given)
        self.memory = Memory(self.folder)
        self.platform = ColabPlatform(self.name, self.options, self.cli, self.folder, self.clock)

    def session(self, number: int) -> str:
        return session_name(self.run, number)

    def order(self) -> Order:
        """An endless training that saves when it is asked to leave."""
        bundle, script = materials.bundle(self.scratch), Path(training.__file__)
        return Order(
            run=self.run,
            session=self.session(SESSION),
            generation=SESSION,
            platform=self.name,
            accelerator="cpu",
            devices=1,
            command=("python", script.name, str(ENDLESS), str(self.scale.step), "0"),
            bundle=hashlib.sha256(bundle.read_bytes()).hexdigest(),
            global_batch=1,
            micro_batch=1,
            precision=Precision.FP32,
            steps_total=ENDLESS,
            seed=0,
            keep=Keep(last=1),
            budget_seconds=4 * self.scale.late,  # also if nobody stops it
            interval_seconds=self.scale.late,
            threads=self.options.threads,
        )

    def materials(self, shipping: Shipping | None) -> Materials:
        bundle = materials.bundle(self.scratch)
        return Materials(bundle, self.supplies.agent, shipping=shipping, say=self.waiting.say)

    def cell(self, call: str, *given: object) -> Path:
        """A cell that calls a function of the probe's with the first session's marker, and with these."""
        marker = MARKER.format(session=self.session(CELLS))
        path = self.scratch / f"{call}.py"
        arguments = ", ".join(map(repr, (marker, *given)))
        path.write_text(f"{Path(probe.__file__).read_text(encoding='utf-8')}\n\n{call}({arguments})\n")
        return path

    def file(self, name: str, data: bytes) -> Path:
        path = self.scratch / name
        path.write_bytes(data)
        return path

    def output(self, where: str) -> Path:
        """The folder for what the session left there."""
        path = self.scratch / "output" / where
        path.mkdir(parents=True, exist_ok=True)
        return path


def on_machine(name: str) -> str:
    """Where a file that a cell calls `name` is for uploads and downloads."""
    return f"{ROOT}/{name}"
