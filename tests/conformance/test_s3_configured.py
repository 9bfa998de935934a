"""How the store `s3` is configured: presets, mistakes, keys that change, what a session gets, and memory."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from orchestrator.core.bounds import MIB
from orchestrator.errors import AccessDenied, InputError, Rejected
from orchestrator.stores import catalog
from orchestrator.stores.opening import opened
from orchestrator.stores.portable import Portability
from orchestrator.stores.s3 import transfers
from orchestrator.stores.s3.clients import NO_PRODUCTION, Place
from orchestrator.stores.s3.conditions import Conditions
from orchestrator.stores.s3.store import S3Store
from tests.conformance.store_suite import KEY, Source, sha256, source
from tests.conformance.test_s3 import configured
from tests.stand_ins.seaweed import ACCESS_KEY, BUCKET, SECRET_KEY, Seaweed

__all__ = ["source"]  # a fixture

KEYS: dict[str, object] = {"bucket": "runs", "access_key": "env:ACCESS", "secret_key": "env:SECRET"}
BOTH, NEITHER = Conditions(True, True), Conditions(False, False, "Backblaze B2 refuses conditional writes")


@pytest.mark.parametrize(
    ("options", "place", "address"),
    [
        ({"region": "eu-west-1"},
         Place("https://s3.eu-west-1.amazonaws.com", "runs", "", "eu-west-1", True, BOTH),
         "https://runs.s3.eu-west-1.amazonaws.com"),
        ({"preset": "aws", "region": "eu-west-1", "bucket": "my.runs"},
         Place("https://s3.eu-west-1.amazonaws.com", "my.runs", "", "eu-west-1", False, BOTH),
         "https://s3.eu-west-1.amazonaws.com"),
        ({"preset": "r2", "account": "0a1b"},
         Place("https://0a1b.r2.cloudflarestorage.com", "runs", "", "auto", False, BOTH),
         "https://0a1b.r2.cloudflarestorage.com"),
        ({"preset": "b2", "region": "us-west-004", "prefix": "/a/b/"},
         Place("https://s3.us-west-004.backblazeb2.com", "runs", "a/b", "us-west-004", False, NEITHER),
         "https://s3.us-west-004.backblazeb2.com"),
        ({"preset": "huggingface", "account": "me"},
         Place("https://s3.hf.co/me", "runs", "", "us-east-1", False, BOTH), "https://s3.hf.co/me"),
        ({"endpoint": "http://nas:9000/"},
         Place("http://nas:9000", "runs", "", "us-east-1", False, None), "http://nas:9000"),
        ({"preset": "r2", "endpoint": "https://r2.example", "style": "virtual"},
         Place("https://r2.example", "runs", "", "auto", True, None), "https://runs.r2.example"),
    ],
)  # fmt: skip
def test_a_preset_fills_in_what_is_known(
    tmp_path: Path, options: dict[str, object], place: Place, address: str
) -> None:
    store = catalog.build("mine", "s3", KEYS | options, tmp_path)
    assert isinstance(store, S3Store)
    assert store._clients.place == place
    assert place.address == address


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, ["'region' is missing: aws needs it"]),
        ({"preset": "r2"}, ["'account' is missing: r2 needs it"]),
        ({"preset": "minio"}, ["'endpoint' is missing"]),
        ({"preset": "s3"}, ["option 'preset'", "given: 's3'"]),
        ({"endpoint": "ftp://x"}, ["option 'endpoint'", "valid: https://HOST"]),
        ({"endpoint": "https://me:hunter2@x"}, ["may not contain a login"]),
        (
            {"endpoint": "https://x", "bucket": "a/b", "prefix": "../up"},
            ["option 'bucket'", "option 'prefix'"],
        ),
        ({"region": "x", "secrte_key": "env:A"}, ["did you mean 'secret_key'"]),
    ],
)
def test_mistakes_are_named(tmp_path: Path, options: dict[str, object], said: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        catalog.build("mine", "s3", KEYS | options, tmp_path)
    for text in said:
        assert text in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_keys_are_read_again_when_they_are_used(
    seaweedfs: Seaweed, tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = configured(
        seaweedfs.endpoint, tmp_path, prefix=seaweedfs.prefix(), access_key="env:ACCESS_KEY_OF_TEST"
    )
    with pytest.raises(AccessDenied, match="ACCESS_KEY_OF_TEST is not set"):
        store.put(KEY, *source(b"x"))
    monkeypatch.setenv("ACCESS_KEY_OF_TEST", "revoked")
    with pytest.raises(AccessDenied, match="the new ones count from the next request on"):
        store.put(KEY, *source(b"x"))
    monkeypatch.setenv("ACCESS_KEY_OF_TEST", ACCESS_KEY)
    store.put(KEY, *source(b"x"))
    for wrong, said in [("not-it", "access_key"), ("two\nlines", "line break"), ("", "empty")]:
        (tmp_path / "secret").write_text(wrong, "utf-8")
        with pytest.raises(AccessDenied, match=said) as caught:
            store.stat(KEY) if wrong != "not-it" else list(store.list(""))
        assert "lines" not in str(caught.value).replace("line break", "")
    (tmp_path / "secret").write_text(SECRET_KEY, "utf-8")
    assert store.stat(KEY) is not None


def test_the_environment_leads_nothing_elsewhere(
    seaweedfs: Seaweed, tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1",
        "AWS_ENDPOINT": "http://127.0.0.1:1", "AWS_SESSION_TOKEN": "another", "AWS_ACCESS_KEY_ID": "another",
        "AWS_SECRET_ACCESS_KEY": "another", "AWS_REGION": "elsewhere", "AWS_BUCKET": "another",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    store = configured(seaweedfs.endpoint, tmp_path, prefix=seaweedfs.prefix())
    store.put(KEY, *source(b"x"))
    assert store.stat(KEY) is not None
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")  # anonymous requests would be served
    (tmp_path / "secret").write_text("wrong", "utf-8")
    with pytest.raises(AccessDenied):
        list(store.list(""))


def test_no_test_reaches_a_real_service(tmp_path: Path) -> None:
    store = catalog.build(
        "mine", "s3", KEYS | {"region": "x", "access_key": "a", "secret_key": "b"}, tmp_path
    )
    with pytest.raises(InputError, match=NO_PRODUCTION):
        store.stat(KEY)


def test_a_session_opens_the_store_with_what_it_is_given(
    seaweedfs: Seaweed, tmp_path: Path, source: Source
) -> None:
    store = configured(seaweedfs.endpoint, tmp_path, prefix=seaweedfs.prefix())
    assert isinstance(store, Portability)
    given = store.portable()
    assert (given.type, given.packages, given.this_machine) == ("s3", ("s3",), True)
    assert set(given.secret) == {"access_key", "secret_key"}
    assert SECRET_KEY not in repr(given) + repr(store) + repr(vars(store)) + repr(given.options)
    store.put(KEY, *source(b"bytes"))
    there = opened(given)
    there.get(KEY, tmp_path / "target", sha256(b"bytes"))
    far = catalog.build("mine", "s3", KEYS | {"region": "x", "access_key": "a", "secret_key": "b"}, tmp_path)
    assert isinstance(far, S3Store)
    assert not far.portable().this_machine
    again = far.portable()
    copy = opened(again)
    assert isinstance(copy, S3Store)
    assert copy._clients.place == far._clients.place, "and it knows what the service documents"


SENDS_AND_FETCHES = """
import resource, sys, threading
from pathlib import Path
from orchestrator.stores import catalog
endpoint, prefix, access, secret, folder, sha256 = sys.argv[1:]
options = dict(endpoint=endpoint, bucket="%s", prefix=prefix, access_key=access, secret_key=secret)
store = catalog.build("s3", "s3", options, Path(folder))
store.put("warm", Path(folder) / "small", "%s")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
def carry(number):
    store.put(f"k{number}", Path(folder) / "large", sha256)
    store.get(f"k{number}", Path(folder) / f"target{number}", sha256)
