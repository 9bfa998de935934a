"""The store suite for every store, and more that each kind must withstand."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.errors import (
    AccessDenied,
    CorruptCheckpoint,
    InputError,
    NotFound,
    QuotaExhausted,
    Rejected,
    Transient,
)
from orchestrator.files import PREFIX
from orchestrator.stores import catalog, checkpoints
from orchestrator.stores.faulty import NO_FAULTS, FaultRates, FaultyStore
from orchestrator.stores.folder import FolderStore
from orchestrator.stores.memory import MemoryStore
from orchestrator.stores.retrying import RetryingStore
from orchestrator.stores.store import Store
from orchestrator.stores.unencrypted import UnencryptedStore
from tests.conformance.age_keys import encrypted
from tests.conformance.store_suite import KEY, RUN, Source, StoreSuite, outbox, sha256, source

__all__ = ["source"]  # a fixture

ROOT = "the-store"
# A row for every type of the catalogue that needs no server. `s3` and `drive` have modules of their own.
OPTIONS: dict[str, dict[str, object]] = {"folder": {"path": ROOT}}


def wrapped(inner: Store) -> Store:
    calm = FaultyStore(inner, NO_FAULTS, random.Random(0), now=lambda: 0.0, wait=lambda _: None)
    return RetryingStore(calm, sleep=lambda _: None)


STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda _: MemoryStore(),
    "folder": lambda home: FolderStore(home / ROOT),
    "memory wrapped": lambda _: wrapped(MemoryStore()),
    "folder wrapped": lambda home: wrapped(FolderStore(home / ROOT)),
    "folder encrypted": lambda home: encrypted(FolderStore(home / ROOT)),
    "memory unencrypted": lambda _: UnencryptedStore(MemoryStore()),
} | {
    f"configured {type_}": lambda home, type_=type_: catalog.build("mine", type_, OPTIONS[type_], home)  # type: ignore[misc]
    for type_ in OPTIONS
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return STORES[request.param](tmp_path_factory.mktemp("home"))


class TestEveryStore(StoreSuite):
    """The suite for STORES."""


# --- the folder store ----------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / ROOT


def python(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", *arguments])


PUT = """
import sys
from pathlib import Path
from orchestrator.stores.folder import FolderStore
FolderStore(Path(sys.argv[1])).put(sys.argv[2], Path(sys.argv[3]), sys.argv[4])
"""


def drafts(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.name.startswith(PREFIX)]


def test_a_writer_killed_in_the_middle_of_a_put_leaves_nothing_that_counts(
    root: Path, tmp_path: Path, source: Source
) -> None:
    large, data = tmp_path / "large", b"the last word"
    large.touch()
    os.truncate(large, 1 << 30)  # long enough to be stopped within it; its holes take no room
    child = python(PUT, str(root), KEY, str(large), sha256(data))
    while not any(draft.stat().st_size for draft in drafts(root)):
        assert child.poll() is None
    child.send_signal(signal.SIGSTOP)
    (draft,) = drafts(root)
    living = FolderStore(root)
    living.put("another", *source(b"x"))
    assert drafts(root) == [draft]  # the draft of a living writer stays
    child.kill()
    assert child.wait() == -signal.SIGKILL
    assert draft.stat().st_size < large.stat().st_size
    assert living.stat(KEY) is None
    assert [stat.key for stat in living.list("")] == ["another"]
    assert drafts(root) == [draft]
    later = FolderStore(root)
    later.put(KEY, *source(data))
    later.get(KEY, tmp_path / "target", sha256(data))
    assert drafts(root) == []


def test_writers_killed_at_random_moments_never_break_the_store(
    root: Path, tmp_path: Path, source: Source
) -> None:
    loop = """
import itertools, sys
from pathlib import Path
from orchestrator.stores.folder import FolderStore
store = FolderStore(Path(sys.argv[1]))
for n in itertools.count():
    store.put(f"runs/{n % 7}/object", Path(sys.argv[2]), sys.argv[3])
    print(n, flush=True)
    store.delete(f"runs/{(n + 3) % 7}/object")
