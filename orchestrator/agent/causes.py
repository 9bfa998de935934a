"""Why a command failed, as far as that tells whether it would fail again, or with less memory. Pure: reads
the end of its output.

The same exception at the same step is no accident, and a program that is not there will not be there next
time. What depends on the network, the machine or the disk may pass. The last exception decides: what else the
output says is data, a note, or an error that the command survived.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchestrator.agent.exceptions import LINE_MAX, follows, raised

_NOT_FOUND, _NOT_EXECUTABLE, _USAGE = 127, 126, 2
_SIGNALLED = 128  # a shell adds the signal's number
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
    | [Tt]emporar|[Tt]ry[ ]again|CommError|EADDRINUSE|[Aa]ddress[ ]already[ ]in[ ]use
    | IncompleteRead|ProtocolError|BrokenPipe|NCCL|DistBackend|CUDA|cuDNN|CUBLAS
    | Errno[ ](?:5|11|12|16|28|32|98|101|104|107|110|111|113|116|121|122)\b
    | [Nn]ame[ ]resolution|Name[ ]or[ ]service|[Nn]o[ ]space|MemoryError|OutOfMemory|KeyboardInterrupt
    """,
    re.VERBOSE,
)
_SAID = re.compile(r"\b(?:error|fatal)\b", re.IGNORECASE)
_QUOTED = re.compile(r"""(?<!\w)(?:'[^']*'|"[^"]*"|`[^`]*`)(?!\w)""")
# What is another one each time: a path of a temporary file, an address, a number.
_CHANGES = re.compile(
    r"/tmp/\S+|\btmp\w{8}\b|0x[0-9a-fA-F]+|\b(?=[a-z]*\d)[0-9a-f]{8,}\b|\d[\d.,:]*(?:e-?\d+)?"
)

_OUT_OF_MEMORY_KIND = re.compile(r"(?:OutOfMemory\w*|(?<!Shared)MemoryError|bad_alloc)\)?$")
_RESOURCES_KIND = re.compile(r"ResourceExhausted(?:Error)?$")
_OTHER_RESOURCES = re.compile(r"[Nn]o space left|[Qq]uota|\b429\b")
# What these say repeats data: a key, a path, a line of a file.
_OF_DATA = re.compile(
    r"(?:Key|Index|Lookup|Value|Type|Attribute|Name|Assertion|Import|NotFound|Directory|Exists|Permission|Syntax"
    r"|Indentation|Unicode\w*|Decode|Parse|Parser|Validation|Config|Schema|Data|Sample|Label|Format|Token\w*)"
    r"(?:Error|Exception)$|^(?:Bad|Invalid|Unknown|Missing|Corrupt)"
)
_OUT_OF_MEMORY = re.compile(
    r"""\b(?:cuda|hip|xpu|npu|mps|gpu|device|host|hbm)\b[^.;]{0,40}\bout[ ]of[ ]memory
    | \bout[ ]of[ ](?:cuda|gpu|device|host)[ ]memory
    | (?:^|:[ ]|\][ ])(?:ran[ ])?out[ ]of[ ]memory
    | memoryallocation\b | _error_out_of_memory | hiperroroutofmemory | _alloc_failed
    | defaultcpuallocator:.*(?:can't[ ]allocate|not[ ]enough)[ ]memory
    | \bbad_alloc | \boom[ ]when[ ]allocating
    | resource_exhausted:.*(?:memory|alloc|hbm|reserve)
    | (?:failed|unable|not[ ]able)[ ]to[ ]allocate\b.*(?:byte|[kmgt]i?b\b|memory|tensor|buffer)
    | cannot[ ]allocate[ ](?:memory|vector)(?![ ]in[ ]static) | \berrno[ ]12\b
    | (?:insufficient|not[ ]enough)[ ]memory | memory[ ]allocation[ ](?:error|failed)
    """,
    re.VERBOSE | re.IGNORECASE,
)
_CALL_OUT_OF_MEMORY = re.compile(r"Cuda failure (?:\d+ )?'out of memory'")
# The last words of a program that is not Python's. Words before them would make them a note.
_LAST_WORDS = re.compile(
    r"(?!note|info|hint|warn|tip)(?:\[?[\w./+-]*error\b[^:]*:? )?"
    r"(?:[\w./+-]+(?::\d+)*: )*(?:cuda error: |cuda )?"
    r"(?:out of (?:gpu )?memory|cannot allocate"
    r"|resource_exhausted: .*memory|defaultcpuallocator: .*memory)",
    re.IGNORECASE,
)
# What is said where a process of the training was killed, which may have been for memory.
_KILLED = re.compile(
    r"""killed[ ]by[ ]signal:[ ]Killed | SIGKILL | BrokenProcessPool | terminated[ ]abruptly
    | DataLoader[ ]worker.*exited[ ]unexpectedly""",
    re.VERBOSE,
)
_KILLED_LAST = re.compile(r"(?:.*:[ ])?(?:\s*\d+[ ])?Killed\b|.*\bexitcode\s*:[ ]-9\b|.*Signal 9 \(SIGKILL\)")
_LAUNCHER_LINES = 25  # what torchrun prints of a process that failed
_BYTES_MAX = 300


