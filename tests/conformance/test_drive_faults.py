"""What a store in Drive makes of every way in which Drive, its login and the network fail.

The table of docs/stores-drive.md names these tests.
"""

from __future__ import annotations

import json
import random
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.errors import (
    AccessDenied,
    BackendError,
    CorruptCheckpoint,
    NotFound,
    OrchestratorError,
    QuotaExhausted,
    Rejected,
    Transient,
)
from orchestrator.stores.drive.account import Account, Login
from orchestrator.stores.drive.store import DriveStore
from orchestrator.stores.retrying import RetryingStore
from orchestrator.stores.store import Stat
from tests.conformance.drives import PART, configured, drive, home, store
from tests.conformance.store_suite import KEY, Source, files_below, sha256, source
from tests.stand_ins.drive import LocalDrive
from tests.stand_ins.drive.tokens import ACCESS_PREFIX, REFRESH, write_login

__all__ = ["drive", "home", "source", "store"]  # fixtures
DATA = random.Random(3).randbytes(4 * PART + 1000)


@pytest.fixture
def parts(drive: LocalDrive, home: Path) -> DriveStore:
    """A store that sends and fetches in five parts, and does not wait long."""
    account = Account("mine", Login(home / "drive-credentials.json"), drive.url, timeout=0.5)
    return DriveStore(account, drive.disk.folder, chunk=PART)


def objects(drive: LocalDrive) -> list[bytes]:
    return [
        file.data for file in drive.disk.files.values() if file.properties.get("orchestrator") == "object"
    ]


def verbs(store: DriveStore, source: Source, tmp_path: Path) -> dict[str, Callable[[], object]]:
    """What asks Drive for each kind of request."""
    path, digest = source(b"more")
    return {
        "ids": lambda: store.put("runs/new", path, digest),
        "start": lambda: store.put("runs/new", path, digest),
        "chunk": lambda: store.put("runs/new", path, digest),
        "get": lambda: store.stat(KEY),
        "media": lambda: store.get(KEY, tmp_path / "target"),
        "list": lambda: list(store.list("")),
        "delete": lambda: store.delete(KEY),
    }


