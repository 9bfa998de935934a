"""Inputs on their way through a store: packed the same everywhere, unpacked only if they are the same."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from orchestrator.freeze import inputs, packing


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "text").write_text("many words")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "\udcff odd ☃").write_bytes(b"")
    return folder


@pytest.mark.parametrize("name", [".", "run.sh"])
def test_an_input_comes_back_as_it_was(corpus: Path, tmp_path: Path, name: str) -> None:
    source = corpus / name if name != "." else corpus
    for archive in ("one.tar", "two.tar"):
        packing.pack(source, tmp_path / archive)
        (corpus / "run.sh").touch()
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    packing.unpack(tmp_path / "one.tar", tmp_path / "back", inputs.digest(source))
    assert inputs.digest(tmp_path / "back") == inputs.digest(source)
    script = tmp_path / "back" if name == "run.sh" else tmp_path / "back" / "run.sh"
    assert script.stat().st_mode & 0o111


def _entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.size = kind, link, 4 if kind == tarfile.REGTYPE else 0
    return entry


HOSTILE = {
    "above": [_entry("input/../../outside")],
    "absolute": [_entry("/tmp/outside")],
    "elsewhere": [_entry("other/file")],
    "a link": [_entry("input", tarfile.SYMTYPE, "/etc")],
    "a link and what is below it": [_entry("input/x", tarfile.SYMTYPE, ".."), _entry("input/x/outside")],
    "a hard link": [_entry("input", tarfile.LNKTYPE, "/etc/passwd")],
    "a device": [_entry("input", tarfile.CHRTYPE)],
    "the same twice": [_entry("input/a"), _entry("input/a")],
    "a file as a folder": [_entry("input"), _entry("input/a")],
    "a folder too deep": [_entry("input/" + "a/" * 1500 + "b")],
    "something else": [_entry("input/a")],
    "nothing": [],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_archive_that_is_not_ours_writes_nothing_outside(tmp_path: Path, name: str) -> None:
    archive, place = tmp_path / "hostile.tar", tmp_path / "deep" / "deeper"
    place.mkdir(parents=True)
    with tarfile.open(archive, "x:") as tar:
        for entry in HOSTILE[name]:
            tar.addfile(entry, io.BytesIO(b"evil"))
    with pytest.raises(ValueError, match="its archive"):
        packing.unpack(archive, place / "target", "a" * 64)
    assert {path.name for path in tmp_path.rglob("*") if path.name.startswith("outside")} == set()


def test_an_archive_that_is_torn_or_too_large_is_refused(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packing.pack(corpus, tmp_path / "whole.tar")
    (tmp_path / "torn.tar").write_bytes((tmp_path / "whole.tar").read_bytes()[:1500])
    (tmp_path / "text.tar").write_text("no archive")
    for name in ("torn.tar", "text.tar"):
        with pytest.raises(ValueError, match="its archive"):
            packing.unpack(tmp_path / name, tmp_path / name[:4], inputs.digest(corpus))
    monkeypatch.setattr("orchestrator.core.bounds.INPUTS_BYTES_MAX", 5)
    with pytest.raises(ValueError, match="more than an archive can"):
        packing.unpack(tmp_path / "whole.tar", tmp_path / "large", inputs.digest(corpus))
