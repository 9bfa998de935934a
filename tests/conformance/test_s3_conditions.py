"""Conditional writes, listings and `doctor` of the store `s3`: more of the fault matrix of docs/stores.md."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.client import checkup
from orchestrator.client.checkup import Finding, State
from orchestrator.client.home import Home
from orchestrator.clock import SystemClock
from orchestrator.core.job import Keep
from orchestrator.errors import Conflict, NotFound, Rejected, Transient
from orchestrator.stores import checkpoints
from orchestrator.stores.opening import carried, opened
from orchestrator.stores.retrying import RetryingStore
from orchestrator.stores.s3 import pacing
from orchestrator.stores.s3.store import S3Store
from orchestrator.stores.store import Stat
from orchestrator.uplink.registers import raise_fence
from tests.conformance.store_suite import KEY, Source, source
from tests.conformance.test_s3 import configured
from tests.conformance.test_s3_faults import proxy, store
from tests.core.runs import RUN
from tests.stand_ins.fault_proxy import Fault, FaultProxy, Says
from tests.stand_ins.seaweed import ACCESS_KEY, BUCKET, SECRET_KEY, Seaweed
from tests.test_uplink import ORDER, Session
from tests.test_uplink_bytes import SIZE, saves

__all__ = ["proxy", "source", "store"]  # fixtures


# --- conditional writes -----------------------------------------------------------------------------------


def careless(proxy: FaultProxy, seaweedfs: Seaweed, home: Path, *, fault: Fault | Says) -> S3Store:
    proxy.each(
        fault, "PUT", lambda request: bool(request.headers["If-Match"] or request.headers["If-None-Match"])
    )
    made = configured(proxy.endpoint, home, prefix=seaweedfs.prefix())
    assert isinstance(made, S3Store)
    return made


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (Fault.UNCONDITIONAL, "ignores If-None-Match"),
        (Says(501, "NotImplemented"), "refuses conditional writes"),
    ],
    ids=["ignored", "refused"],
)
def test_a_service_without_conditional_writes_has_no_registers_and_is_asked_before_each_put(
    proxy: FaultProxy, seaweedfs: Seaweed, source: Source, tmp_path: Path, fault: Fault | Says, why: str
) -> None:
    store = careless(proxy, seaweedfs, tmp_path, fault=fault)
    assert store.registers is None
    assert why in store.conditions().why
    store.put(KEY, *source(b"first"))
    store.put(KEY, *source(b"first"))
    with pytest.raises(Rejected, match="objects never change"):
        store.put(KEY, *source(b"other"))
    assert list(store.list("")) == [Stat(KEY, 5)]


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidToken", "RequestTimeout"])
def test_a_400_for_another_reason_says_nothing_about_conditional_writes(
    proxy: FaultProxy, seaweedfs: Seaweed, tmp_path: Path, code: str
) -> None:
    store = careless(proxy, seaweedfs, tmp_path, fault=Says(400, code))
    with suppress(Transient):
        assert store.registers is not None
    proxy.calm()
    assert store.registers is not None
    assert store.conditions().why == ""


def test_a_service_that_ignores_only_if_match_has_no_registers(
    proxy: FaultProxy, seaweedfs: Seaweed, tmp_path: Path
) -> None:
    proxy.each(Fault.UNCONDITIONAL, "PUT", lambda request: bool(request.headers["If-Match"]))
    store = configured(proxy.endpoint, tmp_path, prefix=seaweedfs.prefix())
    assert isinstance(store, S3Store)
    assert store.registers is None
    assert store.conditions().creates
    assert "ignores If-Match" in store.conditions().why


def test_a_swap_during_another_is_tried_again(store: S3Store, proxy: FaultProxy) -> None:
    registers = RetryingStore(store, sleep=lambda _: None).registers
    assert registers is not None
    for version, value in ((None, b"1"), ("", b"2")):
        proxy.once(Says(409, "ConditionalRequestConflict"), "PUT")
        held = registers.read("fence")
        registers.swap("fence", value, held.version if held and version is not None else None)
        held = registers.read("fence")
        assert held is not None
        assert held.value == value


def test_a_swap_of_a_register_that_is_gone_is_a_conflict(store: S3Store, proxy: FaultProxy) -> None:
    """AWS answers 404, SeaweedFS 412."""
    assert store.registers is not None
    proxy.once(Says(404, "NoSuchKey"), "PUT")
    with pytest.raises(Conflict):
        store.registers.swap("fence", b"2", '"0123456789abcdef"')


@pytest.fixture
def one_write_per_key(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> FaultProxy:
    """A service that takes one write per key and moment, as R2 does."""
    monkeypatch.setattr(pacing, "PAUSE_SECONDS", 0.15)
    proxy.key_seconds = 0.12
    return proxy


def test_a_service_that_takes_one_write_per_key_and_second_has_registers(
    one_write_per_key: FaultProxy, seaweedfs: Seaweed, tmp_path: Path
) -> None:
    store = configured(one_write_per_key.endpoint, tmp_path, prefix=seaweedfs.prefix())
    assert isinstance(store, S3Store)
    registers = store.registers
    assert registers is not None
    version = registers.swap("beat", b"1", None)
    version = registers.swap("beat", b"2", version)
    with pytest.raises(Conflict):
        registers.swap("beat", b"3", None)
    assert registers.swap("beat", b"3", version)
    assert one_write_per_key.struck
    client = store._clients.now().small
    left = [each["path"] for page in client.list() for each in page]
    assert left == [".registers/beat"], "nor did the trial leave anything"


def test_an_uplink_needs_nothing_but_the_objects_of_its_bucket(
    one_write_per_key: FaultProxy, seaweedfs: Seaweed, tmp_path: Path
) -> None:
    """A key for one bucket (R2: Object Read & Write) may read, write, delete and list objects there."""
    proxy, prefix = one_write_per_key, seaweedfs.prefix()
    store = opened(carried(configured(proxy.endpoint, tmp_path, prefix=prefix)))
    raise_fence(store, RUN, 1)
    proxy.seen.clear()
    session = Session(tmp_path, store, replace(ORDER, keep=Keep(last=2)))
    for step in (1, 2, 3):
        saves(session, step, trained=bytes([step]) * (SIZE if step == 3 else 1))
        session.ships()
        session.uplink.beat()
    session.ends()
    session.ships(2)
    assert session.uplink.done
    assert len(checkpoints.names(store, RUN)) == 2, "it has deleted one"
    place = f"/{BUCKET}/{prefix}/"
    for request in proxy.seen:
        listing = (
            request.method == "GET"
            and request.path.startswith(f"/{BUCKET}?")
            and "list-type=2" in request.path
        )
        assert listing or request.path.startswith(place), request
        assert "?" not in request.path or listing or re.search("uploads|uploadId=|partNumber=", request.path)


# --- listings ---------------------------------------------------------------------------------------------


def test_whether_a_store_is_empty_costs_one_request_however_full_it_is(
    store: S3Store, proxy: FaultProxy
) -> None:
    client = store._clients.now().small
    for number in range(1001):  # one page has 1,000
        client.put(f"runs/r/{number:04}", b"x")
    retried = RetryingStore(store)
    proxy.seen.clear()
    assert not retried.is_empty()
    assert len(proxy.seen) == 1
    assert [stat.key for stat in store.list("runs/r/")] == [f"runs/r/{number:04}" for number in range(1001)]
    assert len(proxy.seen) == 3


def test_what_others_put_into_the_bucket_is_not_listed(store: S3Store, source: Source) -> None:
    client = store._clients.now().small
    for key in ("runs/notes .txt", "runs/.DS_Store", ".hidden/x"):
        client.put(key, b"x")
    assert store.is_empty()
    store.put(KEY, *source(b"x"))
    assert list(store.list("")) == [Stat(KEY, 1)]
    with pytest.raises(NotFound):
        store.get("absent", Path("nowhere"))


# --- doctor -----------------------------------------------------------------------------------------------


def findings(home: Path, endpoint: str, prefix: str, bucket: str = BUCKET) -> dict[str, Finding]:
    """What `doctor home` finds, with this store as the home store."""
    (home / "secret").write_text(SECRET_KEY, "utf-8")
    (home / "access").write_text(ACCESS_KEY, "utf-8")
    (home / "config.yaml").write_text(
        f"""stores: {{home: {{type: s3, endpoint: "{endpoint}", bucket: {bucket}, prefix: {prefix},
          access_key: "file:access", secret_key: "file:secret"}}}}\n""",
        "utf-8",
    )
    return {found.what: found for found in checkup.findings(Home(home), SystemClock(), ["home"])}


def test_doctor_says_what_the_store_can_do_and_leaves_nothing(
    proxy: FaultProxy, seaweedfs: Seaweed, tmp_path: Path
) -> None:
    prefix = seaweedfs.prefix()
    found = findings(tmp_path, proxy.endpoint, prefix)
    assert {what: finding.state for what, finding in found.items() if what.startswith("store")} == {
        "store home": State.OK,
        "store home: conditional writes": State.OK,
        "store home: abandoned uploads": State.OK,
        "store home: speed": State.OK,
    }
    assert "MB/s up" in found["store home: speed"].text
    everything = configured(proxy.endpoint, tmp_path)
    assert isinstance(everything, S3Store)
    client = everything._clients.now().small
    assert [each for page in client.list(prefix) for each in page] == []


def test_doctor_names_a_service_that_ignores_conditions(
    proxy: FaultProxy, seaweedfs: Seaweed, tmp_path: Path
) -> None:
    proxy.each(Fault.UNCONDITIONAL, "PUT")
    found = findings(tmp_path, proxy.endpoint, seaweedfs.prefix())["store home: conditional writes"]
    assert found.state is State.WARNING
    assert "ignores If-None-Match" in found.text
    assert "another service" in found.advice


@pytest.mark.parametrize("answer", [None, Says(403, "AccessDenied")])
def test_doctor_names_a_bucket_that_keeps_old_versions(
    proxy: FaultProxy, seaweedfs: Seaweed, tmp_path: Path, answer: Says | None
) -> None:
    """Also one that lets nobody read them. A service that names versions and keeps none is left alone."""
    bucket = seaweedfs.versioned()
    if answer is not None:
        proxy.each(answer, "HEAD", lambda request: "versionId=" in request.path)
    found = findings(tmp_path, proxy.endpoint, "home", bucket)["store home: versions"]
    assert found.state is State.WARNING
    assert "keeps, and charges for, what was replaced or deleted" in found.text
    assert "lifecycle rule" in found.advice
    proxy.calm()
    proxy.each(Says(404, "NoSuchKey"), "HEAD", lambda request: "versionId=" in request.path)
    assert "store home: versions" not in findings(tmp_path, proxy.endpoint, "home", bucket)
