"""Inputs from the network, whatever their source: pinned, kept in the cache, and not fetched twice."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.clock import SystemClock
from orchestrator.errors import AccessDenied, InputError, OrchestratorError, Transient
from orchestrator.fetching.addresses import Allowed
from orchestrator.fetching.bringing import Fetched, Fetcher, KaggleData, Wish
from orchestrator.fetching.cache import Cache
from orchestrator.fetching.transfer import Transfers
from orchestrator.fetching.web import Web
from orchestrator.files.hashing import digest
from orchestrator.platforms.kaggle.account import Account
from orchestrator.platforms.kaggle.data import AccountData
from orchestrator.platforms.kaggle.options import KaggleOptions
from tests.fetching.hub_server import LocalHub
from tests.fetching.servers import Site, site
from tests.stand_ins.kaggle import Fault, LocalKaggle, Settings, local_kaggle
from tests.stand_ins.kaggle_user import User
from tests.stand_ins.test_kaggle_datasets import uploads

DATA = b"0123456789" * 5000


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(autouse=True)
def _nobodys_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "HF_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def server() -> Iterator[Site]:
    with site() as made:
        made.files["/data.bin"] = DATA
        yield made


@pytest.fixture
def hub(server: Site, monkeypatch: pytest.MonkeyPatch) -> LocalHub:
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    return LocalHub(server)


def no_kaggle() -> KaggleData:
    raise AssertionError("nothing asks Kaggle")


class Bringer:
    """A user's cache, and what comes into it."""

    def __init__(self, folder: Path, kaggle: Any = no_kaggle, bytes_max: int = 10**9) -> None:
        self.folder = folder
        self.cache = Cache(folder, SystemClock(), bytes_max)
        web = Web(Allowed.of(["127.0.0.1"]), SystemClock())
        self.fetcher = Fetcher(self.cache, web, Transfers(web, wait_seconds=0.001), kaggle)

    def __call__(self, origin: str, **given: Any) -> Fetched:
        return self.fetcher.bring(replace(Wish("x", origin, 10**9), **given))

    def look(self, origin: str, **given: Any) -> Fetched:
        return self.fetcher.look(replace(Wish("x", origin, 10**9), **given))

    def content(self, found: Fetched) -> Path:
        assert found.sha256 is not None
        path = self.cache.blob(found.sha256)
        assert digest(path) == found.sha256
        return path

    def refused(self, origin: str, kind: type[OrchestratorError] = InputError, **given: Any) -> str:
        with pytest.raises(kind) as caught:
            self(origin, **given)
        return str(caught.value)


@pytest.fixture
def bring(tmp_path: Path) -> Bringer:
    return Bringer(tmp_path / "cache")


# --- https ------------------------------------------------------------------------------------------------


def test_a_file_is_pinned_and_a_second_submit_fetches_nothing(server: Site, bring: Bringer) -> None:
    url = f"{server.url}/data.bin?sig=sesame"
    looked = bring.look(url)
    assert (looked.here, looked.size, looked.sha256) == (False, len(DATA), None)
    assert server.sent == 0
    found = bring(url)
    assert found == Fetched("x", f"{server.url}/data.bin?…", sha(DATA), len(DATA), True)
    assert bring.content(found).read_bytes() == DATA
    assert bring(url) == found
    assert bring.look(url) == found
    assert server.sent == len(DATA)
    assert not any("sesame" in path.read_text() for path in bring.folder.glob("sources/*"))
    server.files["/data.bin"] = b"new"
    assert bring(url).sha256 == sha(b"new")


def test_what_is_known_by_its_sha256_needs_no_network(server: Site, bring: Bringer) -> None:
    bring(f"{server.url}/data.bin")
    asked = len(server.asked)
    found = bring("https://elsewhere.example/other", sha256=sha(DATA))
    assert found.here
    assert len(server.asked) == asked


