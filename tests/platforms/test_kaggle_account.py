"""The client with the local Kaggle: a session's whole life, and how an account loses its access."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import AccessDenied, Rejected, Transient
from orchestrator.platforms.kaggle.client import KaggleClient
from orchestrator.platforms.kaggle.credentials import Credentials
from orchestrator.platforms.kaggle.downloads import download
from orchestrator.platforms.kaggle.logs import events
from orchestrator.platforms.kaggle.uploads import upload
from orchestrator.platforms.kaggle.values import Push
from tests.stand_ins.kaggle import Fault, LocalKaggle, Settings, local_kaggle
from tests.waiting import wait_until

SCRIPT = """
import pathlib, sys
print("hello")
source = next(pathlib.Path("/kaggle/input").rglob("code.bin"))
pathlib.Path("/kaggle/working/sub").mkdir()
pathlib.Path("/kaggle/working/sub/copy.bin").write_bytes(source.read_bytes())
print("bye", flush=True)
"""
ENDLESS = "import threading\nprint('here', flush=True)\nthreading.Event().wait()\n"
CONTENT = bytes(range(256)) * 4096


@pytest.fixture
def kaggle(tmp_path: Path) -> Iterator[LocalKaggle]:
    with local_kaggle(tmp_path / "kaggle", Settings()) as made:
        yield made
        assert made.bugs == []


def account(kaggle: LocalKaggle) -> KaggleClient:
    credentials = Credentials(kaggle.settings.username, key=kaggle.settings.key)
    return KaggleClient(credentials, endpoint=kaggle.url, timeout=(60.0, 240.0), sleep=lambda _: None)


def push(slug: str, text: str, *datasets: str) -> Push:
    return Push(slug, text, "NvidiaTeslaT4", True, False, 3600, False, datasets)


def state(client: KaggleClient, slug: str) -> str:
    found = client.status(slug)
    return "" if found is None else found.state


@pytest.mark.parametrize("fault", [None, Fault.UNAVAILABLE, Fault.CUT, Fault.LOST_REPLY])
def test_what_is_uploaded_comes_back_through_a_kernel(
    kaggle: LocalKaggle, tmp_path: Path, fault: Fault | None
) -> None:
    client = account(kaggle)
    source, target = tmp_path / "code.bin", tmp_path / "copy.bin"
    source.write_bytes(CONTENT)
    if fault is not None:
        kaggle.fail("upload", fault)
        kaggle.fail("download", Fault.UNAVAILABLE)
        kaggle.fail("download", Fault.CUT)
    assert client.dataset_status("run-code") is None
    client.create_dataset("run-code", [upload(client, source)])
    wait_until(lambda: client.dataset_status("run-code") == "ready", "the dataset")
    assert client.dataset_files("run-code") == {"code.bin": len(CONTENT)}
    assert client.status("run-s01") is None
    assert client.push(push("run-s01", SCRIPT, "run-code")).version == 1
    wait_until(lambda: state(client, "run-s01") == "COMPLETE", "the kernel to end")
    output = client.output("run-s01")
    assert output is not None
    (file,) = (file for file in output.files if file.name.endswith("copy.bin"))
    download(client, file.url, target, size_max=1 << 30, sha256=hashlib.sha256(CONTENT).hexdigest())
    assert target.read_bytes() == CONTENT
    said = "".join(events(client, "run-s01", quiet_seconds=1.0, at_most_seconds=10.0))
    assert said == "hello\nbye\n"
    listed = [each.slug for each in (*client.kernels(), *client.datasets())]
    assert listed == ["run-s01", "run-code"]
    client.delete_kernel("run-s01")
    client.delete_dataset("run-code")
    client.delete_kernel("run-s01")
    client.delete_dataset("run-code")
    assert (client.kernels(), client.datasets()) == ((), ())


def test_a_running_kernel_reserves_quota_and_says_what_it_does(kaggle: LocalKaggle) -> None:
    client = account(kaggle)
    assert client.push(push("run-s01", ENDLESS)).error == ""
    wait_until(lambda: state(client, "run-s01") == "RUNNING", "the kernel to run")
    pool = client.quota().gpu
    assert pool is not None
    assert pool.reserved > 0
    wait_until(
        lambda: events(client, "run-s01", quiet_seconds=0.5, at_most_seconds=5.0) == ["here\n"], "the log"
    )
    client.delete_kernel("run-s01")
    assert client.status("run-s01") is None
    assert client.output("run-s01") is None
    assert events(client, "run-s01", quiet_seconds=0.5, at_most_seconds=5.0) == []


def test_what_kaggle_refuses_is_told_and_runs_nothing(kaggle: LocalKaggle) -> None:
    client = account(kaggle)
    kaggle.use_up("gpu")
    assert "quota" in client.push(push("run-s01", ENDLESS)).error
    with pytest.raises(Rejected):
        client.push(push("run-s02", "#" * 1_100_000))
    assert client.kernels() == ()


def test_a_push_whose_answer_was_lost_is_found_again(kaggle: LocalKaggle) -> None:
    client = account(kaggle)
    kaggle.fail("SaveKernel", Fault.LOST_REPLY)
    with pytest.raises(Transient):
        client.push(push("run-s01", ENDLESS))
    assert kaggle.calls.count("SaveKernel") == 1
    assert client.status("run-s01") is not None


def test_revoked_credentials_are_no_missing_kernel(kaggle: LocalKaggle) -> None:
    client = account(kaggle)
    client.quota()
    kaggle.revoke()
    with pytest.raises(AccessDenied):
        client.status("run-s01")
    kaggle.revoke(False)
    assert client.status("run-s01") is None


@pytest.mark.parametrize("outage", ["unavailable", "refused"])
def test_an_outage_is_no_missing_kernel(kaggle: LocalKaggle, outage: str) -> None:
    kaggle.warts.outage = "refused" if outage == "refused" else "unavailable"
    client = account(kaggle)
    kaggle.outage()
    with pytest.raises(Transient):
        client.status("run-s01")
    kaggle.outage(False)
    assert client.status("run-s01") is None


def test_a_deletion_that_was_refused_is_not_taken_for_done(kaggle: LocalKaggle) -> None:
    client = account(kaggle)
    client.push(push("a-s01", ENDLESS))
    kaggle.fail("DeleteKernel", Fault.NESTED)
    with pytest.raises(Transient, match="did not remove it"):
        client.delete_kernel("a-s01")
    kaggle.warts.status_glitch = "404"
    kaggle.fail("DeleteKernel", Fault.NESTED)
    with pytest.raises(Transient, match="did not remove it"):  # the account's list still has it
        client.delete_kernel("a-s01")
    assert client.delete_kernel("a-s01")
    assert not client.delete_kernel("a-s01")  # it is gone
    assert client.status("a-s01") is None
