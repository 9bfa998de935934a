"""Real uplinks beside real agents: what reaches the store, and that nothing of it ever fails a session."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import packages
from orchestrator.agent.companion import DIED, NOT_INSTALLED, secrets_in
from orchestrator.core import wire
from orchestrator.core.order import Outcome
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.folder import FolderStore
from orchestrator.stores.portable import Portable
from orchestrator.uplink import archive
from orchestrator.uplink.layout import SessionKeys
from orchestrator.uplink.outbox import StoreOutbox
from orchestrator.uplink.registers import ask_to_leave, check_fence, heartbeat, raise_fence
from tests.agent.sessions import QUICK, Stay, is_alive, new_order, session
from tests.leaks import Leaks
from tests.package_index import wheel
from tests.waiting import wait_until

RUN, SESSION = new_order().run, new_order().session
SHIPPING = replace(QUICK, uplink_beat=0.2, uplink_ship=0.2, uplink_restart=0.1)
SECRET = "a-key-that-nobody-may-see"
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
    return [ref.step for ref in stored.names(store, RUN) if not ref.outputs]


def newest(store: FolderStore) -> int:
    return max(steps(store), default=-1)


def uplink_pid(stay: Stay) -> int:
    """Of a running uplink."""
    path = stay.root / "shipping" / "pid"
    return wait_until(
        lambda: path.exists() and is_alive(int(path.read_text())) and int(path.read_text()), "it"
    )


def go_on(stay: Stay) -> None:
    (stay.root / "work" / "source").mkdir(parents=True, exist_ok=True)
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


def test_a_session_that_is_asked_through_the_store_saves_and_leaves(tmp_path: Path) -> None:
    """As where its platform cannot reach it."""
    with shipping(tmp_path, *ENDLESS) as (stay, store):
        stay.start(SHIPPING)
        wait_until(lambda: newest(store) > 0, "a checkpoint")
        stay.wait_for(lambda status: status.unshipped_seconds is not None, "how much is not shipped")
        ask_to_leave(store, RUN, 1)
        result = stay.end()
        assert result.outcome is Outcome.STOPPED
        assert newest(store) == result.step == stay.manifests()[-1].ref.step, "what it saved is shipped"


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
        odd = Portable("tape", {"path": "drive-1"}, {"key": SECRET})
        (stay.root / "store.json").write_bytes(wire.encode(odd))
        stay.start(SHIPPING)
        stay.wait_for(lambda status: any("cannot ship" in each for each in status.warnings), "a warning")
        go_on(stay)
        assert stay.end().outcome is Outcome.COMPLETED
        assert steps(store) == []
        assert "sessions cannot open a store of type 'tape'" in stay.log()
        assert Leaks({"key": SECRET}).in_folder(stay.root) == []


LACKS_A_PACKAGE = """
import json, sys
print("given:", repr(sys.stdin.read()), file=sys.stderr)  # as a traceback might
import obstore
if not obstore.__file__.endswith("/site/obstore.py"):
    sys.exit(79)
try:
    import pyrage
    print(json.dumps({"say": "it sees the environment's packages, too"}), flush=True)
except ImportError:
    print(json.dumps({"say": "it sees nothing else"}), flush=True)
sys.exit(78)
"""
WHEELS = (("obstore", "0.12.1"), ("typing_extensions", "4.16.0"))  # these stand for the real ones


@contextmanager
def lacking(folder: Path) -> Iterator[tuple[Stay, FolderStore, dict[str, str]]]:
    """A session whose uplink lacks obstore, and pip's settings: an index that has only `WHEELS`."""
    (folder / "wheels").mkdir()
    for name, version in WHEELS:
        (folder / "wheels" / f"{name}-{version}-py3-none-any.whl").write_bytes(wheel(name, version))
    with shipping(folder, "train.py", *PATIENT) as (stay, store):
        with zipfile.ZipFile(stay.root / "uplink.pyz", "w") as program:
            program.writestr("__main__.py", LACKS_A_PACKAGE)
        portable = replace(store.portable(), secret={"key": SECRET}, packages=("s3",))
        (stay.root / "store.json").write_bytes(wire.encode(portable))
        yield stay, store, {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder / "wheels")}


def lock_these(agent: Path) -> None:
    """Replaces the list in an agent by one with the hashes of `WHEELS`."""
    found = ((name, version, hashlib.sha256(wheel(name, version)).hexdigest()) for name, version in WHEELS)
    text = "".join(f"{name}=={version} --hash=sha256:{sha256}\n" for name, version, sha256 in found)
    with zipfile.ZipFile(agent) as before:
        members = {name: before.read(name) for name in before.namelist()}
    with zipfile.ZipFile(agent, "w") as after:
        for name, data in (members | {"orchestrator/agent/packages/s3.lock": text.encode()}).items():
            after.writestr(name, data)


def test_what_an_uplink_lacks_is_installed_for_it_alone(tmp_path: Path) -> None:
    with lacking(tmp_path) as (stay, _, settings):
        lock_these(stay.root / "agent.pyz")
        go_on(stay)
        assert stay.live(SHIPPING, environment=settings).outcome is Outcome.COMPLETED
        assert "installing for the uplink, checked by hashes: s3" in stay.log()
        assert "uplink: it sees nothing else" in stay.log()


REFUSED = "pip failed: THESE PACKAGES DO NOT MATCH THE HASHES"
UNREACHABLE = {
    "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "0", "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": "",
    "PIP_INDEX_URL": "http://me:login-of-nobody@127.0.0.1:1/token-of-nobody/simple", "PIP_RETRIES": "0",
    "NO_PROXY": "127.0.0.1",
}  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "said"),
    [({}, REFUSED), (UNREACHABLE, "pip failed: No matching distribution found for obstore==0.12.1")],
    ids=["other bytes", "no network"],
)
def test_a_session_goes_on_without_what_cannot_be_installed(
    tmp_path: Path, settings: dict[str, str], said: str
) -> None:
    """It ships nothing and says so, without a login or a token in the address of an index."""
    with lacking(tmp_path) as (stay, store, offline):
        stay.start(replace(SHIPPING, uplink_end=0), environment=offline | settings)
        stay.wait_for(lambda status: NOT_INSTALLED in status.warnings, "a warning")
        go_on(stay)
        assert stay.end().outcome is Outcome.COMPLETED
        assert steps(store) == []
        assert said in stay.log()
        assert '"secret":{"key":"***"}' in stay.log(), "what the uplink printed"
        assert not (stay.root / "shipping" / "site").exists()
        indexes = {"login": "login-of-nobody", "token": "token-of-nobody", "key": SECRET}
        assert Leaks(indexes).in_folder(stay.root) == []


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("ERROR: nothing found for obstore==0.12.1", "nothing found for obstore==0.12.1"),
        ("ERROR: 401 Error for url: https://me:pass@host/token/", "401 Error for url: (address)"),
        ("ERROR: Max retries exceeded with url: /token/ (x)", "Max retries exceeded with url: (address) (x)"),
        ("/usr/bin/python3: No module named pip", "/usr/bin/python3: No module named pip"),
    ],
)
def test_no_address_of_an_index_is_repeated(line: str, shown: str) -> None:
    assert packages.failure(["WARNING: https://host/token/ is slow", f"{line}\n", "\n"]) == shown


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
