"""What every kind of store must do: subclass StoreSuite and give it a `store` fixture."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.core.checkpoint import CheckpointRef, FileEntry, Manifest, Part
from orchestrator.errors import CorruptCheckpoint, InputError, NotFound, Rejected, TooLarge
from orchestrator.stores import checkpoints
from orchestrator.stores.store import Stat, Store

KEY = "runs/r-1/blobs/g01-a/b1"
RUN = "graphmer-7f3kq2vd"
Source = Callable[[bytes], tuple[Path, str]]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Writes the bytes to a file; returns its path and sha256."""
    numbers = itertools.count()

    def make(data: bytes) -> tuple[Path, str]:
        path = tmp_path / f"source-{next(numbers)}"
        path.write_bytes(data)
        return path, sha256(data)

    return make


def outbox(
    folder: Path, step: int, files: dict[str, list[bytes]], *, generation: int = 1, incarnation: str = "a"
) -> Manifest:
    """Adds a checkpoint to a folder in outbox layout; each file is given as its parts."""
    entries = []
    (folder / "blobs").mkdir(parents=True, exist_ok=True)
    for path, parts in files.items():
        for part in parts:
            (folder / "blobs" / sha256(part)).write_bytes(part)
        sizes = tuple(Part(sha256(part), len(part)) for part in parts)
        entries.append(FileEntry(path, sum(map(len, parts)), sizes))
    manifest = Manifest(RUN, CheckpointRef(step, generation, incarnation), 64, tuple(entries))
    home = folder / "checkpoints" / manifest.name
    home.mkdir(parents=True)
    (home / "manifest.json").write_bytes(manifest.encode())
    return manifest


