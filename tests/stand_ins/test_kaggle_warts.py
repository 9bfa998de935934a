"""What the local Kaggle shows late, in parts, or otherwise than it is: its sessions and their outputs.

Seen through the real client. settings.py cites the source of each wart.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.stand_ins.kaggle import LocalKaggle, Settings, Warts, local_kaggle
from tests.stand_ins.kaggle_user import User
from tests.waiting import wait_until

FOREVER = "import threading\nprint('begun', flush=True)\nthreading.Event().wait()\n"
QUICK = "open('/kaggle/working/out.txt', 'w').write('done')\n"
FIVE = "for i in range(5): open(f'/kaggle/working/{i}', 'w').write('x')\n"
OUTBOX = """
import pathlib
outbox = pathlib.Path('/kaggle/working/outbox')
for name in ('blobs/1', 'checkpoints/2/manifest.json', 'log/000000.log', 'result.json'):
    (outbox / name).parent.mkdir(parents=True, exist_ok=True)
    (outbox / name).write_text('x')
"""


def runs(kaggle: LocalKaggle, text: str, slug: str = "the-kernel", **values: Any) -> User:
    """Pushes a script to a machine without a GPU."""
    user = User(kaggle)
    assert user.push(slug, text, "", **values).error == ""
    return user


def has_run(kaggle: LocalKaggle, text: str, slug: str = "the-kernel") -> User:
    user = runs(kaggle, text, slug)
    assert user.ends(slug) == "COMPLETE"
    return user


def denied(user: User, slug: str = "the-kernel") -> int:
    """The status of the answer to a request that fails."""
    with pytest.raises(requests.HTTPError) as error:
        user.status(slug)
    return int(error.value.response.status_code)


def listed(user: User) -> list[str]:
    return [each.ref.removeprefix("ada/") for each in user.kernels_list(mine=True)]


# --- Outputs ----------------------------------------------------------------------------------------------


def test_the_list_of_outputs_grows_and_the_log_comes_first(tmp_path: Path) -> None:
    with local_kaggle(tmp_path) as kaggle:
        user = has_run(kaggle, OUTBOX)
        session = kaggle.kernel("the-kernel")

        def half() -> list[str] | None:
            kaggle.warts.output_grows_seconds = 2 * session.seconds_over(time.monotonic())
            found = user.names("the-kernel")
            return found if len(found) < 4 else None

        some = wait_until(half, "a part of the list")
        assert some is not None
        order = ["log/000000.log", "checkpoints/2/manifest.json", "blobs/1", "result.json"]
        assert some == [f"outbox/{name}" for name in order[: len(some)]] != []
        kaggle.warts.output_grows_seconds = 1e9
        assert user.names("the-kernel") == []
        kaggle.warts.output_grows_seconds = 0
        assert len(user.names("the-kernel")) == 4


def test_a_listed_file_may_not_be_there_yet(tmp_path: Path) -> None:
    with local_kaggle(tmp_path, warts=Warts(url_lag_seconds=3600)) as kaggle:
        user = has_run(kaggle, QUICK)
        assert requests.get(user.output("the-kernel").files[0].url).status_code == 404
        kaggle.warts.url_lag_seconds = 0
        assert requests.get(user.output("the-kernel").files[0].url).text == "done"


def test_a_signed_url_expires(tmp_path: Path) -> None:
    with local_kaggle(tmp_path, warts=Warts(url_seconds=0.01)) as kaggle:
        user = has_run(kaggle, QUICK)
        url = user.output("the-kernel").files[0].url
        wait_until(lambda: requests.get(url).status_code == 400, "its end")
        kaggle.warts.url_seconds = 3600
        assert requests.get(user.output("the-kernel").files[0].url).text == "done"


def test_a_page_may_be_shorter_than_asked_for(tmp_path: Path) -> None:
    with local_kaggle(tmp_path, warts=Warts(page_items_max=2)) as kaggle:
        user = has_run(kaggle, FIVE)
        found, token = [], ""
        for length in (2, 2, 1):
            page = user.output("the-kernel", page_size=200, page_token=token)
            found += [each.file_name for each in page.files]
            token = page.next_page_token
            assert len(page.files) == length
        assert (found, token) == (["0", "1", "2", "3", "4"], "")


# --- States -----------------------------------------------------------------------------------------------


def test_a_session_may_run_while_its_output_is_saved(tmp_path: Path) -> None:
    with local_kaggle(tmp_path, Settings(publish_seconds=3600), Warts(saves_while_running=True)) as kaggle:
        user = runs(kaggle, FOREVER)
        kaggle.kernel("the-kernel").cancel()
        assert (user.state("the-kernel"), user.names("the-kernel")) == ("RUNNING", [])
        kaggle.warts.saves_while_running = False
        assert user.state("the-kernel") == "CANCEL_REQUESTED"


@pytest.mark.parametrize("glitch", ["ERROR", "COMPLETE", "QUEUED", "403", "404"])
def test_a_status_may_be_wrong_for_a_while(tmp_path: Path, glitch: str) -> None:
    with local_kaggle(tmp_path) as kaggle:
        user = runs(kaggle, FOREVER)
        kaggle.warts.status_glitch = glitch
        found = str(denied(user)) if glitch.isdecimal() else user.state("the-kernel")
        assert found == glitch
        assert listed(user) == ["the-kernel"]
        kaggle.warts.status_glitch = ""
        assert user.state("the-kernel") == "RUNNING"


def test_a_push_may_take_effect_later_than_its_answer(tmp_path: Path) -> None:
    with local_kaggle(tmp_path, warts=Warts(push_lag_seconds=3600)) as kaggle:
        user = User(kaggle)
        assert user.push("comes-late", QUICK, "").version_number == 1
        assert (denied(user, "comes-late"), listed(user)) == (404, [])
        assert kaggle.kernel("comes-late").pid is None
        kaggle.warts.push_lag_seconds = 0.1
        user.push("comes-soon", QUICK, "")
        wait_until(lambda: listed(user) == ["comes-soon"], "the kernel")
        assert user.ends("comes-soon") == "COMPLETE"


def test_a_session_beyond_the_slots_may_wait(tmp_path: Path) -> None:
    with local_kaggle(tmp_path, Settings(cpu_slots=1), Warts(beyond_slots="queued")) as kaggle:
        user = runs(kaggle, FOREVER)
        runs(kaggle, QUICK, "the-next-one")
        runs(kaggle, FOREVER, "the-third-one")
        assert [user.state(each) for each in ("the-next-one", "the-third-one")] == ["QUEUED", "QUEUED"]
        user.delete("the-kernel")
        assert user.ends("the-next-one") == "COMPLETE"
        wait_until(lambda: user.state("the-third-one") == "RUNNING", "its turn")
        assert user.quota_view().gpu_quota.time_used.total_seconds() == 0


# --- The log ----------------------------------------------------------------------------------------------


def test_a_log_may_never_end(tmp_path: Path) -> None:
    with local_kaggle(tmp_path, warts=Warts(log_is_endless=True)) as kaggle:
        stream = runs(kaggle, FOREVER).kernels_logs_stream("ada/the-kernel")
        wait_until(lambda: next(stream)["data"] == "begun\n", "its only line")
        assert [next(stream)["data"] for _ in range(2)] == ["begun\n", "begun\n"]


def test_a_log_may_come_without_chunks_and_line_ends(tmp_path: Path) -> None:
    warts = Warts(log_is_unchunked=True, log_has_no_newlines=True)
    with local_kaggle(tmp_path, warts=warts) as kaggle:
        waits = "import os\nwhile not os.path.exists('/kaggle/go'): pass\n"
        user = runs(kaggle, f"{waits}print('one')\nprint('two')\n")
        url = f"{kaggle.url}/api/v1/kernels/logs/stream/ada/the-kernel"
        with requests.get(url, auth=("ada", kaggle.settings.key), stream=True) as response:
            assert "Transfer-Encoding" not in response.headers
            (kaggle.kernel("the-kernel").folder / "go").touch()
            lines = [line for line in response.iter_lines(decode_unicode=True) if line]
        assert user.ends("the-kernel") == "COMPLETE"
        assert lines[-1] == "data: END_OF_LOG"
        assert [line.rpartition('"data": ')[2] for line in lines[:-1]] == ['"one"}', '"two"}']


# --- What stays the same in all of that -------------------------------------------------------------------


def test_sessions_are_remembered_after_their_deletion(tmp_path: Path) -> None:
    with local_kaggle(tmp_path) as kaggle:
        user = has_run(kaggle, QUICK)
        runs(kaggle, QUICK + FOREVER, "another-one")
        next(user.kernels_logs_stream("ada/another-one"))
        for slug in ("the-kernel", "another-one"):
            user.delete(slug)
        ended, stopped = kaggle.sessions
        assert (ended.published, ended.deleted_in) == (("out.txt",), "COMPLETE")
        assert (stopped.published, stopped.deleted_in) == ((), "RUNNING")
        assert (ended.destroyed, stopped.destroyed) == ((), ("out.txt",))
        began, over = stopped.ran
        assert began <= over <= time.monotonic()


# --- Faults at random -------------------------------------------------------------------------------------


def failures(kaggle: LocalKaggle, count: int = 60) -> list[str]:
    """The names of the errors that so many requests meet; empty for those that succeed."""
    user, found = User(kaggle), []
    for _ in range(count):
        try:
            user.quota_view()
        except (requests.RequestException, ValueError) as error:
            found.append(type(error).__name__)
        else:
            found.append("")
    return found


def test_any_request_may_fail_at_random(tmp_path: Path) -> None:
    with local_kaggle(tmp_path) as kaggle:
        kaggle.chaos(seed=3, rate=0.5)
        first = failures(kaggle)
        assert 10 < first.count("") < 50
        assert kaggle.faults_shown >= 60 - first.count("")
        assert len(set(first)) > 3
        kaggle.chaos(seed=3, rate=0.5)
        assert failures(kaggle) == first
        kaggle.chaos(seed=4, rate=0.5)
        assert failures(kaggle) != first
        kaggle.heal()
        assert set(failures(kaggle, 10)) == {""}


def test_uploads_downloads_and_logs_fail_at_random_too(tmp_path: Path) -> None:
    with local_kaggle(tmp_path) as kaggle:
        user = has_run(kaggle, QUICK)
        url = user.output("the-kernel").files[0].url
        kaggle.chaos(seed=1, rate=1.0)
        for ask in (lambda: requests.get(url), lambda: list(user.kernels_logs_stream("ada/the-kernel"))):
            before = kaggle.faults_shown
            try:
                ask()
            except (requests.RequestException, ValueError):
                pass
            assert kaggle.faults_shown == before + 1
