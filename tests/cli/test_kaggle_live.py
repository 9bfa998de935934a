"""`doctor --live` as a user meets it, on a local Kaggle: what it asks, makes, finds, tells and leaves."""

from __future__ import annotations

import resource
import signal
import stat
import subprocess
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from tests.cli.calls import PATIENCE, Caller
from tests.stand_ins.kaggle import LocalKaggle, local_kaggle
from tests.waiting import wait_until

QUICK = """threads: 1, poll_seconds: 0.2, report_seconds: 0.2, visibility_seconds: 3, session_seconds: 60,
    wall_margin_seconds: 5, publish_seconds: 10, ready_seconds: 10, accelerators: [T4x2]"""


@pytest.fixture
def kaggle(tmp_path: Path) -> Iterator[LocalKaggle]:
    with local_kaggle(tmp_path / "kaggle") as made:
        yield made


@pytest.fixture
def account(user: Caller, kaggle: LocalKaggle) -> Caller:
    """A user with an account and a machine of their own."""
    key = user.folder / "of-ada"
    key.write_text(kaggle.settings.key)
    user.config(
        f"platforms:\n  here: {{type: process}}\n  kaggle: {{type: kaggle, endpoint: '{kaggle.url}', "
        f"username: ada, key_file: {key}, {QUICK}}}\n"
    )
    return user


def there(kaggle: LocalKaggle) -> set[str]:
    """The kernels and datasets of the account."""
    with kaggle.lock:
        return kaggle.datasets.names() | kaggle.datasets.names_of_kernels()


def settled(kaggle: LocalKaggle) -> set[str]:
    """The same, once what a stopped client has asked for is carried out."""
    found: list[tuple[set[str], int]] = []

    def again() -> bool:
        found.append((there(kaggle), len(kaggle.calls)))
        return found[-6:].count(found[-1]) == 6

    wait_until(again, "the last request to be carried out")
    return found[-1][0]


def begun(kaggle: LocalKaggle, account: Caller) -> subprocess.Popen[str]:
    """A trial whose first kernel runs."""
    child = account.start("doctor", "kaggle", "--live", "--yes")
    wait_until(lambda: kaggle.pushed, "a push")
    return child


def test_what_is_assumed_holds_on_a_kaggle_that_is_as_assumed(account: Caller, kaggle: LocalKaggle) -> None:
    account("up", "--detach")
    kaggle.warts.cancel_works = True
    answer = account("doctor", "kaggle", "--live", "--yes", "--json").json
    account("down")
    long = {"A27", "A28", "A29"}
    assert {each["id"] for each in answer["checks"] if each["verdict"] != "holds"} == long
    assert (answer["left"], answer["trouble"], answer["interrupted"]) == ([], "", False)
    assert answer["facts"]["the name of a deleted kernel"] == "can be used again"
    assert there(kaggle) == set()
    assert all(not each.get("enableGpu") and "machineShape" not in each for each in kaggle.pushed)
    report = Path(answer["report"])
    assert report.is_relative_to(account.home)
    assert stat.S_IMODE(report.stat().st_mode) == 0o600
    text = report.read_text()
    assert "| packages | kaggle " in text
    assert "| A1 | holds | The quota can be read" in text
    for secret in ("ada", kaggle.settings.key, "X-Goog", "/signed/"):
        assert secret not in text.replace("metadata", "")


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_trial_cleans_up_and_a_killed_one_is_cleaned_up(
    account: Caller, kaggle: LocalKaggle, signal_number: int
) -> None:
    child = begun(kaggle, account)
    child.send_signal(signal_number)
    out, err = child.communicate(timeout=PATIENCE)
    if signal_number == signal.SIGINT:
        assert child.returncode == 130, err
        assert "deleting what was made" in err
        assert "it was interrupted" in out
    else:
        assert there(kaggle), "a dataset and a kernel, or more if it got further"
        account("doctor", "kaggle", "--clean", "--yes", "--discard")
    assert there(kaggle) == set()


