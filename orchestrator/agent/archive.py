"""Builds agent.pyz: the agent and what it needs of this package, as one zip application.

Used by the controller, before sessions. The same sources are the same bytes everywhere; nothing else of the
package goes in.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

from orchestrator.files import write_whole

_FILES = (
    "__init__.py",
    "errors.py",
    "clock.py",
    "processes.py",
    "shut.py",
    "core/__init__.py",
    "core/accelerators.py",
    "core/bounds.py",
    "core/checkpoint.py",
    "core/gpu_names.py",
    "core/job.py",
    "core/mask.py",
    "core/order.py",
    "core/wire.py",
    "session/__init__.py",
    "session/committing.py",
    "session/layout.py",
)
_FOLDERS = ("agent", "files", "training")
_MAIN = b"import sys\n\nfrom orchestrator.agent.__main__ import main\n\nsys.exit(main(sys.argv[1:]))\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest a zip can say


def content() -> bytes:
    """The zip application's bytes; stored, not compressed, so that no zlib version shows in them."""
    package = Path(__file__).resolve().parent.parent
    names = list(_FILES)
    for folder in _FOLDERS:
        names += [path.relative_to(package).as_posix() for path in (package / folder).rglob("*.py")]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, "__main__.py", _MAIN)
        for name in sorted(names):
            _add(archive, f"orchestrator/{name}", (package / name).read_bytes())
    return buffer.getvalue()


def build(target: Path) -> None:
    """Writes the zip application; the file appears whole or not at all, even beside other builders."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(target, content())


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.create_system = 3
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, data)
