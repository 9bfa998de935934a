"""Kernels on the local Kaggle, seen through the real client: push, states, logs, outputs, quota, deletion.

The expected behaviour is in docs/references/kaggle.md.
"""

from __future__ import annotations

import json
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests

from orchestrator.platforms.kaggle import sdk
from tests.stand_ins.kaggle import LocalKaggle, Settings, Warts, local_kaggle
from tests.stand_ins.kaggle_user import User
from tests.waiting import wait_until

FOREVER = "import threading\nprint('begun', flush=True)\nthreading.Event().wait()\n"
WRITES = "open('/kaggle/working/out.txt', 'w').write('done')\n"


def check_alive(pid: int) -> bool:
    """The process does not exist any more, not even as a zombie."""
    return Path(f"/proc/{pid}").exists()


def test_a_script_runs_to_its_end_and_leaves_outputs_and_log(tmp_path: Path) -> None:
    text = (
        "import os\nprint('here', os.getcwd(), os.environ['KAGGLE_KERNEL_RUN_TYPE'])\n"
        "os.makedirs('deep/er')\nopen('deep/er/model.bin', 'wb').write(bytes(1000))\n"
        "print('a word aside', file=__import__('sys').stderr)\n"
    )
    with local_kaggle(tmp_path) as kaggle:
        user = User(kaggle)
        pushed = user.push("first-try", text)
        assert (pushed.error, pushed.version_number) == ("", 1)
        assert user.ends("first-try") == "COMPLETE"
        assert user.names("first-try") == ["deep/er/model.bin"]
        assert "here" in user.printed("first-try")
        assert "Batch" in user.printed("first-try")
        into = tmp_path / "into"
        user.kernels_output("ada/first-try", str(into))
        assert (into / "deep/er/model.bin").read_bytes() == bytes(1000)
        assert "a word aside" in (into / "first-try.log").read_text()
        assert kaggle.calls[:2] == ["SaveKernel", "GetKernelSessionStatus"]
        assert kaggle.pushed[0]["text"] == text
        assert kaggle.kernel("first-try").folder == tmp_path / "kernels/first-try/kaggle"


def test_a_script_that_fails_is_an_error_with_its_words(tmp_path: Path) -> None:
    with local_kaggle(tmp_path) as kaggle:
        user = User(kaggle)
        user.push("fails-so", f"{WRITES}raise SystemExit(3)")
        assert user.ends("fails-so") == "ERROR"
        assert "exit code 3" in user.status("fails-so").failure_message
        assert user.names("fails-so") == ["out.txt"]


@pytest.mark.parametrize(
    ("shape", "wart", "seen"),
    [
        ("NvidiaTeslaT4", "", "0, GPU-local-0, Tesla T4, 15360\n1, GPU-local-1, Tesla T4, 15360\n"),
        ("NvidiaTeslaP100", "", "0, GPU-local-0, Tesla T4, 15360\n1, GPU-local-1, Tesla T4, 15360\n"),
        ("NvidiaTeslaT4", "Tesla P100-PCIE-16GB", "0, GPU-local-0, Tesla P100-PCIE-16GB, 16384\n"),
    ],
)
def test_the_machine_says_what_it_has(tmp_path: Path, shape: str, wart: str, seen: str) -> None:
    ask = "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits"
    with local_kaggle(tmp_path, warts=Warts(substitute_gpu=wart)) as kaggle:
        user = User(kaggle)
        user.push("which-gpus", f"import subprocess\nsubprocess.run(['nvidia-smi', *{ask}])", shape)
        assert user.ends("which-gpus") == "COMPLETE"
        assert user.printed("which-gpus") == seen


@pytest.mark.parametrize(("shape", "seen"), [("TpuV38", "v5litepod-8\n"), ("TpuV2256", "None\n")])
def test_a_retired_tpu_is_another_one_or_none_at_all(tmp_path: Path, shape: str, seen: str) -> None:
    with local_kaggle(tmp_path) as kaggle:
        user = User(kaggle)
        user.push("an-old-tpu", "import os\nprint(os.environ.get('TPU_ACCELERATOR_TYPE'))", shape)
        assert user.ends("an-old-tpu") == "COMPLETE"
        assert user.printed("an-old-tpu") == seen
        spent = user.quota_view().tpu_quota.time_used.total_seconds()
        assert (spent > 0) == (shape == "TpuV38")


@pytest.mark.parametrize(("is_missing", "seen"), [(False, "v5litepod-8\n"), (True, "None\n")])
def test_a_tpu_is_there_unless_the_image_is_wrong(tmp_path: Path, is_missing: bool, seen: str) -> None:
    text = "import os\nprint(os.environ.get('TPU_ACCELERATOR_TYPE'))"
    with local_kaggle(tmp_path, warts=Warts(tpu_is_missing=is_missing)) as kaggle:
        user = User(kaggle)
        user.push("on-a-tpu", text, "TpuV5E8")
        assert user.ends("on-a-tpu") == "COMPLETE"
        assert user.printed("on-a-tpu") == seen
        assert user.quota_view().tpu_quota.time_used.total_seconds() > 0


