"""An encrypted store: what the inner store sees, who can read it, and what else may lie there.

The store suite itself runs over encrypted stores in test_stores.py.
"""

from __future__ import annotations

import io
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyrage  # type: ignore[import-untyped]
import pytest

from orchestrator.errors import AccessDenied, CorruptCheckpoint, InputError, NoIdentity, NotFound, Rejected
from orchestrator.stores import age, checkpoints
from orchestrator.stores.encrypted import EncryptedStore
from orchestrator.stores.faulty import FaultRates
from orchestrator.stores.folder import FolderStore
from orchestrator.stores.memory import MemoryStore
from orchestrator.stores.portable import Portability, Portable
from orchestrator.stores.retrying import RetryingStore
from orchestrator.stores.store import Stat, Store
from orchestrator.stores.unencrypted import UnencryptedStore
from tests.conformance.age_keys import ME, RECOVERY, STRANGER, encrypted
from tests.conformance.store_suite import KEY, RUN, Source, files_below, outbox, sha256, source
from tests.conformance.test_stores import faulty

__all__ = ["source"]  # a fixture

SECRET = b"nobody but the owner may read this sentence, which is part of a checkpoint " * 40


def shipping(inner: Store) -> EncryptedStore:
    """As a session has it: the recipients, and no identity."""
    return EncryptedStore(inner, [ME.public, RECOVERY.public], name="vault")


@pytest.fixture
def inner() -> MemoryStore:
    return MemoryStore()


# --- What lies in the store -------------------------------------------------------------------------------


def test_nothing_plain_is_in_the_inner_store_or_left_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    between = tmp_path / "temporary"
    between.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(between))
    store = encrypted(FolderStore(tmp_path / "inner"))
    manifest = outbox(tmp_path / "outbox", 1000, {"model/weights.bin": [SECRET]})
    checkpoints.publish(store, RUN, manifest, tmp_path / "outbox")
    assert checkpoints.verify(store, RUN, manifest.name) == manifest
    blob = tmp_path / "outbox" / "blobs" / sha256(SECRET)
    with pytest.raises(Rejected):
        store.put(checkpoints.manifest_key(RUN, manifest.name), blob, sha256(SECRET))
    found = files_below(tmp_path / "inner")
    assert len(found) == 2
    for name, data in found.items():
        assert name.endswith(".age")
        assert data.startswith(b"age-encryption.org/v1\n")
        assert SECRET[:20] not in data
        assert b"weights.bin" not in data
    assert files_below(between) == {}


def test_pyrage_alone_gets_everything_back_with_either_key(tmp_path: Path) -> None:
    """Recovery without us: each object is a plain age file, named after what is in it."""
    store = encrypted(FolderStore(tmp_path / "inner"))
    manifest = outbox(tmp_path / "outbox", 1000, {"weights": [SECRET, b""]})
    checkpoints.publish(store, RUN, manifest, tmp_path / "outbox")
    for key in (ME, RECOVERY):
        found = {
            name.removesuffix(".age"): pyrage.decrypt(data, [key.identity])
            for name, data in files_below(tmp_path / "inner").items()
        }
        assert found.pop(checkpoints.manifest_key(RUN, manifest.name)) == manifest.encode()
        assert {name.rpartition("/")[2]: data for name, data in found.items()} == {
            sha256(SECRET): SECRET,
            sha256(b""): b"",
        }
    with pytest.raises(pyrage.DecryptError):
        pyrage.decrypt(next(iter(files_below(tmp_path / "inner").values())), [STRANGER.identity])


@pytest.mark.parametrize("recipients", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 131072, 300000])
def test_the_plain_size_follows_from_the_encrypted_one(
    inner: MemoryStore, source: Source, size: int, recipients: int
) -> None:
    """For any number of recipients, so that `stat` and `list` cost no reading."""
    keys = [ME, RECOVERY, STRANGER, *([] if recipients < 4 else [type(ME)()])][:recipients]
    encrypted(inner, to=tuple(keys)).put(KEY, *source(random.Random(size).randbytes(size)))
    (sealed,) = inner.list("")
    assert sealed.size == age.sealed_size(size)
    assert encrypted(inner).stat(KEY) == Stat(KEY, size)


