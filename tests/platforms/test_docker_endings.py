"""What a container's end without a result means, and which of its files are taken: values in, values out."""

from __future__ import annotations

import io
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from orchestrator.core.order import Outcome
from orchestrator.errors import Transient
from orchestrator.platforms.docker import archives
from orchestrator.platforms.docker.archives import Entry
from orchestrator.platforms.docker.endings import how, moment

BEGAN, ENDED = "2026-11-20T12:00:00.123456789Z", "2026-11-20T12:00:10.5+00:00"  # 10 s, in whole seconds


@pytest.mark.parametrize(
    ("code", "killed_for_memory", "wall", "asked", "outcome", "words"),
    [
        (137, False, None, False, Outcome.LOST, "docker kill"),
        (137, True, None, False, Outcome.OUT_OF_MEMORY, "ran out of memory"),
        (137, False, 9.0, False, Outcome.LOST, "session limit"),
        (137, False, 60.0, False, Outcome.LOST, "docker kill"),
        (137, True, 9.0, True, Outcome.LOST, "session limit"),
        (137, False, None, True, Outcome.LOST, "asked to stop"),
        (127, False, None, False, Outcome.REJECTED, "no `python3.12`"),
        (126, False, None, True, Outcome.REJECTED, "no `python3.12`"),
        (255, False, None, False, Outcome.LOST, "exit code 255 and no result: its words"),
        (0, False, 10.0, True, Outcome.LOST, "exit code 0 and no result"),
    ],
)
def test_an_end_without_a_result(
    code: int, killed_for_memory: bool, wall: float | None, asked: bool, outcome: Outcome, words: str
) -> None:
    state = {"ExitCode": code, "OOMKilled": killed_for_memory, "StartedAt": BEGAN, "FinishedAt": ENDED}
    said = how(state, wall_seconds=wall, asked=asked, said="its words", python="python3.12")
    assert said[0] is outcome
    assert words in said[1]


def test_moments_are_read_with_and_without_fractions() -> None:
    noon = datetime(2026, 11, 20, 12, tzinfo=UTC)
    assert moment(BEGAN) == moment("2026-11-20T12:00:00Z") == moment("2026-11-20T13:00:00.9+01:00") == noon


def stream(*members: tuple[str, bytes, bytes]) -> list[bytes]:
    """An archive of (name, type, content), in small pieces."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, type_, content in members:
            entry = tarfile.TarInfo(name)
            entry.type, entry.size, entry.linkname = type_, len(content), "/etc/passwd"
            archive.addfile(entry, io.BytesIO(content))
    data = buffer.getvalue()
    return [data[at : at + 100] for at in range(0, len(data), 100)]


def test_only_a_plain_file_of_a_fair_size_is_read(tmp_path: Path) -> None:
    assert archives.only_file(stream(("status.json", tarfile.REGTYPE, b"{}")), 2) == b"{}"
    folder = ("status.json", tarfile.DIRTYPE, b""), ("status.json/status.json", tarfile.REGTYPE, b"{}")
    for wrong in (stream(("status.json", tarfile.REGTYPE, b"{  }")), stream(*folder), stream(),
                  stream(("status.json", tarfile.SYMTYPE, b""))):  # fmt: skip
        with pytest.raises(ValueError, match=r"regular file|larger than"):
            archives.only_file(wrong, 2)
    assert not archives.unpack_file(stream(*folder), tmp_path / "target", 2)
    assert not archives.unpack_file(stream(("blob", tarfile.REGTYPE, b"{  }")), tmp_path / "target", 2)
    assert not (tmp_path / "target").exists()


def test_nothing_leaves_the_folder_that_was_asked_for(tmp_path: Path) -> None:
    into = tmp_path / "into"
    into.mkdir()
    wild = [("log/../../above", tarfile.REGTYPE, b"1"), ("/log/fine", tarfile.REGTYPE, b"2"),
            ("log/link", tarfile.SYMTYPE, b""), ("log/000001.log", tarfile.REGTYPE, b"3")]  # fmt: skip
    archives.unpack(stream(*wild), into, 10)
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"into/log/fine", "into/000001.log"}


def test_a_folder_is_read_up_to_what_is_larger_than_it_may_be(tmp_path: Path) -> None:
    files = [
        (f"checkpoints/{name}", tarfile.REGTYPE, b"x" * size)
        for name, size in (("a", 9), ("b", 10), ("c", 1))
    ]
    archives.unpack(stream(*files), tmp_path, 9)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_broken_stream_is_no_file() -> None:
    pieces = stream(("blob", tarfile.REGTYPE, b"x" * 5000))
    with pytest.raises(tarfile.ReadError):
        archives.only_file(pieces[:20], 10_000)


def test_a_local_file_that_is_gone_is_not_the_engines_fault(tmp_path: Path) -> None:
    with pytest.raises(Transient, match=r"No such file or directory .*/gone"):
        b"".join(archives.pack([Entry("bundle", tmp_path / "gone")], 1000, 1000))
