"""The exception that ended a command, found in the end of its output. Pure.

A traceback says why a command ended only if the command did not go on after it. What runtimes and launchers
print after the end of a training is known here: it hides no exception. Does not decide what it means.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# What launchers put before each line of one process: torchrun and torch, mpirun, srun, Ray.
_PROCESS = re.compile(
    r"\[(?:rank|default|worker)\d+\]:? ?|\[\d+,\d+\]<\w+>:? ?|\d+: |\((?:[\w.]+ )?pid=\d+(?:, ip=[\d.]+)?\) ?"
)
# IPython begins with the exception's class; a group or a box is drawn with lines.
_HEADER = re.compile(
    r"(?:(?P<kind>[\w.]+)\s{2,})?\W*(?:Exception Group |Original )?Traceback \(most recent call last\)"
)
_GROUPED = re.compile(r"\s+(?:\| ?|\+)")
_PART = re.compile(r"\s+\+[-+]+ \d+ -+$")
_FRAME = (" ", "\t", "│", "╭", "╰", "┃", "┏", "┗", "❱")
_KIND = r"(?:[A-Za-z_]\w*\.)*(?:[A-Z_]\w*|\w+\.\w*(?:error|timeout))(?:\([\w.]+\))?"
_EXCEPTION = re.compile(rf"{_KIND}(?::|$)")
_NAMED = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b(?::|$)")
_TERMINATE = re.compile(r"terminate called after throwing an instance of '(.+)'")
_FROM = "The above exception was the direct cause"
# The line before the traceback of an exception after which Python went on.
_SURVIVED = re.compile(
    r"Exception (?:ignored |in thread )|Error in (?:atexit|sys\.excepthook)|--- Logging error ---"
    r"|Task exception was never retrieved|future: <"
)
# They end because another process of the training did: what that one said decides.
_FOLLOWS = re.compile(
    r"(?:[\w.]+\.)?(?:ChildFailedError|SignalException|ProcessExitedException|ProcessRaisedException)\b"
    r"|(?:[\w.]+\.)?CalledProcessError: Command .*python"
    r"|.*(?:gloo|NCCL|TCPStore|ProcessGroup|DistBackendError|DistNetworkError|[Cc]onnection closed by peer)"
    r"|terminate called"
)
_BY_ITSELF = re.compile(r"EADDRINUSE|[Aa]ddress already in use|out of memory|OutOfMemory|bad_alloc")
_FAILED_CALL = re.compile(r"Cuda failure ")  # the reason of an NCCL error, in a later line of its message
_NOISE = re.compile(
    r"""\s | [^\w\s]{3} | \[?[WEIF]\d{4} | \d{4}-\d\d-\d\d.*:[ ][WEIF][ ] | \[[\w.-]+:\d+\][ ]
    | wandb: | .*\d+%\| | .*Warning: | .*resource_tracker | .*\bleaked\b | Exception[ ]ignored | sys:1:
    | .*(?:NCCL|ProcessGroup|TCPStore|gloo|torchelastic|torch\.distributed|destroy_process_group)
    | CUDA[ ]kernel[ ]errors | For[ ]debugging[ ] | Compile[ ]with[ ] | For[ ]simplicity,[ ]JAX
    | Set[ ]the[ ]environment[ ]variable | .*HYDRA_FULL_ERROR | Hint: | what\(\): | --[ ]Process
    | Sending[ ]process | .*[ ]closing[ ]signal | failed[ ]\(exitcode | Root[ ]Cause | Failures:
    | (?:.*:[ ])?(?:\s*\d+[ ])?(?:Killed|Aborted|Terminated|Segmentation[ ]fault|Bus[ ]error)\b
    | Fatal[ ]Python[ ]error:[ ]Aborted | srun: | slurmstepd: | make(?:\[\d+\])?:[ ]\*\*\* | error:[ ]Recipe
    | ERROR[ ]conda | \[\d{4}-\d\d-\d\d[^]]*\][ ]\[\w+\][ ]\[launch
    | Exception[ ]in[ ]thread | During[ ]handling | The[ ]above[ ]exception
    | Epoch[ ]\d+:[ ]+\d+% | \[\d+\]: | Error[ ]in[ ]atexit
    """,
    re.VERBOSE,
)
_WENT_ON = re.compile(
    r"""\b(?:global_)?(?:steps?|epochs?|iter(?:ation)?s?|batch(?:es)?|loss|samples?)\b\W{0,3}\d | \bit/s\b
    | \b(?:skip|retr[yi]|continu|ignor|recover|resum|reduc(?:ed|ing)\b|done\b|finished\b)
    | \bfall(?:s|ing)?[ ]back
    | ^(?:[\w./+-]+:[ ])+(?:line[ ]\d+:[ ])?.*(?:No[ ]such[ ]file|[Cc]annot[ ]|not[ ]found
      |[Pp]ermission[ ]denied)
    """,
    re.VERBOSE | re.IGNORECASE,
)
LINE_MAX = 1000  # characters that are looked at
_STRANGE_MAX = 8  # lines of no known kind after the exception that ended a command
_MESSAGE_LINES_MAX = 5


@dataclass(frozen=True)
class Raised:
    """`line`: the class and the first line of its message. `text`: its traceback and its whole message.
    `also`: the lines of those that it was raised from, or that are in one group with it. `last`: the output
    ends with it."""

    line: str
    text: str = ""
    also: tuple[str, ...] = ()
    last: bool = True


@dataclass
class _Found:
    """One exception in the output, from the line `start` to before `end`."""

    line: str
    start: int
    end: int
    survived: bool = False
    explains: bool = False  # the next one was raised from it
    grouped: bool = False


@dataclass
class _Stream:
    """The output of one process, as far as its launcher tells them apart. Lines without an end of a line."""

    lines: list[str] = field(default_factory=list)
    found: list[_Found] = field(default_factory=list)

    def read(self) -> None:
        at = 0
        while at < len(self.lines):
            terminated = _TERMINATE.match(self.lines[at])
            if terminated is not None:
                said = self.lines[at + 1].strip() if at + 1 < len(self.lines) else ""
                said = said.removeprefix("what():").strip() if said.startswith("what():") else ""
                line = f"terminate called: {terminated[1]}: {said}".removesuffix(": ")
                self.found.append(_Found(line, at, at + 1 + bool(said)))
            elif (header := _HEADER.match(_bare(self.lines[at]))) is not None:
                at = self._traceback(at, header["kind"]) - 1
            at += 1

    def _traceback(self, start: int, kind: str | None) -> int:
        """Reads one traceback, and returns the line after its exception. Another one may follow before that,
        as where two processes write at once."""
        for at in range(start + 1, len(self.lines)):
            bare = _bare(self.lines[at])
            if _HEADER.match(bare):
                return at
            if not bare or bare.startswith(_FRAME):
                continue
            if kind is not None and not bare.startswith(kind):  # IPython's frames are not indented
                continue
            if _EXCEPTION.match(bare):
                above = [each for each in self.lines[max(0, start - 3) : start] if each.strip()]
                found = _Found(bare, start, at + 1, grouped=self.lines[at] != bare)
                reasons = self.lines[at + 1 : at + 1 + _MESSAGE_LINES_MAX] if "NCCL" in bare else []
                if reason := next((each for each in reasons if _FAILED_CALL.match(each)), ""):
                    found.line = f"{bare}: {reason}"
                found.survived = bool(above) and _is_survived(above)
                if above and above[-1].startswith(_FROM) and self.found:
                    self.found[-1].explains = True
                self.found.append(found)
                return at + 1
        return len(self.lines)

    def final(self) -> Raised | None:
        """The exception after which it did not go on."""
        ended = len(self.lines)
        candidates = [each for each in self.found if not each.survived]
        chosen: _Found | None = None
        for each in reversed(candidates):
            if self._went_on(each.end, ended):
                break
            if chosen is None or follows(chosen.line):
                chosen, ended = each, each.start
            else:
                break
        return None if chosen is None else self._raised(chosen, candidates)

    def _went_on(self, begin: int, end: int) -> bool:
        inside = {n for each in self.found for n in range(each.start, each.end)}
        strange = 0
        for number in range(begin, end):
            line = self.lines[number]
            if number in inside or not line.strip() or _NOISE.match(line):
                continue
            strange += 1
            if strange > _STRANGE_MAX or _WENT_ON.search(line):
                return True
        return False

    def _raised(self, chosen: _Found, candidates: Sequence[_Found]) -> Raised:
        at = candidates.index(chosen)
        also, before = [], at - 1
        while before >= 0 and (
            candidates[before].explains or (chosen.grouped and candidates[before].grouped)
        ):
            also.append(candidates[before].line)
            before -= 1
        end = chosen.end
        while end < len(self.lines) and end < chosen.end + _MESSAGE_LINES_MAX and self.lines[end].strip():
            end += 1
        last = not any(_bare(line) for line in self.lines[chosen.end :])
        return Raised(chosen.line, "\n".join(self.lines[chosen.start : end]), tuple(also), last)


def raised(output: str) -> Raised | None:
    """The exception that ended the command with this end of its output; None if it ended otherwise.

    Of several processes, the one that ended by itself counts, not those that ended because it was gone.
    """
    streams: dict[str, _Stream] = {}
    for given in output.splitlines():
        line = _ANSI.sub("", given[: 2 * LINE_MAX]).rstrip()[:LINE_MAX]
        process = _PROCESS.match(line)
        name = "" if process is None else process[0].strip()
        streams.setdefault(name, _Stream()).lines.append(line if process is None else line[process.end() :])
    for each in streams.values():
        each.read()
    found = [final for stream in streams.values() if (final := stream.final()) is not None]
    own = [final for final in found if not follows(final.line)] or found
    if not own:
        return _unframed(streams.values())
    others = tuple(line for each in own[:-1] for line in (each.line, *each.also))
    chosen = own[-1]
    is_last = chosen.last and not any(s.lines and not s.found for s in streams.values())
    return Raised(chosen.line, chosen.text, (*chosen.also, *others), is_last)


def _unframed(streams: Iterable[_Stream]) -> Raised | None:
    """The exception in the last line, without a traceback: of a syntax error, or printed by the script."""
    for stream in streams:
        inside = {n for each in stream.found for n in range(each.start, each.end)}
        rest = (n for n in reversed(range(len(stream.lines))) if n not in inside)
        at = next((n for n in rest if stream.lines[n] and not _NOISE.match(stream.lines[n])), None)
        if at is not None and at not in inside and _NAMED.match(stream.lines[at]):
            return Raised(stream.lines[at], stream.lines[at], last=False)
    return None


def _bare(line: str) -> str:
    """The line of a group without the lines that are drawn around it."""
    if _PART.match(line):
        return "Traceback (most recent call last)"
    grouped = _GROUPED.match(line)
    return line if grouped is None else line[grouped.end() :].lstrip("+").rstrip("-")


def _is_survived(above: Sequence[str]) -> bool:
    return any(_SURVIVED.match(line) for line in above[-2:] if not line.startswith(" "))


def follows(line: str) -> bool:
    """Whether a process with this exception ended only because another one of the training had."""
    return _FOLLOWS.match(line) is not None and _BY_ITSELF.search(line) is None