def files_below(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


class StoreSuite:
    """The protocol, verb by verb; then a run's checkpoints on top of it."""

    @pytest.mark.parametrize("size", [0, 1, 1_048_575, 1_048_576, 1_048_577, 5_000_000])
    def test_what_was_put_comes_back(self, store: Store, source: Source, tmp_path: Path, size: int) -> None:
        data = random.Random(size).randbytes(size)
        path, digest = source(data)
        store.put(KEY, path, digest)
        store.get(KEY, tmp_path / "target", digest)
        assert (tmp_path / "target").read_bytes() == data
        assert store.stat(KEY) == Stat(KEY, size)

    def test_an_empty_store_holds_nothing(self, store: Store, tmp_path: Path) -> None:
        assert store.stat(KEY) is None
        assert list(store.list("")) == []
        store.delete(KEY)
        with pytest.raises(NotFound):
            store.get(KEY, tmp_path / "target")
        assert files_below(tmp_path) == {}

    def test_a_source_of_other_bytes_is_rejected_and_nothing_is_stored(
        self, store: Store, source: Source
    ) -> None:
        path, _ = source(b"these")
        with pytest.raises(Rejected):
            store.put(KEY, path, sha256(b"those"))
        assert store.stat(KEY) is None
        assert list(store.list("")) == []

    def test_a_missing_source_is_the_callers_fault(self, store: Store, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            store.put(KEY, tmp_path / "absent", sha256(b""))
        assert store.stat(KEY) is None

    def test_putting_again_changes_nothing(self, store: Store, source: Source) -> None:
        path, digest = source(b"bytes")
        store.put(KEY, path, digest)
        store.put(KEY, path, digest)
        assert list(store.list("")) == [Stat(KEY, 5)]
        other, other_digest = source(b"other")
        with pytest.raises(Rejected):
            store.put(KEY, other, digest)
        with pytest.raises(Rejected):
            store.put(KEY, other, other_digest)
        assert list(store.list("")) == [Stat(KEY, 5)]

    def test_objects_never_change(self, store: Store, source: Source, tmp_path: Path) -> None:
        store.put(KEY, *source(b"first"))
        with pytest.raises(Rejected):
            store.put(KEY, *source(b"other"))
        store.get(KEY, tmp_path / "target", sha256(b"first"))

    def test_a_get_that_fails_its_verification_leaves_the_target_alone(
        self, store: Store, source: Source, tmp_path: Path
    ) -> None:
        store.put(KEY, *source(b"stored"))
        folder = tmp_path / "into"
        folder.mkdir()
        (folder / "target").write_bytes(b"precious")
        with pytest.raises(CorruptCheckpoint) as caught:
            store.get(KEY, folder / "target", sha256(b"meant"))
        assert caught.value.name == KEY
        with pytest.raises(NotFound):
            store.get("absent", folder / "target")
        assert files_below(folder) == {"target": b"precious"}
        store.get(KEY, folder / "target", sha256(b"stored"))
        assert files_below(folder) == {"target": b"stored"}

    def test_what_is_larger_than_its_reader_accepts_is_not_fetched(
        self, store: Store, source: Source, tmp_path: Path
    ) -> None:
        store.put(KEY, *source(b"x" * 1001))
        folder = tmp_path / "into"
        folder.mkdir()
        store.get(KEY, folder / "target", bytes_max=1001)
        with pytest.raises(TooLarge) as caught:
            store.get(KEY, folder / "other", bytes_max=1000)
        assert caught.value.name == KEY
        assert files_below(folder) == {"target": b"x" * 1001}

    def test_list_goes_by_prefix_in_the_order_of_keys(self, store: Store, source: Source) -> None:
        keys = ["a-b/x", "a.b", "a/b", "a/b-c", "a/b.c/d", "a/bc", "a0", "a=/x", "b", "runs/r/1", "runs/r2/1"]
        path, digest = source(b"x")
        for key in random.Random(7).sample(keys, len(keys)):
            store.put(key, path, digest)
        for prefix in ["", "a", "a/", "a/b", "a/b.", "a/b.c/", "a-", "runs/r", "runs/r/", "c", "a/b/c", "b/"]:
            expected = sorted(key for key in keys if key.startswith(prefix))
            assert [stat.key for stat in store.list(prefix)] == expected, prefix

    def test_deleted_means_gone_and_free_again(self, store: Store, source: Source, tmp_path: Path) -> None:
        store.put(KEY, *source(b"first"))
        store.delete(KEY)
        store.delete(KEY)
        assert store.stat(KEY) is None
        assert list(store.list("")) == []
        store.put(KEY, *source(b"second"))
        store.get(KEY, tmp_path / "target", sha256(b"second"))

    @pytest.mark.parametrize(
        "key",
        [
            "", "/", "/etc/passwd", "..", "../out", "a/../../out", "a//b", "a/", "./a", "a/.", ".hidden",
            "a/.tmp-x", "a\\b", "a b", "a\0b", "a\nb", "a\n", "ä", "a:b", "a" * 201, "a/" * 500 + "a",
        ],
    )  # fmt: skip
    def test_keys_that_are_none_are_rejected_by_every_verb(
        self, store: Store, source: Source, tmp_path: Path, key: str
    ) -> None:
        path, digest = source(b"x")
        before = files_below(tmp_path)
        verbs: list[Callable[[], object]] = [
            lambda: store.put(key, path, digest),
            lambda: store.get(key, tmp_path / "target"),
            lambda: store.stat(key),
            lambda: store.delete(key),
        ]
        for verb in verbs:
            with pytest.raises(Rejected) as caught:
                verb()
            assert not isinstance(caught.value, NotFound)
        assert files_below(tmp_path) == before

    @pytest.mark.parametrize("prefix", ["../", "/", "a/../", "a//", ".", "a/.tmp"])
    def test_prefixes_that_lead_outside_are_rejected(self, store: Store, prefix: str) -> None:
        with pytest.raises(Rejected):
            list(store.list(prefix))

    def test_many_threads_put_the_same_and_different_keys(
        self, store: Store, source: Source, tmp_path: Path
    ) -> None:
        contents = {f"runs/r/{n}": random.Random(n).randbytes(100_000) for n in range(4)}
        made = {key: source(data) for key, data in contents.items()}
        with ThreadPoolExecutor(8) as pool:
            for done in [pool.submit(store.put, key, *made[key]) for key in contents for _ in range(4)]:
                done.result()
        assert [stat.key for stat in store.list("runs/r/")] == sorted(contents)
        for key, data in contents.items():
            store.get(key, tmp_path / "target", sha256(data))

    def test_gets_and_deletes_at_once_give_whole_objects_or_none(
        self, store: Store, source: Source, tmp_path: Path
    ) -> None:
        data = random.Random(1).randbytes(300_000)
        path, digest = source(data)

        def churn() -> None:
            for _ in range(20):
                store.put(KEY, path, digest)
                store.delete(KEY)

        def fetch(number: int) -> None:
            target = tmp_path / f"target-{number}"
            for _ in range(20):
                try:
                    store.get(KEY, target, digest)
                except NotFound:
                    continue
                assert target.read_bytes() == data

        with ThreadPoolExecutor(4) as pool:
            tasks = [pool.submit(churn), pool.submit(churn), pool.submit(fetch, 1), pool.submit(fetch, 2)]
            for task in tasks:
                task.result()
        store.delete(KEY)
        assert list(store.list("")) == []

    # --- a run's checkpoints ---------------------------------------------------------------------------

    def test_a_checkpoint_goes_round(self, store: Store, tmp_path: Path) -> None:
        files = {"model/weights.bin": [b"w" * 1000, b"v" * 500], "state.json": [b"{}"], "empty": []}
        manifest = outbox(tmp_path / "outbox", 1000, files)
        checkpoints.publish(store, RUN, manifest, tmp_path / "outbox")
        checkpoints.publish(store, RUN, manifest, tmp_path / "outbox")
        assert checkpoints.names(store, RUN) == (manifest.ref,)
        assert checkpoints.read(store, RUN, manifest.name) == manifest
        staged = tmp_path / "staged"
        assert checkpoints.fetch(store, RUN, manifest.name, staged) == manifest
        assert files_below(staged) == files_below(tmp_path / "outbox")
        checkpoints.restore(staged, [manifest], tmp_path / "deep" / "pulled")
        expected = {path: b"".join(parts) for path, parts in files.items()}
        assert files_below(tmp_path / "deep") == {f"pulled/{path}": data for path, data in expected.items()}

    def test_what_did_not_change_is_stored_once(self, store: Store, tmp_path: Path) -> None:
        for step in (1, 2, 3):
            manifest = outbox(tmp_path, step, {"frozen": [b"f" * 10], "trained": [b"%d" % step]})
            checkpoints.publish(store, RUN, manifest, tmp_path)
        assert len(list(store.list(f"runs/{RUN}/blobs/"))) == 4

    def test_a_checkpoint_without_all_its_blobs_is_never_published(
        self, store: Store, tmp_path: Path
    ) -> None:
        manifest = outbox(tmp_path, 1, {"a": [b"aa"], "b": [b"bb"]})
        (tmp_path / "blobs" / sha256(b"bb")).unlink()
        with pytest.raises(FileNotFoundError):
            checkpoints.publish(store, RUN, manifest, tmp_path)
        (tmp_path / "blobs" / sha256(b"bb")).write_bytes(b"xx")
        with pytest.raises(CorruptCheckpoint, match="altered"):
            checkpoints.publish(store, RUN, manifest, tmp_path)
        assert checkpoints.names(store, RUN) == ()
        (tmp_path / "blobs" / sha256(b"bb")).write_bytes(b"bb")
        checkpoints.publish(store, RUN, manifest, tmp_path)
        assert checkpoints.names(store, RUN) == (manifest.ref,)

    def test_foreign_names_are_no_checkpoints(self, store: Store, source: Source, tmp_path: Path) -> None:
        manifest = outbox(tmp_path, 5, {"a": [b"a"]})
        checkpoints.publish(store, RUN, manifest, tmp_path)
        for name in ("latest/manifest.json", f"{manifest.name}/notes.txt", "5-g1-a/manifest.json", "stray"):
            store.put(f"runs/{RUN}/checkpoints/{name}", *source(b"x"))
        store.put(f"runs/{RUN}-2/checkpoints/{manifest.name}/manifest.json", *source(b"x"))
        assert checkpoints.names(store, RUN) == (manifest.ref,)

    def test_missing_and_foreign_manifests(self, store: Store, source: Source, tmp_path: Path) -> None:
        manifest = outbox(tmp_path, 5, {"a": [b"a"]})
        with pytest.raises(NotFound):
            checkpoints.read(store, RUN, manifest.name)
        with pytest.raises(NotFound):
            checkpoints.fetch(store, RUN, manifest.name, tmp_path / "staged")
        store.put(f"runs/other/checkpoints/{manifest.name}/manifest.json", *source(manifest.encode()))
        with pytest.raises(CorruptCheckpoint, match="of the run"):
            checkpoints.read(store, "other", manifest.name)
        store.put(f"runs/{RUN}/checkpoints/{manifest.name}/manifest.json", *source(b"{}"))
        with pytest.raises(CorruptCheckpoint):
            checkpoints.read(store, RUN, manifest.name)

    def test_a_fetch_goes_on_where_it_was_cut_off_and_trusts_nothing(
        self, store: Store, tmp_path: Path
    ) -> None:
        manifest = outbox(tmp_path / "outbox", 1, {"a": [b"aaaa"], "b": [b"bbbb"], "c": [b"cccc"]})
        checkpoints.publish(store, RUN, manifest, tmp_path / "outbox")
        staged = tmp_path / "staged"
        checkpoints.fetch(store, RUN, manifest.name, staged)
        kept, altered, lost = (staged / "blobs" / sha256(data) for data in (b"aaaa", b"bbbb", b"cccc"))
        identity = kept.stat().st_ino, kept.stat().st_mtime_ns
        altered.write_bytes(b"xxxx")
        lost.unlink()
        checkpoints.fetch(store, RUN, manifest.name, staged)
        assert (kept.stat().st_ino, kept.stat().st_mtime_ns) == identity
        assert files_below(staged) == files_below(tmp_path / "outbox")

    def test_a_missing_blob_makes_a_checkpoint_corrupt(self, store: Store, tmp_path: Path) -> None:
        manifest = outbox(tmp_path / "outbox", 1, {"a": [b"aaaa"]})
        checkpoints.publish(store, RUN, manifest, tmp_path / "outbox")
        (blob,) = store.list(f"runs/{RUN}/blobs/")
        store.delete(blob.key)
        with pytest.raises(CorruptCheckpoint, match="missing") as caught:
            checkpoints.fetch(store, RUN, manifest.name, tmp_path / "staged")
        assert caught.value.name == manifest.name
        assert not (tmp_path / "staged" / "checkpoints" / manifest.name / "manifest.json").exists()

    def test_a_target_is_restored_whole_or_not_at_all(self, store: Store, tmp_path: Path) -> None:
        folder = tmp_path / "outbox"
        manifest = outbox(folder, 1, {"a": [b"aaaa"], "z": [b"zzzz"]})
        checkpoints.publish(store, RUN, manifest, folder)
        (folder / "blobs" / sha256(b"zzzz")).write_bytes(b"yyyy")
        with pytest.raises(CorruptCheckpoint, match="altered"):
            checkpoints.restore(folder, [manifest], tmp_path / "pulls" / "one")
        assert list((tmp_path / "pulls").iterdir()) == []
        checkpoints.fetch(store, RUN, manifest.name, folder)
        checkpoints.restore(folder, [manifest], tmp_path / "pulls" / "one")
        with pytest.raises(InputError, match="exists"):
            checkpoints.restore(folder, [manifest], tmp_path / "pulls" / "one")
        assert files_below(tmp_path / "pulls") == {"one/a": b"aaaa", "one/z": b"zzzz"}

    def test_retiring_leaves_what_others_need(self, store: Store, tmp_path: Path) -> None:
        made = [outbox(tmp_path, n, {"frozen": [b"f"], "trained": [b"t%d" % n]}) for n in (1, 2, 3)]
        for manifest in made:
            checkpoints.publish(store, RUN, manifest, tmp_path)
        for _ in range(2):
            checkpoints.retire(store, RUN, [m.name for m in made[:2]], [made[2].name])
        assert checkpoints.names(store, RUN) == (made[2].ref,)
        checkpoints.fetch(store, RUN, made[2].name, tmp_path / "staged")
        assert len(list(store.list(f"runs/{RUN}/blobs/"))) == 2
        checkpoints.retire(store, RUN, [made[2].name], [])
        assert list(store.list(f"runs/{RUN}/")) == []

    def test_a_sweep_never_meets_a_session_that_repeats_the_same_steps(
        self, store: Store, tmp_path: Path
    ) -> None:
        """Resume is bitwise: the next generation makes the same blobs that are being retired."""
        lost = outbox(tmp_path / "1", 2000, {"weights": [b"the same bits"]}, generation=2, incarnation="old")
        repeated = outbox(tmp_path / "2", 2000, {"weights": [b"the same bits"]}, generation=3)
        checkpoints.publish(store, RUN, lost, tmp_path / "1")
        checkpoints.publish(store, RUN, repeated, tmp_path / "2")
        checkpoints.retire(store, RUN, [lost.name], [])  # without knowing what the live session publishes
        assert checkpoints.fetch(store, RUN, repeated.name, tmp_path / "staged") == repeated

    def test_an_interrupted_retirement_is_finished_by_a_later_one(self, store: Store, tmp_path: Path) -> None:
        old = outbox(tmp_path, 1, {"weights": [b"old"]}, generation=1)
        live = [outbox(tmp_path, n, {"weights": [b"%d" % n]}, generation=2) for n in (2, 3)]
        for manifest in (old, *live):
            checkpoints.publish(store, RUN, manifest, tmp_path)
        store.delete(f"runs/{RUN}/checkpoints/{old.name}/manifest.json")  # and then it was killed
        checkpoints.retire(store, RUN, [live[0].name], [live[1].name])
        there = [stat.key for stat in store.list(f"runs/{RUN}/blobs/g01-")]
        assert len(there) == 1, "what nobody says is ours may be another ledger's"
        checkpoints.publish(store, RUN, live[0], tmp_path)
        ours = {old.ref.incarnation}
        checkpoints.retire(store, RUN, [live[0].name], [live[1].name], older=ours.__contains__)
        assert len(list(store.list(f"runs/{RUN}/"))) == 2
        checkpoints.fetch(store, RUN, live[1].name, tmp_path / "staged")

    def test_what_is_not_named_as_a_blob_is_nobodys_to_sweep(
        self, store: Store, source: Source, tmp_path: Path
    ) -> None:
        made = outbox(tmp_path, 1, {"weights": [b"old"]}, generation=1)
        checkpoints.publish(store, RUN, made, tmp_path)
        mine = f"runs/{RUN}/blobs/g01-a/notes.txt"
        store.put(mine, *source(b"mine"))
        checkpoints.retire(store, RUN, [made.name], [])
        assert checkpoints.orphans(store, RUN, []) == ()
        assert checkpoints.sweep_orphans(store, RUN, [], 2) == 0
        assert [stat.key for stat in store.list(f"runs/{RUN}/")] == [mine]

    def test_nothing_is_swept_beside_a_manifest_that_cannot_be_read(
        self, store: Store, source: Source, tmp_path: Path
    ) -> None:
        gone, bad = (outbox(tmp_path, n, {"weights": [b"%d" % n]}) for n in (1, 2))
        checkpoints.publish(store, RUN, gone, tmp_path)
        checkpoints.publish(store, RUN, bad, tmp_path)
        store.delete(f"runs/{RUN}/checkpoints/{bad.name}/manifest.json")
        store.put(f"runs/{RUN}/checkpoints/{bad.name}/manifest.json", *source(b"torn"))
        checkpoints.retire(store, RUN, [gone.name], [bad.name])
        assert len(list(store.list(f"runs/{RUN}/blobs/"))) == 2
        assert checkpoints.names(store, RUN) == (bad.ref,)
