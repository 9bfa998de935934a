"""Builds agent.pyz: the agent and the parts of this package that it needs, as one zip application.

The controller builds it before it starts sessions. The same sources give the same bytes everywhere.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Collection, Iterable
from pathlib import Path

from orchestrator.files import make_folder, write_whole

_FILES = (
    "__init__.py",
    "errors.py",
    "clock.py",
    "interpreters.py",
    "nvidia.py",
    "processes.py",
    "shut.py",
    "core/__init__.py",
    "core/accelerators.py",
    "core/bounds.py",
    "core/checkpoint.py",
    "core/datacenter.py",
    "core/geforce.py",
    "core/gpu_names.py",
    "core/gpu_use.py",
    "core/hardware.py",
    "core/job.py",
    "core/mask.py",
    "core/notebook.py",
    "core/order.py",
    "core/own_accelerators.py",
    "core/save_pattern.py",
    "core/wire.py",
    "session/__init__.py",
    "session/committing.py",
    "session/layout.py",
    "session/words.py",
)
_FOLDERS = ("agent", "files", "notebook", "training")
_SHIPPED = frozenset({".py", ".lock"})
_MAIN = b"import sys\n\nfrom orchestrator.agent.__main__ import main\n\nsys.exit(main(sys.argv[1:]))\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time in a zip file


def content() -> bytes:
    """The zip application's bytes."""
    return packed(_FILES, _FOLDERS, _MAIN)


def packed(
    files: Iterable[str], folders: Iterable[str], main: bytes, *, left_out: Collection[str] = ()
) -> bytes:
    """These files of the package, and those in these folders, as a zip application that runs `main`. Stored,
    not compressed, so that its bytes do not depend on zlib's version."""
    package = Path(__file__).resolve().parent.parent
    names = list(files)
    for folder in folders:
        paths = (path for path in (package / folder).rglob("*") if path.suffix in _SHIPPED)
        names += [path.relative_to(package).as_posix() for path in paths]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, "__main__.py", main)
        for name in sorted(name for name in names if name not in left_out):
            _add(archive, f"orchestrator/{name}", (package / name).read_bytes())
    return buffer.getvalue()


def build(target: Path) -> None:
    """Writes the zip application atomically, even if others build it at the same time."""
    make_folder(target.parent, 0o700)
    write_whole(target, content())


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.create_system = 3
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, data)
