"""A user who adds a folder of Google Drive as the home store, against the local Drive and its login."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from orchestrator import config
from tests.cli.calls import PATIENCE, Caller, caller
from tests.cli.dialogue import dialogue
from tests.stand_ins.drive import LocalDrive, local_drive
from tests.stand_ins.drive.tokens import CODE, REFRESH

SECRET = "GOCSPX-not-a-real-one"
MINE = "# mine\ntimezone: UTC\n"
ADDRESS = re.compile(r"https://accounts\.google\.com/\S+")


@pytest.fixture
def user(tmp_path: Path) -> Iterator[Caller]:
    with caller(tmp_path) as found:
        found.config(MINE)
        yield found


@pytest.fixture
def drive() -> Iterator[LocalDrive]:
    with local_drive() as found:
        yield found


def words(user: Caller, drive: LocalDrive) -> tuple[str, ...]:
    told = {
        "client_id": "me.apps.googleusercontent.com",
        "client_secret": SECRET,
        "token_uri": f"{drive.url}/token",
    }
    (user.folder / "client_secrets.json").write_text(json.dumps({"installed": told}))
    return ("init", "drive", "--client-secrets", "client_secrets.json", "--endpoint", drive.url)


def come_back(address: str, **more: str) -> str:
    """Where Google sends the browser once the person has agreed."""
    asked = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(address).query))
    told = {"state": asked["state"], "code": CODE, **more}
    return f"{asked['redirect_uri']}/?{urllib.parse.urlencode(told)}"


def agree(child: subprocess.Popen[str], drive: LocalDrive, **more: str) -> tuple[str, str]:
    """A browser on this machine: opens the address once it is shown. Returns what the command said."""
    assert child.stderr is not None
    said = ""
    while not (found := ADDRESS.search(said)):
        line = child.stderr.readline()
        assert line, said
        said += line
    drive.tokens.is_revoked = False
    urllib.request.urlopen(come_back(found[0], **more), timeout=PATIENCE).close()
    out, err = child.communicate(timeout=PATIENCE)
    return out, said + err


def folders(drive: LocalDrive) -> list[str]:
    return [each.fields["title"] for each in drive.disk.files.values() if each.is_folder]


def files(drive: LocalDrive) -> list[str]:
    return [each.fields["title"] for each in drive.disk.files.values() if not each.is_folder]


def test_a_folder_of_drive_becomes_the_home_store(user: Caller, drive: LocalDrive) -> None:
    before = len(folders(drive))
    child = user.start(*words(user, drive), "--json", "--folder", "runs")
    out, err = agree(child, drive)
    assert child.returncode == 0, err
    told = json.loads(out)
    assert (told["registers"], told["changed"]) == (True, True)
    [login] = map(Path, told["files"])
    assert login.stat().st_mode & 0o777 == 0o600
    saved = json.loads(login.read_text())
    assert (saved["refresh_token"], saved["client_secret"]) == (REFRESH, SECRET)
    found = config.load(user.home)
    assert (found.home_store, [each.name for each in found.stores]) == ("drive", ["home", "drive"])
    assert (len(folders(drive)) - before, folders(drive)[-1], files(drive)) == (1, "runs", [".registers"])
    for secret in (REFRESH, SECRET, CODE, "ya29"):
        assert secret not in out + err + (user.home / "config.yaml").read_text()

    # Again: the same folder, the same login, and nobody has to agree.
    again = user("init", "drive", "--json").json
    assert (again["changed"], again["files"]) == (False, [])
    assert len(folders(drive)) - before == 1
    assert config.load(user.home).stores == found.stores

    # The login server has too much to do: nobody has to agree because of that.
    drive.fail("too-many", "token")
    assert "answered 429" in user("init", "drive", code=4).err

    # The consent is over: the same person agrees again, with the client that the login names.
    drive.tokens.is_revoked = True
    child = user.start("init", "drive", "--json")
    out, err = agree(child, drive)
    assert child.returncode == 0, err
    assert "The consent for this store is over" in err
    assert json.loads(out)["changed"] is False
    assert len(folders(drive)) - before == 1


def test_over_ssh_the_address_is_pasted(user: Caller, drive: LocalDrive) -> None:
    with dialogue(user, *words(user, drive)) as terminal:
        terminal.expect("paste its address here.")
        [address] = ADDRESS.findall(terminal.said)
        terminal.answer("http://127.0.0.1:1/?state=x&code=y")
        terminal.expect("that is not the address")
        terminal.answer(come_back(address))
        terminal.expect("drive, for new runs")
        assert terminal.ends() == 0


def test_the_client_may_be_typed(user: Caller) -> None:
    with dialogue(user, "init", "drive") as terminal:
        terminal.expect("`Desktop app`")
        terminal.expect("Path of the client's JSON file, or the client id: ")
        terminal.answer("me.apps.googleusercontent.com")
        terminal.expect("Client secret (not shown): ")
        assert not terminal.hears()
        terminal.answer(SECRET)
        terminal.expect("client_id=me.apps.googleusercontent.com")
        terminal.interrupt()
        assert terminal.ends() == 130
        assert SECRET not in terminal.said
    assert [path.name for path in user.home.iterdir()] == ["config.yaml"]


def unchanged(user: Caller, drive: LocalDrive, before: int) -> None:
    assert [path.name for path in user.home.iterdir()] == ["config.yaml"]
    assert (user.home / "config.yaml").read_text() == MINE
    assert (len(folders(drive)), files(drive)) == (before, [])


REFUSED: dict[str, tuple[dict[str, str], list[tuple[str, str]], int, str]] = {
    "the person refuses": ({"error": "access_denied"}, [], 3, "add your address as a test user"),
    "an administrator refuses": (
        {"error": "admin_policy_enforced"},
        [],
        3,
        "the administrator of this Google",
    ),
    "the code is old": ({"code": "4/old"}, [], 3, "run the command again"),
    "Drive is full": ({}, [("quota", "start")], 4, "the Drive is full"),
    "the API is off": ({}, [("off", "insert")], 3, "enable the Google Drive API"),
    "Drive is away": ({}, [("html", "start")] * 9, 4, "502"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_fails_leaves_nothing_in_drive_and_at_home(
    user: Caller, drive: LocalDrive, case: tuple[dict[str, str], list[tuple[str, str]], int, str]
) -> None:
    more, faults, code, told = case
    before = len(folders(drive))
    for kind, on in faults:
        drive.fail(kind, on)
    child = user.start(*words(user, drive))
    _, err = agree(child, drive, **more)
    assert (child.returncode, told in err) == (code, True), err
    assert SECRET not in err
    unchanged(user, drive, before)


def test_a_consent_without_drive_is_told_as_such(user: Caller, drive: LocalDrive) -> None:
    before = len(folders(drive))
    drive.tokens.scopes = "openid https://www.googleapis.com/auth/userinfo.email"
    child = user.start(*words(user, drive))
    _, err = agree(child, drive)
    assert child.returncode == 3
    assert (
        "you agreed, but not to everything (Drive): run the command again and leave every box ticked" in err
    )
    unchanged(user, drive, before)


def test_a_login_that_cannot_be_renewed_comes_back(user: Caller, drive: LocalDrive) -> None:
    """The consent is over; the person agrees, but then the store does not work."""
    child = user.start(*words(user, drive), "--json")
    [login] = json.loads(agree(child, drive)[0])["files"]
    before = Path(login).read_bytes().replace(REFRESH.encode(), b"1//ended")
    Path(login).write_bytes(before)
    for error, fault, code in (("access_denied", "", 3), ("", "quota", 4)):
        drive.fail(fault or "none", "start")
        child = user.start("init", "drive")
        _, err = agree(child, drive, **({"error": error} if error else {}))
        assert child.returncode == code, err
        assert Path(login).read_bytes() == before
    Path(login).unlink()
    assert "give --client-secrets" in user("init", "drive", code=2).err


def test_nobody_agrees_in_time(user: Caller, drive: LocalDrive) -> None:
    before = len(folders(drive))
    answer = user(*words(user, drive), "--timeout", "0.2", code=3)
    assert "nobody agreed within" in answer.err
    unchanged(user, drive, before)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ((), "--client-secrets is missing"),
        (("--client-secrets", "none.json"), "none.json cannot be read"),
        (("--service-account", "key.json"), "--shared-drive is missing"),
        (
            ("--service-account", "key.json", "--shared-drive", "x"),
            "key.json is not the key of a service account",
        ),
        (("--timeout", "nan"), "--timeout: seconds"),
        (("--bucket", "x"), "--bucket is not for `init drive`"),
    ],
)
def test_what_is_missing_or_wrong_is_named(user: Caller, more: tuple[str, ...], told: str) -> None:
    (user.folder / "key.json").write_text("{}")
    answer = user("init", "drive", *more, code=2)
    assert told in answer.err
    assert [path.name for path in user.home.iterdir()] == ["config.yaml"]


def test_a_service_account_gets_a_folder_in_a_shared_drive(user: Caller, drive: LocalDrive) -> None:
    drive.disk.shared_drive = "shared"
    key = rsa.generate_private_key(65537, 2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    told: dict[str, Any] = {
        "type": "service_account", "client_email": "robot@example.org", "private_key_id": "1",
        "private_key": pem, "client_id": "1", "token_uri": f"{drive.url}/token",
    }  # fmt: skip
    (user.folder / "key.json").write_text(json.dumps(told))
    place = ("--endpoint", drive.url, "--shared-drive", drive.disk.folder)
    made = user("init", "drive", "--service-account", "key.json", *place, "--json").json
    [kept] = map(Path, made["files"])
    assert kept.stat().st_mode & 0o777 == 0o600
    assert pem not in (user.home / "config.yaml").read_text()
    [store] = [each for each in config.load(user.home).stores if each.name == "drive"]
    assert store.options["service_account"] == f"file:{kept.relative_to(user.home)}"