def test_sizes_are_exact_and_a_cut_file_never_has_its_size() -> None:
    for plain in (*range(1, 200), *range(65500, 65600), 10**9):
        sealed = age.sealed_size(plain)
        assert age.plain_size(sealed) == plain
        for cut in (1, 15, 16, 17, 600):
            assert age.plain_size(sealed - cut) < plain


def test_a_header_of_more_places_and_no_random_stanza_has_the_same_length() -> None:
    """So the `age` command makes files of the same size, with one `-r` more than there are places."""
    stanza = b"-> X25519 " + b"A" * 43 + b"\n" + b"B" * 43 + b"\n"
    header = b"age-encryption.org/v1\n" + stanza * (age.PLACES + 1) + b"--- " + b"C" * 43 + b"\n"
    assert len(header) == age.HEADER_BYTES


# --- Who can read it --------------------------------------------------------------------------------------


def test_another_identity_is_told_so_and_condemns_nothing(
    inner: MemoryStore, source: Source, tmp_path: Path
) -> None:
    encrypted(inner).put(KEY, *source(b"secret"))
    stranger = encrypted(inner, by=STRANGER)
    with pytest.raises(NoIdentity, match=r"belongs to none of the recipients.*on its own line") as caught:
        stranger.get(KEY, tmp_path / "target")
    assert caught.value.backend == "vault"
    assert isinstance(caught.value, AccessDenied)
    assert list(tmp_path.glob("t*")) == []
    both = EncryptedStore(inner, [ME.public], lambda: STRANGER.text + ME.text)
    both.get(KEY, tmp_path / "target", sha256(b"secret"))


def test_without_an_identity_nothing_of_others_is_read(
    inner: MemoryStore, source: Source, tmp_path: Path
) -> None:
    encrypted(inner).put(KEY, *source(b"secret"))
    with pytest.raises(NoIdentity, match=r"no identity here.*`identity: file:PATH`"):
        shipping(inner).get(KEY, tmp_path / "target")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no identity"),
        ("# only a comment\n", "no identity"),
        ("ssh-ed25519 AAAA\n", "no X25519 identity"),
        ("AGE-SECRET-KEY-PQ-1QQQ\n", "no X25519 identity"),
        (ME.text[:-9], "damaged"),
        ("age-encryption.org/v1\n-> scrypt\n", "itself encrypted"),
    ],
    ids=["empty", "comment", "ssh", "post-quantum", "damaged", "encrypted"],
)
def test_an_identity_that_cannot_be_used_is_named_and_never_shown(
    inner: MemoryStore, source: Source, tmp_path: Path, text: str, said: str
) -> None:
    encrypted(inner).put(KEY, *source(b"secret"))
    store = EncryptedStore(inner, [ME.public], lambda: text)
    with pytest.raises(NoIdentity, match=said) as caught:
        store.get(KEY, tmp_path / "target")
    told = f"{caught.value!r} {caught.value} {caught.value.__cause__!r}"
    assert str(ME.identity)[20:40] not in told
    assert "QQQ" not in told


def test_an_identity_is_asked_for_when_it_is_needed_and_again_while_it_is_missing(
    inner: MemoryStore, source: Source, tmp_path: Path
) -> None:
    asked: list[str] = []

    def identity() -> str:
        asked.append("once")
        if len(asked) == 1:
            raise InputError("the stick with the key cannot be read")
        return ME.text

    store = EncryptedStore(inner, [ME.public], identity)
    store.put(KEY, *source(b"secret"))
    assert store.stat(KEY) == Stat(KEY, 6)
    assert asked == []
    with pytest.raises(NoIdentity, match="stick"):
        store.get(KEY, tmp_path / "target")
    store.get(KEY, tmp_path / "target", sha256(b"secret"))
    store.get(KEY, tmp_path / "target", sha256(b"secret"))
    assert asked == ["once", "once"]


# --- A session that only ships ----------------------------------------------------------------------------


