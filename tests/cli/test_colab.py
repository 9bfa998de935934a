"""A user with a Google account: logging in, and what doctor says of the account."""

from __future__ import annotations

import fcntl
import re
from pathlib import Path

import pytest
from platformdirs import user_cache_path

from orchestrator.cli import arguments
from tests.cli.calls import Caller
from tests.cli.dialogue import dialogue
from tests.stand_ins.colab import LocalColab, local_colab
from tests.stand_ins.colab.settings import SCOPES

CACHE = str(user_cache_path())  # Google's command line is installed there once


def test_logging_in_asks_on_a_terminal_and_doctor_then_knows_the_account(
    user: Caller,
    tmp_path: Path,
    colab_python: None,  # noqa: ARG001
) -> None:
    with local_colab(tmp_path / "colab") as colab:
        user.config(f"platforms:\n  colab: {{type: colab, proxy: '{colab.url}', ca_file: {colab.ca}}}\n")
        before = user("doctor", "colab", code=3, XDG_CACHE_HOME=CACHE)
        assert "orchestrator colab login colab" in before.out + before.err
        with dialogue(user, "colab", "login", "colab", XDG_CACHE_HOME=CACHE) as shell:
            shell.expect("local Colab (`make colab-local`), no login is needed")
            shell.expect("https://accounts.google.com/")
            shell.answer(colab.settings.code)
            shell.expect("colab is logged in")
            assert shell.ends() == 0
        known = user("doctor", "colab", code=0, XDG_CACHE_HOME=CACHE).out
    assert "100.0 compute units, none in use" in known
    assert "T4 (about 2 units an hour, not measured yet)" in known
    assert colab.settings.refresh_token not in shell.said + known


def test_a_login_that_is_given_up_or_gets_a_wrong_code_says_one_line(
    user: Caller,
    tmp_path: Path,
    colab_python: None,  # noqa: ARG001
) -> None:
    prompt = "Enter the authorization code: "
    with local_colab(tmp_path / "colab") as colab:
        user.config(f"platforms:\n  colab: {{type: colab, proxy: '{colab.url}', ca_file: {colab.ca}}}\n")
        with dialogue(user, "colab", "login", "colab", XDG_CACHE_HOME=CACHE) as shell:
            shell.expect(prompt)
            shell.interrupt()
            assert shell.ends()
            assert shell.said.partition(prompt)[2] == "^Cinterrupted\n"
        with dialogue(user, "colab", "login", "colab", XDG_CACHE_HOME=CACHE) as shell:
            shell.expect(prompt)
            shell.answer("4/wrong")
            assert shell.ends() == 3
    assert shell.said.partition(prompt)[2] == (
        "4/wrong\norchestrator: Google does not take this code: it is wrong or too old; "
        "try again: orchestrator colab login colab\n"
    )


def test_a_consent_in_part_or_none_says_what_to_do_and_keeps_the_old_login(
    user: Caller,
    tmp_path: Path,
    colab_python: None,  # noqa: ARG001
) -> None:
    again = "orchestrator colab login colab"
    without_drive = SCOPES.rpartition(" ")[0]
    refusals = (
        ({"scopes": without_drive},
         f"you agreed, but not to everything (Drive): run it again and leave every box ticked ({again})"),
        ({"login_is_refused": "access_denied"},
         f"you refused: to use Colab, run it again and agree ({again})"),
    )  # fmt: skip
    token = user.home / "platforms/colab/cli/home/.config/colab-cli/token.json"
    token.parent.mkdir(parents=True)
    token.write_text("the old login")

    def logs_in(colab: LocalColab) -> str:
        with dialogue(user, "colab", "login", "colab", XDG_CACHE_HOME=CACHE) as shell:
            shell.expect("Enter the authorization code: ")
            shell.answer(colab.settings.code)
            code = shell.ends()
        assert code == (0 if "is logged in" in shell.said else 3), shell.said
        return shell.said

    with local_colab(tmp_path / "colab") as colab:
        user.config(f"platforms:\n  colab: {{type: colab, proxy: '{colab.url}', ca_file: {colab.ca}}}\n")
        fine = colab.settings
        for changes, told in refusals:
            colab.use(**changes)
            assert f"orchestrator: {told}" in logs_in(colab)
            assert token.read_text() == "the old login"
            colab.account.settings = fine
        # No lack: another order, and the other names of the same scopes.
        prefix = "https://www.googleapis.com/auth/userinfo."
        colab.use(scopes=" ".join(reversed(SCOPES.replace(prefix, "").split())))
        assert "is logged in" in logs_in(colab)
    assert token.read_text() != "the old login"


