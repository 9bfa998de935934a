"""The home on disk: what counts as ours, and how it is removed while others write."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.errors import Transient
from orchestrator.files import draft_file, draft_folder
from orchestrator.pruning import listing, removal
from orchestrator.pruning.rules import Judgement, Kind, Thing

SHA = "ab" * 32
BUNDLE = f"bundles/{SHA}.tar.gz"
RUN = "tiny-12345678"
SESSION = f"runs/{RUN}/{RUN}-s01"


def write(home: Path, path: str, text: str = "x") -> Path:
    target = home / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    return target


def found(home: Path) -> dict[str, Thing]:
    return {thing.path: thing for thing in listing.look(home).things}


def all_go(home: Path) -> list[Judgement]:
    return [Judgement(thing, True, "") for thing in listing.look(home, measure=False).things]


def remove(home: Path, things: Sequence[Thing]) -> removal.Outcome:
    return removal.carry_out(home, things, lambda: all_go(home))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """One thing of every kind, and next to each something that is not ours."""
    home = tmp_path / "home"
    for path in (
        BUNDLE, "bundles/.tmp-abc_1.tar.gz", f"images/{SHA}.tar.gz", f"inputs/{SHA}/corpus/a.txt",
        f"inputs/.tmp-orchestrator-{'0' * 16}/corpus", f"staged/{RUN}-s02/blobs/x",
        f"{SESSION}/log/000001.log",
        f"runs/{RUN}/live.json", ".tmp-agent.pyz-12-34",
    ):  # fmt: skip
        write(home, path)
    (home / "runs" / "other-12345678").mkdir()
    for path in (
        "bundles/notes.txt", f"bundles/{SHA[:-1]}.tar.gz", f"images/{SHA}.tar.gz.bak/x", "inputs/mine/a",
        f"staged/{RUN}", "runs/UPPER/x", f"runs/{RUN}/notes.txt", f"runs/{RUN}/other-12345678-s01/log",
        "config.yaml", "ledger.sqlite", "mine/x",
    ):  # fmt: skip
        write(home, path)
    return home


def test_every_name_of_ours_and_no_other_is_taken_for_ours(home: Path) -> None:
    kinds = {path: thing.kind for path, thing in found(home).items()}
    assert kinds == {
        BUNDLE: Kind.SOURCE,
        "bundles/.tmp-abc_1.tar.gz": Kind.DRAFT,
        f"images/{SHA}.tar.gz": Kind.IMAGE,
        f"inputs/{SHA}": Kind.INPUT,
        f"inputs/.tmp-orchestrator-{'0' * 16}": Kind.DRAFT,
        f"staged/{RUN}-s02": Kind.RESUME,
        SESSION: Kind.LOG,
        f"runs/{RUN}/live.json": Kind.LOG,
        "runs/other-12345678": Kind.LOG,
        ".tmp-agent.pyz-12-34": Kind.DRAFT,
    }
    strange = listing.look(home).strange
    assert {"bundles/notes.txt", "inputs/mine", "runs/UPPER", f"runs/{RUN}/notes.txt"} < set(strange)
    before = set(strange)
    assert remove(home, listing.look(home).things).troubles == {}
    assert found(home) == {}
    assert set(listing.look(home).strange) == before, "what is not ours stays"
    assert (home / "config.yaml").exists()
    assert (home / "mine" / "x").exists()
    assert not (home / "runs" / "other-12345678").exists()


def test_no_link_is_followed(home: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    for path in (f"{RUN}-s01/log", f"{RUN}-s09/log", f"{SHA}/a", f"{SHA}.tar.gz"):
        write(victim, path)
    before = sorted(victim.rglob("*"))
    (home / f"runs/{RUN}/{RUN}-s09").symlink_to(victim / f"{RUN}-s09")
    (home / "runs" / "away-12345678").symlink_to(victim)
    (home / "inputs" / ("cd" * 32)).symlink_to(victim / SHA)
    (home / "bundles" / f"{'cd' * 32}.tar.gz").symlink_to(victim / f"{SHA}.tar.gz")
    (home / SESSION / "log" / "away").symlink_to(victim)
    things = listing.look(home).things
    assert not [
        thing.path for thing in things if "away" in thing.path or "cd" in thing.path or "s09" in thing.path
    ]
    remove(home, things)
    assert sorted(victim.rglob("*")) == before
    (home / "staged").rename(home / "was-staged")
    (home / "staged").symlink_to(victim)
    assert listing.look(home).strange["staged"] == "a link"


def test_a_folder_that_becomes_a_link_meanwhile_leads_nowhere(home: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    write(victim, f"{RUN}-s01/log/000001.log")
    things = [thing for thing in listing.look(home).things if thing.path == SESSION]
    (home / "runs" / RUN).rename(home / "runs" / "moved")
    (home / "runs" / RUN).symlink_to(victim)
    outcome = remove(home, things)
    assert outcome.removed == []
    assert (victim / f"{RUN}-s01" / "log" / "000001.log").exists()


def test_what_is_made_anew_under_the_name_stays(home: Path) -> None:
    things = [found(home)[BUNDLE]]
    (home / "bundles" / "draft").write_text("another submit's")
    (home / "bundles" / "draft").replace(home / BUNDLE)
    outcome = remove(home, things)
    assert outcome.kept == {BUNDLE: "it has changed in the meantime"}
    assert (home / BUNDLE).read_text() == "another submit's"


def test_what_a_run_needs_by_then_gets_its_name_back(home: Path) -> None:
    things = listing.look(home).things

    def again() -> list[Judgement]:
        assert not (home / BUNDLE).exists(), "it was set aside before the second look"
        return [Judgement(each.thing, each.thing.path != BUNDLE, "a run needs it") for each in all_go(home)]

    outcome = removal.carry_out(home, things, again)
    assert outcome.kept == {BUNDLE: "a run needs it"}
    assert set(found(home)) == {BUNDLE}


def test_a_prune_killed_in_the_middle_is_finished_by_the_next(home: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from orchestrator.pruning import listing, removal
home = Path({str(home)!r})
removal.carry_out(home, listing.look(home).things, lambda: os.kill(os.getpid(), signal.SIGKILL))
"""
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (home / BUNDLE).exists()
    things = found(home)
    assert set(things) >= {BUNDLE, SESSION}, "the next one recognises them by their names"
    assert all(thing.set_aside for thing in things.values())
    kept = removal.carry_out(
        home, [], lambda: [Judgement(thing, thing.path != BUNDLE, "needed") for thing in things.values()]
    ).kept
    assert kept == {BUNDLE: "needed"}
    assert set(found(home)) == {BUNDLE}