def test_a_session_publishes_again_after_its_uplink_died(inner: MemoryStore, tmp_path: Path) -> None:
    manifest = outbox(tmp_path, 1000, {"weights": [SECRET]})
    assert not checkpoints.publish(shipping(inner), RUN, manifest, tmp_path)
    before = {stat.key: inner._objects[stat.key] for stat in inner.list("")}
    assert not checkpoints.publish(shipping(inner), RUN, manifest, tmp_path)  # another process: another key
    assert {stat.key: inner._objects[stat.key] for stat in inner.list("")} == before
    assert checkpoints.verify(encrypted(inner), RUN, manifest.name, manifest.sha256) == manifest


def test_a_session_replaces_what_cannot_be_its_own(
    inner: MemoryStore, source: Source, tmp_path: Path
) -> None:
    manifest = outbox(tmp_path, 1000, {"weights": [SECRET]})
    key = checkpoints.manifest_key(RUN, manifest.name)
    encrypted(inner).put(key, *source(b"{}"))
    inner.put(f"runs/{RUN}/blobs/g01-a/{sha256(SECRET)}.age", *source(b"cut off"))
    assert checkpoints.publish(shipping(inner), RUN, manifest, tmp_path)
    assert checkpoints.verify(encrypted(inner), RUN, manifest.name) == manifest


def test_a_session_retires_its_own_checkpoints_and_leaves_those_that_it_cannot_read(
    inner: MemoryStore, tmp_path: Path
) -> None:
    first, second, third = (
        outbox(tmp_path, step, {"frozen": [b"f" * 100], "trained": [b"%d" % step]}) for step in (1, 2, 3)
    )
    checkpoints.publish(shipping(inner), RUN, first, tmp_path)
    store = shipping(inner)
    checkpoints.retire(store, RUN, [first.name], [])  # nothing is left whose blobs could not be told
    assert list(inner.list("")) == []
    checkpoints.publish(store, RUN, second, tmp_path)
    checkpoints.publish(store, RUN, third, tmp_path)
    later = shipping(inner)
    checkpoints.retire(later, RUN, [second.name], [third.name])
    assert len(list(inner.list(f"runs/{RUN}/blobs/"))) == 3  # the third one's manifest is closed to it
    checkpoints.retire(store, RUN, [second.name], [third.name])
    assert len(list(inner.list(f"runs/{RUN}/blobs/"))) == 2
    assert checkpoints.verify(encrypted(inner), RUN, third.name) == third


def test_a_session_gets_the_recipients_and_not_the_identity(inner: MemoryStore) -> None:
    class Given(MemoryStore):
        def portable(self) -> Portable:
            return Portable("s3", {"bucket": "b"}, packages=("s3",))

    store = encrypted(Given())
    assert isinstance(store, Portability)
    found = store.portable()
    assert found == Portable(
        "s3", {"bucket": "b"}, packages=("s3", "pyrage"), recipients=(ME.public, RECOVERY.public)
    )
    assert "SECRET" not in repr(found)
    assert UnencryptedStore(Given()).portable() == Given().portable()
    for closed in (encrypted(inner), UnencryptedStore(inner)):
        with pytest.raises(Rejected, match="no session can open"):
            closed.portable()


def test_what_the_inner_store_offers_beyond_the_protocol_is_passed_on(
    inner: MemoryStore, source: Source
) -> None:
    class Offering(MemoryStore):
        def is_empty(self) -> bool:
            return True

        def checkup(self) -> tuple[str, ...]:
            return ("the bucket keeps no versions",)

    for wrap in (encrypted, UnencryptedStore):
        offering = wrap(Offering())
        offering.put(KEY, *source(b"x"))
        assert (offering.is_empty(), offering.checkup()) == (True, Offering().checkup())
        plain = wrap(inner)
        assert (plain.is_empty(), plain.checkup()) == (True, ())
        plain.put(KEY, *source(b"x"))
        assert not plain.is_empty()
        plain.delete(KEY)


# --- What else may lie there ------------------------------------------------------------------------------