def test_whoever_is_not_logged_in_is_told_so_before_anything_is_installed(
    user: Caller, tmp_path: Path
) -> None:
    for options, advice in (
        ("", "nobody is logged in to Colab; log in with: orchestrator colab login colab"),
        (", auth: adc, adc_file: /none", "nobody is logged in to Colab: there is no file /none"),
    ):
        user.config(f"platforms:\n  colab: {{type: colab{options}}}\n")
        assert advice in user("doctor", "colab", code=3, XDG_CACHE_HOME=str(tmp_path / "cache")).out
    assert not (tmp_path / "cache").exists()


def test_doctor_says_that_an_installation_is_under_way(user: Caller, tmp_path: Path) -> None:
    user.config("platforms:\n  colab: {type: colab, proxy: 'http://127.0.0.1:9'}\n")
    token = user.home / "platforms/colab/cli/home/.config/colab-cli/token.json"
    lock = tmp_path / "cache/accelerator-orchestrator/colab-cli.lock"
    for path in (token, lock):
        path.parent.mkdir(parents=True)
        path.touch()
    with lock.open() as held:  # as the process does that installs
        fcntl.flock(held, fcntl.LOCK_EX)
        told = user("doctor", "colab", code=4, XDG_CACHE_HOME=str(tmp_path / "cache")).out
    assert "is being installed, which may take some minutes; try again later" in told
    assert "to fix" not in told


def test_only_a_person_can_log_in_and_only_where_there_is_a_login(user: Caller) -> None:
    assert "add the line `colab: {type: colab}` to" in user("colab", "login", "colab", code=2).err
    user.config("platforms:\n  here: {type: process}\n  colab: {type: colab}\n")
    assert "run `orchestrator colab login colab` in a terminal" in user("colab", "login", "colab", code=2).err
    assert "here (process) needs no login" in user("colab", "login", "here", code=2).err
    with dialogue(user, "colab", "login", "here") as shell:
        assert shell.ends() == 2
        assert "here (process) needs no login" in shell.said
    with dialogue(user, "colab", "login", "colap") as shell:
        assert shell.ends() == 2
        assert "did you mean 'colab'?" in shell.said


def test_a_notebook_elsewhere_needs_a_store_that_it_can_reach(user: Caller, tmp_path: Path) -> None:
    """The default store is a folder of this machine."""
    words = ("colab", "notebook", "book", "--secret-file", str(tmp_path / "secret"))
    user.config("platforms:\n  book: {type: notebook, accelerator: T4}\n")
    advice = "add a store that they can reach, with `orchestrator init hf`"
    assert advice in user(*words, code=2).err
    assert advice in user("doctor", "book", code=2).out
    for command in ("plan", "submit"):
        answer = user(command, user.job(accelerator="T4"), code=3)
        assert advice in answer.out + answer.err
    assert not (tmp_path / "secret").exists()
    assert not (user.folder / "book.ipynb").exists()
    user.config("platforms:\n  book: {type: notebook, accelerator: T4, this_machine: true}\n")
    user(*words)
    assert advice not in user("doctor", "book").out
    assert (user.folder / "book.ipynb").exists()
    secret = (tmp_path / "secret").read_text()
    user(*words, "--new-secret")
    assert (tmp_path / "secret").read_text() != secret


WRONG = "{type: s3, bukket: runs}"
BUCKET = (
    "{type: s3, bucket: runs, endpoint: 'http://127.0.0.1:9', access_key: 'file:no', secret_key: 'file:no'}"
)


@pytest.mark.parametrize(
    ("stores", "store", "trouble", "code"),
    [
        (f"{{home: {{type: folder, path: store}}, other: {WRONG}}}", "other", "unknown option 'bukket'", 2),
        (f"{{home: {BUCKET}}}", "home", "cannot be read", 3),
    ],
    ids=["wrong options", "no credential and no server"],
)
def test_a_store_that_cannot_be_asked_stops_nothing_else(
    user: Caller, stores: str, store: str, trouble: str, code: int
) -> None:
    """Where a run may go does not depend on whether a store answers now."""
    platforms = "{here: {type: process}, book: {type: notebook, accelerator: T4}}"
    user.config(f"platforms: {platforms}\nstores: {stores}\nhome_store: home\n")
    found = user("doctor", code=code).out
    assert re.search(rf"store {store} +missing .*{trouble}", found)
    assert re.search(r"book: home store +missing .*only this machine can open", found)
    assert "here/cpu" in user("plan", user.job()).out


def test_a_second_account_is_refused_with_the_reason(user: Caller) -> None:
    user.config("platforms:\n  one: {type: colab}\n  two: {type: colab}\n")
    assert "Google forbids several accounts" in user("doctor", code=2).out


def test_the_help_of_a_part_has_only_what_belongs_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    for part, is_there in (("login", False), ("notebook", True)):
        with pytest.raises(SystemExit):
            arguments.parse(["colab", part, "--help"])
        help_ = capsys.readouterr().out
        assert ("--secret-file" in help_) is is_there
        assert "~/.local/share/orchestrator" in help_
