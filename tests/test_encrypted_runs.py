"""A run whose store is encrypted: it resumes, and without the right key it waits and loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.core import wire
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.core.order import Outcome
from orchestrator.errors import InputError
from orchestrator.stores import checkpoints
from orchestrator.stores.encrypted import EncryptedStore
from orchestrator.stores.opening import carried
from orchestrator.stores.retrying import RetryingStore
from orchestrator.stores.store import Store
from orchestrator.stores.unencrypted import UnencryptedStore
from orchestrator.uplink.outbox import StoreOutbox
from tests.agent import test_companion as companion
from tests.conformance.age_keys import ME, RECOVERY, STRANGER, encrypted
from tests.test_damaged_stores import RUN, Lasting, hold


class Encrypted(Lasting):
    """A world whose config encrypts its store. `store` is what lies in it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.configure(encrypted(self.store))

    def configure(self, store: Store) -> None:
        self.stores["home"] = store


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Encrypted]:
    made = Encrypted(tmp_path)
    yield made
    made.ledger.close()


def held(world: Encrypted, said: str) -> Callable[[], bool]:
    return lambda: world.record(RUN).phase is Phase.HELD and said in world.record(RUN).reason


def unreadable() -> str:
    raise InputError("the stick with the key cannot be read")


def test_a_run_without_its_key_waits_and_goes_on_when_it_is_back(world: Encrypted) -> None:
    kept = hold(world)
    public = [ME.public, RECOVERY.public]
    for store, said in (
        (encrypted(world.store, by=STRANGER), "belongs to none of the recipients"),
        (EncryptedStore(world.store, public), "no identity here"),
        (EncryptedStore(world.store, public, unreadable), "the stick with the key cannot be read"),
        (UnencryptedStore(world.store, name="home"), "'home' has no `encrypt` in the config"),
    ):
        world.configure(store)
        world.wish(Wish.RELEASE)
        assert world.until(held(world, said)), world.record(RUN).reason
    world.configure(encrypted(world.store, by=RECOVERY))
    for each in kept:
        checkpoints.verify(world.stores["home"], RUN, each.name, each.sha256)
    world.wish(Wish.RELEASE)
    world.check_result()
    assert world.ordered()[-1].resume_step >= kept[-1].ref.step, "nothing was forgotten meanwhile"
    assert all(stat.key.endswith(".age") for stat in world.store.list(""))


@pytest.mark.soak
def test_a_real_uplink_ships_encrypted_and_removes_what_it_superseded(tmp_path: Path) -> None:
    with companion.shipping(tmp_path, "train.py", "--pause", "0.1", "--say", "do not read this") as (
        stay,
        inner,
    ):
        store = encrypted(RetryingStore(inner))
        (stay.root / "store.json").write_bytes(wire.encode(carried(store)))
        stay.start(companion.SHIPPING)
        assert stay.end().outcome is Outcome.COMPLETED
        shipped = StoreOutbox(store, companion.RUN, companion.SESSION, 1)
        assert shipped.small("result.json") == (stay.root / "outbox" / "result.json").read_bytes()
        kept = checkpoints.names(store, companion.RUN)
        assert kept[-1].step == 20
        assert len([ref for ref in kept if not ref.outputs]) <= 3
        for ref in kept:
            checkpoints.verify(store, companion.RUN, ref.name)
        assert checkpoints.orphans(store, companion.RUN, []) == ()
        for stat in inner.list(""):
            assert stat.key.endswith(".age")
        for path in (tmp_path / "store").rglob("*"):
            assert path.is_dir() or b"do not read this" not in path.read_bytes()
        assert str(ME.identity) not in (stay.root / "outbox" / "log" / "000001.log").read_text()


@pytest.mark.soak
def test_a_run_from_before_encryption_goes_on_after_it_was_switched_on(world: Encrypted) -> None:
    world.configure(UnencryptedStore(world.store))
    newest = hold(world)[-1]
    world.configure(encrypted(world.store))
    world.wish(Wish.RELEASE)
    world.check_result()
    first = next(order for order in world.ordered() if order.generation == 2)
    assert first.resume == newest.name
    assert any(stat.key.endswith(".age") for stat in world.store.list(""))