def test_an_interrupted_prune_leaves_everything_under_its_name(home: Path) -> None:
    before = set(found(home))
    outcome = removal.carry_out(home, listing.look(home).things, lambda: all_go(home), stopped=lambda: True)
    assert outcome.removed == []
    gone: list[Thing] = []
    outcome = removal.carry_out(
        home,
        listing.look(home).things,
        lambda: all_go(home),
        stopped=lambda: len(gone) == 2,
        told=gone.append,
    )
    assert len(outcome.removed) == 2
    assert set(found(home)) == before - {thing.path for thing in gone}


def test_two_prunes_at_once(home: Path) -> None:
    descriptor = os.open(home, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        with pytest.raises(Transient, match="another prune is running"):
            remove(home, listing.look(home).things)
    finally:
        os.close(descriptor)
    assert (home / BUNDLE).exists()


def test_a_draft_that_is_being_written_is_seen(home: Path) -> None:
    with draft_folder(home / "inputs") as draft:
        assert found(home)[f"inputs/{draft.name}"].in_use
    for folder in ("bundles", "images", f"runs/{RUN}", "."):
        with draft_file(home / folder) as writing:
            path = (home / folder / writing.path.name).relative_to(home).as_posix()
            assert found(home)[path].in_use
            assert found(home)[path].kind is Kind.DRAFT
    assert not found(home)[f"inputs/.tmp-orchestrator-{'0' * 16}"].in_use


def test_a_checkpoint_that_never_reached_the_store_is_seen(home: Path) -> None:
    write(home, f"{SESSION}/checkpoints/0000000001-g01-a/manifest.json")
    assert not found(home)[SESSION].unpublished, "its blobs are in the store"
    write(home, f"{SESSION}/blobs/{SHA}")
    assert found(home)[SESSION].unpublished
    write(home, f"{SESSION}/checkpoints/0000000001-g01-a/published", "")
    assert not found(home)[SESSION].unpublished


def test_read_only_copies_go_too(home: Path) -> None:
    for folder in (home / f"inputs/{SHA}/corpus", home / f"inputs/{SHA}"):
        folder.chmod(0o555)
    outcome = remove(home, [found(home)[f"inputs/{SHA}"]])
    assert (outcome.troubles, f"inputs/{SHA}" in found(home)) == ({}, False)


def test_a_look_stops_when_it_is_told_to(home: Path) -> None:
    looks = iter(range(1000))
    assert listing.look(home).complete
    cut = listing.look(home, enough=lambda: next(looks) >= 6)
    assert not cut.complete
    assert len(cut.things) < len(found(home))
