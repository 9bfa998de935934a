"""What a writer that died leaves in a bucket is found and removed, and nothing else is.

The service is real. The proxy in front of it makes uploads look old, or answers in its place.
"""

from __future__ import annotations

import http.client
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from orchestrator.client import checkup
from orchestrator.client.checkup import State
from orchestrator.client.client import Client
from orchestrator.client.home import Home
from orchestrator.clock import SystemClock
from orchestrator.core.bounds import MIB
from orchestrator.engine import sweeping
from orchestrator.engine.perform import Backends
from orchestrator.errors import BackendError, InputError, Transient
from orchestrator.home import Folders
from orchestrator.stores.abandoned import ABANDONED_SECONDS, is_abandoned
from orchestrator.stores.retrying import RetryingStore
from orchestrator.stores.s3 import clients, exchange, uploads
from orchestrator.stores.s3.store import S3Store
from orchestrator.stores.store import Store, Upload
from orchestrator.stores.unencrypted import UnencryptedStore
from tests.conformance.store_suite import sha256
from tests.conformance.test_s3 import configured
from tests.stand_ins.fault_proxy import Fault, FaultProxy, Request, Says, fault_proxy
from tests.stand_ins.seaweed import ACCESS_KEY, BUCKET, SECRET_KEY, Seaweed
from tests.waiting import PATIENCE, wait_until

HASH = "0f" * 32
DEAD, LIVE = f"runs/r-1/blobs/g01-a/{HASH}", f"runs/r-2/material/{HASH}.age"
WRITER = """
import sys
from pathlib import Path
from orchestrator.stores.portable import Portable
from orchestrator.stores.s3 import transfers
from orchestrator.stores.s3.opening import carried
transfers.PART_BYTES = 5 << 20
endpoint, bucket, prefix, access, secret, key, source, sha256 = sys.argv[1:]
place = {"endpoint": endpoint, "bucket": bucket, "prefix": prefix, "region": "us-east-1"}
keys = {"access_key": access, "secret_key": secret}
carried(Portable("s3", place, keys)).put(key, Path(source), sha256)
"""


@pytest.fixture
def proxy(seaweedfs: Seaweed) -> Iterator[FaultProxy]:
    with fault_proxy(seaweedfs.port) as proxy:
        yield proxy


@pytest.fixture
def prefix(seaweedfs: Seaweed) -> str:
    return seaweedfs.prefix()


@pytest.fixture
def store(proxy: FaultProxy, prefix: str, tmp_path: Path) -> S3Store:
    made = configured(proxy.endpoint, tmp_path, prefix=prefix)
    assert isinstance(made, S3Store)
    return made