threads = [threading.Thread(target=carry, args=(number,)) for number in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert all((Path(folder) / f"target{number}").stat().st_size for number in range(3))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_stays_within_its_bound_however_many_are_under_way(seaweedfs: Seaweed, tmp_path: Path) -> None:
    assert transfers.MEMORY_BYTES_MAX <= 256 * MIB
    data = bytes(range(256)) * (65 * MIB // 256)  # all its parts are under way at once
    (tmp_path / "large").write_bytes(data)
    (tmp_path / "small").write_bytes(b"x")
    script = SENDS_AND_FETCHES % (BUCKET, sha256(b"x"))
    arguments = [seaweedfs.endpoint, seaweedfs.prefix(), ACCESS_KEY, SECRET_KEY, str(tmp_path), sha256(data)]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False, timeout=540
    )
    assert done.returncode == 0, done.stderr
    grown = int(re.findall(r"\d+", done.stdout)[-1]) * 1024
    assert grown <= transfers.MEMORY_BYTES_MAX + 32 * MIB, f"{grown / MIB:.0f} MiB"


def test_a_source_that_changes_while_it_is_sent_is_rejected(
    seaweedfs: Seaweed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer appends, which is not sent, and then changes what was not yet read."""
    monkeypatch.setattr(transfers, "PART_BYTES", 5 * MIB)
    store = configured(seaweedfs.endpoint, tmp_path, prefix=seaweedfs.prefix())
    path, data = tmp_path / "growing", bytes(11 * MIB)
    path.write_bytes(data)
    with path.open("ab") as writer:
        reader = transfers.Source.part

        def part(self: transfers.Source) -> bytes:
            writer.write(b"more")
            writer.flush()
            return reader(self)

        with monkeypatch.context() as patched:
            patched.setattr(transfers.Source, "part", part)
            store.put(KEY, path, sha256(data))
    path.write_bytes(data[:-1] + b"x")
    with pytest.raises(Rejected, match="nothing was stored"):
        store.put("another", path, sha256(data))
    assert [stat.key for stat in store.list("")] == [KEY]
    assert seaweedfs.uploads() == []


# --- docs/stores.md -----------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "stores.md").read_text("utf-8")


def test_every_example_of_the_page_can_be_built(tmp_path: Path) -> None:
    examples = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) >= 5
    for example in examples:
        options = dict(yaml.safe_load(example)["away"])
        assert isinstance(catalog.build("away", options.pop("type"), options, tmp_path), S3Store)


def test_every_row_of_the_fault_matrix_names_its_test() -> None:
    tests = "".join(path.read_text("utf-8") for path in Path(__file__).parent.glob("test_s3*.py"))
    rows = [
        row for row in PAGE.splitlines() if row.startswith("| ") and re.search("`(test_|TestShaken)", row)
    ]
    assert len(rows) >= 28
    named = re.findall(r"`(test_\w+|Test\w+)`", "\n".join(rows))
    assert [name for name in named if not re.search(rf"(def|class) {name}\b", tests)] == []
