"""Each RPC of the real kaggle client, how it fails, and what the failure means to the caller."""

from __future__ import annotations

import base64
import logging
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from orchestrator.clock import SystemClock
from orchestrator.errors import (
    AccessDenied,
    BackendError,
    InputError,
    NotFound,
    Refused,
    Rejected,
    Transient,
)
from orchestrator.platforms.kaggle.client import FORBIDDEN_SECONDS, KaggleClient
from orchestrator.platforms.kaggle.connection import NO_PRODUCTION
from orchestrator.platforms.kaggle.credentials import Credentials
from orchestrator.platforms.kaggle.logs import events
from orchestrator.platforms.kaggle.values import (
    Listed,
    Output,
    OutputFile,
    Pool,
    Push,
    Pushed,
    Quotas,
    Status,
)
from tests.cli.calls import Caller
from tests.platforms.kaggle_wire import (
    BROKEN,
    CUT,
    KEY,
    LIMITED,
    LOST,
    MISSING,
    NESTED,
    PAGE,
    SIGNATURE,
    SILENT,
    UNKNOWN,
    Answer,
    Wire,
    client,
    said,
    timeout,
    wire,
)
from tests.simulation.clock import VirtualClock

PUSH = Push("x-s01", "print(1)", "NvidiaTeslaT4", True, False, 3600, False, ("x-code",), ("ada/x-s00",))
QUOTA = "GetAcceleratorQuotaStatistics"
QUOTAS = Quotas(1795824000.0, Pool(3600.0, 1.5, 108000.0), None)
FILES = {"datasetFiles": [{"name": "a.tar", "totalBytes": "7"}, {"name": "empty"}]}
Call = Callable[[KaggleClient], Any]


def token(found: KaggleClient) -> str:
    return found.start_upload("a.tar", 7, 1.5).token


def log(found: KaggleClient) -> list[str]:
    return events(found, "x-s01", quiet_seconds=0.2, at_most_seconds=5.0)


READS: dict[str, tuple[Call, Answer, Any]] = {
    QUOTA: (KaggleClient.quota, said({
        "quotaRefreshTime": "2026-11-28T00:00:00", "gpuQuota":
        {"timeUsed": "3600s", "timeReserved": "1.500s", "totalTimeAllowed": "108000s"}}), QUOTAS),
    "GetKernelSessionStatus":
        (lambda c: c.status("x-s01"), said({"status": "RUNNING"}), Status("RUNNING", "")),
    "ListKernelSessionOutput": (lambda c: c.output("x-s01"), said({"log": "[]"}), Output((), "[]")),
    "ListKernels": (KaggleClient.kernels, said({"kernels": [{"ref": "ada/x-s01"}]}),
                    (Listed("x-s01", ""),)),
    "ListDatasets": (KaggleClient.datasets, said({"datasets": [{"ref": "ada/x-code", "title": "code"}]}),
                     (Listed("x-code", "code"),)),
    "GetDatasetStatus": (lambda c: c.dataset_status("x-code"), said({"status": "READY"}), "ready"),
    "ListDatasetFiles": (lambda c: c.dataset_files("x-code"), said(FILES), {"a.tar": 7, "empty": None}),
    "StartBlobUpload": (token, said({"token": "t1", "createUrl": "http://127.0.0.1/put"}), "t1"),
    "x-s01": (log, said([{"stream_name": "stdout", "time": 1.0, "data": "hello\n"}]), ["hello\n"]),
}  # fmt: skip
WRITES: dict[str, tuple[Call, Answer, Any]] = {
    "SaveKernel": (lambda c: c.push(PUSH), said({"versionNumber": 1}), Pushed(1, "", ())),
    "CreateDataset": (lambda c: c.create_dataset("x-code", ["t1"]), said({"status": "ok"}), None),
    "DeleteKernel": (lambda c: c.delete_kernel("x-s01"), said({}), True),
    "DeleteDataset": (lambda c: c.delete_dataset("x-code"), said({}), None),
}
FAULTS = {"silent": SILENT, "429": LIMITED, "500": BROKEN, "page": PAGE, "cut": CUT, "lost": LOST}
AMBIGUOUS = {name: fault for name, fault in FAULTS.items() if name != "429"}
ABSENT: dict[str, Any] = {
    "GetKernelSessionStatus": None,
    "ListKernelSessionOutput": None,
    "GetDatasetStatus": None,
    "x-s01": [],
    "DeleteKernel": False,
    "DeleteDataset": None,
}


