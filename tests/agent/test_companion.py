"""Real uplinks beside real agents: what reaches the store, and that nothing of it ever fails a session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.agent.companion import DIED, PACKAGES, secrets_in
from orchestrator.core import wire
from orchestrator.core.order import Outcome
from orchestrator.stores import checkpoints as stored
from orchestrator.stores import encrypted
from orchestrator.stores.folder import FolderStore
from orchestrator.stores.portable import Portable
from orchestrator.uplink import archive
from orchestrator.uplink.layout import SessionKeys
from orchestrator.uplink.outbox import StoreOutbox
from orchestrator.uplink.registers import check_fence, heartbeat, raise_fence
from tests.agent.sessions import QUICK, Stay, is_alive, new_order, session
from tests.package_index import wheel
from tests.waiting import wait_until

RUN, SESSION = new_order().run, new_order().session
SHIPPING = replace(QUICK, uplink_beat=0.2, uplink_ship=0.2, uplink_restart=0.1)
ENDLESS = ("train.py", "--endless", "--pause", "0.01")
PATIENT = ("--pause", "0.05", "--wait-at", "15")  # until the test lets it go on


@contextmanager
def shipping(folder: Path, *command: str, **changes: Any) -> Iterator[tuple[Stay, FolderStore]]:
    """A staged session that ships to the store `folder/store`."""
    store = FolderStore(folder / "store")
    raise_fence(store, RUN, 1)
    with session(folder / "session", *command, interval_seconds=0.2, **changes) as stay:
        (stay.root / "uplink.pyz").write_bytes(archive.content())
        (stay.root / "store.json").write_bytes(wire.encode(store.portable()))
        yield stay, store


def steps(store: FolderStore) -> list[int]:
    return [ref.step for ref in stored.names(store, RUN)]


def newest(store: FolderStore) -> int:
    return max(steps(store), default=-1)


def uplink_pid(stay: Stay) -> int:
    """Of a running uplink."""
    path = stay.root / "shipping" / "pid"
    return wait_until(
        lambda: path.exists() and is_alive(int(path.read_text())) and int(path.read_text()), "it"
    )


def go_on(stay: Stay) -> None:
    (stay.root / "work" / "source" / "go").touch()


def test_everything_is_in_the_store_when_the_agent_exits(tmp_path: Path) -> None:
    with shipping(tmp_path, "train.py", *PATIENT, "--say", "hello") as (stay, store):
        stay.start(SHIPPING)
        wait_until(lambda: newest(store) > 0, "a checkpoint that is shipped while the training goes on")
        go_on(stay)
        assert not (stay.root / "store.json").exists()
        result = stay.end()
        assert result.outcome is Outcome.COMPLETED
        shipped = StoreOutbox(store, RUN, SESSION, 1)
        assert shipped.small("result.json") == (stay.root / "outbox" / "result.json").read_bytes()
        assert newest(store) == 20
        assert len(steps(store)) <= 3  # its own superseded ones are gone again
        beats = heartbeat(store, SessionKeys(RUN, SESSION))
        assert beats is not None
        assert beats.status.checkpoint_step == 20
        stored.verify(store, RUN, stored.names(store, RUN)[-1].name)
        grown = shipped.growing(tmp_path / "none", tmp_path / "grown").root
        assert "hello" in (grown / "log" / "000001.log").read_text()


def test_an_uplink_that_is_killed_is_started_again(tmp_path: Path) -> None:
    with shipping(tmp_path, *ENDLESS) as (stay, store):
        stay.start(SHIPPING)
        pid = uplink_pid(stay)
        wait_until(lambda: os.getpriority(os.PRIO_PROCESS, pid) == 19, "the lowest priority")
        wait_until(lambda: len(os.sched_getaffinity(pid)) == 1, "a core of its own")
        os.kill(pid, signal.SIGKILL)
        stay.wait_for(lambda status: DIED in status.warnings, "a warning")
        before = newest(store)
        wait_until(lambda: newest(store) > before, "a checkpoint of the second one")
        (stay.root / "stop").touch()
        assert stay.end().outcome is Outcome.STOPPED
        assert newest(store) == stay.manifests()[-1].ref.step
        assert "the uplink ended (killed by signal 9)" in stay.log()


HIDDEN = """
import ctypes, os
from orchestrator.uplink.program import _settle
print(_settle(os.getppid()), ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))  # PR_GET_DUMPABLE
"""


def test_the_memory_of_an_uplink_gets_into_no_core_dump() -> None:
    done = subprocess.run([sys.executable, "-c", HIDDEN], capture_output=True, text=True, check=True)
    assert done.stdout == "True 0\n"


def test_a_superseded_session_leaves(tmp_path: Path) -> None:
    with shipping(tmp_path, *ENDLESS) as (stay, store):
        stay.start(SHIPPING)
        wait_until(lambda: newest(store) > 0, "a checkpoint")
        raise_fence(store, RUN, 2)
        result = stay.end()
        assert result.outcome is Outcome.STOPPED  # it saved first
        assert "left for another session of this run, which has taken over" in result.message
        assert newest(store) < stay.manifests()[-1].ref.step
        assert StoreOutbox(store, RUN, SESSION, 1).small("result.json") is None


def test_a_store_that_was_away_gets_the_newest_when_it_is_back(tmp_path: Path) -> None:
    with shipping(tmp_path, *ENDLESS) as (stay, store):
        stay.start(SHIPPING)
        wait_until(lambda: newest(store) > 0, "a checkpoint")
        (tmp_path / "store").rename(tmp_path / "away")
        stay.wait_for(lambda status: any("cannot reach" in each for each in status.warnings), "a warning")
        assert not (tmp_path / "store").exists()
        before = newest(FolderStore(tmp_path / "away"))
        stay.wait_for(lambda status: (status.checkpoint_step or 0) > before + 5, "more checkpoints")
        (tmp_path / "away").rename(tmp_path / "store")
        wait_until(lambda: newest(store) > before, "a newer checkpoint")
        (stay.root / "stop").touch()
        assert stay.end().outcome is Outcome.STOPPED
        assert newest(store) == stay.manifests()[-1].ref.step
        check_fence(store, RUN, 1)


def test_a_session_goes_on_without_an_uplink_that_cannot_ship(tmp_path: Path) -> None:
    with shipping(tmp_path, "train.py", *PATIENT) as (stay, store):
        secret = "a-key-that-nobody-may-see"
        odd = Portable("tape", {"path": "drive-1"}, {"key": secret})
        (stay.root / "store.json").write_bytes(wire.encode(odd))
        stay.start(SHIPPING)
        stay.wait_for(lambda status: any("cannot ship" in each for each in status.warnings), "a warning")
        go_on(stay)
        assert stay.end().outcome is Outcome.COMPLETED
        assert steps(store) == []
        assert "sessions cannot open a store of type 'tape'" in stay.log()
        everything = [path for path in stay.root.rglob("*") if path.is_file()]
        assert not any(secret.encode() in path.read_bytes() for path in everything)


LACKS_A_PACKAGE = """
import json, sys
sys.stdin.buffer.read()
import obstore
if not obstore.__file__.endswith("/site/obstore.py"):
    sys.exit(79)