def test_what_was_put_before_encryption_was_switched_on_stays_readable(
    inner: MemoryStore, tmp_path: Path
) -> None:
    before = outbox(tmp_path, 1, {"frozen": [b"f" * 100], "trained": [b"1"]})
    checkpoints.publish(inner, RUN, before, tmp_path)
    store = encrypted(inner)
    assert checkpoints.names(store, RUN) == (before.ref,)
    assert checkpoints.verify(store, RUN, before.name, before.sha256) == before
    after = outbox(tmp_path, 2, {"frozen": [b"f" * 100], "trained": [b"2"]})
    checkpoints.publish(store, RUN, after, tmp_path)
    assert checkpoints.names(store, RUN) == (before.ref, after.ref)
    assert len([stat for stat in inner.list("") if stat.key.endswith(".age")]) == 2
    checkpoints.retire(store, RUN, [before.name], [after.name])
    assert checkpoints.verify(store, RUN, after.name, after.sha256) == after
    checkpoints.retire(store, RUN, [after.name], [])
    assert list(inner.list("")) == []


def test_a_plain_object_takes_its_key_and_an_encrypted_one_wins(
    inner: MemoryStore, source: Source, tmp_path: Path
) -> None:
    store = encrypted(inner)
    inner.put(KEY, *source(b"plain"))
    store.put(KEY, *source(b"plain"))
    with pytest.raises(Rejected, match="other bytes"):
        store.put(KEY, *source(b"other"))
    assert [stat.key for stat in inner.list("")] == [KEY]
    inner.put(f"{KEY}.age", *source(pyrage.encrypt(b"encrypted", [ME.identity.to_public()])))
    store.get(KEY, tmp_path / "target", sha256(b"encrypted"))
    assert [stat.key for stat in store.list("")] == [KEY]
    store.delete(KEY)
    assert list(inner.list("")) == []


def test_a_config_that_lost_encrypt_is_told_so_and_nothing_is_swept(
    inner: MemoryStore, source: Source, tmp_path: Path
) -> None:
    manifest = outbox(tmp_path, 1, {"weights": [SECRET]})
    checkpoints.publish(encrypted(inner), RUN, manifest, tmp_path)
    store = UnencryptedStore(inner, name="vault")
    asks: list[Callable[[], object]] = [
        lambda: checkpoints.read(store, RUN, manifest.name),
        lambda: checkpoints.present(store, RUN, [manifest.name]),
        lambda: checkpoints.fetch(store, RUN, manifest.name, tmp_path / "staged"),
        lambda: checkpoints.publish(store, RUN, manifest, tmp_path),
    ]
    for ask in asks:
        with pytest.raises(NoIdentity, match="'vault' has no `encrypt` in the config: put it back"):
            ask()
    assert checkpoints.sweep_orphans(store, RUN, [], closed_below=9) == 0
    store.put("other", *source(b"x"))
    assert store.stat("other") == Stat("other", 1)
    assert store.stat("a" * 200) is None
    with pytest.raises(NotFound):
        store.get("a" * 200, tmp_path / "target")
    assert checkpoints.verify(encrypted(inner), RUN, manifest.name) == manifest


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "not age": lambda _: b"plain text under an encrypted key" * 9,
    "half a header": lambda data: data[:300],
    "an endless header": lambda data: data[:22] + b"-> X25519 a\n" * 9000,
    "a flipped bit in a key": lambda data: flipped(data, 90),
    "a flipped bit in the header's end": lambda data: flipped(data, age.HEADER_BYTES - 9),
    "a flipped bit in the bytes": lambda data: flipped(data, age.HEADER_BYTES + 900),
    "cut within a chunk": lambda data: data[:-100],
    "cut between chunks": lambda data: data[: age.HEADER_BYTES + 16 + 65536 + 16],
    "something after it": lambda data: data + b"x",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_damage_and_leaves_the_target_alone(
    inner: MemoryStore, source: Source, tmp_path: Path, damage: str
) -> None:
    store = encrypted(inner)
    path, digest = source(random.Random(1).randbytes(150_000))
    store.put(KEY, path, digest)
    inner._objects[f"{KEY}.age"] = DAMAGE[damage](inner._objects[f"{KEY}.age"])
    folder = tmp_path / "into"
    folder.mkdir()
    (folder / "target").write_bytes(b"precious")
    for expected in (digest, None):
        with pytest.raises(CorruptCheckpoint) as caught:
            store.get(KEY, folder / "target", expected)
        assert caught.value.name == KEY
    assert files_below(folder) == {"target": b"precious"}
    with pytest.raises(Rejected, match="other bytes"):
        store.put(KEY, path, digest)