@pytest.fixture
def server() -> Iterator[Wire]:
    with wire() as made:
        yield made


# --- Every RPC, every fault -----------------------------------------------------------------------------


@pytest.mark.parametrize("rpc", READS)
def test_a_read_succeeds(server: Wire, rpc: str) -> None:
    call, answer, expected = READS[rpc]
    server.then(rpc, answer)
    assert call(client(server)) == expected


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("rpc", READS)
def test_a_read_is_tried_again_after_a_pause(server: Wire, rpc: str, fault: str) -> None:
    call, answer, expected = READS[rpc]
    pauses: list[float] = []
    server.then(rpc, FAULTS[fault], answer)
    if (rpc, fault) == ("x-s01", "cut"):  # a break in the log only shows when it is read
        with pytest.raises(Transient, match="only a part"):
            call(client(server, pauses))
        return
    assert call(client(server, pauses, timeout=timeout(FAULTS[fault]))) == expected
    assert len(pauses) == 1


@pytest.mark.parametrize("rpc", READS)
def test_a_read_that_never_succeeds_is_transient(server: Wire, rpc: str) -> None:
    server.always(rpc, BROKEN)
    with pytest.raises(Transient, match="HTTP 500") as caught:
        READS[rpc][0](client(server, attempts=3))
    assert caught.value.backend == "box"
    assert caught.value.operation
    assert len(server.calls(rpc)) == 3


@pytest.mark.parametrize("rpc", WRITES)
def test_a_write_is_tried_again_only_where_it_took_no_effect(server: Wire, rpc: str) -> None:
    call, answer, expected = WRITES[rpc]
    server.then(rpc, LIMITED, answer)
    assert call(client(server)) == expected
    assert len(server.calls(rpc)) == 2


@pytest.mark.parametrize("fault", AMBIGUOUS)
@pytest.mark.parametrize("rpc", WRITES)
def test_a_write_with_an_ambiguous_answer_is_made_once(server: Wire, rpc: str, fault: str) -> None:
    server.then(rpc, AMBIGUOUS[fault])
    with pytest.raises(Transient) as caught:
        WRITES[rpc][0](client(server, timeout=timeout(AMBIGUOUS[fault])))
    assert caught.value.backend == "box"
    assert len(server.calls(rpc)) == 1


def test_a_write_that_reached_nobody_is_tried_again() -> None:
    pauses: list[float] = []
    with wire() as server:
        late = client(server, pauses)
    with pytest.raises(Transient, match="connection refused"):
        late.push(PUSH)
    assert len(pauses) == 3


@pytest.mark.parametrize("answer", [NESTED, MISSING, UNKNOWN], ids=["403", "404", "401"])
@pytest.mark.parametrize("rpc", [rpc for rpc in (*READS, *WRITES) if rpc != QUOTA])
def test_what_is_refused_to_valid_credentials_is_missing_or_not_allowed(
    server: Wire, rpc: str, answer: Answer
) -> None:
    call, _, _ = {**READS, **WRITES}[rpc]
    server.always(rpc, answer)
    if rpc in ABSENT:
        assert call(client(server)) == ABSENT[rpc]
    else:
        means = {"ListDatasetFiles": NotFound, "ListKernels": Transient, "ListDatasets": Transient}
        with pytest.raises(means.get(rpc, Refused)):  # nothing can be missing from what makes something
            call(client(server))
    assert len(server.calls(rpc)) == 1


@pytest.mark.parametrize("rpc", [*READS, *WRITES])
def test_what_is_refused_as_the_quota_is_needs_a_human(server: Wire, rpc: str) -> None:
    server.always(QUOTA, UNKNOWN)
    server.always(rpc, UNKNOWN)
    with pytest.raises(AccessDenied, match=r"kaggle\.com/settings → API") as caught:
        {**READS, **WRITES}[rpc][0](client(server))
    assert caught.value.backend == "box"
    assert caught.value.operation


@pytest.mark.parametrize("rpc", [*READS, *WRITES])
def test_a_403_may_pass_even_to_the_quota(server: Wire, rpc: str) -> None:
    server.always(QUOTA, NESTED)
    server.always(rpc, NESTED)
    with pytest.raises(Transient, match=r"kaggle\.com/settings → API") as caught:
        {**READS, **WRITES}[rpc][0](client(server))
    assert caught.value.backend == "box"
    assert caught.value.operation
    assert len(server.calls(QUOTA)) == 4


