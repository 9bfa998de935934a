"""Real agents and uplinks when something is in the way: how long a session waits, and what it says."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from orchestrator.agent.companion import DIED, Companion
from orchestrator.agent.folder import Folder
from orchestrator.agent.settings import Settings
from orchestrator.clock import SystemClock
from orchestrator.core import wire
from orchestrator.core.order import AgentStatus, Outcome
from orchestrator.session.layout import Layout
from orchestrator.session.words import Word
from orchestrator.stores.folder import FolderStore
from orchestrator.stores.opening import OPENERS
from orchestrator.stores.portable import Portable
from orchestrator.uplink.pace import Pace, Patience
from orchestrator.uplink.program import patiently_opened
from tests.agent.sessions import PATIENCE, Stay, new_order
from tests.agent.test_companion import ENDLESS, SHIPPING, newest, shipping
from tests.simulation.clock import VirtualClock
from tests.waiting import wait_until

NOWHERE = Portable(
    "s3", {"bucket": "bbb", "endpoint": "http://127.0.0.1:9"}, {"access_key": "a", "secret_key": "b"}
)


@contextmanager
def with_program(folder: Path, program: str, *command: str, packages: tuple[str, ...] = ()) -> Iterator[Stay]:
    """A staged session with another program instead of the uplink."""
    with shipping(folder, *command) as (stay, store):
        with zipfile.ZipFile(stay.root / "uplink.pyz", "w") as archive:
            archive.writestr("__main__.py", program)
        given = replace(store.portable(), packages=packages)
        (stay.root / "store.json").write_bytes(wire.encode(given))
        yield stay


def test_a_stop_ends_the_wait_for_a_store_that_is_away(tmp_path: Path) -> None:
    with shipping(tmp_path, "train.py") as (stay, store):
        (tmp_path / "store").rename(tmp_path / "away")
        stay.start(replace(SHIPPING, uplink_stop=0.5))
        stay.wait_for(lambda status: status.state == "shipping", "the end of the training")
        (stay.root / "stop").touch()
        assert stay.end().outcome is Outcome.COMPLETED
        assert "asked to stop, and nothing was sent" in stay.log()
        assert stay.manifests()[-1].ref.step == 20
        assert newest(store) == -1


def test_the_wait_has_an_end_also_with_a_budget(tmp_path: Path) -> None:
    with shipping(tmp_path, "train.py", budget_seconds=3600.0) as (stay, store):
        (tmp_path / "store").rename(tmp_path / "away")
        stay.start(replace(SHIPPING, uplink_end=0.5))
        assert stay.end().outcome is Outcome.COMPLETED
        assert "not everything was shipped: it took longer than" in stay.log()
        assert newest(store) == -1


SPOILS = "import os, shutil; shutil.rmtree('../../outbox'); open('../../outbox', 'w').close()"


def test_a_session_that_cannot_write_its_result_waits_for_nothing(tmp_path: Path) -> None:
    with shipping(tmp_path, "-c", SPOILS) as (stay, _store):
        agent = stay.start(SHIPPING)
        agent.communicate(timeout=PATIENCE)
        assert agent.returncode == 1


def test_a_store_that_is_away_at_the_start_is_waited_for_in_plain_words(tmp_path: Path) -> None:
    with shipping(tmp_path, *ENDLESS) as (stay, _store):
        (stay.root / "store.json").write_bytes(wire.encode(NOWHERE))
        stay.start(replace(SHIPPING, uplink_stop=0.1))
        wait_until(lambda: "the uplink failed, and tries again" in stay.log(), "what is wrong")
        (stay.root / "stop").touch()
        assert stay.end().outcome is Outcome.STOPPED
        assert "Traceback" not in stay.log()
        status = stay.status()
        assert status is not None
        assert DIED not in status.warnings


class Mending(VirtualClock):
    """Somebody makes room while the uplink waits."""

    def __init__(self, filler: Path) -> None:
        super().__init__()
        self._filler = filler

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self._filler.unlink(missing_ok=True)
        return super().wait(event, seconds)


def careful(portable: Portable) -> FolderStore:
    """Opens a store on a disk that may be full."""
    if Path(portable.options["filler"]).exists():
        raise OSError(errno.ENOSPC, "No space left on device")
    return FolderStore(Path(portable.options["path"]))


def test_a_full_disk_at_the_start_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPENERS, "careful", f"{__name__}:careful")
    (tmp_path / "filler").touch()
    portable = Portable("careful", {"path": str(tmp_path), "filler": str(tmp_path / "filler")})
    words: list[Word] = []
    patiently_opened(portable, Patience(Pace(), Random(1), words.append), Mending(tmp_path / "filler"))
    assert [word.say.partition(":")[0] for word in words] == [
        "the uplink failed, and tries again",
        "the uplink reaches the store again",
    ]


LEAVES = """
import sys, tempfile
from pathlib import Path
from random import Random
from orchestrator.session.layout import Layout
from orchestrator.session.words import Word
from orchestrator.stores.folder import FolderStore
from orchestrator.stores.opening import OPENERS
from orchestrator.uplink.program import _make_temporary
_make_temporary(Layout(Path(sys.argv[1])))
print(tempfile.mkdtemp())
"""


def test_what_a_killed_uplink_left_is_removed_by_the_next(tmp_path: Path) -> None:
    def lives() -> Path:
        done = subprocess.run(
            [sys.executable, "-c", LEAVES, str(tmp_path)], capture_output=True, text=True, check=True
        )
        return Path(done.stdout.strip())

    first = lives()
    second = lives()
    assert first.is_relative_to(Layout(tmp_path).shipping)
    assert second.exists()
    assert not first.exists()


FILLS = """
import os, sys
from pathlib import Path
from random import Random
sys.stdin.buffer.read()
Path(sys.argv[1], "shipping").mkdir(exist_ok=True)
Path(sys.argv[1], "shipping", "big").write_bytes(os.urandom(60_000_000))
__import__("signal").pause()
"""


def test_what_the_uplink_keeps_counts_as_the_sessions_disk(tmp_path: Path) -> None:
    with with_program(tmp_path, FILLS, *ENDLESS) as stay:
        stay.start(replace(SHIPPING, disk_bytes=50_000_000, disk_period=0.1, uplink_stop=0.1, uplink_end=0.1))
        assert "GB of disk" in stay.end().message


TELLS = """
import json, sys, threading
sys.stdin.buffer.read()
print(json.dumps({"shipped_step": 10**9}), flush=True)
while True:
    print(json.dumps({"reached": True}), flush=True)
    threading.Event().wait(0.05)
