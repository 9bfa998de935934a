"""A run whose store is encrypted: it resumes, and without the right key it waits and loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.errors import InputError
from orchestrator.stores import checkpoints
from orchestrator.stores.encrypted import EncryptedStore
from orchestrator.stores.store import Store
from orchestrator.stores.unencrypted import UnencryptedStore
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


def test_a_run_from_before_encryption_goes_on_after_it_was_switched_on(world: Encrypted) -> None:
    world.configure(UnencryptedStore(world.store))
    newest = hold(world)[-1]
    world.configure(encrypted(world.store))
    world.wish(Wish.RELEASE)
    world.check_result()
    first = next(order for order in world.ordered() if order.generation == 2)
    assert first.resume == newest.name
    assert any(stat.key.endswith(".age") for stat in world.store.list(""))
