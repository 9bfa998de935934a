"""A rig of the kaggle platform on a local Kaggle, for tests that break things.

It has sessions with real names, agents that misbehave, and clients that do not wait between attempts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.clock import Clock, SystemClock
from orchestrator.core.offer import Offer
from orchestrator.core.order import Order
from orchestrator.core.session import Observation
from orchestrator.platforms import catalog
from orchestrator.platforms.kaggle.client import KaggleClient
from orchestrator.platforms.kaggle.credentials import Credentials
from orchestrator.platforms.kaggle.platform import KagglePlatform
from orchestrator.platforms.kaggle.values import Quotas
from orchestrator.session.staging import Materials
from tests.conformance.platform_suite import LONG
from tests.conformance.test_platforms import KaggleRig
from tests.stand_ins.kaggle import LocalKaggle, Settings, Warts, local_kaggle

RUN = "demo-7f3kq2vd"
FIRST, SECOND, THIRD = (f"{RUN}-s{number:02d}" for number in (1, 2, 3))
# Agents that replace ours: each has claimed its session.
_CLAIMS = """
import json, pathlib, sys, threading
outbox = pathlib.Path(json.loads(sys.argv[3])["outbox"])  # after the folder and `--settings`
(outbox / "incarnation").write_text("other")
"""
WAITS = f"{_CLAIMS}\nthreading.Event().wait(3600)\n"
VANISHES = f"{_CLAIMS}\nprint('nothing to say', flush=True)\n"
LEAVES = f"""{VANISHES}
result = {{"incarnation": "other", "outcome": "stopped", "exit_code": 0, "step": None, "message": "left"}}
(outbox / "result.json").write_text(json.dumps(result))
"""
FAILS = f"{_CLAIMS}\nprint('it went wrong', flush=True)\nsys.exit(3)\n"
TALKS = f"{_CLAIMS}\nwhile True:\n    print('here', flush=True)\n    threading.Event().wait(0.02)\n"


class Hasty(SystemClock):
    """A client that does not wait between attempts."""

    def wait(self, event: threading.Event, seconds: float) -> bool:  # noqa: ARG002
        return event.is_set()


class Box(KaggleRig):
    """The rig with a CPU, GPUs and a TPU. `use` changes its options."""

    platform: KagglePlatform

    def __init__(self, folder: Path, agent: Path, kaggle: LocalKaggle) -> None:
        super().__init__(folder, agent, kaggle)
        self.use(
            accelerators=["cpu", "T4x2", "T4", "TPUv5e-8"], visibility_seconds=2.0, listed_seconds=0.0,
            mount_seconds=0.0, publish_seconds=0.5,
        )  # fmt: skip

    def another_controller(self, home: str = "sessions", clock: Clock | None = None) -> KagglePlatform:
        folder = self.folder / home
        built = catalog.build("here", self.type, self.options, folder=folder, clock=clock or Hasty())
        assert isinstance(built, KagglePlatform)
        return built

    @property
    def tries(self) -> int:
        """How many attempts the platform's client makes before it gives up."""
        return self.platform._client.patience.attempts

    def use(self, **options: object) -> None:
        self.options |= options
        self.platform = self.another_controller()

    def order(self, session: str = FIRST, *, total: int = 6, generation: int = 1, **changes: object) -> Order:
        return super().order(session, total=total, generation=generation, **({"run": RUN} | changes))

    def materials_of(self, agent: str) -> Materials:
        path = self.folder / "other-agent.pyz"
        path.write_text(agent)
        return replace(self.materials(), agent=path)

    def run(self, agent: str | None = None, session: str = FIRST, **changes: object) -> Order:
        """Launches a session; with our agent, one that never ends."""
        order = self.order(session, total=LONG, **changes)  # type: ignore[arg-type]
        self.platform.prepare(order, self.materials() if agent is None else self.materials_of(agent))
        self.platform.launch(order)
        return order

    def run_to_end(self, session: str = FIRST, **changes: object) -> Observation:
        self.start(self.order(session, **changes))  # type: ignore[arg-type]
        return self.until_ended(session)

    def until_claimed(self, session: str = FIRST) -> None:
        outbox = self.kaggle.kernel(session).folder / "working" / "outbox"
        self.until(lambda: (outbox / "incarnation").exists())

    def resuming(self, session: str, total: int, generation: int) -> Order:
        """An order that goes on from the newest checkpoint of the first session."""
        newest = self.collect(FIRST).manifests[-1]
        name, step = newest.name, newest.ref.step
        return self.order(session, total=total, generation=generation, resume=name, resume_step=step)

    def staged(self, session: str = FIRST) -> list[str]:
        """The kinds of files in a session's dataset: "materials", "checkpoint"."""
        return sorted(path.name.split("-")[0] for path in self.mounted(session))

    def datasets(self, session: str = FIRST) -> list[str]:
        """The datasets that the account has for a session, the newest last."""
        return [name for name in self.kaggle.datasets._all if name.startswith(f"{session}-d")]

    def mounted(self, session: str = FIRST) -> list[Path]:
        """The files of a session's newest dataset that a kernel would see; empty if there is none."""
        owner = self.kaggle.settings.username
        for name in reversed(self.datasets(session)):
            version = self.kaggle.datasets.version_for_kernel(f"{owner}/{name}")
            return [] if version is None else [path for _, path in version.files()]
        return []

    def kaggle_quota(self) -> Quotas:
        credentials = Credentials(self.kaggle.settings.username, key=self.kaggle.settings.key)
        return KaggleClient(credentials, endpoint=self.kaggle.url).quota()

    def offer(self, accelerator: str) -> Offer:
        return next(each for each in self.platform.survey() if each.accelerator == accelerator)

    def agent_pid(self, session: str = FIRST) -> int:
        runner = self.kaggle.kernel(session).pid
        [pid] = Path(f"/proc/{runner}/task/{runner}/children").read_text().split()
        return int(pid)


def show(box: Box, session: str = FIRST) -> None:
    """From now on Kaggle shows a kernel that it has hidden so far."""
    box.kaggle._kernels._all[session].visible_at = 0.0


Boxes = Callable[..., Box]


@pytest.fixture
def boxes(tmp_path: Path, agent: Path) -> Iterator[Boxes]:
    """Makes a box; its arguments are those of Settings and, as `warts`, of Warts."""
    with ExitStack() as stack:

        def make(warts: Warts | None = None, **settings: object) -> Box:
            given = Settings(**({"wall_seconds": 600.0} | settings))  # type: ignore[arg-type]
            return stack.enter_context(_box(tmp_path, agent, given, warts or Warts()))

        yield make


@pytest.fixture
def box(boxes: Boxes) -> Box:
    return boxes()


@contextmanager
def _box(folder: Path, agent: Path, settings: Settings, warts: Warts) -> Iterator[Box]:
    with local_kaggle(folder / "kaggle", settings, warts) as kaggle:
        yield Box(folder, agent, kaggle)
