"""Where a trial takes place, and the sessions that it makes there: their orders, materials and folders."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.clock import Clock
from orchestrator.core.checkpoint import Manifest
from orchestrator.core.job import Keep, Precision
from orchestrator.core.order import Order, session_name
from orchestrator.platforms.kaggle.account import Account
from orchestrator.platforms.kaggle.client import KaggleClient
from orchestrator.platforms.kaggle.endings import OVER
from orchestrator.platforms.kaggle.memory import Memory
from orchestrator.platforms.kaggle.options import KaggleOptions
from orchestrator.platforms.kaggle.platform import KagglePlatform
from orchestrator.platforms.kaggle.trial import evidence
from orchestrator.platforms.kaggle.trial.stay import Stay
from orchestrator.platforms.kaggle.trial.witness import Heard, Witness
from orchestrator.platforms.trials import materials
from orchestrator.platforms.trials.waiting import Waiting
from orchestrator.session.layout import BLOBS, blob_path, manifest_path
from orchestrator.session.staging import Materials

ENDLESS = 10_000_000  # steps
FIRST_STEPS, LAST_STEPS = 12, 6
START_SECONDS = 60.0  # of a session, as a guess


@dataclass(frozen=True)
class Scale:
    """How long things take, in seconds. `step` is one step of the training, `save` is between checkpoints.
    `timeout` is that of the session that does not leave by itself, `wall` the budget of all others. A session
    may wait for its machine for `start`, and anything that no option limits may be as `late` as this. The
    checkpoints of the long trial hold `payload` bytes."""

    step: float
    save: float
    timeout: float
    wall: float
    start: float
    late: float
    payload: int

    def seconds(self) -> tuple[float, float]:
        """About how long the short part and the long part take."""
        begin = min(START_SECONDS, self.timeout / 2)
        return (
            4 * begin + self.step * FIRST_STEPS + 2 * self.save + self.timeout,
            3 * begin + 2 * self.wall + self.step * LAST_STEPS,
        )


@dataclass
class Ground:
    """`folder` is that of all trials, `scratch` this trial's, and `agent` the agent as one zip
    application."""

    name: str
    run: str
    options: KaggleOptions
    folder: Path
    scratch: Path
    agent: Path
    clock: Clock
    scale: Scale
    account: Account
    witness: Witness
    waiting: Waiting
    _made: int = field(default=0, init=False)

    @property
    def client(self) -> KaggleClient:
        return self.account.client

    @property
    def heard(self) -> tuple[Heard, ...]:
        return self.witness.heard

    def platform(self, options: KaggleOptions) -> KagglePlatform:
        return KagglePlatform(self.name, options, self.account, self.folder, self.clock)

    def stay(
        self, steps: int, *, before: Stay | None = None, bounded: bool = True, payload: int = 0,
        **options: object,
    ) -> Stay:  # fmt: skip
        """The next session. It continues from the newest checkpoint of the one `before`. Unless it is
        `bounded`, only Kaggle ends it."""
        self._made += 1
        bundle, scale = materials.bundle(self.scratch), self.scale
        newest = None if before is None else before.newest
        order = Order(
            run=self.run,
            session=session_name(self.run, self._made),
            generation=self._made,
            platform=self.name,
            accelerator="cpu",
            devices=1,
            command=(
                "python",
                bundle.name.removesuffix(".tar.gz"),
                str(steps),
                str(scale.step),
                str(payload),
            ),
            bundle=hashlib.sha256(bundle.read_bytes()).hexdigest(),
            global_batch=1,
            micro_batch=1,
            precision=Precision.FP32,
            steps_total=steps,
            seed=0,
            keep=Keep(last=1),
            budget_seconds=scale.wall if bounded else None,
            interval_seconds=scale.save,
            resume=None if newest is None else newest.name,
            resume_step=0 if newest is None else newest.ref.step,
            resume_sha256=None if newest is None else hashlib.sha256(newest.encode()).hexdigest(),
            threads=self.options.threads,
        )
        given = self.options.model_copy(update=options)
        memory = Memory(self.folder / "sessions")
        return Stay(order, given, self.platform(given), memory, self.waiting, self._is_over, before)

    def _is_over(self, kernel: str) -> bool:
        return any(state in OVER for _, state in evidence.states(self.heard, kernel)[-1:])

    def delete(self, stay: Stay) -> None:
        """Deletes its kernel without cancelling it first."""
        if self.client.delete_kernel(stay.kernel):
            stay.memory.note(stay.session, pushed_at=None)

    def again(self) -> None:
        """From now on the names of the first sessions are used once more."""
        self._made = 0

    def materials(self, stay: Stay) -> Materials:
        resume = None if stay.before is None else self._staged(stay.before)
        return Materials(materials.bundle(self.scratch), self.agent, resume=resume, say=self._say)

    def _say(self, text: str) -> None:
        if not text.endswith("%"):  # the files are small
            self.waiting.say(text)

    def output(self, stay: Stay) -> Path:
        """The folder for what it left."""
        return self.scratch / "output" / stay.session

    def content(self, stay: Stay, manifest: Manifest, name: str) -> Mapping[str, Any]:
        """A JSON file of a collected checkpoint."""
        return materials.content(self.output(stay), manifest, name)

    def _staged(self, stay: Stay) -> Path:
        """A folder with its newest checkpoint alone."""
        assert stay.newest is not None, "it was collected"
        folder, output = self.scratch / "staged" / stay.session, self.output(stay)
        (folder / BLOBS).mkdir(parents=True, exist_ok=True)
        manifest = manifest_path(stay.newest.name)
        (folder / manifest).parent.mkdir(parents=True, exist_ok=True)
        for name in (*map(blob_path, stay.newest.blobs()), manifest):
            shutil.copyfile(output / name, folder / name)
        return folder
