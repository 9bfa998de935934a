"""What a controller removes at its start after a crash, and what it keeps."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from orchestrator.client import pulling
from orchestrator.client.home import Home
from orchestrator.clock import SystemClock
from orchestrator.core import wire
from orchestrator.core.action import Collect, Failed
from orchestrator.core.checkpoint import Accepted, CheckpointRef, FileEntry, Manifest, Part
from orchestrator.core.lifecycle import Phase
from orchestrator.core.run import RunRecord
from orchestrator.engine import tidying
from orchestrator.engine.perform import Backends, perform
from orchestrator.errors import Transient
from orchestrator.files import PREFIX, draft_folder
from orchestrator.home import Folders
from orchestrator.platforms import catalog
from orchestrator.platforms.platform import Platform
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.memory import MemoryStore
from tests.conformance.test_platforms import any_order
from tests.core.runs import RUN, assigned, record
from tests.platforms.test_outbox import commit
from tests.waiting import PATIENCE

OLD = (1.0, 1.0)


@pytest.fixture
def backends(tmp_path: Path) -> Backends:
    return Backends({}, {"home": MemoryStore()}, "home", Folders(tmp_path / "home"), secret=lambda name: name)


def put(path: Path, text: str = "", *, old: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if old:
        os.utime(path, OLD)
    return path


def aged(folder: Path) -> Path:
    for path in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        os.utime(path, OLD)
    return folder


def tidy(backends: Backends, *records: RunRecord) -> list[str]:
    said: list[str] = []
    tidying.begin(backends, records, [RUN, "a"], SystemClock(), said.append).join(PATIENCE)
    assert [each.name for each in threading.enumerate() if each.name == "tidying"] == []
    return said


def test_what_was_staged_and_brought_for_sessions_that_are_over_goes(backends: Backends) -> None:
    folders, live, over = backends.folders, f"{RUN}-s01", f"{RUN}-s00"
    gone = [
        put(folders.staged(over) / "blobs" / "a"),
        put(folders.collected(RUN, over) / "blobs" / "a"),
        put(folders.collected(RUN, over) / ".tmp-status.json-1-2"),
        put(folders.run(RUN) / ".tmp-live.json-1-2"),
    ]
    stay = [
        put(folders.staged(live) / "blobs" / "a"),
        put(folders.collected(RUN, live) / "blobs" / "a"),
        put(folders.collected(RUN, over) / "log" / "000001.log"),
        put(folders.collected(RUN, over) / "checkpoints" / "c" / "manifest.json"),
        put(folders.collected(RUN, over) / "checkpoints" / "c" / "published"),
        put(folders.live(RUN)),
        put(folders.staged("another-ledgers-s01") / "blobs" / "a"),
        put(folders.collected("another-ledgers", "another-ledgers-s01") / "blobs" / "a"),
    ]
    assert tidy(backends, record(assigned())) == []
    assert [path for path in gone if path.exists()] == []
    assert [path for path in stay if not path.exists()] == []


class DeadStore(MemoryStore):
    """A store whose disk is not there."""

    def put(self, key: str, source: Path, sha256: str) -> None:
        raise Transient(f"cannot put {sha256} from {source} under {key}", operation="put")


def test_the_only_copy_of_a_checkpoint_stays_until_it_is_in_the_store(
    backends: Backends, tmp_path: Path
) -> None:
    """Its session is over. The platform's copy was discarded because the store was away for too long."""
    folder, session = tmp_path / "sessions", "a-s01"
    here = catalog.build("here", "process", {}, folder=folder, clock=SystemClock())
    (folder / session).mkdir(parents=True)
    (folder / session / "order.json").write_bytes(wire.encode(any_order(session, 10, 1)))
    manifest = commit(folder / session / "outbox", 7, b"seven")
    dead = replace(backends, platforms={"here": here}, stores={"home": DeadStore()})
    action = Collect("a", session, "here", 1, "abc", frozenset(), last=True)
    assert isinstance(perform(action, dead), Failed)
    here.discard(session)
    home = backends.folders.collected("a", session)
    draft = put(home / "blobs" / ".tmp-part")
    assert tidy(backends, record()) == []
    assert not draft.exists()
    stored.publish(backends.store("home"), "a", manifest, home)
    (home / "checkpoints" / manifest.name / "published").touch()
    tidy(backends, record())
    assert list((home / "blobs").iterdir()) == []


def test_drafts_go_unless_somebody_is_writing_them(backends: Backends) -> None:
    home = backends.folders.home
    gone = [
        put(home / ".tmp-agent.pyz-1-2", old=True),
        put(home / "bundles" / ".tmp-abc.tar.gz", old=True),
        put(home / "inputs" / f"{PREFIX}dead" / "corpus").parent,
        put(home / "results" / RUN / ".pull-abc", old=True),
        aged(put(home / "results" / RUN / ".pull-dead" / "blobs" / "a", old=True).parents[1]),
    ]
    stay = [
        put(home / "bundles" / ".tmp-young.tar.gz"),
        put(home / "config.yaml", old=True),
        put(home / "ledger.sqlite-wal", old=True),
        put(home / "bundles" / "whole.tar.gz", old=True),
        aged(put(home / "results" / RUN / ".pull-young" / "blobs" / "a").parents[1]),
    ]
    with draft_folder(home / "inputs") as living, draft_folder(home / "results" / RUN) as long_one:
        aged(long_one)
        tidy(backends)
        assert living.exists()
        assert long_one.exists(), "its writer holds it, however old it looks"
    assert [path for path in gone if path.exists()] == []
    assert [path for path in stay if not path.exists()] == []