def test_the_environment_is_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET_OF_MINE", "x")
    with local_kaggle(tmp_path) as kaggle:
        user = User(kaggle)
        user.push("looks-around", "import os\nprint(sorted(os.environ), os.environ['HOME'])")
        assert user.ends("looks-around") == "COMPLETE"
        assert "A_SECRET_OF_MINE" not in user.printed("looks-around")
        assert str(tmp_path / "kernels/looks-around/root") in user.printed("looks-around")


def test_what_a_script_installs_stays_on_its_machine(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "brought-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("brought.py", "")
        wheel.writestr(
            "brought-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n"
        )
        wheel.writestr("brought-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("brought-1.0.dist-info/RECORD", "")
    text = (
        f"import importlib.util, subprocess, sys\nwanted = [{wheel.filename!r}, 'requests']\n"
        "subprocess.run([sys.executable, '-m', 'pip', 'install', '-q', *wanted], check=True)\n"
        "import brought\nprint(brought.__file__)\nprint(importlib.util.find_spec('orchestrator'))\n"
    )
    with local_kaggle(tmp_path / "kaggle") as kaggle:
        user = User(kaggle)
        user.push("brings-some", text)
        assert user.ends("brings-some") == "COMPLETE", user.output("brings-some").log
        where, ours = user.printed("brings-some").splitlines()
        assert where.startswith(str(tmp_path / "kaggle/kernels/brings-some/python"))
        assert ours == "None"


def test_the_log_streams_while_the_script_runs_and_is_replayed(tmp_path: Path) -> None:
    text = f"import os, time\n{FOREVER.replace('threading.Event().wait()', '')}" + (
        "while not os.path.exists('/kaggle/go'): pass\nprint('ended')\n"
    )
    with local_kaggle(tmp_path) as kaggle:
        user = User(kaggle)
        user.push("talks-much", text)
        first = user.kernels_logs_stream("ada/talks-much")
        assert next(first)["data"] == "begun\n"
        assert user.output("talks-much").log == ""
        (kaggle.kernel("talks-much").folder / "go").touch()
        assert [each["data"] for each in first] == ["ended\n"]
        assert user.ends("talks-much") == "COMPLETE"
        kept = list(user.kernels_logs_stream("ada/talks-much"))
        assert [each["data"] for each in kept] == ["begun\n", "ended\n"]
        assert json.loads(user.kernels_logs("ada/talks-much")) == kept


def test_a_stream_that_breaks_off_is_replayed_from_the_start(tmp_path: Path) -> None:
    with local_kaggle(tmp_path, warts=Warts(stream_events_max=1)) as kaggle:
        user = User(kaggle)
        user.push("breaks-off", FOREVER.replace("begun", "one\\ntwo"))
        for _ in range(2):
            with pytest.raises(requests.RequestException):
                assert [each["data"] for each in user.kernels_logs_stream("ada/breaks-off")] == ["one\n"]
        kaggle.warts.stream_events_max = 0
        stream = user.kernels_logs_stream("ada/breaks-off")
        assert [next(stream)["data"], next(stream)["data"]] == ["one\n", "two\n"]


def test_outputs_come_in_pages_with_resumable_downloads(tmp_path: Path) -> None:
    text = "for i in range(5): open(f'/kaggle/working/{i}', 'wb').write(bytes(range(100)))"
    with local_kaggle(tmp_path) as kaggle:
        user = User(kaggle)
        user.push("five-files", text)
        assert user.ends("five-files") == "COMPLETE"
        page = user.output("five-files", page_size=2)
        assert [each.file_name for each in page.files] == ["0", "1"]
        page = user.output("five-files", page_size=2, page_token=page.next_page_token)
        page = user.output("five-files", page_size=2, page_token=page.next_page_token)
        assert ([each.file_name for each in page.files], page.next_page_token) == (["4"], "")
        request = sdk.kernels.ApiDownloadKernelOutputRequest()
        request.owner_slug, request.kernel_slug, request.file_path = "ada", "five-files", "4"
        assert user.kernels.download_kernel_output(request).url
        whole = requests.get(page.files[0].url)
        assert (whole.content, whole.headers["Content-Length"]) == (bytes(range(100)), "100")
        asked = {"Range": "bytes=90-", "If-Range": whole.headers["ETag"]}
        tail = requests.get(page.files[0].url, headers=asked)
        assert (tail.status_code, tail.content) == (206, bytes(range(90, 100)))
        assert tail.headers["Content-Range"] == "bytes 90-99/100"


def test_a_new_version_does_not_stop_the_old_one(tmp_path: Path) -> None:
    with local_kaggle(tmp_path) as kaggle:
        user = User(kaggle)
        user.push("pushed-twice", FOREVER)
        old = kaggle.kernel("pushed-twice")
        assert user.push("pushed-twice", WRITES).version_number == 2
        assert user.ends("pushed-twice") == "COMPLETE"
        assert user.status("pushed-twice", "v1").status.name == "RUNNING"
        assert user.status("pushed-twice", "v2").status.name == "COMPLETE"
        assert old.pid is not None
        assert check_alive(old.pid)
        with pytest.raises(requests.HTTPError) as error:
            user.status("pushed-twice", "1")
        assert error.value.response.status_code == 404


def test_deleting_kills_stops_the_billing_and_loses_the_outputs(tmp_path: Path) -> None:
    text = (
        "import subprocess, sys, threading\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import threading; threading.Event().wait()'],"
        " start_new_session=True, env={})\n"
        "open('/kaggle/working/child', 'w').write(str(child.pid))\nprint('begun', flush=True)\n"
        "threading.Event().wait()\n"
    )
    with local_kaggle(tmp_path) as kaggle:
        user = User(kaggle)
        user.push("goes-away", text)
        next(user.kernels_logs_stream("ada/goes-away"))
        session = kaggle.kernel("goes-away")
        child = int((session.folder / "working/child").read_text())
        user.delete("goes-away")
        assert session.pid is not None
        assert not check_alive(session.pid)
        wait_until(
            lambda: not check_alive(child) or "State:\tZ" in Path(f"/proc/{child}/status").read_text(),
            "the child to end",
        )
        used = user.quota_view().gpu_quota.time_used
        assert used.total_seconds() > 0
        assert user.quota_view().gpu_quota.time_used == used
        assert not session.folder.exists()
        with pytest.raises(ValueError, match="Cannot access kernel"):
            user.kernels_status("ada/goes-away")


def test_nothing_runs_after_the_server(tmp_path: Path) -> None:
    with local_kaggle(tmp_path) as kaggle:
        User(kaggle).push("left-behind", FOREVER)
        pid = kaggle.kernel("left-behind").pid
        assert pid is not None
        assert check_alive(pid)
    assert not check_alive(pid)
    with pytest.raises(requests.ConnectionError):
        requests.get(kaggle.url)


def test_kernels_are_listed_found_and_read(tmp_path: Path) -> None:
    with local_kaggle(tmp_path) as kaggle:
        user = User(kaggle)
        user.push("alpha-one", WRITES)
        user.push("beta-two", WRITES)
        request = sdk.kernels.ApiListKernelsRequest()
        request.group, request.search = sdk.kernel_enums.KernelsListViewType.PROFILE, "alpha"
        assert [each.ref for each in user.kernels.list_kernels(request).kernels] == ["ada/alpha-one"]
        assert [each.ref for each in user.kernels_list(user="ada")] == ["ada/alpha-one", "ada/beta-two"]
        assert list(user.kernels_list(user="bob")) == []
        read = sdk.kernels.ApiGetKernelRequest()
        read.user_name, read.kernel_slug = "ada", "beta-two"
        found = user.kernels.get_kernel(read)
        assert (found.blob.source, found.metadata.machine_shape) == (WRITES, "NvidiaTeslaT4")
        user.ends("beta-two")
        assert [each.name for each in user.kernels_list_files("ada/beta-two").files] == ["out.txt"]


def push_with(kaggle: LocalKaggle, text: str = FOREVER, **values: Any) -> str:
    return str(User(kaggle).push("next-one", text, **values).error)


@pytest.mark.parametrize(
    ("settings", "shape", "words"),
    [
        (Settings(gpu_slots=1), "NvidiaTeslaT4", "Maximum batch GPU session count of 1 reached."),
        (Settings(cpu_slots=1), "", "Maximum batch CPU session count of 1 reached."),
        (
            Settings(gpu_quota_seconds=43_200),
            "NvidiaTeslaT4",
            "Session cannot start because currently running sessions are projected to exceed maximum weekly "
            "GPU quota of 12.00 hours.",
        ),
    ],
)
def test_a_second_session_is_refused(tmp_path: Path, settings: Settings, shape: str, words: str) -> None:
    with local_kaggle(tmp_path, settings) as kaggle:
        assert User(kaggle).push("first-one", FOREVER, shape).error == ""
        assert push_with(kaggle, machine_shape=shape) == words
        assert push_with(kaggle, machine_shape="TpuV5E8") == ""


def test_a_smaller_reservation_lets_a_second_session_start(tmp_path: Path) -> None:
    with local_kaggle(tmp_path, Settings(gpu_quota_seconds=43_200, reserve_seconds=3600)) as kaggle:
        user = User(kaggle)
        user.push("first-one", FOREVER, session_timeout_seconds=60)
        assert 3500 < user.quota_view().gpu_quota.time_reserved.total_seconds() <= 3600
        assert push_with(kaggle) == ""


def test_a_timeout_may_shrink_the_reservation(tmp_path: Path) -> None:
    with local_kaggle(tmp_path, warts=Warts(timeout_shrinks_reservation=True)) as kaggle:
        user = User(kaggle)
        user.push("first-one", FOREVER, session_timeout_seconds=60)
        assert user.quota_view().gpu_quota.time_reserved.total_seconds() <= 60


def test_used_up_is_refused_until_the_window_ends(tmp_path: Path) -> None:
    with local_kaggle(tmp_path, Settings(window_seconds=3600)) as kaggle:
        kaggle.use_up("gpu")
        assert push_with(kaggle) == "Maximum weekly GPU quota of 30.00 hours reached."
        assert push_with(kaggle, machine_shape="") == ""
        kaggle._kernels.quota._window_ends = time.monotonic()
        wait_until(
            lambda: User(kaggle).quota_view().gpu_quota.time_used.total_seconds() == 0, "an unused quota"
        )
        assert push_with(kaggle) == ""


def test_other_refusals_are_answers_too(tmp_path: Path) -> None:
    with local_kaggle(tmp_path) as kaggle:
        assert push_with(kaggle, owner="bob") == "Notebook not found"
        assert push_with(kaggle, new_title=None) == "Notebook not found"
        assert "NvidiaA100" in push_with(kaggle, machine_shape="NvidiaA100")
        assert "kernels" not in [path.name for path in tmp_path.iterdir()]
        with pytest.raises(requests.HTTPError, match="too large") as error:
            push_with(kaggle, text="#" * 1_000_001)
        assert error.value.response.status_code == 400


def test_the_slug_comes_from_the_title(tmp_path: Path) -> None:
    with local_kaggle(tmp_path) as kaggle:
        push_with(kaggle, new_title="Some Other: Title")
        assert User(kaggle).state("some-other-title") == "RUNNING"
        with pytest.raises(KeyError):
            kaggle.kernel("next-one")


def test_a_quick_save_does_not_run(tmp_path: Path) -> None:
    with local_kaggle(tmp_path) as kaggle:
        push_with(kaggle, kernel_execution_type=sdk.kernel_enums.KernelExecutionType.QUICK_SAVE)
        assert User(kaggle).state("next-one") == "NEW_SCRIPT"
        assert kaggle.kernel("next-one").pid is None


def test_a_kernel_is_seen_late_and_starts_late(tmp_path: Path) -> None:
    with local_kaggle(tmp_path, Settings(visible_seconds=3600, queue_seconds=3600)) as kaggle:
        user = User(kaggle)
        user.push("comes-late", WRITES)
        with pytest.raises(requests.HTTPError) as error:
            user.status("comes-late")
        assert error.value.response.status_code == 404
        assert kaggle.kernel("comes-late").started_at is None
        kaggle._kernels._all["comes-late"].visible_at = 0.0
        wait_until(lambda: _is_there(user, "comes-late"), "the kernel")
        session = kaggle.kernel("comes-late")
        session.settings = replace(session.settings, queue_seconds=0)
        assert user.ends("comes-late") == "COMPLETE"
        assert kaggle.kernel("comes-late").started_at is not None


def _is_there(user: User, slug: str) -> bool:
    try:
        return bool(user.status(slug))
    except requests.HTTPError:
        return False


def test_cancelling_needs_what_nobody_gives(tmp_path: Path) -> None:
    with local_kaggle(tmp_path, Settings(publish_seconds=3600)) as kaggle:
        user = User(kaggle)
        user.push("be-stopped", WRITES + FOREVER)
        next(user.kernels_logs_stream("ada/be-stopped"))
        request = sdk.kernels.ApiCancelKernelSessionRequest()
        request.kernel_session_id = kaggle.kernel("be-stopped").session_id
        for kaggle.warts.cancel_refusal in (403, 400):
            with pytest.raises(requests.HTTPError, match=r"kernelSessions\.cancel") as refused:
                user.kernels.cancel_kernel_session(request)
            assert refused.value.response.status_code == kaggle.warts.cancel_refusal
        kaggle.warts.cancel_works = True
        user.kernels.cancel_kernel_session(request)
        assert user.state("be-stopped") == "CANCEL_REQUESTED"
        assert user.names("be-stopped") == []
        session = kaggle.kernel("be-stopped")
        session.settings = replace(session.settings, publish_seconds=0)
        assert user.ends("be-stopped") == "CANCEL_ACKNOWLEDGED"
        assert user.names("be-stopped") == ["out.txt"]