def test_what_is_in_the_cache_obeys_the_limit_too(server: Site, bring: Bringer) -> None:
    bring(f"{server.url}/data.bin")
    assert "50.0 kB is more than the limit of 1.0 kB" in bring.refused(
        f"{server.url}/data.bin", bytes_max=1000
    )


def test_another_sha256_than_the_jobs_is_told(server: Site, bring: Bringer) -> None:
    told = bring.refused(f"{server.url}/data.bin", sha256="0" * 64)
    assert f"has the sha256 {sha(DATA)} (50.0 kB), not {'0' * 64}" in told
    bring(f"{server.url}/data.bin")
    assert "has the sha256" in bring.refused(f"{server.url}/data.bin", sha256="0" * 64)


def test_offline_the_last_copy_is_used_and_that_is_said(tmp_path: Path, bring: Bringer) -> None:
    with site() as server:
        server.files["/a"] = b"a"
        first, url = bring(f"{server.url}/a"), f"{server.url}/a"
    found = bring(url)
    assert found.sha256 == first.sha256
    assert "is not reached" in found.warning
    assert "is used" in bring.look(url).warning
    assert Bringer(tmp_path / "new").refused(url, Transient)


def test_a_damaged_copy_is_fetched_again(server: Site, bring: Bringer) -> None:
    found = bring(f"{server.url}/data.bin")
    path = bring.content(found)
    path.chmod(0o600)
    path.write_bytes(b"damaged")
    assert bring(f"{server.url}/data.bin") == found
    assert bring.content(found).read_bytes() == DATA


def test_a_damaged_copy_of_another_source_is_replaced(server: Site, bring: Bringer) -> None:
    path = bring.content(bring(f"{server.url}/data.bin"))
    path.chmod(0o600)
    path.write_bytes(b"damaged")
    server.files["/same.bin"] = DATA
    assert bring.content(bring(f"{server.url}/same.bin")).read_bytes() == DATA


@pytest.mark.parametrize(
    "damage",
    [b"[" * 100_000, b"{}", b'"version": {"tag": 5', b'"pinned": 5', b'"at": "then"', b'"size": 1e999'],
)
def test_a_damaged_note_is_as_good_as_none(server: Site, bring: Bringer, damage: bytes) -> None:
    found = bring(f"{server.url}/data.bin")
    (note,) = bring.folder.glob("sources/*.json")
    key = damage.partition(b":")[0] + b": "
    text = note.read_bytes()
    if damage.startswith(b'"'):
        start = text.index(key)
        end = min(i for i in (text.find(b",", start), text.find(b"}", start)) if i > 0)
        damage = text[:start] + damage + text[end:]
    note.write_bytes(damage)
    assert bring.cache.find(bring.cache.key(f"{server.url}/data.bin ")) is None
    assert bring(f"{server.url}/data.bin") == found


def test_a_part_is_gone_on_with_by_the_next_submit(server: Site, bring: Bringer) -> None:
    server.cuts = [5000] + [0] * 20
    assert "5.0 kB are kept here" in bring.refused(f"{server.url}/data.bin", Transient)
    server.cuts = []
    found = bring(f"{server.url}/data.bin")
    assert bring.content(found).read_bytes() == DATA
    assert server.sent == len(DATA)


def test_the_cache_forgets_what_was_used_longest_ago(server: Site, tmp_path: Path) -> None:
    import os

    bring = Bringer(tmp_path / "small", bytes_max=60_000)
    server.files |= {"/one": b"1" * 40_000, "/two": b"2" * 40_000}
    one = bring(f"{server.url}/one")
    for note in bring.folder.glob("sources/*"):
        os.utime(note, (1, 1))
    two = bring(f"{server.url}/two")
    assert not bring.cache.blob(one.sha256 or "").exists()
    assert bring.content(two).exists()


# --- Hugging Face -----------------------------------------------------------------------------------------

FILES = {
    "README.md": b"# data\n",
    "train/a.bin": b"a" * 5000,
    "train/b.bin": b"b" * 3000,
    "train/notes.txt": b"n",
}