def test_a_403_to_the_quota_that_stays_needs_a_human(server: Wire) -> None:
    clock = VirtualClock()
    found = client(server, clock=clock)
    server.always(QUOTA, NESTED)
    for _ in range(2):
        with pytest.raises(Transient):
            found.quota()
        clock.advance(FORBIDDEN_SECONDS - 1.0)
    with pytest.raises(AccessDenied):
        found.quota()
    clock.advance(FORBIDDEN_SECONDS)
    with pytest.raises(Transient):  # nobody asked for long: it may be another one
        found.quota()
    server.then(QUOTA, READS[QUOTA][1])
    assert found.quota() == QUOTAS
    clock.advance(FORBIDDEN_SECONDS - 1.0)
    with pytest.raises(Transient):
        found.quota()


def test_nothing_is_missing_while_the_quota_cannot_tell(server: Wire) -> None:
    server.always("GetKernelSessionStatus", NESTED)
    server.always(QUOTA, BROKEN)
    with pytest.raises(Transient):
        client(server).status("x-s01")


def test_valid_credentials_are_believed_for_a_while_except_after_401(server: Wire) -> None:
    server.always("GetKernelSessionStatus", NESTED)
    found = client(server)
    assert [found.status("x-s01") for _ in range(3)] == [None] * 3
    assert len(server.calls(QUOTA)) == 1
    server.always("GetKernelSessionStatus", UNKNOWN)
    server.always(QUOTA, UNKNOWN)
    with pytest.raises(AccessDenied):
        found.status("x-s01")


def test_a_request_that_is_wrong_is_not_repeated(server: Wire) -> None:
    server.then("SaveKernel", said({"code": 400, "message": "Source is too large"}, 400))
    with pytest.raises(Rejected, match="Source is too large") as caught:
        client(server).push(PUSH)
    assert type(caught.value) is Rejected


def test_an_error_in_an_answer_that_is_called_good_is_one(server: Wire) -> None:
    server.then(
        "GetKernelSessionStatus", said({"code": 404, "message": "gone"}), said({"error": {"code": 404}})
    )
    assert client(server).status("x-s01") is None
    assert client(server).status("x-s01") is None


def test_the_server_says_when_to_come_back(server: Wire) -> None:
    soon = format_datetime(datetime.fromtimestamp(SystemClock().now() + 40, UTC), usegmt=True)
    pauses: list[float] = []
    server.then("ListKernels", LIMITED, said({}, 503, Retry_After=soon), said({}))
    assert client(server, pauses).kernels() == ()
    assert 7.0 <= pauses[0] <= 7.5
    assert 10.0 < pauses[1] <= 41.0


def test_who_is_sent_away_for_long_does_not_wait(server: Wire) -> None:
    pauses: list[float] = []
    server.always("ListKernels", said({}, 429, Retry_After="3600"))
    with pytest.raises(Transient):
        client(server, pauses).kernels()
    assert not pauses


# --- What is sent and read ------------------------------------------------------------------------------


def test_a_push_says_everything_explicitly_and_is_private(server: Wire) -> None:
    server.then("SaveKernel", said({"ref": "/ada/x-s01", "versionNumber": 3, "kernelId": 7}))
    assert client(server).push(PUSH) == Pushed(3, "", (), slug="x-s01", id=7)
    assert server.calls("SaveKernel")[0].json == {
        "slug": "ada/x-s01", "newTitle": "x-s01", "text": "print(1)", "language": "python",
        "kernelType": "script", "isPrivate": True, "enableGpu": True, "enableTpu": False,
        "enableInternet": False, "machineShape": "NvidiaTeslaT4", "sessionTimeoutSeconds": 3600,
        "datasetDataSources": ["ada/x-code"], "kernelDataSources": ["ada/x-s00"],
    }  # fmt: skip


