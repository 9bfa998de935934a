"""Builds uplink.pyz: the uplink, and the stores that it can open, as one zip application.

The controller builds it before it starts sessions. Stores that need packages are in it too: their modules are
imported only when they are opened. The same sources give the same bytes everywhere.
"""

from __future__ import annotations

from pathlib import Path

from orchestrator.agent.archive import packed
from orchestrator.files import make_folder, write_whole

_FILES = (
    "__init__.py",
    "clock.py",
    "errors.py",
    "references.py",
    "shut.py",
    "user.py",
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
    "core/order.py",
    "core/own_accelerators.py",
    "core/wire.py",
    "session/__init__.py",
    "session/layout.py",
    "session/mailbox.py",
    "session/mirror.py",
    "session/outbox.py",
    "session/saying.py",
    "session/signing.py",
    "session/staging.py",
    "session/words.py",
)
_FOLDERS = ("files", "stores", "uplink")
_LEFT_OUT = frozenset(  # these only serve the controller, or the tests
    {
        "stores/catalog.py",
        "stores/encryption.py",
        "stores/faulty.py",
        "stores/memory.py",
        "stores/retrying.py",
        "stores/drive/configured.py",
        "stores/s3/configured.py",
        "uplink/accepting.py",
        "uplink/archive.py",
        "uplink/outbox.py",
    }
)
_MAIN = b"import sys\n\nfrom orchestrator.uplink.program import leave\n\nleave(sys.argv[1:])\n"


def content() -> bytes:
    """The zip application's bytes."""
    return packed(_FILES, _FOLDERS, _MAIN, left_out=_LEFT_OUT)


def build(target: Path) -> None:
    """Writes the zip application atomically, even if others build it at the same time."""
    make_folder(target.parent, 0o700)
    write_whole(target, content())