def asked(port: int, method: str, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request(method, path)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    assert answer.status < 300, body
    return body


@contextmanager
def begun(seaweed: Seaweed, *keys: str) -> Iterator[None]:
    """Uploads under these keys of the bucket, which somebody has begun. They are gone afterwards."""
    names = {}
    for key in keys:
        answer = asked(seaweed.port, "POST", f"/{BUCKET}/{quote(key)}?uploads=")
        found = re.search("<UploadId>(.*)</UploadId>", answer)
        assert found is not None
        names[found[1]] = key
    try:
        yield
    finally:
        for name, key in names.items():
            asked(seaweed.port, "DELETE", f"/{BUCKET}/{quote(key)}?uploadId={name}")


def old(*keys: str) -> Callable[[Request, bytes], bytes]:
    """Lets the uploads of these keys look as if they were begun days ago."""

    def rewrite(_: Request, body: bytes) -> bytes:
        for key in keys:
            pattern = rb"<Initiated>[^<]*</Initiated>(<Key>%s</Key>)" % re.escape(key.encode())
            body = re.sub(pattern, rb"<Initiated>2026-01-02T03:04:05.000Z</Initiated>\1", body)
        return body

    return rewrite


def under_way(seaweed: Seaweed, prefix: str) -> list[str]:
    """The keys below the prefix with an upload, as the service itself lists them."""
    listed = asked(seaweed.port, "GET", f"/{BUCKET}?uploads=&prefix={quote(prefix)}")
    return sorted(re.findall("<Key>(.*?)</Key>", listed))


def swept(store: Store, tmp_path: Path) -> list[str]:
    """What a controller says when it sweeps this store, wrapped as it is in the product."""
    said: list[str] = []
    wrapped = RetryingStore(UnencryptedStore(store, "away"), attempts=2, sleep=lambda _: None)
    backends = Backends({}, {"away": wrapped}, "away", Folders(tmp_path), secret=lambda name: name)
    sweeping.sweep(backends, said.append)
    return said


def asked_to_abort(proxy: FaultProxy) -> list[str]:
    return [request.path for request in proxy.seen if "uploadId=" in request.path]


# --- a writer that is killed --------------------------------------------------------------------------------


def test_what_a_killed_writer_sent_is_removed_and_nothing_else_is(
    store: S3Store, proxy: FaultProxy, prefix: str, seaweedfs: Seaweed, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(12 * MIB))
    proxy.each(Fault.HANG, "PUT", lambda request: "partNumber=3" in request.path)
    arguments = (
        proxy.endpoint,
        BUCKET,
        prefix,
        ACCESS_KEY,
        SECRET_KEY,
        DEAD,
        source,
        sha256(bytes(12 * MIB)),
    )
    writer = subprocess.Popen([sys.executable, "-c", WRITER, *map(str, arguments)])
    try:
        wait_until(
            lambda: writer.poll() is not None or seaweedfs.sent(f"{prefix}/{DEAD}") >= 10 * MIB,
            "two of the three parts",
        )
    finally:
        writer.kill()
    assert writer.wait() == -signal.SIGKILL
    foreign = (f"{prefix}/runs/notes", f"elsewhere-{prefix}/{DEAD}", f"{prefix}/a database dump")
    with begun(seaweedfs, f"{prefix}/{LIVE}", *foreign):
        proxy.rewrite = old(f"{prefix}/{DEAD}", *foreign)
        assert swept(store, tmp_path) == ["removed 1 abandoned upload from the store away"]
        assert seaweedfs.sent(f"{prefix}/{DEAD}") == 0
        assert under_way(seaweedfs, prefix) == sorted([f"{prefix}/{LIVE}", foreign[2], foreign[0]])
        assert under_way(seaweedfs, "elsewhere-") == [foreign[1]]
        assert swept(store, tmp_path) == []


@pytest.mark.parametrize(
    ("key", "age", "expected"),
    [
        (DEAD, ABANDONED_SECONDS, True),
        (DEAD, ABANDONED_SECONDS - 1, False),
        (DEAD, 0.0, False),
        (LIVE, ABANDONED_SECONDS, True),
        (f"runs/r/inputs/{HASH}", 1e6, True),
        (f"runs/schedule.r/material/{HASH}", 1e6, True),
        ("runs/r-1/checkpoints/0000000042-g01-a/manifest.json", 1e6, True),
        (f"runs/r-1/deposit/0000-0000000001-{HASH}.json.age", 1e6, True),
        ("runs/r-1/blobs/g01-a/b1", 1e6, False),
        (f"runs/r-1/blobs/{HASH}", 1e6, False),
        (f"backup/runs/r-1/material/{HASH}", 1e6, False),
        (f"{DEAD}.part", 1e6, False),
        ("model.safetensors", 1e6, False),
    ],
)
def test_only_old_uploads_of_the_layout_are_abandoned(key: str, age: float, expected: bool) -> None:
    assert is_abandoned(Upload(key, "name", age)) is expected


def test_an_upload_that_is_gone_is_no_error(store: S3Store, proxy: FaultProxy) -> None:
    upload = Upload(DEAD, "gone", 1e6)
    store.abort(upload)
    proxy.once(Says(404, "NoSuchUpload"))
    store.abort(upload)
    proxy.once(Says(200))
    with pytest.raises(Transient, match="a proxy or login page"):
        store.abort(upload)
    assert proxy.struck == 2


# --- the listing --------------------------------------------------------------------------------------------


def test_a_listing_of_many_pages_is_read_to_its_end(
    store: S3Store, prefix: str, proxy: FaultProxy, seaweedfs: Seaweed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "PAGE_UPLOADS", 1)
    keys = [f"runs/r=1/{name}" for name in "abc"]
    with begun(seaweedfs, *(f"{prefix}/{key}" for key in (*keys, "runs/r=1/b"))):
        found = store.uploads()
        assert sorted(each.key for each in found) == sorted([*keys, "runs/r=1/b"])
        assert len({each.name for each in found}) == 4
        assert all(0 <= each.age_seconds < 3600 for each in found)
        assert len(proxy.seen) >= 4


def test_a_service_that_ignores_the_prefix_makes_nothing_ours(store: S3Store, proxy: FaultProxy) -> None:
    keys = (DEAD, f"elsewhere/{DEAD}")
    told = "<UploadId>x</UploadId><Initiated>2026-01-02T03:04:05Z</Initiated></Upload>"
    body = LISTING.format("".join(f"<Upload><Key>{key}</Key>{told}" for key in keys))
    proxy.rewrite = lambda _, __: body.encode()
    assert store.uploads() == ()


def test_pages_that_repeat_are_no_listing(
    store: S3Store, prefix: str, proxy: FaultProxy, seaweedfs: Seaweed
) -> None:
    with begun(seaweedfs, f"{prefix}/{DEAD}"):
        [upload] = store.uploads()
        entry = f"<Upload><Key>{prefix}/{DEAD}</Key><UploadId>{upload.name}</UploadId></Upload>"
        body = LISTING.format(f"<IsTruncated>true</IsTruncated>{entry}").encode()
        proxy.rewrite = lambda _, __: body
        with pytest.raises(Transient, match="this is not S3's answer"):
            store.uploads()
        assert len(proxy.seen) == 3


@pytest.mark.parametrize(
    ("drops", "begun_at"),
    [(("date",), "2026-01-02T03:04:05Z"), ((), "2026-01-02T03:04:05"), ((), "yesterday"), ((), "")],
)
def test_without_the_services_own_time_an_upload_has_no_age(
    store: S3Store, prefix: str, proxy: FaultProxy, drops: tuple[str, ...], begun_at: str
) -> None:
    entry = f"<Key>{prefix}/{DEAD}</Key><UploadId>x</UploadId><Initiated>{begun_at}</Initiated>"
    proxy.rewrite = lambda _, __: LISTING.format(f"<Upload>{entry}</Upload>").encode()
    proxy.drops = drops
    assert store.uploads() == (Upload(DEAD, "x", 0.0),)


LISTING = "<ListMultipartUploadsResult>{}</ListMultipartUploadsResult>"
BOMB = (
    '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    + LISTING.format("<Upload><Key>&b;</Key></Upload>")
)  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [
        "<!DOCTYPE html><html><body>Log in</body></html>",
        BOMB,
        BOMB.replace("<!DOCTYPE", '<?xml version="1.0" encoding="UTF-7"?><!DOCTYPE'),
        LISTING.format("<Upload>"),
        "<ListBucketResult/>",
        "",
    ],
    ids=["page", "entities", "entities and an encoding", "cut", "another listing", "nothing"],
)
def test_what_is_no_listing_aborts_nothing(
    store: S3Store, proxy: FaultProxy, tmp_path: Path, body: str
) -> None:
    proxy.rewrite = lambda _, __: body.encode()
    with pytest.raises(Transient, match="this is not S3's answer"):
        store.uploads()
    [said] = swept(store, tmp_path)
    assert "trying again in a day" in said
    assert asked_to_abort(proxy) == []