def test_a_data_set_is_pinned_to_its_commit(hub: LocalHub, bring: Bringer) -> None:
    commit = hub.commit(FILES)
    looked = bring.look("hf:owner/data")
    assert (looked.source, looked.files, looked.size) == (f"hf:owner/data@{commit}", 4, 8008)
    found = bring("hf:owner/data")
    assert (found.source, found.files, found.size) == (f"hf:owner/data@{commit}", 4, 8008)
    folder = bring.content(found)
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == set(FILES)
    sent = hub.site.sent
    bring("hf:owner/data@main")
    hub.site.sent = sent
    bring("hf:owner/data")
    assert hub.site.sent - sent < 200, "the commit alone"
    hub.commit(FILES | {"README.md": b"new"})
    assert bring("hf:owner/data").sha256 != found.sha256
    assert bring(f"hf:owner/data@{commit}").sha256 == found.sha256


def test_one_file_or_folder_of_a_data_set(hub: LocalHub, bring: Bringer) -> None:
    commit = hub.commit(FILES, "v1")
    one = bring("hf:owner/data@v1/train/a.bin")
    assert (one.source, one.sha256) == (f"hf:owner/data@{commit}/train/a.bin", sha(FILES["train/a.bin"]))
    below = bring("hf:owner/data@v1/train")
    assert sorted(path.name for path in bring.content(below).iterdir()) == ["a.bin", "b.bin", "notes.txt"]
    assert "it has: README.md, train" in bring.refused("hf:owner/data@v1/other.bin")
    assert "no such data set" in bring.refused("hf:owner/data@v2")


def test_what_arrived_of_a_data_set_is_not_fetched_again(hub: LocalHub, bring: Bringer) -> None:
    hub.commit({"a.bin": b"a" * 1000, "b.bin": b"b" * 1000})
    hub.page = 10
    hub.site.answers["/gone"] = lambda handler: handler.reply(404)
    whole = hub.commits[hub.revisions["main"]]["b.bin"]
    hub.commits[hub.revisions["main"]]["b.bin"] = b"c" * 1000
    original = hub._entry
    hub._entry = lambda name, data: original(name, whole if name == "b.bin" else data)  # type: ignore[method-assign]
    assert "its sha256 is not the one" in bring.refused("hf:owner/data", Transient)
    hub.commits[hub.revisions["main"]]["b.bin"] = whole
    before = sum("/cdn/" in path and "a.bin" in path for _, path, _ in hub.site.asked)
    bring("hf:owner/data")
    assert sum("/cdn/" in path and "a.bin" in path for _, path, _ in hub.site.asked) == before == 1


