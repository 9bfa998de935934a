"""A mailbox over the registers of the stores without a server: of many who take at once, one has it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from orchestrator.session.mailbox import Post, Worker, launched, own, prepared, taken
from orchestrator.stores.store import Store
from orchestrator.uplink.mailbox import Mailbox
from tests.conformance.store_suite import source
from tests.conformance.test_stores import store

__all__ = ["source", "store"]  # fixtures
MANY = 4


def test_of_many_at_once_one_holds_the_mailbox_and_one_takes_the_session(store: Store) -> None:
    mailboxes = [Mailbox(lambda: store, "book") for _ in range(MANY)]
    workers = [Worker(id=f"w{number}", accelerator="cpu") for number in range(MANY)]
    mailboxes[0].change(lambda box: prepared(box, Post("r-s01", "r", "cpu", "digest")))
    mailboxes[0].change(lambda box: launched(box, "r-s01", "digest"))
    with ThreadPoolExecutor(MANY) as pool:
        held = list(pool.map(lambda m, w: m.hold(w, lambda _: False), mailboxes, workers))
        boxes = list(pool.map(lambda m, w: m.change(lambda box: taken(box, w)), mailboxes, workers))
    assert sum(each is not None for each in held) == 1
    assert sum(own(box, worker) is not None for box, worker in zip(boxes, workers, strict=True)) == 1
    there = mailboxes[0].worker()
    assert there is not None
    assert mailboxes[0].beat(there) is not None
    assert mailboxes[0].beat(Worker(id="somebody else")) is None
