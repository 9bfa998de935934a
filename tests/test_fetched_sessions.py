"""Sessions that fetch what they need themselves, as the engine prepares and clears them away, with real
folders."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.clock import SystemClock
from orchestrator.core import wire
from orchestrator.core.action import Discard, Done, Failed, Prepare, Trouble
from orchestrator.core.checkpoint import Manifest
from orchestrator.core.deposit import deposit_of
from orchestrator.core.job import Input
from orchestrator.core.offer import Uplink
from orchestrator.engine import parcels as ours
from orchestrator.engine.perform import Backends, perform
from orchestrator.errors import InputError, QuotaExhausted, Rejected, Transient
from orchestrator.files.hashing import digest_file
from orchestrator.freeze import inputs
from orchestrator.home import Folders
from orchestrator.platforms import catalog
from orchestrator.session.layout import SECRETS
from orchestrator.stores import age, deposits
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.encrypted import EncryptedStore
from orchestrator.stores.folder import FolderStore
from orchestrator.stores.opening import carried, opened
from orchestrator.stores.store import Store
from orchestrator.uplink import outbox as uplinked
from orchestrator.uplink import parcel as parcels
from orchestrator.uplink.layout import SessionKeys
from orchestrator.uplink.parcel import Parcel
from tests.conformance.age_keys import ME, encrypted
from tests.core.runs import RUN, assigned, record
from tests.leaks import Leaks
from tests.test_perform import bring

SOURCE = b"the frozen source"
ORDER = replace(assigned().order, bundle=hashlib.sha256(SOURCE).hexdigest())
KEYS = SessionKeys(RUN, ORDER.session)
FOLDER = {"here": {"accelerator": "cpu", "uplink": True, "fetch": True}}


class Failing(FolderStore):
    """Fails with `error` at the first put once `puts` are used up."""

    puts = 1_000_000
    error: Exception = Transient("the line is dead")

    def put(self, key: str, source: Path, sha256: str) -> None:
        if self.puts == 0:
            raise self.error
        self.puts -= 1
        super().put(key, source, sha256)


class World:
    """One process platform whose sessions fetch, and one store in a folder."""

    def __init__(self, folder: Path, *, encrypts: bool = False) -> None:
        self.folder = folder
        self.inner = Failing(folder / "store")
        self.store: Store = encrypted(self.inner) if encrypts else self.inner
        folders = Folders(folder / "home")
        for path in (folders.agent, folders.home / "uplink.pyz"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"a program")
        folders.bundle(ORDER.bundle).parent.mkdir(parents=True)
        folders.bundle(ORDER.bundle).write_bytes(SOURCE)
        here = catalog.build(
            "here", "process", FOLDER["here"], folder=folder / "sessions", clock=SystemClock()
        )
        self.backends = Backends(
            {"here": here}, {"home": self.store}, "home", folders, lambda name: f"the-{name}"
        )

    @property
    def session(self) -> Path:
        return self.folder / "sessions" / ORDER.session

    def publishes(self, step: int = 10) -> Manifest:
        manifest = bring(self.folder / "brought", step)
        stored.publish(self.store, RUN, manifest, self.folder / "brought")
        return manifest

    def prepares(self, resume: Manifest | None = None, *, thorough: bool = False) -> Done | Failed:
        order = ORDER
        if resume is not None:
            order = replace(
                order, resume=resume.name, resume_step=resume.ref.step, resume_sha256=resume.sha256
            )
        accepted = frozenset({resume.name} if resume else ())
        report = perform(
            Prepare(order, accepted, uplink=Uplink.STORE, fetches=True, thorough=thorough), self.backends
        )
        assert isinstance(report, Done | Failed)
        return report

    def parcel(self) -> Parcel:
        """What the session was told to fetch."""
        return wire.decode(Parcel, (self.session / "parcel.json").read_bytes())

    def arrives(self) -> Path:
        """Fetches it as the session does, and returns where it is."""
        store = opened(carried(self.store))
        return parcels.fetch(store, KEYS, self.parcel(), self.folder / "scratch")

    def in_store(self) -> list[str]:
        return [stat.key for stat in self.inner.list(KEYS.root)]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return World(tmp_path, encrypts=request.param)


def test_only_the_agent_and_what_tells_it_how_to_go_on_travel_directly(either: World) -> None:
    manifest = either.publishes()
    assert isinstance(either.prepares(manifest), Done)
    names = {path.name for path in either.session.iterdir()}
    assert names == {"agent.pyz", "uplink.pyz", "store.json", "parcel.json", "order.json"}
    assert (either.session / "parcel.json").stat().st_mode & 0o777 == 0o600
    content = either.arrives()
    assert (content / "bundle.tar.gz").read_bytes() == SOURCE
    assert not list((either.backends.folders.home / "staged").glob("*"))


def test_inputs_are_fetched_as_they_were_pinned(world: World, tmp_path: Path) -> None:
    source = tmp_path / "data"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "one").write_bytes(b"1")
    pinned = inputs.pin((Input("data", str(source)),))
    action = Prepare(replace(ORDER, inputs=pinned), uplink=Uplink.STORE, fetches=True)
    assert isinstance(perform(action, world.backends), Done)
    assert inputs.digest(world.arrives() / "inputs" / "data") == pinned[0].sha256


def test_a_plain_checkpoint_stays_where_it_lies_and_an_encrypted_one_goes_along(either: World) -> None:
    manifest = either.publishes()
    assert isinstance(either.prepares(manifest), Done)
    staged = either.arrives() / "staged"
    if either.store is either.inner:
        assert not staged.exists()
        return
    assert (staged / "checkpoints" / manifest.name / "manifest.json").read_bytes() == manifest.encode()
    assert {path.name for path in (staged / "blobs").iterdir()} == manifest.blobs().keys()


def test_no_secret_of_a_job_and_no_key_lies_readable_in_the_store(tmp_path: Path) -> None:
    world = World(tmp_path, encrypts=True)
    action = Prepare(replace(ORDER, secrets=("TOKEN",)), uplink=Uplink.STORE, fetches=True)
    assert isinstance(perform(action, world.backends), Done)
    leaks = Leaks({"token": "the-TOKEN", "identity": str(ME.identity), "key": world.parcel().key})
    assert (world.session / SECRETS).exists()
    assert leaks.in_store(world.inner) == []
    assert leaks.in_folder(world.backends.folders.home) == []
    assert {leak.where for leak in leaks.in_folder(world.session)} == {"secrets.json", "parcel.json"}


def test_a_prepare_that_comes_again_puts_nothing_again_and_keeps_the_key(either: World) -> None:
    manifest = either.publishes()
    assert isinstance(either.prepares(manifest), Done)
    told, there = either.parcel(), either.in_store()
    either.inner.puts = 0
    assert isinstance(either.prepares(manifest), Done)
    assert either.parcel() == told
    assert either.in_store() == there


def test_a_prepare_goes_on_after_its_controller_died_in_it(tmp_path: Path) -> None:
    """At any put. What the dead one put is used, and the key is the same."""
    world = World(tmp_path, encrypts=True)
    manifest = world.publishes()
    world.inner.puts = 0
    tries = 0
    while isinstance(report := world.prepares(manifest), Failed):
        assert report.trouble is Trouble.TRANSIENT
        world.inner.puts, tries = 1, tries + 1
    assert tries == len(world.in_store()) == 2, "the key and the one part, once each"
    assert (world.arrives() / "bundle.tar.gz").read_bytes() == SOURCE


def test_a_key_that_is_damaged_is_drawn_anew(tmp_path: Path) -> None:
    world = World(tmp_path, encrypts=True)
    key = ours.key_for(world.store, KEYS)
    assert ours.key_for(world.store, KEYS) == ours.key_to_hide(world.store, KEYS) == key
    [path] = (tmp_path / "store").rglob("key.age")
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert ours.key_to_hide(world.store, KEYS) == ""
    other = ours.key_for(world.store, KEYS)
    assert other not in ("", key)
    assert ours.key_for(world.store, KEYS) == other


@pytest.mark.parametrize("is_plain", [True, False])
@pytest.mark.parametrize("planted", [str(age.new_identity()), "garbage"], ids=["a key of theirs", "garbage"])
def test_a_key_that_somebody_else_put_there_is_not_used(tmp_path: Path, planted: str, is_plain: bool) -> None:
    """They can write to the store, and know the public key: only a proof tells their key from ours."""
    world = World(tmp_path, encrypts=True)
    path = tmp_path / "planted"
    path.write_text(f"{planted}\n{'0' * 64}")
    theirs: Store = world.inner if is_plain else EncryptedStore(world.inner, [ME.public])
    theirs.put(KEYS.parcel_key, path, digest_file(path))
    assert ours.key_to_hide(world.store, KEYS) == ""
    assert isinstance(world.prepares(), Done)
    assert world.parcel().key not in ("", planted)
    assert (world.arrives() / "bundle.tar.gz").read_bytes() == SOURCE


def test_a_full_store_holds_the_run_and_blames_no_platform(world: World) -> None:
    world.inner.puts, world.inner.error = 0, QuotaExhausted("the bucket is full")
    report = world.prepares()
    assert isinstance(report, Failed)
    assert report.trouble is Trouble.FULL
    assert not world.session.exists()


def test_a_checkpoint_of_which_a_part_is_gone_is_found_before_the_session(either: World) -> None:
    manifest = either.publishes()
    blob = next(iter(manifest.blobs()))
    either.store.delete(f"runs/{RUN}/blobs/g01-aaaa/{blob}")
    report = either.prepares(manifest)
    assert isinstance(report, Failed)
    assert report.trouble is Trouble.CORRUPT
    assert report.checkpoint == manifest.name
    assert "missing" in report.message
    either.store.delete(stored.manifest_key(RUN, manifest.name))
    report = either.prepares(manifest)
    assert isinstance(report, Failed)
    assert report.trouble is Trouble.NOT_FOUND


def test_altered_bytes_are_found_when_the_session_before_brought_nothing(world: World) -> None:
    manifest = world.publishes()
    [blob] = manifest.blobs()
    [path] = (world.folder / "store").rglob(blob)
    path.chmod(0o600)
    path.write_bytes(b"x" * path.stat().st_size)
    assert isinstance(world.prepares(manifest), Done), "the session will find out"
    report = world.prepares(manifest, thorough=True)
    assert isinstance(report, Failed)
    assert report.trouble is Trouble.CORRUPT
    assert report.checkpoint == manifest.name
    assert not (world.backends.folders.home / "staged").exists(), "nothing of it comes here to stay"


def test_a_manifest_that_was_replaced_never_gets_into_a_session(world: World) -> None:
    manifest = world.publishes()
    report = world.prepares(replace(manifest, code="other"))
    assert isinstance(report, Failed)
    assert report.trouble is Trouble.CORRUPT


def test_a_discard_leaves_nothing_of_the_parcel(either: World) -> None:
    manifest = either.publishes()
    assert isinstance(either.prepares(manifest), Done)
    assert either.in_store()
    discard = Discard(ORDER.session, "here", uplink=Uplink.STORE)
    for _ in range(2):
        assert isinstance(perform(discard, either.backends), Done)
        assert either.in_store() == []
    stored.verify(either.store, RUN, manifest.name)


def test_what_another_machine_needs_of_the_run_is_not_mistaken_for_a_parcel(either: World) -> None:
    manifest = either.publishes()
    deposits.write(either.store, deposit_of(record()))
    before = deposits.said_of(either.store, RUN)
    assert isinstance(either.prepares(manifest), Done)
    assert deposits.said_of(either.store, RUN) == before
    assert deposits.material(either.store, RUN) == ()
    assert stored.orphans(either.store, RUN, [manifest.name]) == ()
    assert [ref.name for ref in stored.names(either.store, RUN)] == [manifest.name]
    outbox = uplinked.StoreOutbox(either.store, RUN, ORDER.session, 1)
    assert outbox.growing(either.folder / "none", either.folder / "grown").notes == ()
    uplinked.remove(either.store, RUN, ORDER.session)
    assert deposits.said_of(either.store, RUN) == before


def test_without_an_uplink_nothing_can_be_fetched(tmp_path: Path) -> None:
    options = {"accelerator": "cpu", "fetch": True}
    with pytest.raises((InputError, Rejected), match="needs uplink: true"):
        catalog.build("here", "process", options, folder=tmp_path, clock=SystemClock())