print(json.dumps({"say": "found it"}), flush=True)
sys.exit(78)
"""


def test_what_an_uplink_lacks_is_installed_for_it_alone(tmp_path: Path) -> None:
    """The wheel stands for the real package, which the machine of the tests has."""
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "obstore-0.12.9-py3-none-any.whl").write_bytes(wheel("obstore", "0.12.9"))
    with shipping(tmp_path, "train.py", "--pause", "0.05", "--say", "trained") as (stay, store):
        with zipfile.ZipFile(stay.root / "uplink.pyz", "w") as program:
            program.writestr("__main__.py", LACKS_A_PACKAGE)
        lacking = replace(store.portable(), packages=("s3",))
        (stay.root / "store.json").write_bytes(wire.encode(lacking))
        index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels")}
        result = stay.live(SHIPPING, environment=index)
        assert result.outcome is Outcome.COMPLETED
        assert "installing for the uplink: obstore>=0.12.1,<0.13" in stay.log()
        assert "uplink: found it" in stay.log()


def test_packages_are_those_of_our_own_project() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    needed = {*project["dependencies"], *project["optional-dependencies"]["drive"]}
    assert {each for names in PACKAGES.values() for each in names} <= needed
    assert encrypted.PACKAGES in PACKAGES


def test_a_session_that_never_trains_ships_why(tmp_path: Path) -> None:
    with shipping(tmp_path, "train.py", secrets=("MISSING",)) as (stay, store):
        result = stay.live(SHIPPING)
        assert result.outcome is Outcome.CRASHED
        shipped = StoreOutbox(store, RUN, SESSION, 1).small("result.json")
        assert shipped is not None
        assert b"the job's secrets were not delivered: MISSING" in shipped


def test_the_secrets_of_a_store_are_found_inside_documents() -> None:
    key = wire.encode(Portable("s3", {"bucket": "b"}, {"secret_key": "abc", "account": '{"token": ["t-1"]}'}))
    assert set(secrets_in(key)) == {"abc", '{"token": ["t-1"]}', "t-1"}
    assert secrets_in(b"no document") == ()
