"""A job's inputs: a session gets exactly what was pinned at submit, or nothing."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from orchestrator.core.job import Input
from orchestrator.errors import InputError, Rejected
from orchestrator.files import set_aside
from orchestrator.freeze import inputs
from orchestrator.ledger import Ledger


def corpus(folder: Path) -> tuple[Input, Input]:
    (folder / "triples").mkdir()
    (folder / "triples" / "a.jsonl").write_text("{}\n")
    (folder / "vocabulary.txt").write_text("word\n")
    return Input("corpus", str(folder / "triples")), Input("words", str(folder / "vocabulary.txt"))


def test_inputs_are_pinned_to_their_content_and_staged_under_their_names(tmp_path: Path) -> None:
    folder, words = inputs.pin(corpus(tmp_path))
    assert words.sha256 == hashlib.sha256(b"word\n").hexdigest()
    staged = inputs.stage((folder, words), tmp_path / "home")
    assert staged is not None
    assert (staged / "corpus" / "a.jsonl").read_text() == "{}\n"
    assert (staged / "words").read_text() == "word\n"
    assert inputs.stage((folder, words), tmp_path / "home") == staged


def test_no_inputs_are_no_folder(tmp_path: Path) -> None:
    assert inputs.stage((), tmp_path / "home") is None
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("changed", ["triples/a.jsonl", "triples/new.jsonl"])
def test_an_input_that_changed_after_submit_is_refused(tmp_path: Path, changed: str) -> None:
    pinned = inputs.pin(corpus(tmp_path))
    (tmp_path / changed).write_text("something else")
    with pytest.raises(Rejected, match=r"'corpus'.*has changed since the job was submitted"):
        inputs.stage(pinned, tmp_path / "home")
    assert not [path for path in (tmp_path / "home").iterdir() if not path.name.startswith(".")]


def test_an_input_that_is_gone_is_refused(tmp_path: Path) -> None:
    pinned = inputs.pin(corpus(tmp_path))
    (tmp_path / "vocabulary.txt").unlink()
    with pytest.raises(Rejected, match=r"'words'.*can no longer be read"):
        inputs.stage(pinned, tmp_path / "home")


def test_every_mistake_is_told_at_once(tmp_path: Path) -> None:
    _, words = corpus(tmp_path)
    given = (
        Input("gone", str(tmp_path / "nothing")),
        Input("words", words.origin, "0" * 64),
    )
    with pytest.raises(InputError) as caught:
        inputs.pin(given)
    message = str(caught.value)
    assert "'gone'" in message
    assert f"not {'0' * 64}" in message


def test_no_mode_of_an_input_is_widened(tmp_path: Path) -> None:
    given = corpus(tmp_path)
    (tmp_path / "vocabulary.txt").chmod(0o600)
    staged = inputs.stage(inputs.pin(given), tmp_path / "home")
    assert staged is not None
    found = [staged, *staged.rglob("*")]
    assert [path.name for path in found if path.stat().st_mode & 0o077] == []
    assert [path.name for path in found if path.is_file() and path.stat().st_mode & 0o200] == []


@pytest.mark.parametrize("damage", ["altered", "removed", "added", "linked", "pipe"])
def test_a_copy_that_has_changed_is_made_again_from_its_origin(tmp_path: Path, damage: str) -> None:
    pinned = inputs.pin(corpus(tmp_path))
    staged = inputs.stage(pinned, tmp_path / "home")
    assert staged is not None
    file = staged / "corpus" / "a.jsonl"
    match damage:
        case "altered":
            file.chmod(0o600)
            file.write_text("[]\n")
            os.utime(file, ns=(0, 0))
        case "removed":
            file.unlink()
        case "added":
            (staged / "corpus" / "b.jsonl").touch()
        case "linked":
            file.unlink()
            file.symlink_to(tmp_path / "triples" / "a.jsonl")
        case "pipe":
            os.mkfifo(staged / "corpus" / "pipe")
    again = inputs.stage(pinned, tmp_path / "home")
    assert again == staged
    assert [path.name for path in (staged / "corpus").iterdir()] == ["a.jsonl"]
    assert file.read_text() == "{}\n"
    assert not file.is_symlink()
    assert [path.name for path in (tmp_path / "home").iterdir()] == [staged.name]


def test_a_copy_that_has_changed_and_cannot_be_made_again_is_refused(tmp_path: Path) -> None:
    pinned = inputs.pin(corpus(tmp_path))
    staged = inputs.stage(pinned, tmp_path / "home")
    assert staged is not None
    (staged / "words").unlink()
    (tmp_path / "vocabulary.txt").write_text("another\n")
    with pytest.raises(Rejected, match=r"'words'.*has changed since the job was submitted"):
        inputs.stage(pinned, tmp_path / "home")


@pytest.mark.parametrize("damage", ["file", "link to the copy", "link to itself", "shut"])
def test_whatever_stands_in_a_copys_place_gives_way_to_a_copy(tmp_path: Path, damage: str) -> None:
    pinned = inputs.pin(corpus(tmp_path))
    staged = inputs.stage(pinned, tmp_path / "home")
    assert staged is not None
    match damage:
        case "file":
            set_aside(staged)
            staged.write_text("{}\n")
        case "link to the copy":
            staged.rename(tmp_path / "moved")
            staged.symlink_to(tmp_path / "moved")
        case "link to itself":
            set_aside(staged)
            staged.symlink_to(staged)
        case "shut":  # which root is not affected by
            staged.chmod(0)
    again = inputs.stage(pinned, tmp_path / "home")
    assert again == staged
    assert staged.is_dir()
    assert not staged.is_symlink()
    assert inputs.digest(staged / "words") == pinned[1].sha256
    assert [path.name for path in (tmp_path / "home").iterdir()] == [staged.name]


GLANCE = """
import sqlite3, sys
ledger = sqlite3.connect(sys.argv[1])
ledger.execute("SELECT count(*) FROM sqlite_master").fetchall()
ledger.close()
"""


@pytest.mark.parametrize(
    ("way", "name"),
    [
        *product(("itself", "link"), ("ledger.sqlite", "ledger.sqlite-shm", ".")),
        *product(("hard link",), ("ledger.sqlite", "ledger.sqlite-shm")),
    ],
)
def test_the_ledger_is_no_input_and_its_locks_stay(tmp_path: Path, way: str, name: str) -> None:
    """Reading and closing the file drops SQLite's locks. The next command that exits would then remove the
    log that the controller writes to, and all that is journalled after that would be lost."""
    with Ledger.open(f"sqlite:///{tmp_path / 'home' / 'ledger.sqlite'}"):
        wal = tmp_path / "home" / "ledger.sqlite-wal"
        before = wal.stat().st_ino
        origin = tmp_path / "home" / name
        if way == "link":
            (tmp_path / "link").symlink_to(origin)
            origin = tmp_path / "link"
        elif way == "hard link":
            (tmp_path / "second").hardlink_to(origin)
            origin = tmp_path / "second"
        given = Input("x", str(origin))
        with pytest.raises(InputError, match=r"'x'.* is this orchestrator's own ledger"):
            inputs.pin((given,))
        with pytest.raises(Rejected, match=r"'x'.*the ledger's own file"):
            inputs.stage((replace(given, sha256="0" * 64),), tmp_path / "cache")
        glance = [sys.executable, "-c", GLANCE, str(tmp_path / "home" / "ledger.sqlite")]
        subprocess.run(glance, check=True)
        assert wal.stat().st_ino == before