@dataclass(frozen=True)
class Cause:
    """`error`: the exception that ended the command, the same text each time; empty if there was none, or if
    it may pass. `hopeless`: it would fail again in the same place."""

    error: str = ""
    hopeless: bool = False


def cause(exit_code: int, output: str) -> Cause:
    """The cause of an exit that is not 0. After a signal the last line is not the cause."""
    if exit_code < 0 or exit_code > _SIGNALLED:
        return Cause()
    found, last = raised(output), _last(output)
    line = last if found is None else found.line
    if exit_code in (_NOT_FOUND, _NOT_EXECUTABLE) or _HOPELESS.match(line) or _HOPELESS.match(last):
        return Cause(_same(line), hopeless=True)
    if exit_code == _USAGE and ": error: " in last:  # argparse and its kin
        return Cause(_same(last), hopeless=True)
    if _PASSING.search(_QUOTED.sub("", line)) or (found is None and not _SAID.search(line)):
        return Cause()
    return Cause(_same(line))


def said(output: str) -> str:
    """What ended the command, in its own words: the last exception, else its last line."""
    found = raised(output)
    return (_last(output) if found is None else found.line)[:_BYTES_MAX]


def out_of_memory(output: str) -> bool:
    """Whether the command says that it ended because memory ran out."""
    found = raised(output)
    if found is None:
        return _LAST_WORDS.match(_last(output)) is not None
    return any(map(_is_memory, (found.line, *found.also)))


def was_killed(output: str) -> bool:
    """Whether the command says that it ended because one of its processes was killed."""
    found = raised(output)
    if found is not None and (_KILLED.search(found.line) or not follows(found.line)):
        return _KILLED.search(found.line) is not None
    lines = (line.strip()[:LINE_MAX] for line in output.splitlines()[-_LAUNCHER_LINES:])
    return any(_KILLED_LAST.match(line) for line in lines) or bool(_KILLED.search(_last(output)))


def last_exception(output: str) -> str:
    """The exception that the output ends with; empty if it ends with anything else, or if Python went on
    after it."""
    found = raised(output)
    return found.line[:_BYTES_MAX] if found is not None and found.last else ""


def _is_memory(line: str) -> bool:
    kind, _, message = line.removeprefix("terminate called: ").partition(": ")
    name = kind.rpartition(".")[2].rpartition("::")[2].rstrip(":")
    if _OUT_OF_MEMORY_KIND.search(kind.rstrip(":")):
        return True
    if _OF_DATA.search(name):
        return False
    if _RESOURCES_KIND.search(name) and "api_core" not in kind:
        return _OTHER_RESOURCES.search(message) is None
    return bool(_OUT_OF_MEMORY.search(_QUOTED.sub("", message)) or _CALL_OUT_OF_MEMORY.search(message))


def _last(output: str) -> str:
    found = (line.strip() for line in reversed(output.splitlines()))
    return next((line[:LINE_MAX] for line in found if line), "")


def _same(line: str) -> str:
    return _CHANGES.sub("#", line)[:_BYTES_MAX]