def test_what_kaggle_refuses_in_a_good_answer_is_told(server: Wire) -> None:
    full = "Maximum batch GPU session count of 2 reached."
    server.then("SaveKernel", said({"error": full}), said({"code": 403, "message": full}, 403))
    assert client(server).push(PUSH) == Pushed(0, full, ())
    assert full in client(server).push(PUSH).error
    invalid = {
        "invalidDatasetSources": ["ada/x"],
        "invalidKernelSources": ["ada/y"],
        "invalidModelSources": ["m"],
    }
    server.then("SaveKernel", said({"versionNumber": 1, **invalid}))
    assert client(server).push(PUSH).invalid == ("dataset ada/x", "kernel ada/y", "model m")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, Status("QUEUED", "")),
        ({"status": "cancelAcknowledged"}, Status("CANCEL_ACKNOWLEDGED", "")),
        ({"status": "HIBERNATING"}, Status("HIBERNATING", "")),
        ({"status": "ERROR", "failureMessage": "boom", "new": 1}, Status("ERROR", "boom")),
    ],
)
def test_states_are_kept_as_the_server_says_them(server: Wire, body: Any, expected: Status) -> None:
    server.then("GetKernelSessionStatus", said(body))
    assert client(server).status("x-s01") == expected


def test_outputs_come_from_all_pages(server: Wire) -> None:
    first = {"files": [{"fileName": "a/b", "url": "u1"}], "log": "[1]", "nextPageToken": "p2"}
    server.then(
        "ListKernelSessionOutput", said(first), BROKEN, said({"files": [{"fileName": "c", "url": "u2"}]})
    )
    found = client(server).output("x-s01")
    assert found == Output((OutputFile("a/b", "u1"), OutputFile("c", "u2")), "[1]")
    assert [call.json.get("pageToken") for call in server.calls("ListKernelSessionOutput")] == [
        None,
        "p2",
        "p2",
    ]


@pytest.mark.parametrize(
    ("rpc", "call", "key"),
    [("ListKernels", KaggleClient.kernels, "kernels"), ("ListDatasets", KaggleClient.datasets, "datasets")],
)
def test_our_own_are_listed_from_all_pages(server: Wire, rpc: str, call: Call, key: str) -> None:
    server.then(rpc, said({key: [{"ref": "Ada/x"}, {"ref": "eve/y"}], "nextPageToken": "2"}),
                said({key: [{"ref": "/code/ada/z", "title": "Z", "id": 7}, {"ref": "ada/x"}]}))  # fmt: skip
    assert call(client(server)) == (Listed("x", ""), Listed("z", "Z", 7))


def test_pages_that_do_not_end_are_given_up(server: Wire) -> None:
    server.always("ListKernels", said({"kernels": [], "nextPageToken": "again"}))
    with pytest.raises(Transient, match="does not end"):
        client(server).kernels()


def test_the_sizes_of_a_dataset_come_from_all_pages(server: Wire) -> None:
    server.then("ListDatasetFiles", said({**FILES, "nextPageToken": "2"}),
                said({"datasetFiles": [{"name": "b", "totalBytes": 3}]}))  # fmt: skip
    assert client(server).dataset_files("x-code") == {"a.tar": 7, "empty": None, "b": 3}


def test_a_dataset_is_private_and_a_refusal_of_one_is_told(server: Wire) -> None:
    server.then("CreateDataset", said({"status": "ok"}), said({"status": "error", "error": "title in use"}))
    client(server).create_dataset("x-code", ["t1", "t2"])
    sent = server.calls("CreateDataset")[0].json
    assert (sent["isPrivate"], sent["ownerSlug"], sent["slug"]) == (True, "ada", "x-code")
    assert sent["files"] == [{"token": "t1"}, {"token": "t2"}]
    with pytest.raises(Refused, match="title in use"):
        client(server).create_dataset("x-code", ["t1"])


@pytest.mark.parametrize("body", [[], {"files": [{"url": "u"}]}, {"files": 3}])
def test_an_answer_of_another_shape_is_transient(server: Wire, body: Any) -> None:
    server.always("ListKernelSessionOutput", said(body))
    with pytest.raises(Transient, match="cannot be read"):
        client(server).output("x-s01")


# --- Whose account, and nobody else's -------------------------------------------------------------------


