"""Outputs whose names a hostile session chose, and what of several sessions' outputs counts."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest

from orchestrator.client.naming import local_names
from orchestrator.client.outputs import _newest
from orchestrator.core.checkpoint import CheckpointRef, FileEntry, Manifest

MB = 10**6


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def left_by(session: int, *paths: str) -> Manifest:
    files = tuple(FileEntry(path, 0, ()) for path in paths)
    return Manifest("run", CheckpointRef(1, session, "abc", outputs=True), 1, files)


@pytest.mark.usefixtures("traced")
def test_names_in_thousands_of_folders_take_no_memory_to_speak_of() -> None:
    """The 16 MB of a manifest would name 14 GB of folders."""
    paths = [f"{number:04}/{'/'.join('a' * 1900)}" for number in range(60)]
    chosen, older = _newest([left_by(2, *paths), left_by(1, *paths)])
    assert (chosen, older) == ([left_by(2, *paths)], ())
    assert local_names(paths) == {path: path for path in paths}
    assert tracemalloc.get_traced_memory()[1] < 50 * MB


def test_a_path_counts_once_whether_it_is_a_file_or_a_folder() -> None:
    newer = left_by(3, "log", "plots/a.png", "plots-old")
    older = left_by(2, "log", "log/1", "plots", "plots/b.png", "plots/a.png/x", "plots-olde")
    chosen, hidden = _newest([newer, older])
    assert chosen == [newer, left_by(2, "plots/b.png", "plots-olde")]
    assert hidden == (("log/1", 2), ("plots", 2), ("plots/a.png/x", 2))