REQUESTS = ("ids", "start", "chunk", "get", "media", "list", "delete")
KINDS: dict[str, type[BackendError]] = {
    "rate": Transient,
    "rate-project": Transient,
    "too-many": Transient,
    "500": Transient,
    "503": Transient,
    "html": Transient,
    "html-ok": Transient,
    "html-forbidden": Transient,
    "empty": Transient,
    "quota": QuotaExhausted,
    "quota-old": QuotaExhausted,
    "denied": AccessDenied,
    "scope": AccessDenied,
    "off": AccessDenied,
    "bad": Rejected,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on", REQUESTS)
def test_each_answer_means_the_same_to_every_verb(
    drive: LocalDrive, home: Path, source: Source, tmp_path: Path, kind: str, on: str
) -> None:
    configured(drive, home).put(KEY, *source(b"stored"))
    drive.fail(kind, on)
    act = verbs(configured(drive, home), source, tmp_path)[on]
    with pytest.raises(KINDS[kind]) as caught:
        act()
    assert type(caught.value) is KINDS[kind]
    assert caught.value.backend == "mine"
    act()
    assert len(objects(drive)) == {"delete": 0, "ids": 2, "start": 2, "chunk": 2}.get(on, 1)


def test_a_full_drive_says_what_to_do_and_keeps_nothing(
    drive: LocalDrive, store: DriveStore, source: Source
) -> None:
    drive.disk.quota_bytes = 1000
    with pytest.raises(QuotaExhausted, match="trash"):
        store.put(KEY, *source(DATA))
    assert objects(drive) == []
    assert store.stat(KEY) is None
    drive.disk.quota_bytes = 10**9
    store.put(KEY, *source(DATA))


@pytest.mark.parametrize("on", REQUESTS)
@pytest.mark.parametrize("kind", ["drop", "drop-after"])
def test_a_dropped_connection_costs_a_try_and_never_a_copy(
    drive: LocalDrive, store: DriveStore, source: Source, tmp_path: Path, kind: str, on: str
) -> None:
    store.put(KEY, *source(b"stored"))
    act = verbs(store, source, tmp_path)[on]
    drive.fail(kind, on, times=4)
    stubborn(act)
    names = [file.fields["title"] for file in drive.disk.files.values() if "parents" in file.fields]
    assert len(names) == len(set(names))


def stubborn(act: Callable[[], object], tries: int = 6) -> None:
    """As the retrying wrapper, without its pauses."""
    for _ in range(tries):
        try:
            act()
        except Transient:
            continue
        return
    raise AssertionError(f"still failing after {tries} tries")


def test_no_answer_is_not_waited_for_for_ever(drive: LocalDrive, parts: DriveStore) -> None:
    assert parts.stat(KEY) is None
    drive.fail("hang", "list")
    with pytest.raises(Transient, match="in time"):
        parts.stat(KEY)
    assert parts.stat(KEY) is None


# --- Uploads ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["drop", "drop-after", "503", "rate", "html", "partial"])
def test_an_upload_goes_on_where_it_stopped(
    drive: LocalDrive, parts: DriveStore, source: Source, tmp_path: Path, kind: str
) -> None:
    path, digest = source(DATA)
    drive.fail(kind, "chunk", times=2, skip=2)
    stubborn(lambda: parts.put(KEY, path, digest))
    assert drive.requests.count("start") == 1
    assert drive.bytes_in <= len(DATA) + 2 * PART
    assert objects(drive) == [DATA]
    parts.get(KEY, tmp_path / "target", digest)


def test_the_answer_to_the_last_part_may_be_lost(
    drive: LocalDrive, parts: DriveStore, source: Source
) -> None:
    path, digest = source(DATA)
    drive.fail("drop-after", "chunk", skip=4, times=2)
    stubborn(lambda: parts.put(KEY, path, digest))
    assert objects(drive) == [DATA]


def test_an_upload_that_drive_forgot_starts_again(
    drive: LocalDrive, parts: DriveStore, source: Source
) -> None:
    path, digest = source(DATA)
    drive.fail("lost", "chunk", skip=3)
    with pytest.raises(Transient, match="starts again"):
        parts.put(KEY, path, digest)
    parts.put(KEY, path, digest)
    assert drive.requests.count("start") == 2
    assert objects(drive) == [DATA]


def test_an_id_that_exists_already_is_the_earlier_try(
    drive: LocalDrive, parts: DriveStore, source: Source
) -> None:
    """The upload was committed, then its session was lost with the answer."""
    path, digest = source(DATA)
    drive.fail("drop-after", "chunk", skip=4, times=2)
    with pytest.raises(Transient):
        parts.put(KEY, path, digest)
    drive.fail("lost", "chunk")
    drive.disk.freeze_listing()
    drive.disk._frozen = []
    stubborn(lambda: parts.put(KEY, path, digest))
    assert objects(drive) == [DATA]


def test_what_arrives_damaged_is_deleted_and_sent_again(
    drive: LocalDrive, parts: DriveStore, source: Source
) -> None:
    path, digest = source(DATA)
    drive.fail("damage", "chunk", skip=4)
    with pytest.raises(Transient, match="damaged"):
        parts.put(KEY, path, digest)
    assert objects(drive) == []
    parts.put(KEY, path, digest)
    assert objects(drive) == [DATA]


def test_other_bytes_are_never_committed(drive: LocalDrive, parts: DriveStore, source: Source) -> None:
    path, _ = source(DATA)
    with pytest.raises(Rejected, match="nothing was stored"):
        parts.put(KEY, path, sha256(b"meant"))
    assert drive.requests.count("chunk") == 4, "the last part was not sent"
    assert objects(drive) == []


def test_a_source_that_is_cut_while_it_is_sent_is_rejected(
    drive: LocalDrive, parts: DriveStore, source: Source
) -> None:
    path, digest = source(DATA)
    drive.fail("503", "chunk", skip=2)
    with pytest.raises(Transient):
        parts.put(KEY, path, digest)
    path.write_bytes(DATA[: 3 * PART] + b"x" * (len(DATA) - 3 * PART))
    with pytest.raises(Rejected, match="nothing was stored"):
        parts.put(KEY, path, digest)
    assert objects(drive) == []
    path.write_bytes(DATA)
    parts.put(KEY, path, digest)
    assert objects(drive) == [DATA]


# --- Downloads --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["drop", "drop-after", "503", "truncate", "no-ranges", "other-range"])
def test_a_download_goes_on_where_it_stopped(
    drive: LocalDrive, parts: DriveStore, source: Source, tmp_path: Path, kind: str
) -> None:
    path, digest = source(DATA)
    parts.put(KEY, path, digest)
    drive.fail(kind, "media", skip=2)
    parts.get(KEY, tmp_path / "target", digest)
    assert (tmp_path / "target").read_bytes() == DATA
    assert drive.requests.count("media") <= 7


@pytest.mark.parametrize("known", [True, False])
def test_damaged_bytes_never_replace_the_target(
    drive: LocalDrive, parts: DriveStore, source: Source, tmp_path: Path, known: bool
) -> None:
    path, digest = source(DATA)
    parts.put(KEY, path, digest)
    folder = tmp_path / "into"
    folder.mkdir()
    (folder / "target").write_bytes(b"precious")
    drive.fail("damage", "media", skip=4)
    with pytest.raises(CorruptCheckpoint):
        parts.get(KEY, folder / "target", digest if known else None)
    assert files_below(folder) == {"target": b"precious"}
    parts.get(KEY, folder / "target", digest if known else None)
    assert files_below(folder) == {"target": DATA}


# --- Listings and copies ----------------------------------------------------------------------------------


def test_a_late_listing_hides_nothing_of_ours_and_revives_nothing(
    drive: LocalDrive, home: Path, store: DriveStore, source: Source, tmp_path: Path
) -> None:
    store.put("a/old", *source(b"old"))
    drive.disk.freeze_listing()
    store.put("a/new", *source(b"new"))
    store.delete("a/old")
    assert [stat.key for stat in store.list("")] == ["a/new"]
    assert store.stat("a/old") is None
    with pytest.raises(NotFound):
        store.get("a/old", tmp_path / "target")
    with pytest.raises(Rejected):
        store.put("a/new", *source(b"other"))
    another = configured(drive, home)
    assert another.stat("a/new") is None, "of another process: later"
    assert another.stat("a/old") is None, "looked up by id, which is never late"
    drive.disk.thaw_listing()
    assert another.stat("a/new") == Stat("a/new", 3)


def test_a_listing_has_pages_and_an_end(drive: LocalDrive, store: DriveStore, source: Source) -> None:
    keys = [f"runs/{number}" for number in range(7)]
    for key in keys:
        store.put(key, *source(key.encode()))
    drive.disk.page = 3
    assert [stat.key for stat in store.list("runs/")] == keys
    for kind in ("endless", "incomplete"):
        drive.fail(kind, "list", times=2 if kind == "endless" else 1)
        with pytest.raises(Transient):
            list(store.list(""))


def test_what_others_put_into_the_folder_is_ignored_and_stays(
    drive: LocalDrive, store: DriveStore, source: Source
) -> None:
    parents = {"parents": [{"id": drive.disk.folder}]}
    odd = [
        {"title": KEY, **parents},
        {"title": "../x", **parents, "properties": [{"key": "orchestrator", "value": "object"}]},
        {"title": "doc", "mimeType": "application/vnd.google-apps.folder", **parents},
    ]
    strangers = [drive.disk.insert(body, b"theirs").id for body in odd]
    assert list(store.list("")) == []
    store.put(KEY, *source(b"ours"))
    store.delete(KEY)
    assert set(strangers) <= set(drive.disk.files)


def copied(drive: LocalDrive, key: str, data: bytes, declared: bytes | None = None) -> str:
    """A file as another process of ours would have inserted it."""
    body = {
        "title": key,
        "parents": [{"id": drive.disk.folder}],
        "properties": [
            {"key": "orchestrator", "value": "object"},
            {"key": "sha256", "value": sha256(data if declared is None else declared)},
        ],
    }
    return drive.disk.insert(body, data).id


def test_equal_copies_are_one_object(drive: LocalDrive, store: DriveStore, tmp_path: Path) -> None:
    for _ in range(3):
        copied(drive, KEY, b"bytes")
    assert list(store.list("")) == [Stat(KEY, 5)]
    store.get(KEY, tmp_path / "target")
    store.delete(KEY)
    assert objects(drive) == []


def test_of_copies_any_with_the_right_bytes_serves(
    drive: LocalDrive, store: DriveStore, source: Source, tmp_path: Path
) -> None:
    copied(drive, KEY, b"wrong", declared=b"right")
    copied(drive, KEY, b"other")
    copied(drive, KEY, b"right")
    store.get(KEY, tmp_path / "target", sha256(b"right"))
    assert (tmp_path / "target").read_bytes() == b"right"
    store.put(KEY, *source(b"right"))
    with pytest.raises(CorruptCheckpoint, match="different bytes"):
        store.get(KEY, tmp_path / "another")
    with pytest.raises(CorruptCheckpoint):
        store.get(KEY, tmp_path / "another", sha256(b"none of them"))
    assert not (tmp_path / "another").exists()


# --- Login and folder -------------------------------------------------------------------------------------


def test_an_access_token_that_ends_is_renewed_in_silence(
    drive: LocalDrive, parts: DriveStore, source: Source, tmp_path: Path
) -> None:
    path, digest = source(DATA)
    parts.put(KEY, path, digest)
    before = drive.tokens.count
    drive.tokens.expire()
    parts.get(KEY, tmp_path / "target", digest)
    assert drive.tokens.count == before + 1


def test_a_consent_that_ended_needs_a_person_and_no_restart(
    drive: LocalDrive, home: Path, store: DriveStore
) -> None:
    assert store.stat(KEY) is None
    login = (home / "drive-credentials.json").read_bytes()
    drive.tokens.expire()
    drive.tokens.is_revoked = True
    for _ in range(2):
        with pytest.raises(AccessDenied, match=r"init drive.*Testing.*7 days: publish it") as caught:
            store.stat(KEY)
        assert REFRESH not in str(caught.value)
    assert (home / "drive-credentials.json").read_bytes() == login, (
        "an error of theirs changes no file of ours"
    )
    drive.tokens.is_revoked = False
    assert store.stat(KEY) is None


@pytest.mark.parametrize("kind", ["drop", "html", "html-ok", "503", "empty"])
def test_a_login_server_in_trouble_is_worth_another_try(
    drive: LocalDrive, store: DriveStore, kind: str
) -> None:
    drive.fail(kind, "token", times=2)
    stubborn(lambda: store.stat(KEY))
    drive.tokens.expire()
    drive.fail(kind, "token", times=2)
    stubborn(lambda: store.stat(KEY))
    assert drive.faults.left == 0


@pytest.mark.parametrize("text", [None, "", "{}", "[]", '{"_class": 1}', "\0"])
def test_a_login_that_is_missing_or_broken_is_told_with_its_remedy(
    drive: LocalDrive, home: Path, store: DriveStore, text: str | None
) -> None:
    path = home / "drive-credentials.json"
    path.unlink()
    if text is not None:
        path.write_text(text)
        path.chmod(0o600)
    with pytest.raises(AccessDenied, match="init drive"):
        store.stat(KEY)
    write_login(path, drive.url)
    assert store.stat(KEY) is None


def test_a_login_that_others_may_read_is_refused(home: Path, store: DriveStore) -> None:
    (home / "drive-credentials.json").chmod(0o640)
    with pytest.raises(AccessDenied, match="chmod 600"):
        store.stat(KEY)


@pytest.mark.parametrize("what", ["missing", "file", "trash"])
def test_a_folder_that_cannot_be_used_is_told(drive: LocalDrive, store: DriveStore, what: str) -> None:
    folder = drive.disk.files[drive.disk.folder]
    if what == "missing":
        del drive.disk.files[drive.disk.folder]
    elif what == "file":
        folder.fields["mimeType"] = "text/plain"
    else:
        folder.is_trashed = True
    with pytest.raises(Rejected if what == "file" else AccessDenied):
        store.stat(KEY)


def test_a_folder_in_the_trash_is_no_empty_store(
    drive: LocalDrive, store: DriveStore, source: Source
) -> None:
    store.put(KEY, *source(b"bytes"))
    drive.disk.files[drive.disk.folder].is_trashed = True
    with pytest.raises(AccessDenied, match="trash"):
        store.stat("another")


def test_no_secret_is_in_any_error(drive: LocalDrive, parts: DriveStore, source: Source) -> None:
    path, digest = source(DATA)
    said = [repr(parts), repr(parts._account)]
    for kind in (*KINDS, "lost", "unauthorized"):
        for on in ("start", "chunk", "list"):
            drive.fail(kind, on, times=3)
            for _ in range(3):
                try:
                    parts.put(KEY + kind + on, path, digest)
                except OrchestratorError as error:
                    said.append("".join(traceback.format_exception(error)))
            drive.faults.clear()
    assert len(said) > 40
    for secret in (REFRESH, ACCESS_PREFIX, "client-secret", "upload_id", "upload-"):
        assert not [each for each in said if secret in each]


# --- Everything at once -----------------------------------------------------------------------------------

WEATHER = (
    "rate",
    "too-many",
    "503",
    "html",
    "html-ok",
    "drop",
    "drop-after",
    "unauthorized",
    "partial",
    "damage",
)


@pytest.mark.parametrize("seed", range(4))
def test_in_bad_weather_nothing_is_lost_doubled_or_damaged(
    drive: LocalDrive, home: Path, source: Source, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    account = Account("mine", Login(home / "drive-credentials.json"), drive.url, timeout=5)
    store = RetryingStore(
        DriveStore(account, drive.disk.folder, chunk=PART), attempts=40, sleep=lambda _: None
    )
    registers = store.registers
    assert registers is not None
    expected: dict[str, bytes] = {}
    version = None
    for number in range(12):
        for _ in range(4):
            on = chance.choice(["", "list", "get", "media", "chunk", "start", "update", "insert", "ids"])
            drive.fail(chance.choice(WEATHER[:-1] if on in ("", "media", "update", "insert") else WEATHER),
                       on, skip=chance.randrange(6))  # fmt: skip
        key = f"runs/{chance.randrange(6)}"
        if key in expected:
            store.delete(key)
            del expected[key]
        else:
            data = chance.randbytes(chance.randrange(3 * PART))
            store.put(key, *source(data))
            expected[key] = data
        version = registers.swap("runs/fence", f"{seed}-{number}".encode(), version)
    drive.faults.clear()
    assert {stat.key for stat in store.list("")} == set(expected)
    for key, data in expected.items():
        store.get(key, tmp_path / "target", sha256(data))
    assert sorted(objects(drive)) == sorted(expected.values())
    held = registers.read("runs/fence")
    assert held is not None
    assert held.value == f"{seed}-11".encode()


@pytest.mark.filterwarnings("ignore:sign:DeprecationWarning")  # oauth2client signs with an old call
def test_a_service_account_needs_a_shared_drive(
    drive: LocalDrive, home: Path, source: Source, tmp_path: Path
) -> None:
    key = home / "key.json"
    key.write_text(json.dumps(service_key(drive.url)))
    key.chmod(0o600)
    store = configured(drive, home, service_account="key.json")
    with pytest.raises(Rejected, match="shared drive"):
        store.put(KEY, *source(b"bytes"))
    drive.disk.shared_drive = "0Ashared"
    store = configured(drive, home, service_account="key.json")
    store.put(KEY, *source(b"bytes"))
    store.get(KEY, tmp_path / "target", sha256(b"bytes"))
    assert [stat.key for stat in store.list("")] == [KEY]
    assert store.registers.swap("a", b"1", None)
    drive.disk.trash_only = True
    with pytest.raises(AccessDenied, match="Manager"):
        store.delete(KEY)
    assert len(objects(drive)) == 1


def service_key(url: str) -> dict[str, str]:
    """A key file as Google Cloud gives it, with a key of our own."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    private = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "type": "service_account",
        "client_email": "robot@local",
        "client_id": "1",
        "private_key_id": "1",
        "private_key": private.decode(),
        "token_uri": f"{url}/token",
    }
