"""`doctor --live` as a user meets it, on a local Colab: what it asks, makes, finds, tells and leaves."""

from __future__ import annotations

import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from platformdirs import user_cache_path

from tests.cli.calls import PATIENCE, Caller
from tests.cli.dialogue import dialogue
from tests.stand_ins.colab import LocalColab, local_colab
from tests.waiting import wait_until

CACHE = str(user_cache_path())  # Google's command line is installed there once
QUICK = "threads: 1, poll_seconds: 1, session_seconds: 60, wall_margin_seconds: 5, visibility_seconds: 3"
LONG = {"C15", "C16"}


@pytest.fixture
def colab(tmp_path: Path, colab_python: None) -> Iterator[LocalColab]:  # noqa: ARG001
    with local_colab(tmp_path / "colab") as colab:
        yield colab


@pytest.fixture
def account(user: Caller, colab: LocalColab) -> Caller:
    """A user who is logged in, with a machine of their own."""
    platform = f"{{type: colab, proxy: '{colab.url}', ca_file: {colab.ca}, {QUICK}}}"
    user.config(f"platforms:\n  here: {{type: process}}\n  colab: {platform}\n")
    token = user.home / "platforms" / "colab" / "cli" / "home" / ".config" / "colab-cli" / "token.json"
    token.parent.mkdir(parents=True)
    token.write_text(colab.login())
    return user


def begun(colab: LocalColab, account: Caller) -> subprocess.Popen[str]:
    """A trial whose first cell runs."""
    child = account.start("doctor", "colab", "--live", "--yes", XDG_CACHE_HOME=CACHE)
    wait_until(lambda: any(each.is_busy() for each in colab.account.living()), "a cell")
    return child


@pytest.mark.soak
@pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
def test_what_is_assumed_holds_on_a_colab_that_is_as_assumed(
    account: Caller, colab: LocalColab, long: bool
) -> None:
    mine = colab.account.allocate("a notebook of the user's own", "T4")
    words = ["--long"] if long else []
    answer = account("doctor", "colab", "--live", *words, "--yes", "--json", XDG_CACHE_HOME=CACHE).json
    unseen = {each["id"]: each["seen"] for each in answer["checks"] if each["verdict"] != "holds"}
    assert unseen.keys() == LONG
    assert all(
        each.startswith("only tried with" if long else "checked with --long") for each in unseen.values()
    )
    assert (answer["left"], answer["trouble"], answer["interrupted"]) == ([], "", False)
    assert colab.account.living() == [mine]
    assert "torch" in answer["facts"]["the machine"]
    report = Path(answer["report"])
    assert report.is_relative_to(account.home)
    assert stat.S_IMODE(report.stat().st_mode) == 0o600
    text = report.read_text()
    assert "google-colab-cli==" in text
    assert "kaggle" not in text
    assert "| C1 | holds | Colab says what the account has" in text
    for machine in colab.account.machines.values():
        for secret in (colab.settings.refresh_token, *machine.tokens, *colab.account.access):
            assert secret not in text
    assert not list((account.home / "store").rglob("colab-trial-*"))
    assert "Nothing is left over" in account("doctor", "colab", "--clean", XDG_CACHE_HOME=CACHE).out


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_trial_cleans_up_and_a_killed_one_is_cleaned_up(
    account: Caller, colab: LocalColab, signal_number: int
) -> None:
    child = begun(colab, account)
    child.send_signal(signal_number)
    out, err = child.communicate(timeout=PATIENCE)
    if signal_number == signal.SIGINT:
        assert child.returncode == 130, err
        assert "deleting what was made" in err
        assert "it was interrupted" in out
    else:
        assert len(colab.account.living()) == 1
        cleaned = account("doctor", "colab", "--clean", "--yes", XDG_CACHE_HOME=CACHE).out
        assert "machine colab-trial-" in cleaned
    assert colab.account.living() == []


def test_nothing_is_made_without_consent(account: Caller, colab: LocalColab) -> None:
    asked = account("doctor", "colab", "--live", code=2, XDG_CACHE_HOME=CACHE).err
    assert "to agree: `orchestrator doctor colab --live --yes`" in asked
    with dialogue(account, "doctor", "colab", "--live", XDG_CACHE_HOME=CACHE) as shell:
        shell.expect("2 machines without an accelerator")
        shell.answer("n")
        shell.expect("Nothing was made.")
        assert shell.ends() == 0
    assert colab.account.allocated == []