"""
    path, digest = source(random.Random(4).randbytes(2_000_000))
    chance = random.Random(5)
    for _ in range(5):
        command = [sys.executable, "-c", loop, str(root), str(path), digest]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            for _ in range(chance.randrange(1, 12)):
                assert child.stdout.readline()
            child.kill()
        for stat in FolderStore(root).list(""):
            assert stat.size == path.stat().st_size
            FolderStore(root).get(stat.key, tmp_path / "target", digest)
    store = FolderStore(root)
    store.put("last", path, digest)
    assert drafts(root) == []


def test_processes_that_put_the_same_key_agree(root: Path, tmp_path: Path, source: Source) -> None:
    path, digest = source(random.Random(6).randbytes(4_000_000))
    children = [python(PUT, str(root), KEY, str(path), digest) for _ in range(4)]
    assert [child.wait() for child in children] == [0] * 4
    store = FolderStore(root)
    store.get(KEY, tmp_path / "target", digest)
    assert [stat.key for stat in store.list("")] == [KEY]
    assert drafts(root) == []


def test_of_two_processes_with_other_bytes_one_is_told(root: Path, tmp_path: Path, source: Source) -> None:
    sources = [source(random.Random(n).randbytes(2_000_000)) for n in (1, 2)]
    children = [
        subprocess.Popen(
            [sys.executable, "-c", PUT, str(root), KEY, str(path), digest], stderr=subprocess.PIPE
        )
        for path, digest in sources
    ]
    errors = [child.communicate()[1] for child in children]
    winner, loser = sorted(range(2), key=lambda n: children[n].returncode)
    assert (children[winner].returncode, children[loser].returncode) == (0, 1)
    assert b"Rejected" in errors[loser]
    FolderStore(root).get(KEY, tmp_path / "target", sources[winner][1])


@pytest.fixture
def small_disk(
    tmp_path: Path,
) -> Iterator[tuple[Path, Callable[[], contextlib.AbstractContextManager[None]]]]:
    """A folder, and a context in which at most 4 MB fit into it. Uses a small file system if this user may
    mount one, otherwise a limit on file sizes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if mount and subprocess.run(command, check=False, capture_output=True).returncode == 0:
        yield disk, contextlib.nullcontext
        subprocess.run(["umount", str(disk)], check=True)
        return

    @contextlib.contextmanager
    def limited() -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_000_000, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    yield disk, limited


def test_a_full_disk_is_said_and_leaves_nothing(
    small_disk: tuple[Path, Callable[[], contextlib.AbstractContextManager[None]]],
    source: Source,
    tmp_path: Path,
) -> None:
    disk, limited = small_disk
    store = FolderStore(disk, "attic")
    store.put("before", *source(b"earlier checkpoint"))
    big = source(random.Random(8).randbytes(6_000_000))
    with limited():
        for _ in range(2):
            with pytest.raises(QuotaExhausted, match=f"{KEY}.*the store is full") as caught:
                store.put(KEY, *big)
        assert (caught.value.backend, caught.value.operation) == ("attic", "put")
        assert store.stat(KEY) is None
        assert [path.name for path in disk.rglob("*") if path.is_file()] == ["before"]
        store.put("after", *source(b"small"))
    store.get("before", tmp_path / "target", sha256(b"earlier checkpoint"))


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Root may do everything, so root becomes nobody for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_store_that_may_only_be_read(public_folder: Path, source: Source) -> None:
    root = public_folder / ROOT
    store = FolderStore(root, "archive")
    path, digest = source(b"x")
    store.put("old", path, digest)
    shutil.copy(path, public_folder / "source")
    (public_folder / "source").chmod(0o644)
    root.chmod(0o555)
    try:
        with unprivileged():
            assert [stat.key for stat in store.list("")] == ["old"]
            with pytest.raises(AccessDenied, match=r"put new.*permission to read and write") as caught:
                store.put("new", public_folder / "source", digest)
            assert caught.value.backend == "archive"
            with pytest.raises(AccessDenied):
                store.delete("old")
        root.chmod(0o000)
        with unprivileged(), pytest.raises(AccessDenied):
            list(store.list(""))
    finally:
        root.chmod(0o755)
    assert store.stat("old") is not None


def test_a_blob_that_rots_on_the_disk_is_caught(root: Path, tmp_path: Path) -> None:
    store = FolderStore(root)
    manifest = outbox(tmp_path / "outbox", 1, {"weights": [b"w" * 100_000]})
    checkpoints.publish(store, RUN, manifest, tmp_path / "outbox")
    (blob,) = (root / "runs" / RUN / "blobs").rglob("*" + sha256(b"w" * 100_000))
    data = bytearray(blob.read_bytes())
    data[50_000] ^= 1
    blob.write_bytes(data)
    with pytest.raises(CorruptCheckpoint, match="altered") as caught:
        checkpoints.fetch(store, RUN, manifest.name, tmp_path / "staged")
    assert caught.value.name == manifest.name
    assert list((tmp_path / "staged" / "blobs").iterdir()) == []
    blob.write_bytes(b"cut short")  # a wrong size is seen without reading: publishing again fixes it
    checkpoints.publish(store, RUN, manifest, tmp_path / "outbox")
    assert checkpoints.fetch(store, RUN, manifest.name, tmp_path / "staged") == manifest


