"""`checkpoints` and `pull` when the home store is damaged, or somebody has replaced its content."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.checkpoint import decode
from orchestrator.ledger import Ledger
from tests.cli.calls import Caller
from tests.cli.conftest import Finished
from tests.forging import forge


@dataclass(frozen=True)
class Copy:
    """A copy of the finished run's home, to be damaged. `steps`: of its checkpoints, oldest first."""

    user: Caller
    run: str
    store: Path
    names: tuple[str, ...]
    steps: tuple[int, ...]

    def listed(self, *words: str) -> dict[int, dict[str, Any]]:
        code = 4 if "--verify" in words else 0  # what is listed here is damaged
        found = self.user("checkpoints", self.run, *words, "--json", code=code).json["checkpoints"]
        return {each["step"]: each for each in found}

    def pulled(self, *words: str, code: int = 0) -> Any:
        return self.user("pull", self.run, "-o", str(self.user.folder / "result"), *words, code=code)

    def damage_blob(self, name: str) -> None:
        path = self.store / "checkpoints" / name / "manifest.json"
        sha256 = decode(name, path.read_bytes()).files[-1].parts[0].sha256
        [blob] = self.store.glob(f"blobs/*/{sha256}")
        blob.unlink()
        blob.write_bytes(b"rotten")


@pytest.fixture
def copy(finished: Finished, tmp_path: Path) -> Copy:
    home = tmp_path / "home"
    shutil.copytree(finished.user.home, home, ignore=shutil.ignore_patterns("*.sock"))
    user = Caller(tmp_path, home)
    found = user("checkpoints", finished.run, "--json").json["checkpoints"]
    store = home / "store" / "runs" / finished.run
    names, steps = (tuple(each[key] for each in found) for key in ("name", "step"))
    assert len(names) >= 3
    return Copy(user, finished.run, store, names, steps)


def test_a_consistent_replacement_is_seen_and_the_one_before_is_brought(copy: Copy) -> None:
    forge(copy.store, copy.names[-1])
    assert "its manifest was replaced" in copy.listed()[copy.steps[-1]]["trouble"]
    answer = copy.pulled("--latest")
    assert f"step {copy.steps[-1]:,}" in answer.err
    assert "falling back to the one before" in answer.err
    state = json.loads((copy.user.folder / "result" / "state.json").read_text())
    assert state == {"step": copy.steps[-2]}


def test_a_replacement_asked_for_by_its_step_is_refused_with_the_others(copy: Copy) -> None:
    forge(copy.store, copy.names[-1])
    refused = copy.pulled("--step", str(copy.steps[-1]), code=4).err
    assert "its manifest was replaced" in refused
    assert f"other steps in the store: {', '.join(map(str, copy.steps[:-1]))}" in refused
    assert not (copy.user.folder / "result").exists()


def test_what_is_damaged_is_passed_over_with_the_reason(copy: Copy) -> None:
    shutil.rmtree(copy.store / "checkpoints" / copy.names[-1])
    copy.damage_blob(copy.names[-2])
    assert copy.listed()[copy.steps[-1]]["trouble"] == "missing in the store"
    assert copy.listed()[copy.steps[-2]]["trouble"] is None, "its manifest is intact"
    assert "blob" in copy.listed("--verify")[copy.steps[-2]]["trouble"]
    verified = copy.user("checkpoints", copy.run, "--verify", code=4)
    assert f"verified: {len(copy.steps) - 2} of {len(copy.steps)} intact" in verified.out
    assert f"step {copy.steps[-1]:,} ({copy.names[-1]}) cannot be used: it is gone" in verified.err
    assert f"step {copy.steps[-2]:,} ({copy.names[-2]}) cannot be used: corrupt: blob" in verified.err
    answer = copy.pulled("--json").json
    assert answer["step"] == copy.steps[-3]
    gone, rotten = answer["skipped"]
    assert "gone from the home store" in gone
    assert "blob" in rotten


def test_verifying_lays_nothing_down_in_the_home(copy: Copy) -> None:
    """Nobody would remove files that a killed command leaves there."""
    with Ledger.open(f"sqlite:///{copy.user.home / 'ledger.sqlite'}"):  # keeps SQLite's other files there
        copy.listed()
        before = copy.user.home.stat().st_mtime_ns
        assert "intact" in copy.user("checkpoints", copy.run, "--verify").out
        assert copy.user.home.stat().st_mtime_ns == before


def test_an_empty_store_is_asked_for_its_disk(copy: Copy) -> None:
    shutil.rmtree(copy.user.home / "store")
    assert "is its disk there?" in copy.pulled(code=4).err


def test_a_checkpoint_of_an_older_version_is_brought_and_said_to_be_unproved(copy: Copy) -> None:
    forget_sha256(copy)
    forge(copy.store, copy.names[-1])
    assert any("not authenticated" in mark for mark in copy.listed()[copy.steps[-1]]["marks"])
    assert "not authenticated" in copy.pulled().err


def forget_sha256(copy: Copy) -> None:
    """Makes the ledger look like one of a version that did not record sha256."""
    newer = re.compile(r',"(resume_)?sha256":("[0-9a-f]{64}"|null)|,"start_over":false|,"notes":\[\]')
    database = sqlite3.connect(copy.user.home / "ledger.sqlite")
    with database:
        for table, column in (("runs", "record"), ("events", "body"), ("events", "inputs")):
            for row, text in database.execute(f"SELECT rowid, {column} FROM {table}").fetchall():
                old = text and newer.sub("", text)
                database.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (old, row))
    database.close()