def test_no_flipped_bit_and_no_cut_is_taken_for_a_missing_key(source: Source, tmp_path: Path) -> None:
    """So damage costs one checkpoint and holds no run: with two recipients each key is there twice."""
    path, _ = source(b"x" * 100)
    sealed, bad = tmp_path / "sealed", tmp_path / "bad"
    age.seal(path, sealed, age.recipients([ME.public, RECOVERY.public]))
    data = sealed.read_bytes()
    for at in range(len(data)):
        for damaged in (data[:at], data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :]):
            bad.write_bytes(damaged)
            with pytest.raises(age.Damaged):
                age.unseal(bad, None, [ME.identity])


def test_a_key_of_an_encrypted_object_is_none(inner: MemoryStore, source: Source, tmp_path: Path) -> None:
    store = encrypted(inner)
    for key in ("a.age", "a/b.age", "a" * 197):
        with pytest.raises(Rejected):
            store.put(key, *source(b"x"))
        with pytest.raises(Rejected):
            store.get(key, tmp_path / "target")
    assert list(inner.list("")) == []


# --- What it takes ----------------------------------------------------------------------------------------

MEMORY = """
import resource, sys
from pathlib import Path
from orchestrator.files.hashing import digest_file
from orchestrator.stores.faulty import FaultRates
from orchestrator.stores.folder import FolderStore
from tests.conformance.age_keys import encrypted
store = encrypted(FolderStore(Path(sys.argv[1]) / "inner"))
path = Path(sys.argv[1]) / "big"
with path.open("wb") as file:
    file.truncate(60_000_000)
digest = digest_file(path)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
store.put("big", path, digest)
store.get("big", Path(sys.argv[1]) / "target", digest)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", MEMORY, str(tmp_path)], capture_output=True, check=True)
    assert int(run.stdout) < 20_000  # kB, for 60 MB


def test_errors_that_age_would_hide_are_raised(tmp_path: Path, source: Source) -> None:
    """age ignores what its last writes raise, such as that the disk is full."""

    class Full(io.BytesIO):
        def write(self, _data: object) -> int:
            raise OSError(28, "No space left on device")

    path, _ = source(SECRET)
    age.seal(path, tmp_path / "sealed", age.recipients([ME.public]))
    with pytest.raises(OSError, match="No space left"):
        age.unseal(tmp_path / "sealed", Full(), [ME.identity])
    with pytest.raises(OSError, match="No space left"):
        age.seal(path, Path("/dev/full"), age.recipients([ME.public]))


def test_what_a_store_does_not_show_yet_is_known_by_its_bytes(source: Source) -> None:
    """An uplink that starts again puts what `stat` of a slow store does not show."""
    slow, inner, _ = faulty(FaultRates(hides=1.0, hidden_seconds=30.0))
    encrypted(slow).put(KEY, *source(b"secret"))
    assert slow.stat(f"{KEY}.age") is None
    encrypted(slow).put(KEY, *source(b"secret"))
    EncryptedStore(slow, [ME.public]).put(KEY, *source(b"secret"))
    with pytest.raises(Rejected, match="other bytes"):
        encrypted(slow).put(KEY, *source(b"others"))
    assert len(list(inner.list(""))) == 1


def test_a_retry_puts_the_same_encrypted_bytes(source: Source, tmp_path: Path) -> None:
    """A lost reply of the inner store is retried inside, where the same bytes change nothing."""
    flaky, inner, clock = faulty(FaultRates(fails=0.3, loses_reply=0.3), seed=3)
    store = encrypted(RetryingStore(flaky, attempts=20, sleep=clock.wait, chance=random.Random(1)))
    for number in range(5):
        store.put(f"{KEY}{number}", *source(b"secret"))
        store.get(f"{KEY}{number}", tmp_path / "target", sha256(b"secret"))
    assert len(list(inner.list(""))) == 5