def test_a_private_data_set_needs_a_token_that_goes_nowhere_else(
    hub: LocalHub, bring: Bringer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "hf_sesame"
    hub.commit(FILES)
    assert "set HF_TOKEN" in bring.refused("hf:owner/data", AccessDenied)
    monkeypatch.setenv("HF_TOKEN", "hf_sesame")
    assert bring("hf:owner/data").here


def test_a_list_that_leads_elsewhere_or_is_too_large_is_refused(hub: LocalHub, bring: Bringer) -> None:
    hub.commit({"../../evil": b"x"})
    assert "leads elsewhere" in bring.refused("hf:owner/data")
    hub.commit({"big.bin": b"x" * 5000})
    assert "5.0 kB is more than the limit of 100 B" in bring.refused("hf:owner/data", bytes_max=100)
    assert hub.site.sent < 5000


@pytest.mark.parametrize("end", ["", "/", "/../victim"])
def test_a_hash_that_is_a_path_removes_nothing(hub: LocalHub, bring: Bringer, end: str) -> None:
    victim = bring.folder.parent / "victim"
    victim.mkdir()
    (victim / "file").write_text("precious")
    hub.commit({"a.bin": b"a" * 10})
    original = hub._entry
    place = f"../../victim{end}"
    hub._entry = lambda name, data: original(name, data) | {"lfs": {"oid": place, "size": 10}}  # type: ignore[method-assign]
    assert "lists something that is no file" in bring.refused("hf:owner/data", Transient)
    assert not bring.cache.whole(place)
    assert (victim / "file").read_text() == "precious"


@pytest.mark.parametrize(
    "entry",
    [{"size": -1}, {"size": float("inf")}, {"size": "many"}, {"size": None}, {"lfs": [1]}, {"path": None}],
)
def test_a_list_that_makes_no_sense_is_told(hub: LocalHub, bring: Bringer, entry: dict[str, Any]) -> None:
    hub.commit({"a.txt": b"a" * 10})
    original = hub._entry
    hub._entry = lambda name, data: original(name, data) | entry  # type: ignore[method-assign]
    bring.refused("hf:owner/data", OrchestratorError)


def test_a_list_that_goes_on_nowhere_or_has_other_files_is_told(hub: LocalHub, bring: Bringer) -> None:
    hub.commit(FILES)
    original, url = hub._entry, hub.site.url
    hub.site.url = "https://[evil"
    assert "at an address that is none" in bring.refused("hf:owner/data", Transient)
    hub.site.url = "https://other.example"
    assert "at another host" in bring.refused("hf:owner/data", Transient)
    hub.site.url = url
    hub._entry = lambda name, data: original(name, data) | {"path": name.replace("train/", "other/")}  # type: ignore[method-assign]
    hub.page = 10
    assert "not in the folder" in bring.refused("hf:owner/data/train", Transient)


@pytest.mark.parametrize(
    ("names", "told"),
    [(("a", "a/b"), "that is a file in it, too"), (("a/b/c", "a"), "that is a file in it, too"),
     (("a" * 256,), "too long"), (("ä" * 128,), "too long"), (("\x1b[31mred",), "control characters"),
     (("a\nb",), "control characters"), (("a\ud800",), "control characters")],
)  # fmt: skip
def test_names_that_cannot_be_made_here_are_told_before_anything_is_fetched(
    hub: LocalHub, bring: Bringer, names: tuple[str, ...], told: str
) -> None:
    hub.commit(dict.fromkeys(names, b"x"))
    hub.page = 10
    assert told in bring.refused("hf:owner/data")
    assert not any("/resolve/" in path for _, path, _ in hub.site.asked)


def test_names_that_are_only_unusual_are_taken(hub: LocalHub, bring: Bringer) -> None:
    names = {"Ä file.txt", "no\u00a0break.txt", "A", "a", "%2e%2e", "~", "-rf", "ab/c", "a b/👩‍🔬.txt"}
    hub.commit({name: name.encode() for name in names})
    hub.page = 20
    folder = bring.content(bring("hf:owner/data"))
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == names


# --- Kaggle -----------------------------------------------------------------------------------------------


@pytest.fixture
def kaggle(tmp_path: Path) -> Iterator[LocalKaggle]:
    with local_kaggle(tmp_path / "kaggle", Settings(ready_seconds=0)) as made:
        uploads(made, tmp_path / "up", one=b"first", two=b"2" * 3000)
        yield made


def account(kaggle: LocalKaggle, folder: Path) -> AccountData:
    key = folder / "key"
    key.write_text(kaggle.settings.key)
    options = KaggleOptions(endpoint=kaggle.url, username=kaggle.settings.username, key_file=key)
    made = Account("kaggle", options, SystemClock())
    return AccountData(lambda: made.client)


def test_a_data_set_of_kaggle_is_pinned_to_its_version(kaggle: LocalKaggle, tmp_path: Path) -> None:
    bring = Bringer(tmp_path / "cache", lambda: account(kaggle, tmp_path))
    assert bring.look("kaggle:ada/my-data").source == "kaggle:ada/my-data/1"
    found = bring("kaggle:ada/my-data")
    assert (found.source, found.files, found.size) == ("kaggle:ada/my-data/1", 2, 3005)
    assert (bring.content(found) / "one").read_bytes() == b"first"
    one = bring("kaggle:ada/my-data/one")
    assert (one.source, one.sha256) == ("kaggle:ada/my-data/1/one", sha(b"first"))
    (tmp_path / "up" / "one").write_bytes(b"second")
    User(kaggle).dataset_create_version(str(tmp_path / "up"), "more", quiet=True)
    assert bring("kaggle:ada/my-data").source == "kaggle:ada/my-data/2"
    assert bring("kaggle:ada/my-data/1/one").sha256 == sha(b"first")
    assert "it has: one, two" in bring.refused("kaggle:ada/my-data/three")
    assert "Kaggle does not show kaggle:ada/none" in bring.refused("kaggle:ada/none")


def test_a_cut_download_from_kaggle_goes_on_with_a_new_address(kaggle: LocalKaggle, tmp_path: Path) -> None:
    bring = Bringer(tmp_path / "cache", lambda: account(kaggle, tmp_path))
    kaggle.fail("download", Fault.CUT)
    kaggle.fail("download", Fault.UNAVAILABLE)
    assert bring.content(bring("kaggle:ada/my-data/two")).read_bytes() == b"2" * 3000


class Listed:
    """A data set of a few files of ten bytes, whose addresses lead to a server's files of these names."""

    def __init__(self, server: Site, *names: str) -> None:
        self.server, self.names, self.version = server, names, 1

    def newest(self, _place: str) -> int:
        return self.version

    def files(self, _place: str, _version: int) -> dict[str, int | None]:
        return dict.fromkeys(self.names, 10)

    def url(self, _place: str, version: int, file: str) -> str:
        return f"{self.server.url}/{version}/{file}"


def zipped(content: bytes, packing: int = zipfile.ZIP_DEFLATED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", packing) as archive:
        archive.writestr("a", content)
    return made.getvalue()


def test_a_file_that_comes_as_a_zip_of_it_is_taken_out(server: Site, tmp_path: Path) -> None:
    bring = Bringer(tmp_path / "cache", lambda: Listed(server, "a"))
    server.files["/1/a"] = zipped(b"0123456789")
    assert bring.content(bring("kaggle:o/d/a")).read_bytes() == b"0123456789"


@pytest.mark.parametrize(
    ("packing", "where"),
    [(zipfile.ZIP_DEFLATED, 31), (zipfile.ZIP_LZMA, 31), (zipfile.ZIP_LZMA, 42), (zipfile.ZIP_BZIP2, 31),
     (zipfile.ZIP_STORED, 33), (zipfile.ZIP_STORED, 0), (zipfile.ZIP_STORED, -6), (zipfile.ZIP_STORED, -12)],
)  # fmt: skip
def test_a_damaged_zip_is_told(server: Site, tmp_path: Path, packing: int, where: int) -> None:
    bring = Bringer(tmp_path / "cache", lambda: Listed(server, "a"))
    data = bytearray(zipped(b"0123456789", packing))
    data[where : where + 4] = b"\xff\x00\xff\x07"
    server.files["/1/a"] = bytes(data)
    assert "the list says 10" in bring.refused("kaggle:o/d/a", Transient)


def test_a_part_of_one_file_or_version_is_not_taken_for_another(server: Site, tmp_path: Path) -> None:
    """It had arrived whole when the program was killed."""
    listed = Listed(server, "a", "b")
    bring = Bringer(tmp_path / "cache", lambda: listed)
    server.files |= {f"/{n}/{name}": f"{n}2345678{name}_"[:10].encode() for n in (1, 2) for name in "ab"}

    class Killed(BaseException):
        pass

    def kill(_name: str, done: int, _all: int | None) -> None:
        if done == 10:
            raise Killed

    bring.fetcher._transfers._progress = kill
    with pytest.raises(Killed):
        bring("kaggle:o/d")
    bring.fetcher._transfers._progress = lambda *_: None
    listed.version, listed.names = 2, ("b", "a")
    folder = bring.content(bring("kaggle:o/d"))
    assert {name: (folder / name).read_bytes() for name in "ab"} == {"a": b"22345678a_", "b": b"22345678b_"}
