"""Why a command failed, as far as that tells whether it would fail again. Pure: reads the end of its output.

The same exception at the same step is no accident, and a program that is not there will not be there next
time. What depends on the network, the machine or the disk may pass.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NOT_FOUND, _NOT_EXECUTABLE, _USAGE = 127, 126, 2
_SIGNALLED = 128  # a shell adds the signal's number
EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b(?::|$)")
_TRACEBACK = "Traceback (most recent call last)"
# Python goes on after these: an object that could not be cleaned up, and a thread that died.
_SURVIVED = ("Exception ignored ", "Exception in thread ")
_HOPELESS = re.compile(
    r"""(?:ModuleNotFoundError|SyntaxError|IndentationError|TabError)\b
    | ImportError:[ ]cannot[ ]import[ ]name\b
    | python[\w.]*:[ ]can't[ ]open[ ]file\b
    | .*:[ ]No[ ]module[ ]named[ ]\S+$
    """,
    re.VERBOSE,
)
_PASSING = re.compile(
    r"""[Cc]onnection|Timeout|timed[ ]out|HTTP|URLError|SSL|[Ss]ocket|gaierror|Unavailable|Disconnect
    | [Tt]emporar|[Tt]ry[ ]again|CommError
    | IncompleteRead|ProtocolError|BrokenPipe|NCCL|DistBackend|CUDA|cuDNN|CUBLAS
    | Errno[ ](?:5|11|12|16|28|32|101|104|107|110|111|113|116|121|122)\b
    | [Nn]ame[ ]resolution|Name[ ]or[ ]service|[Nn]o[ ]space|MemoryError|OutOfMemory|KeyboardInterrupt
    """,
    re.VERBOSE,
)
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{32,}\b|/tmp/\S+")
_BYTES_MAX = 300


@dataclass(frozen=True)
class Cause:
    """`error`: the exception that ended the command, the same text each time; empty if there was none, or if
    it may pass. `hopeless`: it would fail again in the same place."""

    error: str = ""
    hopeless: bool = False


def cause(exit_code: int, tail: str) -> Cause:
    """The cause of an exit that is not 0. After a signal the last line is not the cause."""
    if exit_code < 0 or exit_code > _SIGNALLED:
        return Cause()
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    if exit_code in (_NOT_FOUND, _NOT_EXECUTABLE) or _HOPELESS.match(last):
        return Cause(_told(last), hopeless=True)
    if exit_code == _USAGE and ": error: " in last:  # argparse and its kin
        return Cause(_told(last), hopeless=True)
    if _PASSING.search(last) or not EXCEPTION.match(last):
        return Cause()
    return Cause(_told(last))


def _told(line: str) -> str:
    return _ADDRESS.sub("…", line)[:_BYTES_MAX]


def last_exception(tail: str) -> str:
    """The exception that the output ends with; empty if it ends with anything else, or if Python went on
    after it."""
    lines = [line for line in tail.splitlines() if line.strip()]
    if not lines or not EXCEPTION.match(lines[-1]):
        return ""
    above = [line for line in lines[:-1] if not line.startswith(" ")][-2:]
    if not above or not above[-1].startswith(_TRACEBACK) or above[0].startswith(_SURVIVED):
        return ""
    return lines[-1][:_BYTES_MAX]
