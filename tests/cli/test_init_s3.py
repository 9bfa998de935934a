"""A user who adds a bucket as the home store: what is asked, tested, kept and told, on a real S3 server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from orchestrator import config
from orchestrator.stores import catalog
from tests.cli.calls import Caller, caller
from tests.cli.dialogue import dialogue
from tests.stand_ins.no_web import no_web_server
from tests.stand_ins.seaweed import ACCESS_KEY, BUCKET, SECRET_KEY, Seaweed

KEYS: dict[str, Any] = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
MINE = "# mine\nstores:\n  home: {type: folder, path: store}  # keep\n"


@pytest.fixture
def user(tmp_path: Path) -> Iterator[Caller]:
    """Somebody who has no config yet."""
    with caller(tmp_path) as found:
        yield found


def words(server: Seaweed, prefix: str) -> tuple[str, ...]:
    return ("init", "s3", "--endpoint", server.endpoint, "--bucket", BUCKET, "--prefix", prefix)


def tree(home: Path) -> dict[str, bytes]:
    """Every file of the home, to show that nothing was changed."""
    return {str(path.relative_to(home)): path.read_bytes() for path in home.rglob("*") if path.is_file()}


def objects(home: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    for key, value in KEYS.items():
        monkeypatch.setenv(key, value)
    [given] = [each for each in config.load(home).stores if each.name == name]
    return [each.key for each in catalog.build(name, given.type, given.options, home).list("")]


def test_a_bucket_becomes_the_home_store(
    user: Caller, seaweedfs: Seaweed, monkeypatch: pytest.MonkeyPatch
) -> None:
    user.config(MINE)
    prefix = seaweedfs.prefix()
    answer = user(*words(seaweedfs, prefix), **KEYS)
    for told in (
        "registers",
        "honoured",
        "/s up",
        "agrees with the store's",
        "s3, for new runs. Runs keep",
        "doctor s3",
    ):
        assert told in answer.out, answer.out
    text = (user.home / "config.yaml").read_text()
    assert text.startswith(MINE)
    assert "access_key: env:AWS_ACCESS_KEY_ID" in text
    assert (user.home / "config.yaml.old-1").read_text() == MINE
    found = config.load(user.home)
    assert (found.home_store, [each.name for each in found.stores]) == ("s3", ["home", "s3"])
    assert not (user.home / "credentials").exists()
    assert objects(user.home, "s3", monkeypatch) == []

    again = user(*words(seaweedfs, prefix), "--json", **KEYS).json
    assert (again["changed"], again["kept"], again["registers"]) == (False, None, True)
    assert (user.home / "config.yaml").read_text() == text

    other = user(*words(seaweedfs, seaweedfs.prefix()), code=2, **KEYS)
    assert f"another store named s3 (s3: bucket {BUCKET}, prefix {prefix}" in other.err
    assert "--name s3-2" in other.err
    assert (user.home / "config.yaml").read_text() == text


def test_keys_from_standard_input_are_kept_in_files_that_only_the_user_can_read(
    user: Caller, seaweedfs: Seaweed
) -> None:
    """Also: a config is made first if there is none, `doctor` needs no environment, and the key of a store
    that was taken out of the config stays."""
    old = user.home / "credentials" / "mine-access-key"
    old.parent.mkdir(parents=True, mode=0o700)
    old.write_text("of another store")
    answer = user(
        *words(seaweedfs, seaweedfs.prefix()), "--stdin", "--name", "mine", "--json",
        given=f"{ACCESS_KEY}\n{SECRET_KEY}\n",
    )  # fmt: skip
    files = [Path(each) for each in answer.json["files"]]
    assert [path.read_text() for path in files] == [ACCESS_KEY, SECRET_KEY]
    assert old.read_text() == "of another store"
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert files[0].parent.stat().st_mode & 0o777 == 0o700
    text = (user.home / "config.yaml").read_text()
    assert SECRET_KEY not in text + answer.out + answer.err
    assert "secret_key: file:credentials/mine-secret-key" in text
    assert "here:" in text
    assert not list(user.home.glob("config.yaml.old-*"))
    doctor = user("doctor", "mine", "--json").json
    assert [each["state"] for each in doctor["findings"] if each["what"] == "store mine"] == ["ok"]


def test_a_person_is_asked_and_the_secret_is_not_shown(user: Caller, seaweedfs: Seaweed) -> None:
    with dialogue(user, "init", "s3", "--prefix", seaweedfs.prefix()) as terminal:
        terminal.expect("Service: aws, r2, b2, or the address of another one [aws]: ")
        terminal.answer(seaweedfs.endpoint)
        terminal.expect("Bucket: ")
        terminal.answer("")
        terminal.expect("Bucket: ")
        terminal.answer(BUCKET)
        terminal.expect("Access key (not shown): ")
        assert not terminal.hears()
        terminal.answer(ACCESS_KEY)
        terminal.expect("Secret key (not shown): ")
        assert not terminal.hears()
        terminal.answer(SECRET_KEY)
        assert terminal.ends() == 0
        assert SECRET_KEY not in terminal.said
        assert ACCESS_KEY not in terminal.said
    assert config.load(user.home).home_store == "s3"


def test_a_person_who_gives_up_leaves_nothing(user: Caller, seaweedfs: Seaweed) -> None:
    with dialogue(user, *words(seaweedfs, "checkpoints")) as terminal:
        terminal.expect("Access key (not shown): ")
        terminal.interrupt()
        assert terminal.ends() == 130
        assert terminal.hears()
    assert not user.home.exists() or tree(user.home) == {}


REFUSED = {
    "no bucket": (("--bucket", "no-such-bucket"), KEYS, 3, ("no such bucket", "aws s3 mb")),
    "wrong secret": ((), {**KEYS, "AWS_SECRET_ACCESS_KEY": "wrong"}, 3, ("check `access_key`",)),
    "unknown key": ((), {**KEYS, "AWS_ACCESS_KEY_ID": "unknown"}, 3, ("check `access_key`",)),
    "nobody there": (("--endpoint", "http://127.0.0.1:9"), KEYS, 4, ("the endpoint accepts no connection",)),
    "a token that is no good": ((), {**KEYS, "AWS_SESSION_TOKEN": "none"}, 3, ("check `access_key`",)),
    "no address": (("--endpoint", "localhost"), KEYS, 2, ("https://HOST",)),
    "no keys": ((), {}, 2, ("AWS_ACCESS_KEY_ID", "init s3 --stdin")),
    "half of the keys": ((), {"AWS_ACCESS_KEY_ID": "a"}, 2, ("AWS_SECRET_ACCESS_KEY",)),
    "a name that leads away": (("--name", "../x"), KEYS, 2, ("--name: a name is",)),
    "a name that is taken": (("--name", "home"), KEYS, 2, ("another store named home (folder: path store)",)),
    "an option of drive": (("--folder", "x"), KEYS, 2, ("--folder is not for `init s3`", "--bucket")),
    "force": (("--force",), KEYS, 2, ("only adds a store",)),
    "one line": (("--stdin",), {}, 2, ("two lines are needed",)),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_does_not_work_changes_nothing_and_says_what_to_do(
    user: Caller,
    seaweedfs: Seaweed,
    case: tuple[tuple[str, ...], dict[str, Any], int, tuple[str, ...]],
) -> None:
    more, keys, code, told = case
    user.config(MINE)
    before = tree(user.home)
    answer = user(*words(seaweedfs, "checkpoints"), *more, code=code, **keys)
    for each in told:
        assert each in answer.err, answer.err
    assert SECRET_KEY not in answer.err
    assert tree(user.home) == before


SAID = {
    "RequestTimeTooSkewed": (403, "this machine's clock is off", r"clock is [\d,]+ s ahead of the store's"),
    "AuthorizationHeaderMalformed": (400, "the bucket is in another region", "aws s3 mb"),
}


@pytest.mark.parametrize("code", SAID)
def test_a_wrong_clock_and_a_wrong_region_are_told(user: Caller, code: str) -> None:
    """By a server that answers everything like this, and whose clock stands."""
    status, said, more = SAID[code]

    class Handler(BaseHTTPRequestHandler):
        def refuse(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
            self.send_response_only(status)
            self.send_header("Date", "Sun, 22 Nov 2020 00:00:00 GMT")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body if self.command != "HEAD" else b"")

        do_GET = do_PUT = do_HEAD = do_DELETE = refuse  # noqa: N815 the names are the library's

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        answer = user("init", "s3", "--endpoint", address, "--bucket", BUCKET, code=3, **KEYS)
        server.shutdown()
    assert said in answer.err
    assert re.search(more, answer.err)
    assert "The config was not changed." in answer.err
    assert tree(user.home) == {}


def test_a_server_of_another_protocol_is_no_bug_of_ours(user: Caller) -> None:
    with no_web_server() as address:
        told = user("init", "s3", "--endpoint", address, "--bucket", BUCKET, code=4, **KEYS).err
    assert f"what answers at {address} is no web server" in told
    assert tree(user.home) == {}


def test_new_keys_replace_the_old_ones_once_they_have_worked(user: Caller, seaweedfs: Seaweed) -> None:
    """On standard input and on a terminal. Keys that do not work change nothing."""
    place = words(seaweedfs, seaweedfs.prefix())
    user(*place, "--stdin", given=f"{ACCESS_KEY}\n{SECRET_KEY}\n")
    files = [user.home / "credentials" / name for name in ("s3-access-key", "s3-secret-key")]
    for path, text in zip(files, ("old", "keys"), strict=True):
        path.write_text(text)
    before = tree(user.home)
    told = user(*place, code=3).err
    assert "Its keys are read from file:credentials/s3-access-key" in told
    assert "With --stdin, this command takes new ones." in told
    user(*place, "--stdin", given=f"{ACCESS_KEY}\nwrong\n", code=3)
    assert tree(user.home) == before
    answer = user(*place, "--stdin", "--json", given=f"{ACCESS_KEY}\n{SECRET_KEY}\n").json
    assert (answer["changed"], answer["files"]) == (False, list(map(str, files)))
    assert [path.read_text() for path in files] == [ACCESS_KEY, SECRET_KEY]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}

    files[1].write_text("old")
    with dialogue(user, *place, "--stdin") as terminal:
        terminal.expect("Access key (not shown): ")
        terminal.answer(ACCESS_KEY)
        terminal.expect("Secret key (not shown): ")
        terminal.answer(SECRET_KEY)
        assert terminal.ends() == 0
    assert files[1].read_text() == SECRET_KEY


def test_new_keys_for_a_store_that_reads_them_elsewhere_are_not_ignored(
    user: Caller, seaweedfs: Seaweed
) -> None:
    place = words(seaweedfs, seaweedfs.prefix())
    user(*place, **KEYS)
    before = tree(user.home)
    told = user(*place, "--stdin", given=f"{ACCESS_KEY}\n{SECRET_KEY}\n", code=2).err
    assert "from env:AWS_ACCESS_KEY_ID, env:AWS_SECRET_ACCESS_KEY: put the new ones there" in told
    assert tree(user.home) == before


def test_the_same_place_is_recognised_however_it_is_written(user: Caller, seaweedfs: Seaweed) -> None:
    prefix = seaweedfs.prefix()
    user(*words(seaweedfs, prefix), **KEYS)
    text = (user.home / "config.yaml").read_text()
    user.config(text.replace(seaweedfs.endpoint, f"{seaweedfs.endpoint}/"))
    for endpoint, more in (
        (f"{seaweedfs.endpoint}/", ()),
        (f"HTTP{seaweedfs.endpoint[4:]}", ("--preset", "minio")),
    ):
        place = ("--endpoint", endpoint, "--bucket", BUCKET, "--prefix", f"/{prefix}/", *more)
        assert user("init", "s3", *place, "--json", **KEYS).json["changed"] is False


def test_a_config_that_cannot_be_edited_gets_its_lines_by_hand(user: Caller, seaweedfs: Seaweed) -> None:
    """The keys stay, because the lines refer to them. With the lines, the command works."""
    prefix = seaweedfs.prefix()
    user.config("timezone: UTC\n...\n")
    keys = f"{ACCESS_KEY}\n{SECRET_KEY}\n"
    told = user(*words(seaweedfs, prefix), "--stdin", given=keys, code=2).err
    assert (user.home / "config.yaml").read_text() == "timezone: UTC\n...\n"
    lines = told.partition("add by hand:\n")[2]
    user.config(f"timezone: UTC\n{lines}")
    assert user(*words(seaweedfs, prefix), "--json").json["changed"] is False


def test_without_a_terminal_all_that_is_missing_is_named(user: Caller) -> None:
    answer = user("init", "s3", "--preset", "r2", code=2, **KEYS)
    assert "--account 0123456789abcdef, --bucket checkpoints" in answer.err
    answer = user("init", "s3", "--json", code=2, **KEYS)
    assert "--region eu-central-1, --bucket checkpoints" in json.loads(answer.out)["error"]["message"]
    assert not user.home.exists()


# --- Hugging Face ---------------------------------------------------------------------------------------


def test_a_hugging_face_bucket_needs_one_answer_and_two_keys(user: Caller, seaweedfs: Seaweed) -> None:
    place = ("--endpoint", seaweedfs.endpoint, "--prefix", seaweedfs.prefix())
    with dialogue(user, "init", "hf", *place, **KEYS) as terminal:
        terminal.expect("100 GB of private storage are free")
        terminal.expect("`Generate S3 credentials` in the token's menu")
        terminal.expect("Bucket, as NAMESPACE/NAME: ")
        terminal.answer(f"ada/{BUCKET}")
        terminal.expect("Access key (not shown): ")  # those in the environment are not of Hugging Face
        terminal.answer(ACCESS_KEY)
        terminal.expect("Secret key (not shown): ")
        terminal.answer(SECRET_KEY)
        assert terminal.ends() == 0
    [made] = [each for each in config.load(user.home).stores if each.name == "hf"]
    assert (made.type, made.options["preset"], made.options["account"], made.options["bucket"]) == (
        "s3", "huggingface", "ada", BUCKET,
    )  # fmt: skip
    again = user("init", "hf", *place, "--bucket", f"ada/{BUCKET}", "--json").json
    assert again["changed"] is False


def test_a_token_is_not_a_key_and_a_bucket_has_a_namespace(user: Caller) -> None:
    answer = user("init", "hf", "--bucket", "ada/checkpoints", code=2, HF_TOKEN="hf_x", **KEYS)
    assert "AWS_ACCESS_KEY_ID is not a key of Hugging Face, which begins with HFAK" in answer.err
    assert "https://huggingface.co/settings/tokens" in answer.err
    answer = user("init", "hf", "--bucket", "checkpoints", code=2)
    assert "the namespace is missing, as in ada/checkpoints" in answer.err
    assert not user.home.exists()
