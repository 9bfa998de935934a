"""Odd things that can lie where a file is expected. Each is made at a free path in an existing folder."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

Shape = Callable[[Path], None]


def a_folder(path: Path) -> None:
    (path / "inside").mkdir(parents=True)


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = os.open(path.parent, os.O_PATH)  # a socket's path must be short
        try:
            made.bind(f"/proc/self/fd/{here}/{path.name}")
        finally:
            os.close(here)


def a_link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def not_to_be_read(path: Path) -> None:
    """A file that cannot be read. Root may read every file, so root gets something that nobody can open."""
    path.write_text("{}")
    path.chmod(0)
    if os.access(path, os.R_OK):
        path.unlink()
        os.mkfifo(path)
