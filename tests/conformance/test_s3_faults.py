"""What may go wrong between the store `s3` and its service: the fault matrix of docs/stores.md, row by row.

The service is real. A proxy in front of it fails on purpose.
"""

from __future__ import annotations

import random
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator.core.bounds import MIB
from orchestrator.errors import (
    AccessDenied,
    BackendError,
    CorruptCheckpoint,
    QuotaExhausted,
    Rejected,
    Transient,
)
from orchestrator.stores.retrying import RetryingStore
from orchestrator.stores.s3 import clients, transfers
from orchestrator.stores.s3.store import S3Store
from orchestrator.stores.store import Stat
from tests.conformance.store_suite import KEY, Source, sha256, source
from tests.conformance.test_s3 import configured
from tests.stand_ins.fault_proxy import Fault, FaultProxy, Says, fault_proxy
from tests.stand_ins.seaweed import SECRET_KEY, Seaweed

__all__ = ["source"]  # a fixture

LARGE = 12 * MIB + 17
HIDDEN = ("supersecret", SECRET_KEY)


@pytest.fixture
def proxy(seaweedfs: Seaweed, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    monkeypatch.setattr(clients, "PAUSE_SECONDS_MIN", 0.01)
    monkeypatch.setattr(clients, "PAUSE_SECONDS_MAX", 0.02)
    with fault_proxy(seaweedfs.port) as proxy:
        yield proxy


@pytest.fixture
def store(proxy: FaultProxy, seaweedfs: Seaweed, tmp_path_factory: pytest.TempPathFactory) -> S3Store:
    """A store that has made its acquaintance with the service already."""
    made = configured(proxy.endpoint, tmp_path_factory.mktemp("home"), prefix=seaweedfs.prefix())
    assert isinstance(made, S3Store)
    assert made.conditions().swaps
    proxy.seen.clear()
    return made


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of the least size that S3 takes: what is larger goes in parts."""
    monkeypatch.setattr(transfers, "PART_BYTES", 5 * MIB)


def bytes_of(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def told(error: BaseException) -> str:
    """Everything that a log could show of an error."""
    return "".join(traceback.format_exception(error)) + repr(error)


# --- answers ----------------------------------------------------------------------------------------------

DENIED, FULL, LATER = AccessDenied, QuotaExhausted, Transient
ANSWERS: list[tuple[Says, type[BackendError], str]] = [
    (Says(403, "SignatureDoesNotMatch", "AKIA0123456789ABCDEF supersecretsupersecret"), DENIED, "access_key"),
    (Says(403, "InvalidAccessKeyId"), DENIED, "access_key"),
    (Says(401, "Unauthorized"), DENIED, "access_key"),
    (Says(400, "ExpiredToken", "The provided token has expired."), DENIED, "expired or was revoked"),
    (Says(403, "RequestTimeTooSkewed"), DENIED, "this machine's clock is off"),
    (Says(403, "AccessDenied"), DENIED, "the right to read"),
    (Says(301, "PermanentRedirect"), DENIED, "another region"),
    (Says(400, "AuthorizationHeaderMalformed", "expecting 'eu-west-1'"), DENIED, "another region"),
    (Says(404, "NoSuchBucket"), DENIED, "no such bucket: create it"),
    (Says(507), LATER, "proxy"),
    (Says(507, "InsufficientStorage"), FULL, "the store is full"),
    (Says(403, "QuotaExceeded"), FULL, "the store is full"),
    (Says(403, "AccessDenied", "You reached your storage limit"), FULL, "the store is full"),
    (Says(400, "XMinioAdminBucketQuotaExceeded"), FULL, "the store is full"),
    (Says(429, "TooManyRequests", header=("Retry-After", "3600")), LATER, "HTTP 429"),
    (Says(503, "SlowDown", "See https://s3/?X-Amz-Signature=supersecret"), LATER, "SlowDown"),
    (Says(500, "InternalError"), LATER, "HTTP 500"),
    (Says(502), LATER, "a proxy or login page"),
    (Says(403), LATER, "a proxy or login page"),
    (Says(404), LATER, "a proxy or login page"),
    (Says(418, "Teapot"), LATER, "Teapot"),
]


@pytest.mark.parametrize(
    ("says", "kind", "phrase"),
    ANSWERS,
    ids=[f"{says.status} {says.code or 'page'}" for says, _, _ in ANSWERS],
)
def test_each_answer_means_what_to_do_next(
    store: S3Store,
    proxy: FaultProxy,
    source: Source,
    tmp_path: Path,
    says: Says,
    kind: type[BackendError],
    phrase: str,
) -> None:
    registers = store.registers
    assert registers is not None
    proxy.each(says)
    verbs: list[Callable[[], object]] = [
        lambda: store.stat(KEY),
        lambda: store.put(KEY, *source(b"x")),
        lambda: store.get(KEY, tmp_path / "target"),
        lambda: list(store.list("")),
        lambda: store.delete(KEY),
        lambda: registers.read("fence"),
        lambda: registers.swap("fence", b"1", None),
        lambda: registers.swap("fence", b"1", '"00"'),
    ]
    for verb in verbs:
        with pytest.raises(BackendError) as caught:
            verb()
        assert type(caught.value) is kind, told(caught.value)
        assert phrase in str(caught.value) or (verb is verbs[0] and kind is LATER), "HEAD has no reason"
        assert not [secret for secret in HIDDEN if secret in told(caught.value)]
    assert not (tmp_path / "target").exists()
    proxy.calm()
    store.put(KEY, *source(b"x"))


def test_a_page_instead_of_the_service_is_no_success(
    store: S3Store, proxy: FaultProxy, source: Source, tmp_path: Path
) -> None:
    """As the login page of a network that answers 200 to everything."""
    registers = store.registers
    assert registers is not None
    proxy.each(Says(200))
    for verb in (
        lambda: store.put(KEY, *source(b"x")),
        lambda: store.stat(KEY),
        lambda: list(store.list("")),
        lambda: registers.read("fence"),
        lambda: registers.swap("fence", b"1", None),
    ):
        with pytest.raises(Transient) as caught:
            verb()
        assert "supersecret" not in told(caught.value)
    with pytest.raises((CorruptCheckpoint, Transient)):
        store.get(KEY, tmp_path / "target", sha256(b"x"))
    assert not (tmp_path / "target").exists()


def test_a_bucket_that_does_not_exist_is_said_by_every_verb(
    proxy: FaultProxy, source: Source, tmp_path: Path
) -> None:
    for verb in (
        lambda store: store.stat(KEY),
        lambda store: store.put(KEY, *source(b"x")),
        lambda store: store.get(KEY, tmp_path / "target"),
        lambda store: list(store.list("")),
        lambda store: store.delete(KEY),
        lambda store: store.registers.read("fence"),
    ):
        with pytest.raises(AccessDenied, match="no such bucket: create it"):
            verb(configured(proxy.endpoint, tmp_path, bucket="never-made"))


# --- connections ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("endpoint", "phrase"),
    [
        ("http://127.0.0.1:1", "accepts no connection"),
        ("http://no-such-host.invalid", "could not be looked up"),
        ("https://127.0.0.1:{port}", "no secure connection"),
    ],
)
def test_no_connection_is_said_in_plain_words(
    seaweedfs: Seaweed, source: Source, tmp_path: Path, endpoint: str, phrase: str
) -> None:
    store = configured(endpoint.format(port=seaweedfs.port), tmp_path)
    with pytest.raises(Transient, match=phrase) as caught:
        store.put(KEY, *source(b"x"))
    assert not caught.value.retried


def test_a_service_that_never_answers_costs_a_time_limit(
    proxy: FaultProxy, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "SMALL_SECONDS", 0.3)
    proxy.each(Fault.HANG)
    with pytest.raises(Transient, match="no answer in time"):
        configured(proxy.endpoint, tmp_path).put(KEY, *source(b"x"))


def test_a_reply_that_is_lost_leaves_the_object_there_and_a_second_try_is_harmless(
    store: S3Store, proxy: FaultProxy, source: Source
) -> None:
    path, digest = source(b"bytes")
    proxy.once(Fault.DROP_BEFORE, "PUT")
    with pytest.raises(Transient):
        store.put(KEY, path, digest)
    assert store.stat(KEY) is None
    proxy.once(Fault.DROP_AFTER, "PUT")
    with pytest.raises(Transient):
        store.put(KEY, path, digest)
    assert store.stat(KEY) == Stat(KEY, 5)
    store.put(KEY, path, digest)
    proxy.once(Fault.DROP_AFTER, "DELETE")
    RetryingStore(store, sleep=lambda _: None).delete(KEY)
    assert store.stat(KEY) is None


# --- bodies -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "later"), [(1000, False), (LARGE, False), (LARGE, True)])
@pytest.mark.parametrize("fault", [Fault.SHORT, Fault.LONG, Fault.FLIP])
@pytest.mark.usefixtures("small_parts")
def test_a_damaged_body_never_becomes_the_target(
    store: S3Store, proxy: FaultProxy, source: Source, tmp_path: Path, fault: Fault, size: int, later: bool
) -> None:
    """In the first part of an object, or in a later one."""
    data = bytes_of(size)
    store.put(KEY, *source(data))
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    proxy.once(fault, "GET", lambda request: request.is_part is later)
    with pytest.raises((CorruptCheckpoint, Transient)):
        store.get(KEY, target, sha256(data))
    if fault is not Fault.FLIP:  # which only the sha256 shows
        proxy.once(fault, "GET", lambda request: request.is_part is later)
        with pytest.raises(Transient):
            store.get(KEY, target)
    assert target.read_bytes() == b"precious"
    store.get(KEY, target, sha256(data))
    assert target.read_bytes() == data


@pytest.mark.usefixtures("small_parts")
def test_a_body_that_breaks_off_is_continued(
    store: S3Store, proxy: FaultProxy, source: Source, tmp_path: Path
) -> None:
    data = bytes_of(LARGE)
    store.put(KEY, *source(data))
    for _ in range(3):
        proxy.once(Fault.CUT, "GET", lambda request: request.is_part)
    RetryingStore(store, sleep=lambda _: None).get(KEY, tmp_path / "target", sha256(data))
    assert proxy.struck == 3


@pytest.mark.usefixtures("small_parts")
def test_redirects_are_followed_without_the_signature(
    store: S3Store, proxy: FaultProxy, source: Source, tmp_path: Path
) -> None:
    data = bytes_of(LARGE)
    store.put(KEY, *source(data))
    proxy.each(Fault.REDIRECT, "GET")
    store.get(KEY, tmp_path / "target", sha256(data))
    assert len(proxy.elsewhere_seen) == 3
    assert all(request.headers["Range"] for request in proxy.elsewhere_seen)
    assert not any(request.headers["Authorization"] for request in proxy.elsewhere_seen)


@pytest.mark.usefixtures("small_parts")
def test_a_service_without_ranges_is_read_in_one_piece(
    store: S3Store, proxy: FaultProxy, source: Source, tmp_path: Path
) -> None:
    data = bytes_of(LARGE)
    store.put(KEY, *source(data))
    proxy.each(Fault.WHOLE, "GET")
    store.get(KEY, tmp_path / "target", sha256(data))
    assert (tmp_path / "target").read_bytes() == data


# --- large objects ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_parts")
def test_a_part_that_fails_is_sent_again_alone(
    store: S3Store, proxy: FaultProxy, source: Source, tmp_path: Path
) -> None:
    data = bytes_of(LARGE)
    for fault in (Says(503, "SlowDown"), Fault.DROP_BEFORE, Fault.DROP_AFTER):
        proxy.once(fault, "PUT", lambda request: request.is_part)
    store.put(KEY, *source(data))
    parts = [request for request in proxy.seen if request.method == "PUT" and request.is_part]
    assert (proxy.struck, len(parts)) == (3, 3 + 3)
    store.get(KEY, tmp_path / "target", sha256(data))


@pytest.mark.usefixtures("small_parts")
def test_an_upload_that_fails_leaves_no_parts(
    store: S3Store, proxy: FaultProxy, source: Source, seaweedfs: Seaweed
) -> None:
    path, digest = source(bytes_of(LARGE))
    proxy.each(Says(503, "SlowDown"), "PUT", lambda request: "partNumber=3" in request.path)
    with pytest.raises(Transient, match="SlowDown") as caught:
        store.put(KEY, path, digest)
    assert caught.value.retried, "obstore has tried it often enough"
    proxy.calm()
    with pytest.raises(Rejected, match="the source has the sha256"):
        store.put(KEY, path, sha256(b"other"))
    assert seaweedfs.uploads() == []
    assert list(store.list("")) == []


@pytest.mark.usefixtures("small_parts")
def test_of_two_that_send_other_bytes_at_once_one_object_stays_whole(
    store: S3Store, source: Source, tmp_path: Path
) -> None:
    """A large object cannot be sent on a condition, so the last one wins. Keys of blobs name their bytes."""
    sources = [source(bytes_of(LARGE, seed)) for seed in (1, 2)]
    together = threading.Barrier(2)

    def send(path: Path, digest: str) -> None:
        together.wait()
        with suppress(Rejected):
            store.put(KEY, path, digest)

    threads = [threading.Thread(target=send, args=each) for each in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.get(KEY, tmp_path / "target")
    assert sha256((tmp_path / "target").read_bytes()) in {digest for _, digest in sources}
    for path, digest in sources:  # later, the key is as immutable as any
        if digest != sha256((tmp_path / "target").read_bytes()):
            with pytest.raises(Rejected, match="objects never change"):
                store.put(KEY, path, digest)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("size", [1000, LARGE])
def test_without_metadata_the_bytes_are_compared(
    store: S3Store, proxy: FaultProxy, source: Source, size: int
) -> None:
    """As at Hugging Face."""
    proxy.drops = ("x-amz-meta-",)
    data = bytes_of(size)
    store.put(KEY, *source(data))
    store.put(KEY, *source(data))
    for other in (bytes_of(size, seed=2), data + b"x"):
        with pytest.raises(Rejected, match="objects never change"):
            store.put(KEY, *source(other))
    assert store.stat(KEY) == Stat(KEY, size)
