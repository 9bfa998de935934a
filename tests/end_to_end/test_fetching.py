"""Sessions that fetch what they need from a real S3 service, by real commands, killed in the middle of it."""

from __future__ import annotations

import random
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.core.event import Ended
from orchestrator.core.order import Outcome
from orchestrator.freeze import inputs
from tests.conformance.age_keys import ME, RECOVERY
from tests.end_to_end.test_uplink import (
    GATE,
    JOB_SECRET,
    STEPS,
    Home,
    check_as_in_one_piece,
    check_only_training_has_secrets,
    kill,
    resumed_at,
    training,
)
from tests.end_to_end.user import PATIENCE, Role, User, gated, opens, wait_until
from tests.leaks import Leaks
from tests.stand_ins.fault_proxy import FaultProxy, Request, fault_proxy
from tests.stand_ins.seaweed import ACCESS_KEY, BUCKET, SECRET_KEY, Seaweed

pytestmark = pytest.mark.timeout(900)


class Gate:
    """Keeps back answers of the service while a session fetches."""

    def __init__(self, proxy: FaultProxy) -> None:
        self._matches: Callable[[Request], bool] | None = None
        self.waits = threading.Event()
        self._open = threading.Event()
        proxy.rewrite = self._rewrite

    def close(self, matches: Callable[[Request], bool]) -> None:
        """Keeps back the answer to everyone who reads what matches."""
        self.waits.clear()
        self._open.clear()
        self._matches = matches

    def open(self) -> None:
        self._matches = None
        self._open.set()

    def _rewrite(self, request: Request, body: bytes) -> bytes:
        reads = (
            request.headers.get("Range") is not None
        )  # without one, a store only looks whether it is there
        if self._matches is not None and reads and self._matches(request):
            self.waits.set()
            self._open.wait(PATIENCE)
        return body


def is_part(request: Request) -> bool:
    """Of a parcel."""
    return re.search(r"/parcel/[0-9a-f]{64}", request.path) is not None


def is_blob(request: Request) -> bool:
    return re.search(r"/blobs/[^/]+/[0-9a-f]{64}", request.path) is not None


@pytest.fixture
def gate(seaweedfs: Seaweed) -> Iterator[tuple[FaultProxy, Gate]]:
    with fault_proxy(seaweedfs.port) as proxy:
        made = Gate(proxy)
        yield proxy, made
        made.open()


@pytest.fixture(params=[pytest.param("plain", marks=pytest.mark.soak), "encrypted"])
def home(request: pytest.FixtureRequest, seaweedfs: Seaweed, gate: tuple[FaultProxy, Gate]) -> Home:
    options: dict[str, object] = {
        "type": "s3", "preset": "seaweedfs", "endpoint": gate[0].endpoint, "bucket": BUCKET,
        "prefix": seaweedfs.prefix(), "access_key": "file:access", "secret_key": "file:secret",
    }  # fmt: skip
    secrets = {"access": ACCESS_KEY, "secret": SECRET_KEY}
    if request.param == "plain":
        return Home(options, dict(secrets), secrets)
    options["encrypt"] = {"recipients": [ME.public, RECOVERY.public], "identity": "file:identity"}
    return Home(options, {**secrets, "identity": ME.text}, {**secrets, "identity": str(ME.identity)})


def in_the_middle(user: User, gate: Gate) -> Path:
    """Waits until a session is kept waiting, and returns its folder."""
    wait_until(gate.waits.is_set, lambda: f"a session that fetches\n{user.story()}")
    return next(
        path
        for path in (user.home / "platforms" / "here").iterdir()
        if not (path / "work/progress.jsonl").exists()
    )


def lost(user: User, run: str) -> int:
    events = (each.event for each in user.history(run))
    return sum(isinstance(event, Ended) and event.outcome is Outcome.LOST for event in events)


@pytest.mark.soak
def test_a_run_that_is_killed_while_it_fetches_ends_as_in_one_piece(
    new_user: Callable[..., User],
    home: Home,
    gate: tuple[FaultProxy, Gate],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """First an uplink is killed while it fetches source and inputs, then a machine that trains, then one that
    fetches the checkpoint. All the time, secrets are only where they belong."""
    monkeypatch.setenv(*JOB_SECRET)
    leaks = Leaks({"job": JOB_SECRET[1], **home.secrets})
    user, (_, held) = new_user(), gate
    data = user.folder / "data.bin"
    data.write_bytes(random.Random(3).randbytes(300_000))
    home.configure(user, fetch=True, uplink_seconds=1, uplink_silence_seconds=2)

    held.close(is_part)
    run = user.submit(
        command=gated(user, GATE, pause=0.25),
        work={"total": STEPS, "global_batch": 8},
        secrets=[JOB_SECRET[0]],
        inputs=[{"name": "data", "from": str(data)}],
    )
    session = in_the_middle(user, held)
    assert not (session / "bundle.tar.gz").exists()
    assert leaks.in_folder(session) == []
    [uplink] = user.by_role()[Role.UPLINK]
    assert uplink.send(signal.SIGKILL)
    held.open()
    user.wait_for(run, training, "its agent")
    wait_until(lambda: (session / "inputs" / "data").exists(), "the input")
    assert inputs.digest(session / "inputs" / "data") == inputs.digest(data)
    wait_until(lambda: home.newest(user, run) > 0, "a checkpoint in the store")
    check_only_training_has_secrets(leaks, user, session)

    held.close(is_part if "identity" in home.secrets else is_blob)
    kill(user)
    shutil.rmtree(session)
    opens(user, GATE)
    session = in_the_middle(user, held)
    assert leaks.in_folder(session) == []
    for role in (Role.AGENT, Role.GUARDIAN, Role.UPLINK):
        for process in user.by_role()[role]:
            process.send(signal.SIGKILL)
    held.open()

    user.wait_for_end(run)
    first, *later = resumed_at(user, run)
    assert first == 0
    assert all(step > 0 for step in later)
    assert lost(user, run) == 2
    check_as_in_one_piece(user, run)
    assert leaks.in_text("logs", user.run("logs", run)) == []
    assert leaks.in_store(home.store(user)) == []
    assert {leak.where for leak in leaks.in_folder(user.home)} == set(home.files)
    assert [stat.key for stat in home.store(user).list(f"runs/{run}/sessions/")] == []
    user.run("down")
    user.wait_for_silence()