def test_a_folder_store_works_where_there_are_no_hard_links(
    root: Path, tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")  # what Linux says on FAT

    monkeypatch.setattr(os, "link", refuse)
    store = FolderStore(root)
    store.put(KEY, *source(b"first"))
    store.put(KEY, *source(b"first"))
    with pytest.raises(Rejected):
        store.put(KEY, *source(b"other"))
    store.get(KEY, tmp_path / "target", sha256(b"first"))
    assert drafts(root) == []


def test_deleting_leaves_no_empty_folders_and_no_foreign_file_is_listed(root: Path, source: Source) -> None:
    store = FolderStore(root)
    store.put("runs/a/checkpoints/c/manifest.json", *source(b"x"))
    store.put("runs/b", *source(b"y"))
    store.delete("runs/a/checkpoints/c/manifest.json")
    assert [path.name for path in (root / "runs").iterdir()] == ["b"]
    (root / "runs" / "my notes.txt").write_text("not an object")
    (root / ".trash").mkdir()
    (root / "runs" / "link").symlink_to("/")
    assert [stat.key for stat in store.list("")] == ["runs/b"]
    with pytest.raises(Rejected):
        store.put("runs/b/c", *source(b"z"))
    with pytest.raises(NotFound):
        store.get("runs", root.parent / "target")


# --- the wrappers --------------------------------------------------------------------------------------


class Clock:
    """A clock that only moves when somebody waits."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def wait(self, seconds: float) -> None:
        self.seconds += seconds


def faulty(rates: FaultRates, seed: int = 0) -> tuple[FaultyStore, MemoryStore, Clock]:
    inner, clock = MemoryStore(), Clock()
    return FaultyStore(inner, rates, random.Random(seed), now=clock.now, wait=clock.wait), inner, clock


def test_failures_before_and_after_the_effect(source: Source) -> None:
    store, inner, _ = faulty(FaultRates(fails=1.0))
    with pytest.raises(Transient):
        store.put(KEY, *source(b"x"))
    assert inner.stat(KEY) is None
    store.rates = FaultRates(loses_reply=1.0)
    with pytest.raises(Transient):
        store.put(KEY, *source(b"x"))
    assert inner.stat(KEY) is not None
    with pytest.raises(Transient):
        store.delete(KEY)
    assert inner.stat(KEY) is None
    store.rates = FaultRates(full=1.0)
    with pytest.raises(QuotaExhausted):
        store.put(KEY, *source(b"x"))
    assert inner.stat(KEY) is None
    store.rates = NO_FAULTS
    store.put(KEY, *source(b"x"))
    assert inner.stat(KEY) is not None


def test_torn_readings_are_caught_and_pass_and_rot_stays(source: Source, tmp_path: Path) -> None:
    store, _, _ = faulty(FaultRates(tears=1.0))
    path, digest = source(b"some bytes")
    target = tmp_path / "into" / "target"
    target.parent.mkdir()
    store.put(KEY, path, digest)
    with pytest.raises(CorruptCheckpoint):
        store.get(KEY, target, digest)
    assert list(target.parent.iterdir()) == []
    store.get(KEY, target)
    assert target.read_bytes() != b"some bytes"
    store.rates = NO_FAULTS
    store.get(KEY, target, digest)
    store.rot(KEY)
    with pytest.raises(CorruptCheckpoint):
        store.get(KEY, target, digest)
    store.delete(KEY)
    store.rates = FaultRates(rots=1.0)
    store.put(KEY, path, digest)
    store.rates = NO_FAULTS
    with pytest.raises(CorruptCheckpoint):
        store.get(KEY, target, digest)


def test_hidden_objects_appear_when_their_time_has_come(source: Source, tmp_path: Path) -> None:
    rates = FaultRates(hides=1.0, hidden_seconds=30.0, slow=1.0, slow_seconds=0.5)
    store, _, clock = faulty(rates)
    path, digest = source(b"x")
    store.put(KEY, path, digest)
    assert 0.0 < clock.seconds < 0.5
    assert store.stat(KEY) is None
    assert list(store.list("")) == []
    store.get(KEY, tmp_path / "target", digest)
    clock.wait(30.0)
    assert store.stat(KEY) is not None
    assert len(list(store.list(""))) == 1
    store.put("second", path, digest)
    store.rates = NO_FAULTS
    assert store.stat("second") is not None


def test_the_same_seed_gives_the_same_faults() -> None:
    def story(seed: int) -> list[bool]:
        store, _, _ = faulty(FaultRates(fails=0.5), seed)
        told = []
        for _ in range(50):
            try:
                store.stat(KEY)
                told.append(True)
            except Transient:
                told.append(False)
        return told

    assert story(1) == story(1) != story(2)
    assert {True, False} == set(story(1))


def test_retrying_outlasts_transient_failures_and_nothing_else(source: Source, tmp_path: Path) -> None:
    inner, _, clock = faulty(FaultRates(fails=0.3, loses_reply=0.3), seed=3)
    store = RetryingStore(inner, attempts=30, chance=random.Random(1), sleep=clock.wait)
    path, digest = source(b"x")
    for n in range(20):
        store.put(f"k/{n:02d}", path, digest)
        store.get(f"k/{n:02d}", tmp_path / "target", digest)
    assert [stat.key for stat in store.list("k/")] == [f"k/{n:02d}" for n in range(20)]
    for n in range(20):
        store.delete(f"k/{n:02d}")
    inner.rates = NO_FAULTS
    assert list(inner.list("")) == []
    before = clock.seconds
    assert before > 0.0
    with pytest.raises(NotFound):
        store.get("absent", tmp_path / "target")
    assert clock.seconds == before


def test_retrying_gives_up_in_the_end_with_growing_pauses() -> None:
    pauses: list[float] = []
    inner, _, _ = faulty(FaultRates(fails=1.0))
    store = RetryingStore(
        inner, attempts=6, pause_seconds_min=1.0, pause_seconds_max=8.0, sleep=pauses.append
    )
    with pytest.raises(Transient):
        store.stat(KEY)
    assert len(pauses) == 5
    for pause, most in zip(pauses, [1.0, 2.0, 4.0, 8.0, 8.0], strict=True):
        assert most / 2 <= pause <= most


@pytest.mark.parametrize("seed", range(20))
def test_checkpoints_survive_a_store_in_which_everything_goes_wrong(seed: int, tmp_path: Path) -> None:
    """Publish and retire with every fault at once. Then the faults stop; kept checkpoints are intact."""
    rates = FaultRates(fails=0.1, loses_reply=0.1, tears=0.1, hides=0.5, hidden_seconds=10.0, slow=1.0,
                       slow_seconds=2.0)  # fmt: skip
    inner, _, clock = faulty(rates, seed)
    store = RetryingStore(inner, attempts=50, chance=random.Random(seed), sleep=clock.wait)
    made = []
    for step in range(1, 7):
        files = {"frozen": [b"frozen"], "trained": [b"%d" % step]}
        manifest = outbox(tmp_path, step, files, generation=1 + step // 3)
        checkpoints.publish(store, RUN, manifest, tmp_path)
        made.append(manifest)
        checkpoints.retire(store, RUN, [m.name for m in made[:-2]], [m.name for m in made[-2:]])
    inner.rates = NO_FAULTS
    assert checkpoints.names(store, RUN) == tuple(m.ref for m in made[-2:])
    for manifest in made[-2:]:
        checkpoints.fetch(store, RUN, manifest.name, tmp_path / f"staged-{manifest.name}")


# --- the catalogue -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_", "options", "said"),
    [
        ("foldr", {"path": "x"}, ["'mine'", "'foldr'", "did you mean 'folder'", "valid: drive, folder"]),
        ("folder", {"pth": "x"}, ["'pth'", "did you mean 'path'", "valid: path", "'path': Field required"]),
        ("folder", {"path": 7}, ["'path'", "given: 7"]),
        ("folder", {"path": "x", "colour": 1, "size": 2}, ["'colour'", "'size'"]),
    ],
)
def test_wrong_options_are_named_all_at_once(
    type_: str, options: dict[str, object], said: list[str], tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        catalog.build("mine", type_, options, tmp_path)
    for text in said:
        assert text in str(caught.value)


def test_a_configured_folder_lies_where_the_user_said(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    for path, root in [("s", "home/s"), (str(tmp_path / "abs"), "abs"), ("~/s", "user/s")]:
        store = catalog.build("mine", "folder", {"path": path}, tmp_path / "home")
        assert not (tmp_path / root).exists()
        store.put("key", *source(b"x"))
        assert (tmp_path / root / "key").read_bytes() == b"x"