def test_a_result_that_takes_hours_to_lay_out_is_not_swept_away(backends: Backends, tmp_path: Path) -> None:
    """`submit --follow` writes it into the home while a controller starts."""
    manifest = published(backends, tmp_path, 10, 1)
    home = Home(backends.folders.home)

    class SlowStore(MemoryStore):
        def get(
            self, key: str, target: Path, sha256: str | None = None, *, bytes_max: int | None = None
        ) -> None:
            for path in (home.path / "results" / RUN).iterdir():
                aged(path)
            tidy(backends)
            backends.store("home").get(key, target, sha256, bytes_max=bytes_max)

    target = home.folders.result(RUN, 10)
    accepted = Accepted(manifest.ref, manifest.size, sha256=manifest.sha256)
    pulling.bring(SlowStore(), replace(record(), accepted=(accepted,)), None, target, SystemClock())
    assert [path.name for path in target.iterdir()] == ["state"]
    assert list(target.parent.iterdir()) == [target]


def test_a_link_in_the_home_leads_a_sweep_nowhere(backends: Backends, tmp_path: Path) -> None:
    victim = put(tmp_path / "victim" / "blobs" / "precious")
    backends.folders.run(RUN).mkdir(parents=True)
    (backends.folders.run(RUN) / f"{RUN}-s00").symlink_to(tmp_path / "victim")
    (backends.folders.home / "staged").symlink_to(tmp_path / "victim")
    (backends.folders.home / "bundles").symlink_to(tmp_path / "victim" / "blobs")
    put(tmp_path / "victim" / "blobs" / ".tmp-old", old=True)
    tidy(backends)
    assert victim.exists()
    assert (tmp_path / "victim" / "blobs" / ".tmp-old").exists()


# --- The store --------------------------------------------------------------------------------------------


def published(backends: Backends, tmp_path: Path, step: int, generation: int) -> Manifest:
    data = f"{step} {generation}".encode()
    sha256 = hashlib.sha256(data).hexdigest()
    entry = FileEntry("state", len(data), (Part(sha256, len(data)),))
    manifest = Manifest(RUN, CheckpointRef(step, generation, "aaaa"), 16, (entry,))
    (tmp_path / "blobs").mkdir(exist_ok=True)
    (tmp_path / "blobs" / sha256).write_bytes(data)
    folder = tmp_path / "checkpoints" / manifest.name
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_bytes(manifest.encode())
    stored.publish(backends.store("home"), RUN, manifest, tmp_path)
    return manifest


def orphan(backends: Backends, tmp_path: Path, generation: int) -> str:
    """A blob whose publisher died before it wrote the manifest."""
    data = f"orphan {generation}".encode()
    sha256 = hashlib.sha256(data).hexdigest()
    (tmp_path / sha256).write_bytes(data)
    key = f"runs/{RUN}/blobs/g{generation:02d}-aaaa/{sha256}"
    backends.store("home").put(key, tmp_path / sha256, sha256)
    return key


def keys(backends: Backends) -> set[str]:
    return {stat.key for stat in backends.store("home").list("")}


def over(generation: int, *accepted: Manifest) -> RunRecord:
    found = tuple(Accepted(each.ref, each.size) for each in accepted)
    return replace(record(), phase=Phase.DONE, generation=generation, accepted=found)


def test_blobs_that_no_manifest_names_go_once_their_generation_is_closed(
    backends: Backends, tmp_path: Path
) -> None:
    first, second = (published(backends, tmp_path, 10 * g, g) for g in (1, 2))
    whole = keys(backends)
    orphans = [orphan(backends, tmp_path, generation) for generation in (1, 2, 3)]
    live = record(assigned(generation=2))
    assert tidy(backends, live) == ["removed 1 unused blobs from home stores"]
    assert keys(backends) == whole | set(orphans[1:]), "a session that still runs may be publishing"
    tidy(backends, over(2, first, second))
    assert keys(backends) == whole | {orphans[2]}, "from a generation that this ledger does not know"


def test_a_lineage_whose_accepted_manifest_is_gone_keeps_its_blobs(
    backends: Backends, tmp_path: Path
) -> None:
    manifest = published(backends, tmp_path, 10, 1)
    backends.store("home").delete(f"runs/{RUN}/checkpoints/{manifest.name}/manifest.json")
    left = keys(backends)
    assert tidy(backends, over(1, manifest)) == []
    assert keys(backends) == left != set()


def test_what_nobody_foresaw_on_one_platform_keeps_no_other_untidied(backends: Backends) -> None:
    class Odd:
        name = "odd"

        def __init__(self, error: Exception | None = None) -> None:
            self.error, self.tidied = error, False

        def tidy(self) -> None:
            if self.error:
                raise self.error
            self.tidied = True

    met: list[str] = []
    bad, good = Odd(RecursionError("too deep")), Odd()
    both = cast(Mapping[str, Platform], {"bad": bad, "good": good})
    told = replace(backends, platforms=both, unforeseen=lambda doing, error: met.append(f"{doing}: {error}"))
    tidying.tidy_platforms(told, lambda _: None)
    assert good.tidied
    assert met == ["tidying odd: too deep"]