"""


def test_what_an_uplink_that_died_has_shipped_is_no_backlog(tmp_path: Path) -> None:
    with with_program(tmp_path, TELLS, *ENDLESS) as stay:
        stay.start(replace(SHIPPING, uplink_end=0.1))
        stay.wait_for(lambda status: (status.checkpoint_step or 0) > 20, "some checkpoints")
        stay.wait_for(_has_no_backlog, "a status that says so")


def _has_no_backlog(status: AgentStatus) -> bool:
    return status.unshipped_seconds is not None and status.unshipped_seconds < 0.5


MOVES_AWAY = """
import os, sys
sys.stdin.buffer.read()
os.rename(sys.argv[1], sys.argv[1] + "-away")
sys.exit(79)
"""


def test_a_pip_that_cannot_be_started_does_not_end_the_uplink_for_good(tmp_path: Path) -> None:
    said: list[str] = []
    with with_program(tmp_path, MOVES_AWAY, packages=("s3",)) as stay:
        companion = Companion(
            Folder(stay.root), new_order(), "aaaa", (stay.root / "store.json").read_bytes(),
            Settings(uplink_restart=0.01), SystemClock(), said.append,
        )  # fmt: skip
        companion.start()
        wait_until(lambda: any("pip cannot be started" in each for each in said), "what is wrong")
        wait_until(lambda: any("the uplink cannot be started" in each for each in said), "another start")
        companion.end()
