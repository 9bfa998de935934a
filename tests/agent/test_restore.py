"""What is unpacked from a bundle, and what is rejected because it would write outside its folder."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.agent import restore
from orchestrator.agent.folder import Folder
from orchestrator.agent.restore import CorruptBundle
from tests.agent.sessions import new_order


def member(
    name: str, *, content: bytes = b"x", kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    info.size = len(content) if kind == tarfile.REGTYPE else 0
    return info, content


def unpack(tmp_path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return unpack_bytes(tmp_path, buffer.getvalue())


def unpack_bytes(tmp_path: Path, data: bytes, digest: str | None = None) -> Path:
    folder = Folder(tmp_path / "session")
    folder.lay_out()
    folder.bundle.write_bytes(data)
    order = new_order("train.py", bundle=digest or hashlib.sha256(data).hexdigest())
    restore.unpack(folder, order)
    return folder.source


def test_files_folders_modes_and_links_inside_are_unpacked(tmp_path: Path) -> None:
    source = unpack(
        tmp_path,
        member("./"[:-1], kind=tarfile.DIRTYPE),
        member("package", kind=tarfile.DIRTYPE),
        member("alias", kind=tarfile.SYMTYPE, link="package/run.sh"),
        member("./package/run.sh", content=b"#!/bin/sh\n", mode=0o6755),
        member("deep/er/file", content=b"content"),
    )
    assert (source / "package" / "run.sh").stat().st_mode & 0o7777 == 0o755
    assert (source / "alias").read_bytes() == b"#!/bin/sh\n"
    assert (source / "deep" / "er" / "file").read_bytes() == b"content"


@pytest.mark.parametrize(
    "members",
    [
        lambda: [member("../outside")],
        lambda: [member("/tmp/outside")],
        lambda: [member("a/../../outside")],
        lambda: [member("out", kind=tarfile.SYMTYPE, link="..")],
        lambda: [member("out", kind=tarfile.SYMTYPE, link="/etc")],
        lambda: [member("out", kind=tarfile.SYMTYPE, link=".."), member("out/side")],
        lambda: [
            member("a", kind=tarfile.SYMTYPE, link="b"),
            member("b", kind=tarfile.SYMTYPE, link="../.."),
        ],
        lambda: [member("f"), member("hard", kind=tarfile.LNKTYPE, link="f")],
        lambda: [member("pipe", kind=tarfile.FIFOTYPE)],
    ],
)
def test_nothing_is_written_outside(
    tmp_path: Path, members: Callable[[], list[tuple[tarfile.TarInfo, bytes]]]
) -> None:
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(CorruptBundle):
        unpack(tmp_path, *members())
    assert {path.name for path in tmp_path.iterdir()} == before | {"session"}
    work = {path.name for path in (tmp_path / "session" / "work").iterdir()}
    assert work == {"source", "checkpoints", "watched", "resume", "save-request", "ballast"}


@pytest.mark.parametrize("data", [b"", b"not an archive", b"\x1f\x8b" + b"\0" * 50])
def test_a_bundle_that_is_no_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(CorruptBundle):
        unpack_bytes(tmp_path, data)


def test_another_bundle_than_the_orders_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptBundle, match="the order names ababab"):
        unpack_bytes(tmp_path, b"data", digest="ab" * 32)
