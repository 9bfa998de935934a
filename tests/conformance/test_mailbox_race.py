"""Two workers, each a process of its own, race for one mailbox and its one session: over S3 and over Drive.

Each round is a new mailbox. In every other round both believe that the other one is gone, so both hold the
mailbox one after the other. Who has taken the session publishes a checkpoint.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from orchestrator.core import wire
from orchestrator.session.mailbox import Post, launched, prepared
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.opening import carried
from orchestrator.stores.store import Store
from orchestrator.uplink.mailbox import Mailbox
from orchestrator.uplink.registers import raise_fence
from tests.conformance.drives import configured as configured_drive
from tests.conformance.store_suite import RUN
from tests.conformance.test_s3 import configured as configured_bucket
from tests.stand_ins.drive import local_drive
from tests.stand_ins.drive.tokens import write_login
from tests.stand_ins.seaweed import Seaweed

ROOT = Path(__file__).parents[2]
ROUNDS = 6
WORKER = """
import sys
from pathlib import Path
from orchestrator.core import wire
from orchestrator.session.mailbox import Worker, own, taken
from orchestrator.stores import checkpoints
from orchestrator.stores.opening import opened
from orchestrator.stores.portable import Portable
from orchestrator.uplink.layout import SessionKeys
from orchestrator.uplink.mailbox import Mailbox
from orchestrator.uplink.registers import check_fence, claim
from tests.conformance.store_suite import RUN, outbox

name, folder = sys.argv[1:]
store = opened(wire.decode(Portable, sys.stdin.buffer.readline()))
me = Worker(id=name, accelerator="cpu")
for line in sys.stdin:
    generation, gone = map(int, line.split())
    mailbox = Mailbox(lambda: store, f"book-{generation}")
    held = mailbox.hold(me, lambda _: bool(gone))
    post = own(mailbox.change(lambda box: taken(box, me)), me) if held else None
    if post is not None:
        check_fence(store, RUN, generation)
        claim(store, SessionKeys(RUN, post.session), name)
        made = outbox(Path(folder), generation, {"f": [b"x"]}, generation=generation, incarnation=name)
        checkpoints.publish(store, RUN, made, Path(folder))
    print("held" if held else "waits", "trains" if post else "idle", flush=True)
"""


@pytest.fixture(params=["s3", "drive"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "s3":
        seaweedfs: Seaweed = request.getfixturevalue("seaweedfs")
        yield configured_bucket(seaweedfs.endpoint, tmp_path, prefix=seaweedfs.prefix())
        return
    with local_drive() as drive:
        write_login(tmp_path / "drive-credentials.json", drive.url)
        yield configured_drive(drive, tmp_path)


def test_of_two_workers_at_once_one_holds_the_mailbox_and_one_publishes(store: Store, tmp_path: Path) -> None:
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", WORKER, name, str(tmp_path / name)], cwd=ROOT,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                )
            )
            for name in ("one", "other")
        ]  # fmt: skip
        for worker in workers:
            tell(worker, wire.encode(carried(store)))
        for generation in range(1, ROUNDS + 1):
            gone = generation % 2 == 0
            sends(store, generation)
            for worker in workers:
                tell(worker, b"%d %d" % (generation, gone))
            answers = [worker.stdout.readline().split() for worker in workers if worker.stdout is not None]
            assert sorted(held for held, _ in answers) == [b"held", b"held" if gone else b"waits"]
            assert sorted(trains for _, trains in answers) == [b"idle", b"trains"]
            [published] = (ref for ref in stored.names(store, RUN) if ref.generation == generation)
            winner = ("one", "other")[[trains for _, trains in answers].index(b"trains")]
            assert published.incarnation == winner


def tell(worker: subprocess.Popen[bytes], line: bytes) -> None:
    assert worker.stdin is not None
    worker.stdin.write(line + b"\n")
    worker.stdin.flush()


def sends(store: Store, generation: int) -> None:
    """A mailbox with one session that waits to be taken."""
    mailbox, session = Mailbox(lambda: store, f"book-{generation}"), f"{RUN}-s{generation:02d}"
    raise_fence(store, RUN, generation)
    mailbox.change(lambda box: prepared(box, Post(session, RUN, "cpu", "digest")))
    mailbox.change(lambda box: launched(box, session, "digest"))
