"""Tells files that somebody wrote from those that the kernel makes up when they are read, such as /proc.

Goes by the type of the file system, because /proc may be mounted anywhere and a path may lead there through
any link. Opens nothing for reading: that alone can have an effect, or wait.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from pathlib import Path

# linux/magic.h and the kernel's own sources: file systems whose files are the kernel's answers. devtmpfs
# calls itself tmpfs; what it has are devices.
_KERNEL = {
    0x9FA0: "proc", 0x62656572: "sysfs", 0x64626720: "debugfs", 0x74726163: "tracefs",
    0x73636673: "securityfs", 0x27E0EB: "cgroup", 0x63677270: "cgroup2", 0xCAFE4A11: "bpf",
    0x6165676C: "pstore", 0xDE5E81E4: "efivarfs", 0x62656570: "configfs", 0xF97CFF8C: "selinuxfs",
    0x43415D53: "smackfs", 0x5A3C69F0: "apparmorfs", 0x42494E4D: "binfmt_misc", 0x19800202: "mqueue",
    0x1CD1: "devpts", 0x65735543: "fusectl", 0x67596969: "rpc_pipefs", 0x6E667364: "nfsd",
    0x6E736673: "nsfs", 0x50495045: "pipefs", 0x534F434B: "sockfs", 0x09041934: "anon_inode",
    0x50494446: "pidfs", 0x6C6F6F70: "binder", 0x07655821: "resctrl", 0xABBA1974: "xenfs",
    0x9FA1: "openpromfs", 0x9FA2: "usbfs", 0x5345434D: "secretmem", 0x444D4142: "dmabuf",
    0x0A647361: "functionfs",
}  # fmt: skip
_LINUX = sys.platform.startswith("linux")
_LINKS_MAX = 40  # as the kernel has it
_STATFS_BYTES = 512  # struct statfs has 120 or less


def _name(descriptor: int) -> str:
    """The kernel's file system that an open file or folder lies on, such as `proc`; empty for any other."""
    import ctypes  # takes 10 ms, and only a submit needs it

    found = ctypes.create_string_buffer(_STATFS_BYTES)
    if ctypes.CDLL(None, use_errno=True).fstatfs(descriptor, found) != 0:
        return ""
    return _KERNEL.get(int.from_bytes(found.raw[:4], sys.byteorder), "")


def kernel_at(path: Path) -> str:
    """The kernel's file system that a path leads to, such as `proc`; empty for any other, and if unknown."""
    if not _LINUX:
        return ""
    with contextlib.suppress(OSError, ValueError):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            return _name(descriptor)
        finally:
            os.close(descriptor)
    return ""


def kernel_of(path: Path, device: int, known: dict[int, str]) -> str:
    """Like `kernel_at`, of what lies on this device, the `st_dev` of what the path leads to. `known`
    remembers the answers during a walk."""
    if device not in known:
        known[device] = kernel_at(path)
    return known[device]


def kernel_way(path: Path) -> str:
    """Where a path, or a link on its way, first comes into the kernel's files: `/proc (proc)`; empty if it
    does not. What `/proc/self/fd/3` or `/dev/fd/3` leads to may be an ordinary file, but another one for each
    process."""
    if not _LINUX:
        return ""
    here, left, links = Path("/"), list(reversed(path.absolute().parts[1:])), 0
    while left:
        part = left.pop()
        here = here.parent if part == ".." else here / part
        try:
            descriptor = os.open(here, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (OSError, ValueError):
            return ""  # whoever reads it says why it cannot be read
        try:
            if name := _name(descriptor):
                return f"{here} ({name})"
            is_link = stat.S_ISLNK(os.fstat(descriptor).st_mode)
            target = os.readlink("", dir_fd=descriptor) if is_link else ""
        finally:
            os.close(descriptor)
        if is_link:
            links += 1
            if links > _LINKS_MAX:
                return ""
            left += reversed([part for part in target.split("/") if part not in ("", ".")])
            here = Path("/") if target.startswith("/") else here.parent
    return ""
