"""A program for which no file can be locked, as on NFS without a lock daemon: `python no_locks.py KIND ERRNO
COMMAND …`, where KIND is `flock`, or `all` with the locks of fcntl(2).

A filter of the kernel answers for the file system, for the command and all that it starts: seccomp(2). It
needs no privilege, and no compiler.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

NUMBERS = {"x86_64": (73, 72), "aarch64": (32, 25)}  # of flock and fcntl
SETLK, SETLKW = 6, 7
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # of classic BPF
NUMBER, SECOND_ARGUMENT = 0, 24  # offsets in struct seccomp_data
ALLOW, ERROR = 0x7FFF0000, 0x00050000
NO_NEW_PRIVILEGES, SET_SECCOMP, FILTER = 38, 22, 2  # of prctl(2)


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))


def forbid(kind: str, number: int) -> None:
    flock, fcntl = NUMBERS[platform.machine()]
    told, others = (RETURN, 0, 0, ERROR | number), (RETURN, 0, 0, ALLOW)
    steps = [(LOAD, 0, 0, NUMBER), (EQUAL, 0, 1, flock), told]
    if kind == "all":
        steps += [(EQUAL, 0, 4, fcntl), (LOAD, 0, 0, SECOND_ARGUMENT), (EQUAL, 1, 0, SETLK),
                  (EQUAL, 0, 1, SETLKW), told]  # fmt: skip
    steps.append(others)
    packed = b"".join(struct.pack("HBBI", *step) for step in steps)
    library, held = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(packed)
    program = Program(len(steps), ctypes.addressof(held))
    if library.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) or library.prctl(
        SET_SECCOMP, FILTER, ctypes.byref(program), 0, 0
    ):
        raise OSError(ctypes.get_errno(), "this system lets nobody filter system calls")


if __name__ == "__main__":
    forbid(sys.argv[1], int(sys.argv[2]))
    os.execvp(sys.argv[3], sys.argv[3:])
