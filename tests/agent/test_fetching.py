"""Real agents whose uplink fetches what they need: they wait for it, whatever happens to it meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.core import wire
from orchestrator.core.order import Outcome
from orchestrator.session.staging import Content
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.folder import FolderStore
from orchestrator.uplink import parcel as parcels
from orchestrator.uplink.layout import SessionKeys
from orchestrator.uplink.parcel import Parcel
from orchestrator.uplink.registers import ask_to_leave, raise_fence
from tests.agent.sessions import Stay, session
from tests.agent.test_companion import ENDLESS, RUN, SESSION, SHIPPING, shipping, uplink_pid
from tests.leaks import Leaks
from tests.waiting import wait_until

KEYS = SessionKeys(RUN, SESSION)
TRAINS = ("train.py", "--pause", "0.01")


def put_away(stay: Stay, store: FolderStore) -> Parcel:
    """Moves the bundle from a session's folder to the store, in small parts."""
    bundle = Content("bundle.tar.gz", stay.root / "bundle.tar.gz")
    parcel = parcels.write(store, KEYS, [bundle], part_bytes=1000)
    (stay.root / "parcel.json").write_bytes(wire.encode(parcel))
    (stay.root / "bundle.tar.gz").unlink()
    return parcel


@contextmanager
def fetching(folder: Path, *command: str, **changes: Any) -> Iterator[tuple[Stay, FolderStore, Parcel]]:
    """A session that fetches its bundle from the store `folder/store`."""
    with shipping(folder, *command, **changes) as (stay, store):
        yield stay, store, put_away(stay, store)


class Held:
    """One part of a parcel that the store lacks for a while, so that a session stays in the middle."""

    def __init__(self, stay: Stay, parcel: Parcel) -> None:
        key = KEYS.parcel_part(parcel.parts[1].sha256)
        folder = stay.root.parent
        self._path, self._away = folder / "store" / key, folder / "held"
        self._path.rename(self._away)
        self._done = stay.root / "shipping" / "parcel" / "done"

    def wait_for_the_middle(self) -> None:
        wait_until(self._done.exists, "the first part")

    def let_go(self) -> None:
        self._away.rename(self._path)


def test_a_session_trains_once_it_has_fetched_what_it_needs(tmp_path: Path) -> None:
    with fetching(tmp_path, *TRAINS) as (stay, store, _):
        assert stay.live(SHIPPING).outcome is Outcome.COMPLETED
        assert "fetched what the session needs from the home store" in stay.log()
        assert stored.names(store, RUN)[-1].step == 20
        assert not (stay.root / "parcel.json").exists()


def test_it_resumes_at_a_checkpoint_that_it_fetched(tmp_path: Path) -> None:
    with session(tmp_path / "before", *ENDLESS, interval_seconds=0.1) as first:
        first.start()
        first.wait_for(lambda status: (status.checkpoint_step or 0) > 0, "a checkpoint")
        (first.root / "stop").touch()
        first.end()
        newest, outbox = first.manifests()[-1], first.root / "outbox"
    resumes = {"resume": newest.name, "resume_step": newest.ref.step, "resume_sha256": newest.sha256}
    with fetching(tmp_path, *TRAINS, steps_total=newest.ref.step + 20, **resumes) as (stay, store, _):
        stored.publish(store, RUN, newest, outbox)
        assert stay.live(SHIPPING).outcome is Outcome.COMPLETED
        assert f"resuming at step {newest.ref.step}" in stay.log()


def test_an_uplink_that_is_killed_in_the_middle_goes_on_there(tmp_path: Path) -> None:
    with fetching(tmp_path, *TRAINS) as (stay, _, parcel):
        held = Held(stay, parcel)
        stay.start(SHIPPING)
        held.wait_for_the_middle()
        stay.wait_for(lambda status: status.state == "fetching", "the agent to wait")
        os.kill(uplink_pid(stay), signal.SIGKILL)
        held.let_go()
        assert stay.end().outcome is Outcome.COMPLETED
        assert "the uplink ended (killed by signal 9)" in stay.log()


def test_a_session_that_is_superseded_in_the_middle_leaves(tmp_path: Path) -> None:
    with fetching(tmp_path, *TRAINS) as (stay, store, parcel):
        held = Held(stay, parcel)
        stay.start(SHIPPING)
        held.wait_for_the_middle()
        raise_fence(store, RUN, 2)
        result = stay.end()
        assert result.outcome is Outcome.LOST
        assert "another session of this run has taken over" in result.message
        assert not (stay.root / "bundle.tar.gz").exists()


def test_a_session_that_is_asked_to_stop_in_the_middle_leaves(tmp_path: Path) -> None:
    with fetching(tmp_path, *TRAINS) as (stay, store, parcel):
        held = Held(stay, parcel)
        stay.start(SHIPPING)
        held.wait_for_the_middle()
        ask_to_leave(store, RUN, 1)
        assert stay.end().outcome is Outcome.STOPPED


def test_a_parcel_that_is_damaged_ends_the_session_as_lost_with_the_reason(tmp_path: Path) -> None:
    with fetching(tmp_path, *TRAINS) as (stay, _, parcel):
        part = parcel.parts[1].sha256
        path = tmp_path / "store" / KEYS.parcel_part(part)
        path.chmod(0o600)
        path.write_bytes(bytes(path.stat().st_size))
        result = stay.live(SHIPPING)
        assert result.outcome is Outcome.LOST
        assert "did not come from the home store" in result.message
        assert part in result.message
        assert (stay.root / "outbox" / "result.json").exists()


def test_a_session_whose_store_never_answers_gives_up(tmp_path: Path) -> None:
    with fetching(tmp_path, *TRAINS) as (stay, _, _):
        (tmp_path / "store").rename(tmp_path / "away")
        stay.start(replace(SHIPPING, uplink_fetch=0.5, uplink_end=0.5))
        result = stay.end()
        assert result.outcome is Outcome.LOST
        assert "nothing has come" in result.message


def test_a_session_without_a_working_uplink_says_so(tmp_path: Path) -> None:
    with fetching(tmp_path, *TRAINS) as (stay, store, _):
        odd = replace(store.portable(), type="tape")
        (stay.root / "store.json").write_bytes(wire.encode(odd))
        result = stay.live(SHIPPING)
        assert result.outcome is Outcome.LOST
        assert "the uplink cannot work" in result.message
    (tmp_path / "other").mkdir()
    with fetching(tmp_path / "other", *TRAINS) as (stay, _, _):
        (stay.root / "store.json").unlink()
        assert stay.live(SHIPPING).outcome is Outcome.LOST


def test_a_parcel_that_did_not_arrive_whole_is_never_shown(tmp_path: Path) -> None:
    with shipping(tmp_path, *TRAINS) as (stay, _):
        key = "AGE-SECRET-KEY-1" + "Q" * 58
        (stay.root / "parcel.json").write_text(f'{{"entries": 5, "key": "{key}"}}')
        assert stay.live(SHIPPING).outcome is Outcome.LOST
        assert "did not arrive whole" in stay.log()
        assert Leaks({"key": key}).in_folder(stay.root) == []