@pytest.mark.parametrize(
    "fault", [Fault.CUT, Fault.DROP_BEFORE, Fault.SHORT, Says(503, "SlowDown"), Says(502)]
)
def test_a_listing_that_does_not_come_whole_is_asked_for_again(
    store: S3Store, proxy: FaultProxy, prefix: str, seaweedfs: Seaweed, tmp_path: Path, fault: Fault | Says
) -> None:
    with begun(seaweedfs, f"{prefix}/{DEAD}"):
        proxy.rewrite = old(f"{prefix}/{DEAD}")
        proxy.once(fault)
        with pytest.raises(Transient):
            store.uploads()
        proxy.once(fault)
        assert swept(store, tmp_path) == ["removed 1 abandoned upload from the store away"]


def test_an_answer_without_an_end_is_given_up(
    store: S3Store, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "BODY_BYTES_MAX", 100)
    proxy.rewrite = lambda _, __: LISTING.format(" " * 101).encode()
    with pytest.raises(Transient):
        store.uploads()
    proxy.rewrite = lambda _, body: body
    monkeypatch.setattr(exchange, "BODY_BYTES_MAX", MIB)
    assert store.uploads() == ()


UNTOLD = [
    Says(501, "NotImplemented"),
    Says(405, "MethodNotAllowed"),
    Says(403, "AccessDenied"),
    Says(404, "X"),
]