def basic(user: str, key: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{key}'.encode()).decode()}"


def test_no_variable_and_no_file_has_a_say(
    server: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".kaggle").mkdir()
    (tmp_path / ".kaggle" / "access_token").write_text("KGAT_stray")
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login eve password stray\n")
    (tmp_path / ".netrc").chmod(0o600)
    for name, value in {"HOME": str(tmp_path), "KAGGLE_API_TOKEN": "KGAT_stray", "KAGGLE_USERNAME": "eve",
                        "KAGGLE_KEY": "stray", "KAGGLE_API_ENVIRONMENT": "PROD",
                        "HTTP_PROXY": "http://127.0.0.1:9"}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    found = client(server)
    found.quota()
    assert server.requests[-1].headers["Authorization"] == basic("ada", KEY)
    with found.session() as session:
        session.get(f"{server.url}/signed")
    assert "Authorization" not in server.requests[-1].headers


def test_a_token_is_sent_as_one_and_names_its_account(server: Wire) -> None:
    server.then("IntrospectToken", BROKEN, said({"active": True, "username": "ada"}))
    server.then("ListKernels", said({"kernels": [{"ref": "ada/x"}]}), said({}))
    found = client(server, credentials=Credentials("", token="KGAT_secret"))
    assert found.kernels() == (Listed("x", ""),)
    assert found.kernels() == ()
    assert server.requests[-1].headers["Authorization"] == "Bearer KGAT_secret"
    assert len(server.calls("IntrospectToken")) == 2
    server.then("IntrospectToken", said({"active": False}), MISSING)
    for _ in range(2):
        with pytest.raises(AccessDenied):
            client(server, credentials=Credentials("", token="KGAT_old")).kernels()


@pytest.mark.parametrize(
    "endpoint", ["https://api.kaggle.com", "https://www.kaggle.com/api", "https://10.0.0.1"]
)
def test_tests_cannot_reach_production(endpoint: str) -> None:
    with pytest.raises(InputError, match=NO_PRODUCTION):
        KaggleClient(Credentials("ada", key=KEY), endpoint=endpoint)
    with pytest.raises(InputError, match=NO_PRODUCTION):
        KaggleClient(Credentials("ada", key=KEY))


def test_tests_cannot_reach_another_storage_either(server: Wire) -> None:
    with client(server).session() as session, pytest.raises(InputError, match=NO_PRODUCTION):
        session.get("https://storage.googleapis.com/signed")


def test_children_of_tests_cannot_either(tmp_path: Path) -> None:
    assert Caller(tmp_path, tmp_path).environment()[NO_PRODUCTION]


def test_credentials_do_not_travel_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NO_PRODUCTION)
    with pytest.raises(InputError, match="unencrypted"):
        KaggleClient(Credentials("ada", key=KEY), endpoint="http://kaggle.example.org")


IMPORT = """
import os, sys
before = dict(os.environ)
called = []
sys.addaudithook(lambda event, _: called.append(event) if event in ("socket.connect", "os.mkdir") else None)
import orchestrator.cli, orchestrator.platforms.catalog
assert "kaggle" not in sys.modules, "only a platform that is built needs it"
from orchestrator.platforms.kaggle.client import KaggleClient
assert called == [], called
assert dict(os.environ) == before
assert not __import__("logging").getLogger().handlers
import kaggle.api.kaggle_api_extended
assert issubclass(KaggleClient, kaggle.api.kaggle_api_extended.KaggleApi)
"""


def test_the_import_calls_nobody_makes_nothing_and_says_nothing(tmp_path: Path) -> None:
    stray = {"HOME": str(tmp_path), "KAGGLE_API_TOKEN": "KGAT_stray", "VERBOSE": "1", NO_PRODUCTION: "1",
             "KAGGLE_API_ENVIRONMENT": "LOCALHOST", "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", IMPORT],
        env={"PATH": os.environ["PATH"], **stray},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


# --- Secrets --------------------------------------------------------------------------------------------


def shown(error: BackendError) -> str:
    return "".join(traceback.format_exception(error)) + repr(error)


def test_no_secret_is_shown(server: Wire, caplog: pytest.LogCaptureFixture) -> None:
    signed = f"{server.url}/put?{SIGNATURE}"
    echo = f"bad key {KEY} for https://storage.example.org/x?{SIGNATURE}"
    server.always(QUOTA, said({"code": 401, "message": echo}, 401))
    server.always("ListKernels", said({"error": {"code": 401, "message": echo}}, 401))
    server.then("StartBlobUpload", said({"token": "blob-token", "createUrl": signed}))
    server.then("ListKernelSessionOutput", said({"files": [{"fileName": "a", "url": signed}]}))
    found = client(server)
    with caplog.at_level(logging.DEBUG):
        with pytest.raises(AccessDenied, match="bad key …") as caught:
            found.kernels()
        started, output = found.start_upload("a", 1, 1.0), found.output("x-s01")
        with found.session() as session:
            session.get(started.url)
    text = f"{shown(caught.value)} {started} {output} {found!r} {vars(found)} {caplog.text}"
    assert "/put?…" in caplog.text
    assert not [secret for secret in (KEY, "deadbeef", "blob-token", basic("ada", KEY)) if secret in text]
