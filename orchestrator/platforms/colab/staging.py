"""What a session's machine gets by upload, as one archive on this machine, and the cell that unpacks it.

The archive holds credentials: it is 0600 in a folder of the platform's own, and is removed as soon as the
session has started. What is large comes from the home store (docs/uplink.md). The cell holds no secret.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

from orchestrator.core import bounds, wire
from orchestrator.core.order import Order
from orchestrator.errors import Rejected
from orchestrator.files import draft_file, make_folder, remove_tree, write_whole
from orchestrator.files.hashing import digest_file
from orchestrator.platforms.colab import boot
from orchestrator.platforms.colab.machine import archive_name
from orchestrator.platforms.colab.options import ColabOptions
from orchestrator.platforms.colab.outbox import PART_BYTES
from orchestrator.session.staging import Content, Materials, contents

PREPARED = "prepared"  # in the platform's folder
BEAT_SECONDS = 30.0
UPLOAD_BYTES_MAX = 256 << 20  # sent whole and as text (docs/references/colab.md#files)
# The machine is checked before the job begins, and the job's requirements are installed beside Colab's own.
AGENT_SETTINGS = {"probe": True, "requirements": True, "part_bytes": PART_BYTES}


def fingerprint(order: Order) -> str:
    return hashlib.sha256(wire.encode(order)).hexdigest()


def archive(folder: Path, session: str) -> Path:
    return folder / PREPARED / f"{session}.tar"


def is_staged(folder: Path, order: Order, prepared: str) -> bool:
    """Whether the archive is there, for this order. `prepared`: for which order it was packed."""
    return prepared == fingerprint(order) and archive(folder, order.session).exists()


def stage(folder: Path, order: Order, materials: Materials, *, here: bool) -> None:
    """Packs the session's archive, replacing an earlier one. `here`: its machine is this one."""
    packed = archive(folder, order.session)
    make_folder(packed.parent, 0o700)
    given = list(contents(order, materials, here=here))
    with draft_file(packed.parent) as draft:
        with draft.stream() as file, tarfile.open(fileobj=file, mode="w", dereference=True) as tar:
            for content in given:
                _add(tar, content)
        size = draft.path.stat().st_size
        if size > UPLOAD_BYTES_MAX:
            most = bounds.size_text(UPLOAD_BYTES_MAX)
            raise Rejected(f"{order.session} needs {bounds.size_text(size)}, and an upload takes {most}")
        draft.replace(packed)


def _add(tar: tarfile.TarFile, content: Content) -> None:
    if isinstance(content.content, bytes):
        member = tarfile.TarInfo(content.name)
        member.size, member.mode = len(content.content), 0o600
        tar.addfile(member, io.BytesIO(content.content))
    else:
        tar.add(content.content, content.name, filter=_read_only if content.read_only else None)


def _read_only(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """For the owner alone, in case a training opens it in the wrong mode."""
    member.mode = 0o700 if member.isdir() else member.mode & 0o100 | 0o400
    return member


def forget(folder: Path, session: str) -> None:
    remove_tree(archive(folder, session))
    remove_tree(_cell(folder, session))


def write_cell(folder: Path, options: ColabOptions, order: Order, *, age_seconds: float) -> Path:
    """The cell that starts what `archive` holds now, as a file."""
    session = {
        "name": order.session,
        "archive": archive_name(order.session),
        "sha256": digest_file(archive(folder, order.session)),
        "order": fingerprint(order),
        "settings": AGENT_SETTINGS | options.uplink_settings(BEAT_SECONDS),
        "age_seconds": age_seconds,
        "linger_seconds": options.linger_seconds,
    }
    path = _cell(folder, order.session)
    text = Path(boot.__file__).read_text(encoding="utf-8")
    write_whole(path, f"{text}\n\nmain(json.loads({json.dumps(session)!r}))\n".encode(), sync=False)
    return path


def _cell(folder: Path, session: str) -> Path:
    return folder / PREPARED / f"{session}.py"
