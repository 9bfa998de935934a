"""What a store in Drive makes of every way in which Drive, its login and the network fail.

The table of docs/stores-drive.md names these tests.
"""

from __future__ import annotations

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
from tests.conformance.drives import (
    DATA,
    PART,
    configured,
    drive,
    home,
    in_parts,
    objects,
    parts,
    store,
    stubborn,
)
from tests.conformance.store_suite import KEY, Source, files_below, sha256, source
from tests.stand_ins.drive import LocalDrive
from tests.stand_ins.drive.tokens import ACCESS_PREFIX, REFRESH

__all__ = ["drive", "home", "parts", "source", "store"]  # fixtures


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


def test_no_answer_is_not_waited_for_for_ever(drive: LocalDrive, home: Path) -> None:
    assert in_parts(drive, home).stat(KEY) is None
    drive.fail("hang", "list")
    with pytest.raises(Transient, match="in time"):
        in_parts(drive, home, timeout=0.5).stat(KEY)
    assert in_parts(drive, home).stat(KEY) is None


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


def test_a_bad_line_costs_no_more_tries_than_it_brings_parts(
    drive: LocalDrive, parts: DriveStore, source: Source
) -> None:
    """Each part needs two connections: httplib2 repeats the first one itself."""
    path, digest = source(DATA)
    for skip in (1, 3, 5):
        drive.fail("drop", "chunk", times=2, skip=skip)
    parts.put(KEY, path, digest)
    assert objects(drive) == [DATA]


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
    drive.fail("drop-after", "chunk", skip=4, times=4)
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


def test_a_damaged_copy_that_could_not_be_deleted_blocks_nothing(
    drive: LocalDrive, home: Path, parts: DriveStore, source: Source
) -> None:
    """Its writer was cut off, or killed before it compared."""
    path, digest = source(DATA)
    drive.fail("damage", "chunk", skip=4)
    drive.fail("503", "delete")
    with pytest.raises(Transient):
        parts.put(KEY, path, digest)
    assert len(objects(drive)) == 1
    another = configured(drive, home)
    with pytest.raises(Rejected):
        another.put(KEY, *source(b"other bytes"))
    another.put(KEY, path, digest)
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
    drive.fail("503", "chunk", skip=2, times=2)
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


@pytest.mark.parametrize("how", ["renamed", "moved", "trashed"])
def test_what_a_person_takes_away_in_drive_is_gone_and_may_come_back(
    drive: LocalDrive, store: DriveStore, source: Source, how: str
) -> None:
    store.put(KEY, *source(b"bytes"))
    (file,) = (each for each in drive.disk.files.values() if each.fields["title"] == KEY)
    before = dict(file.fields)
    if how == "trashed":
        file.is_trashed = True
    else:
        file.fields |= {"title": "a/b"} if how == "renamed" else {"parents": [{"id": "elsewhere"}]}
    assert store.stat(KEY) is None
    assert [stat.key for stat in store.list("")] == (["a/b"] if how == "renamed" else [])
    file.fields, file.is_trashed = before, False
    assert store.stat(KEY) == Stat(KEY, 5)


def test_a_file_without_its_digest_is_no_proof_of_absence(
    drive: LocalDrive, store: DriveStore, source: Source
) -> None:
    store.put(KEY, *source(b"bytes"))
    (file,) = (each for each in drive.disk.files.values() if each.fields["title"] == KEY)
    mime, file.fields["mimeType"] = file.fields["mimeType"], "application/vnd.google-apps.folder"
    with pytest.raises(Transient):
        store.stat(KEY)
    file.fields["mimeType"] = mime
    assert store.stat(KEY) == Stat(KEY, 5)


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