@pytest.mark.parametrize("says", UNTOLD, ids=[str(says.status) for says in UNTOLD])
def test_a_service_that_lists_no_uploads_is_left_alone_and_doctor_says_so(
    store: S3Store, proxy: FaultProxy, prefix: str, tmp_path: Path, says: Says
) -> None:
    proxy.each(says, "GET", lambda request: "uploads=" in request.path)
    assert store.uploads() == ()
    assert swept(store, tmp_path) == []
    found = doctors(tmp_path, proxy.endpoint, prefix)
    assert found.state is State.WARNING
    assert f"HTTP {says.status}" in found.text
    assert "lifecycle rule" in found.advice
    assert asked_to_abort(proxy) == []


def test_doctor_counts_what_dead_writers_left(
    proxy: FaultProxy, prefix: str, seaweedfs: Seaweed, tmp_path: Path
) -> None:
    assert doctors(tmp_path, proxy.endpoint, prefix).state is State.OK
    with begun(seaweedfs, f"{prefix}/{DEAD}", f"{prefix}/{LIVE}"):
        proxy.rewrite = old(f"{prefix}/{DEAD}")
        found = doctors(tmp_path, proxy.endpoint, prefix)
        assert found.text.startswith("1 whose writers died")
        assert "prune" in found.advice
        assert asked_to_abort(proxy) == []


def home_with(store: str, prefix: str, folder: Path) -> Home:
    (folder / "secret").write_text(SECRET_KEY, "utf-8")
    (folder / "access").write_text(ACCESS_KEY, "utf-8")
    (folder / "config.yaml").write_text(
        f"""stores: {{home: {{type: s3, endpoint: "{store}", bucket: {BUCKET}, prefix: {prefix},
          access_key: "file:access", secret_key: "file:secret"}}}}\n""",
        "utf-8",
    )
    return Home(folder)


def doctors(folder: Path, endpoint: str, prefix: str) -> checkup.Finding:
    home = home_with(endpoint, prefix, folder)
    findings = {found.what: found for found in checkup.findings(home, SystemClock(), ["home"])}
    return findings["store home: abandoned uploads"]


# --- who removes them ---------------------------------------------------------------------------------------


