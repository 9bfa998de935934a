"""Every fault and every wart of the local Kaggle, seen through the real client.

settings.py cites the source of each wart. These tests show what a client notices of it.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.stand_ins.kaggle import Fault, LocalKaggle, Settings, Warts, local_kaggle
from tests.stand_ins.kaggle_user import User
from tests.waiting import wait_until

FOREVER = (
    "import threading\nopen('/kaggle/working/out.txt', 'w').write('x')\n"
    "print('begun', flush=True)\nthreading.Event().wait()\n"
)
QUICK = "open('/kaggle/working/out.txt', 'w').write('x')\nprint('ended')"


def begins(kaggle: LocalKaggle, slug: str = "runs-long", **values: Any) -> User:
    """A session that has written its output and never ends."""
    user = User(kaggle)
    assert user.push(slug, FOREVER, **values).error == ""
    assert next(user.kernels_logs_stream(f"ada/{slug}"))["data"] == "begun\n"
    return user


SHOWN: list[tuple[Fault, type[Exception], str]] = [
    (Fault.TIMEOUT, requests.Timeout, "timed out"),
    (Fault.RATE_LIMIT, requests.HTTPError, "Too many"),
    (Fault.SERVER_ERROR, requests.HTTPError, "Internal"),
    (Fault.UNAVAILABLE, requests.HTTPError, "503"),
    (Fault.NESTED, requests.HTTPError, "403 Client Error"),
    (Fault.HTML, json.JSONDecodeError, "Expecting value"),
    (Fault.CUT, requests.RequestException, "."),
    (Fault.LOST_REPLY, requests.ConnectionError, "without response"),
]


@pytest.mark.parametrize(("fault", "error", "words"), SHOWN)
def test_a_fault_is_shown_once_and_only_two_take_effect(
    tmp_path: Path, fault: Fault, error: type[Exception], words: str
) -> None:
    with local_kaggle(tmp_path) as kaggle:
        kaggle.fail("SaveKernel", fault)
        user = User(kaggle, timeout=0.5) if fault is Fault.TIMEOUT else User(kaggle)
        with pytest.raises(error, match=words) as raised:
            user.push("goes-wrong", QUICK)
        if fault is Fault.RATE_LIMIT:
            assert isinstance(raised.value, requests.HTTPError)
            assert raised.value.response.headers["Retry-After"] == "1"
        assert len(kaggle.pushed) == (fault in (Fault.CUT, Fault.LOST_REPLY))
        assert User(kaggle).push("goes-wrong", QUICK).version_number == 1 + len(kaggle.pushed[:-1])


def test_faults_of_a_call_stand_in_a_queue(tmp_path: Path) -> None:
    with local_kaggle(tmp_path) as kaggle:
        kaggle.fail("GetAcceleratorQuotaStatistics", Fault.SERVER_ERROR, times=2)
        kaggle.fail("GetAcceleratorQuotaStatistics", Fault.HTML)
        user = User(kaggle)
        for error in (requests.HTTPError, requests.HTTPError, json.JSONDecodeError):
            with pytest.raises(error):
                user.quota_view()
        assert user.quota_view().gpu_quota.total_time_allowed.total_seconds() == 108_000


def test_downloads_and_streams_fail_too(tmp_path: Path) -> None:
    with local_kaggle(tmp_path) as kaggle:
        user = begins(kaggle)
        kaggle.fail("logs", Fault.CUT)
        with pytest.raises(requests.RequestException):
            list(user.kernels_logs_stream("ada/runs-long"))
        user.push("ends-soon", "open('/kaggle/working/out.txt', 'w').write('x' * 1000)")
        assert user.ends("ends-soon") == "COMPLETE"
        url = user.output("ends-soon").files[0].url
        kaggle.fail("download", Fault.CUT)
        with pytest.raises(requests.RequestException):
            requests.get(url)
        kaggle.fail("download", Fault.NESTED)
        with pytest.raises(requests.HTTPError):
            user.kernels_output("ada/ends-soon", str(tmp_path / "into"))
        assert not (tmp_path / "into/out.txt").exists()
        assert requests.get(url).text == "x" * 1000
        assert requests.get(f"{url}0").status_code == 404


def test_revoked_credentials_are_401(tmp_path: Path) -> None:
    with local_kaggle(tmp_path, Settings(token="a-token")) as kaggle:
        for user in (User(kaggle), User(kaggle, token="a-token")):
            assert user.quota_view().gpu_quota
            kaggle.revoke()
            with pytest.raises(requests.HTTPError, match="Unauthenticated") as error:
                user.quota_view()
            assert error.value.response.status_code == 401
            kaggle.revoke(False)
        with pytest.raises(requests.HTTPError):
            User(kaggle, token="another").quota_view()


@pytest.mark.parametrize(
    ("how", "error"), [("unavailable", requests.HTTPError), ("refused", requests.ConnectionError)]
)
def test_an_outage_ends(tmp_path: Path, how: Any, error: type[Exception]) -> None:
    with local_kaggle(tmp_path, warts=Warts(outage=how)) as kaggle:
        user = begins(kaggle)
        kaggle.outage()
        with pytest.raises(error):
            user.quota_view()
        kaggle.outage(False)
        assert user.state("runs-long") == "RUNNING"


# --- How sessions end -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("warts", "state", "words", "outputs"),
    [
        (Warts(), "CANCEL_ACKNOWLEDGED", "", ["out.txt"]),
        (Warts(wall_loses_outputs=True), "CANCEL_ACKNOWLEDGED", "", []),
        (Warts(wall_end="ERROR"), "ERROR", "exceeded the max allowed execution duration", ["out.txt"]),
    ],
)
def test_the_wall_ends_a_session(
    tmp_path: Path, warts: Warts, state: str, words: str, outputs: list[str]
) -> None:
    warts.wall_is_not_enforced = True
    with local_kaggle(tmp_path, Settings(wall_seconds=0.1), warts) as kaggle:
        user = begins(kaggle)
        warts.wall_is_not_enforced = False
        assert user.ends("runs-long") == state
        assert words in user.status("runs-long").failure_message
        assert user.names("runs-long") == outputs


def test_a_timeout_ends_a_session_after_saving(tmp_path: Path) -> None:
    warts = Warts(wall_is_not_enforced=True)
    with local_kaggle(tmp_path, Settings(publish_seconds=3600), warts) as kaggle:
        user = begins(kaggle, session_timeout_seconds=1)
        warts.wall_is_not_enforced = False
        wait_until(lambda: user.state("runs-long") == "CANCEL_REQUESTED", "the cancel")
        assert user.names("runs-long") == []
        session = kaggle.kernel("runs-long")
        session.settings = replace(session.settings, publish_seconds=0)
        assert user.ends("runs-long") == "CANCEL_ACKNOWLEDGED"


def test_a_session_may_run_past_its_wall(tmp_path: Path) -> None:
    with local_kaggle(tmp_path, Settings(wall_seconds=0.5), Warts(wall_is_not_enforced=True)) as kaggle:
        user = begins(kaggle)
        wait_until(
            lambda: user.quota_view().gpu_quota.time_used.total_seconds() > 0.8, "the quota to be charged"
        )
        assert user.state("runs-long") == "RUNNING"


@pytest.mark.parametrize(
    ("warts", "state", "outputs"),
    [
        (Warts(), "CANCEL_ACKNOWLEDGED", ["out.txt"]),
        (Warts(quota_loses_outputs=True), "CANCEL_ACKNOWLEDGED", []),
        (Warts(quota_end="ERROR"), "ERROR", ["out.txt"]),
    ],
)
def test_the_quota_ends_in_mid_session(tmp_path: Path, warts: Warts, state: str, outputs: list[str]) -> None:
    with local_kaggle(tmp_path, warts=warts) as kaggle:
        user = begins(kaggle)
        begins(kaggle, "on-a-cpu", machine_shape="")
        kaggle.use_up("gpu", left_seconds=0.3)
        assert user.ends("runs-long") == state
        assert user.names("runs-long") == outputs
        assert user.state("on-a-cpu") == "RUNNING"


@pytest.mark.parametrize(("keeps", "outputs"), [(False, []), (True, ["out.txt"])])
def test_a_machine_dies(tmp_path: Path, keeps: bool, outputs: list[str]) -> None:
    with local_kaggle(tmp_path, warts=Warts(death_keeps_outputs=keeps)) as kaggle:
        user = begins(kaggle)
        kaggle.kernel("runs-long").kill()
        assert user.ends("runs-long") == "ERROR"
        assert user.names("runs-long") == outputs


def test_a_wedged_session_runs_for_ever_until_deleted(tmp_path: Path) -> None:
    warts = Warts(wall_is_not_enforced=True)
    with local_kaggle(tmp_path, Settings(wall_seconds=0.5), warts) as kaggle:
        user = begins(kaggle)
        kaggle.kernel("runs-long").wedge()
        warts.wall_is_not_enforced = False
        pid = kaggle.kernel("runs-long").pid
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        wait_until(
            lambda: user.quota_view().gpu_quota.time_used.total_seconds() > 0.8, "the quota to be charged"
        )
        assert (user.state("runs-long"), user.names("runs-long")) == ("RUNNING", [])
        user.delete("runs-long")


def test_an_ended_session_may_stay_running(tmp_path: Path) -> None:
    with local_kaggle(tmp_path, warts=Warts(stays_running=True)) as kaggle:
        user = User(kaggle)
        user.push("never-ends", QUICK)
        assert [each["data"] for each in user.kernels_logs_stream("ada/never-ends")] == ["ended\n"]
        assert (user.state("never-ends"), user.names("never-ends")) == ("RUNNING", [])


def test_other_outputs_are_lost(tmp_path: Path) -> None:
    warts = Warts(error_loses_outputs=True, cancel_loses_outputs=True)
    with local_kaggle(tmp_path, warts=warts) as kaggle:
        user = begins(kaggle)
        user.push("fails-so", f"{QUICK}\nraise SystemExit(1)")
        assert user.ends("fails-so") == "ERROR"
        kaggle.kernel("runs-long").cancel()
        assert user.ends("runs-long") == "CANCEL_ACKNOWLEDGED"
        assert (user.names("fails-so"), user.names("runs-long")) == ([], [])


# --- What answers look like -------------------------------------------------------------------------------


def test_what_is_missing_is_denied_or_not_found(tmp_path: Path) -> None:
    with local_kaggle(tmp_path) as kaggle:
        user = User(kaggle)
        for status, words in ((403, "kernels.get"), (404, "Not found")):
            kaggle.warts.missing_is_403 = status == 403
            for ask in (user.state, user.delete, user.output):
                with pytest.raises(requests.HTTPError, match=words) as error:
                    ask("not-there")
                assert error.value.response.status_code == status


def test_states_may_be_spelt_otherwise(tmp_path: Path) -> None:
    with local_kaggle(tmp_path, Settings(publish_seconds=1), Warts(camel_case_status=True)) as kaggle:
        user = begins(kaggle)
        assert user.state("runs-long") == "RUNNING"
        kaggle.kernel("runs-long").cancel()
        assert user.ends("runs-long") == "CANCEL_ACKNOWLEDGED"
        kaggle.warts.unknown_status = "PREEMPTED"
        with pytest.raises(KeyError):
            user.state("runs-long")


@pytest.mark.parametrize("wart", [each.name for each in fields(Warts)])
def test_every_wart_is_switched_by_a_test(wart: str) -> None:
    sources = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_kaggle_*.py")]
    assert re.search(rf"\b{wart}\b\)? ?=|\.{wart}\b", "\n".join(sources))


@pytest.mark.parametrize("is_omitted", [True, False])
def test_a_queued_session_is_queued(tmp_path: Path, is_omitted: bool) -> None:
    with local_kaggle(tmp_path, Settings(queue_seconds=3600), Warts(queued_is_omitted=is_omitted)) as kaggle:
        user = User(kaggle)
        user.push("waits-long", QUICK)
        assert user.state("waits-long") == "QUEUED"
        asked = requests.post(
            f"{kaggle.url}/api/v1/kernels.KernelsApiService/GetKernelSessionStatus",
            json={"userName": "ada", "kernelSlug": "waits-long"},
            auth=(kaggle.settings.username, kaggle.settings.key),
        )
        assert asked.json() == ({} if is_omitted else {"status": "QUEUED"})


def test_errors_may_be_nested_and_the_version_newer(tmp_path: Path) -> None:
    with local_kaggle(tmp_path, warts=Warts(nested_errors=True, api_version="9.9.9")) as kaggle:
        with pytest.raises(requests.HTTPError, match="403 Client Error") as error:
            User(kaggle).state("not-there")
        assert "kernels.get" in error.value.response.text
        assert error.value.response.headers["X-Kaggle-ApiVersion"] == "9.9.9"


def test_log_and_outputs_may_lag(tmp_path: Path) -> None:
    with local_kaggle(tmp_path, warts=Warts(log_lag_seconds=3600)) as kaggle:
        user = User(kaggle)
        user.push("ends-soon", QUICK)
        assert user.ends("ends-soon") == "COMPLETE"
        assert (user.output("ends-soon").log, user.names("ends-soon")) == ("", ["out.txt"])
        kaggle.warts.log_lag_seconds, kaggle.warts.output_lag_seconds = 0, 3600
        assert (user.printed("ends-soon"), user.names("ends-soon")) == ("ended\n", [])


def test_outputs_may_be_cut_short_or_hostile(tmp_path: Path) -> None:
    text = "for i in range(5): open(f'/kaggle/working/{i}', 'w').write('x')"
    with local_kaggle(tmp_path) as kaggle:
        user = User(kaggle)
        user.push("five-files", text)
        assert user.ends("five-files") == "COMPLETE"
        kaggle.warts.output_files_max = 2
        assert user.names("five-files") == ["0", "1"]
        kaggle.warts.hostile_output_name = "../../evil"
        assert user.names("five-files") == ["0", "1", "../../evil"]


def test_a_gpu_may_not_be_there(tmp_path: Path) -> None:
    text = (
        "import shutil, subprocess\nprint((tool := shutil.which('nvidia-smi')) and subprocess.call([tool]))"
    )
    with local_kaggle(tmp_path, warts=Warts(substitute_gpu="none")) as kaggle:
        user = User(kaggle)
        user.push("no-gpu-here", text)
        assert user.ends("no-gpu-here") == "COMPLETE"
        assert user.printed("no-gpu-here") in ("None\n", "6\n")