def test_nobody_else_removes_what_a_trial_has_made_while_it_is_under_way(
    account: Caller, kaggle: LocalKaggle
) -> None:
    child = account.start("doctor", "kaggle", "--live", "--yes")
    assert child.stdout is not None
    assert child.stderr is not None
    assert child.stdout.readline().startswith("account  ada at ")
    assert child.poll() is None
    [address] = islice((line for line in child.stderr if "look at" in line), 1)
    assert "https://www.kaggle.com/code/ada/kaggle-trial-" in address
    child.send_signal(signal.SIGSTOP)
    made = settled(kaggle)
    kept = account("doctor", "--clean", "--yes", "--discard").out
    assert kept.count("a trial is under way, which removes it at its end") == len(made) > 0
    assert "leftovers" not in account("doctor", "kaggle").out
    again = account("doctor", "kaggle", "--live", "--yes", code=4)
    assert "is under way: wait for its end" in again.err
    assert there(kaggle) == made
    child.send_signal(signal.SIGCONT)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=PATIENCE)
    assert child.returncode == 130
    assert there(kaggle) == set()


def test_cleaning_claims_nothing_about_a_kaggle_that_does_not_answer(
    account: Caller, kaggle: LocalKaggle
) -> None:
    folder = account.home / "platforms" / "kaggle"
    folder.mkdir(parents=True)
    (folder / "home-id").write_text("a1b2c3d4e5f6")
    kaggle.revoke()
    out = account("doctor", "kaggle", "--clean", code=3).out
    assert "Nothing is left over" not in out
    assert "no answer  kaggle: Kaggle refuses the credentials" in out


def test_a_home_without_kaggle_says_how_to_add_it(user: Caller) -> None:
    user.config()
    line = f"add the line `kaggle: {{type: kaggle}}` to `platforms` in {user.home / 'config.yaml'}"
    for words in (("doctor", "kaggle"), ("init",)):
        said = user(*words, code=2).err
        assert "save a token of kaggle.com/settings → API as ~/.kaggle/access_token" in said
        assert line in said


def test_a_full_disk_ends_a_trial_and_leaves_nothing_on_kaggle(account: Caller, kaggle: LocalKaggle) -> None:
    child = begun(kaggle, account)
    resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    _, err = child.communicate(timeout=PATIENCE)
    assert child.returncode == 4, err
    assert "it cannot go on: File too large" in err
    assert there(kaggle) == set()


def test_a_failure_is_told_with_what_was_seen(account: Caller, kaggle: LocalKaggle) -> None:
    kaggle.warts.dataset_end = "FAILED"
    answer = account("doctor", "kaggle", "--live", "--yes", code=1)
    assert "A3   fails     An uploaded dataset is `ready` within `ready_seconds`" in answer.out
    assert "29 assumptions: 2 hold, 1 fails, 26 not seen" in answer.out
    assert "please attach it to an issue" in answer.out
    assert "cannot go on: Kaggle failed to process the dataset kaggle-trial-" in answer.err
    assert there(kaggle) == set()


def test_without_a_terminal_it_must_be_agreed_to(account: Caller, kaggle: LocalKaggle) -> None:
    refused = account("doctor", "--live", "--long", code=2)
    assert "to agree: `orchestrator doctor kaggle --live --long --yes`" in refused.err
    assert kaggle.calls == []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("here", "--live"), "here is a platform of type process and cannot be tried live: only kaggle can"),
        (("kaggle", "--long"), "--long goes with --live: `orchestrator doctor kaggle --live --long`"),
        (("kaggle", "--yes"), "`orchestrator doctor kaggle --clean --yes`"),
        (("--discard",), "--discard goes with --clean: `orchestrator doctor --clean --discard`"),
        (("--live", "--clean"), "--clean and --live are different things"),
    ],
)
def test_what_cannot_be_tried_is_refused(account: Caller, words: tuple[str, ...], why: str) -> None:
    assert why in account("doctor", *words, code=2).err


def test_a_terminal_is_asked_and_told_what_it_costs(account: Caller, kaggle: LocalKaggle) -> None:
    said = account.on_a_terminal("doctor", "--live", answer="n")
    for words in ("ada at http://127.0.0.1", "4 private kernels", "no GPU or TPU quota: 3 CPU sessions"):
        assert words in said.partition("[y/N]")[0]
    assert "Nothing was made." in said
    assert set(kaggle.calls) == {"GetAcceleratorQuotaStatistics"}