def test_prune_shows_them_and_removes_them(
    proxy: FaultProxy, prefix: str, seaweedfs: Seaweed, tmp_path: Path
) -> None:
    home_with(proxy.endpoint, prefix, tmp_path)
    client = Client(tmp_path)
    with begun(seaweedfs, f"{prefix}/{DEAD}", f"{prefix}/{LIVE}"):
        proxy.rewrite = old(f"{prefix}/{DEAD}")
        plan = client.prune_plan()
        assert [(row.what, row.count, row.size) for row in plan.goes] == [("uploads", 1, None)]
        assert asked_to_abort(proxy) == []
        assert not client.prune(plan).troubles
        assert under_way(seaweedfs, prefix) == [f"{prefix}/{LIVE}"]
        assert client.prune_plan().count == 0


class Daily(SystemClock):
    """Lets days pass at once, and keeps how long it was asked to wait."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.waited.append(seconds)
        return event.wait(0.02)


def test_a_controller_removes_them(
    proxy: FaultProxy, prefix: str, seaweedfs: Seaweed, tmp_path: Path
) -> None:
    home_with(proxy.endpoint, prefix, tmp_path)
    said: list[str] = []
    clock = Daily()
    ends = clock.monotonic() + PATIENCE
    with begun(seaweedfs, f"{prefix}/{DEAD}"):
        proxy.rewrite = old(f"{prefix}/{DEAD}")
        Client(tmp_path, clock=clock).controller.run(
            stopped=lambda: (
                "removed 1 abandoned upload from the store home" in said or clock.monotonic() > ends
            ),
            say=said.append,
        )
        assert under_way(seaweedfs, prefix) == []


def test_it_is_tried_again_every_day(
    store: S3Store, proxy: FaultProxy, prefix: str, seaweedfs: Seaweed, tmp_path: Path
) -> None:
    said: list[str] = []
    clock = Daily()
    backends = Backends({}, {"home": store}, "home", Folders(tmp_path), secret=lambda name: name)
    proxy.once(Says(503, "SlowDown"))
    with begun(seaweedfs, f"{prefix}/{DEAD}"):
        proxy.rewrite = old(f"{prefix}/{DEAD}")
        with sweeping.at_work(backends, clock, said.append):
            wait_until(lambda: len(said) == 2, "the second day")
        assert under_way(seaweedfs, prefix) == []
    assert "SlowDown" in said[0]
    assert said[1] == "removed 1 abandoned upload from the store home"
    assert set(clock.waited) == {24 * 3600.0}
    wait_until(lambda: "sweeping" not in {each.name for each in threading.enumerate()}, "the thread's end")


# --- the request --------------------------------------------------------------------------------------------


def test_a_wrong_key_is_told_and_shown_nowhere(proxy: FaultProxy, prefix: str, tmp_path: Path) -> None:
    made = configured(proxy.endpoint, tmp_path, prefix=prefix)
    assert isinstance(made, S3Store)
    (tmp_path / "secret").write_text("another-secret-key-123")
    with pytest.raises(BackendError, match=r"SignatureDoesNotMatch .*; check `access_key`") as caught:
        uploads.listed(made._clients)
    assert "another-secret" not in f"{caught.value!r}"
    assert caught.value.__cause__ is None


def test_no_test_reaches_a_real_service(tmp_path: Path) -> None:
    made = configured("https://s3.example", tmp_path)
    assert isinstance(made, S3Store)
    with pytest.raises(InputError, match="not on this machine's loopback"):
        made.uploads()


def test_a_service_that_does_not_answer_is_told_in_plain_words(
    store: S3Store, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = configured("http://127.0.0.1:1", tmp_path)
    assert isinstance(nobody, S3Store)
    with pytest.raises(Transient, match="the endpoint accepts no connection"):
        nobody.uploads()
    monkeypatch.setattr(clients, "SMALL_SECONDS", 0.3)
    proxy.each(Fault.HANG)
    with pytest.raises(Transient, match="no answer in time"):
        store.uploads()


def test_a_redirect_takes_no_signature_elsewhere(store: S3Store, proxy: FaultProxy) -> None:
    proxy.each(Fault.REDIRECT)
    with pytest.raises(Transient):
        store.uploads()
    assert proxy.elsewhere_seen == []
