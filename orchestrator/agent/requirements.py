"""The job's own packages, installed by pip beside the platform's before the training; never instead of them.

They go into work/site, a virtual environment that sees all the platform has. So pip takes what is there for
installed and removes nothing of it; it needs no writable site-packages and minds no externally-managed mark;
and the agent, which uses the standard library alone, cannot be broken by any of it. The training runs on the
platform's interpreter as ever, with work/site on PYTHONPATH (which reads no .pth files: an editable install
stays invisible) and its scripts on PATH.

What the platform has of torch, JAX and what they are built on keeps its version. Where the order brings a
lock, pip first fetches what it lists, checked by its hashes, and then installs from these files alone: what
the platform has and the requirements allow stays, anything else comes in the version of the lock. Decides how
a failed installation reads, not what becomes of the session.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import sysconfig
import venv
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from orchestrator.agent.folder import Folder
from orchestrator.agent.log import TAIL_BYTES, TAIL_LINES, Log

# Built for the platform's driver and for one another: another version of one breaks the rest.
_KEPT = frozenset({
    "torch", "torchvision", "torchaudio", "torchtext", "torch-xla", "torch-tpu", "triton", "pytorch-triton",
    "jax", "jaxlib", "libtpu", "libtpu-nightly",
})  # fmt: skip
_KEPT_FAMILIES = ("nvidia-", "jax-cuda", "jax-rocm")
# What is compiled for one major version of numpy fails on the next; within it newer ones serve older callers.
_KEPT_MAJOR = frozenset({"numpy"})

_ELSEWHERE = frozenset({"PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PYTHONPATH"})
_QUIET = ("--no-input", "--disable-pip-version-check", "--progress-bar", "off")
_PIP = ("-m", "pip", "install", "--no-user", *_QUIET)
_FETCH = ("-m", "pip", "wheel", "--require-hashes", "--no-deps", *_QUIET)
_LOCKED = re.compile(r"^([a-z0-9][a-z0-9._-]*)==([^\s;\\]+)[^\n]*\n(?:\s+\S[^\n]*\n)*", re.MULTILINE)
_WANTED_BY = re.compile(r"#\s*via\s+(.+)")
_UNSAID = re.compile(
    r"Looking in (?:indexes|links)|--(?:extra-)?index-url|--find-links|--proxy|--trusted-host"
)
_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+@")
_URL_QUERY = re.compile(r"(://[^\s?]+\?)[^\s'\")]+")

_CUT_OFF = re.compile(
    r"""NewConnectionError | ConnectTimeout | ReadTimeout | NameResolutionError | ProxyError | ProtocolError
    | IncompleteRead | RemoteDisconnected | Connection(?:Reset|Refused|Aborted)?Error
    | Max[ ]retries[ ]exceeded | ERROR:[ ]Wheel[ ].*[ ]is[ ]invalid  # this is how a download ends that is cut
    | [Cc]onnection[ ](?:aborted|refused|reset|timed[ ]out) | [Rr]ead[ ]timed[ ]out
    | Network[ ]is[ ]unreachable | No[ ]route[ ]to[ ]host | [nN]ame[ ]resolution
    | HTTP[ ]error[ ](?:429|5\d\d) | (?:429|5\d\d)[ ](?:Client|Server)[ ]Error
    """,
    re.VERBOSE,
)
_NOT_FETCHED = "Could not fetch URL "
_NOTHING_KNOWN = "from versions: none"
_FATAL = re.compile(r"^(?:ERROR: |[\w.]+(?:Error|Exception): )")


class Failed(Exception):
    """The requirements are not installed. `tail` is the end of what pip said; `cut_off`: because nothing
    could be fetched, which is no fault of theirs."""

    def __init__(self, message: str, tail: str = "", *, cut_off: bool = False) -> None:
        super().__init__(message)
        self.tail = tail
        self.cut_off = cut_off


@dataclass(frozen=True)
class Site:
    """The virtual environment of the job's packages."""

    root: Path

    @property
    def python(self) -> Path:
        return self.root / "bin" / "python"

    @property
    def scripts(self) -> Path:
        return self.root / "bin"

    @property
    def pip_log(self) -> Path:
        """All that pip has to say; it never leaves the session."""
        return self.root / "pip.log"

    @property
    def wheels(self) -> Path:
        """What the lock lists, fetched and checked."""
        return self.root / "wheels"

    @property
    def packages(self) -> Path:
        base = str(self.root)
        return Path(sysconfig.get_path("purelib", "venv", vars={"base": base, "platbase": base}))


class Installation:
    """One run of pip. Begin it in the main thread, so that nothing can start after a stop was heard."""

    def __init__(self, site: Site, process: subprocess.Popen[bytes], log: Log) -> None:
        self._site = site
        self._process = process
        self._log = log

    @classmethod
    def begin(
        cls,
        folder: Folder,
        path: str,
        variables: Mapping[str, str],
        log: Log,
        *,
        lock: str | None = None,
    ) -> Installation:
        """Starts pip on `path` in the unpacked bundle, in that folder, as pip.conf and PIP_* say, held to the
        versions of `lock` there.

        `variables` must carry the guardian's mark: by it pip dies with the session. Raises Failed, OSError.
        """
        listed = folder.source / path
        if not listed.is_file():
            raise Failed(f"the source has no {path}, which the order names as its requirements")
        site = Site(folder.work / "site")
        venv.EnvBuilder(symlinks=True).create(site.root)
        (site.packages / "_platform.pth").write_text(_seen())
        there = [(found.metadata["Name"], found.version) for found in metadata.distributions()]
        kept = constraints(there)
        constraint = site.root / "constraints.txt"
        log.say(f"installing {path}; the platform's stay: {', '.join(kept) or 'none is there'}")
        # -I: neither the job's source nor its PYTHONPATH comes before pip's own modules
        python = (str(site.python), "-I", "-u")
        install = [*python, *_PIP, "--log", str(site.pip_log), "-r", str(listed), "-c", str(constraint)]
        command = install
        if lock is not None:
            locked = _read_lock(folder.source / lock)
            needed = missing(locked, there)
            log.say(f"{lock}: {len(needed)} packages to fetch, each in one version and checked by its hashes")
            kept += pins(locked, there)
            command = ["/bin/sh", "-c", _in_two_steps(site, python, locked, needed, install)]
        constraint.write_text("".join(f"{line}\n" for line in kept))
        process = subprocess.Popen(
            command,
            cwd=folder.source,
            env={name: value for name, value in variables.items() if name not in _ELSEWHERE},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return cls(site, process, log)

    def finish(self) -> Site:
        """Logs what pip says until it ends. Raises Failed."""
        assert self._process.stdout is not None
        tail: deque[str] = deque(maxlen=TAIL_LINES)
        for raw in self._process.stdout:
            line = masked(self._log.mask.data(raw).decode(errors="replace").rstrip())
            if not line:
                continue
            tail.append(line)
            self._log.say(f"pip: {line}")
        code = self._process.wait()
        if code:
            raise _failed(code, list(tail), self._unreachable())
        return self._site

    def _unreachable(self) -> bool:
        """Whether an index failed to answer, which pip keeps to its own log."""
        try:
            lines = self._site.pip_log.read_text(errors="replace").splitlines()
        except OSError:
            return False
        return any(_NOT_FETCHED in line and _CUT_OFF.search(line) for line in lines)


def masked(line: str) -> str:
    """The line without credentials and signatures in URLs; empty if it names index or proxy."""
    if _UNSAID.search(line):
        return ""
    return _URL_QUERY.sub(r"\1***", _CREDENTIALS.sub("***@", line))


def constraints(installed: Iterable[tuple[str, str]]) -> list[str]:
    """The lines for pip that keep the platform's torch and its kin, from (name, version) in import order."""
    kept: dict[str, str] = {}
    for given, version in installed:
        name = _normal(given)
        if name in _KEPT or name.startswith(_KEPT_FAMILIES):
            kept.setdefault(name, f"{name}=={version}")
        elif name in _KEPT_MAJOR and (major := re.match(r"\d+", version)):
            kept.setdefault(name, f"{name}>={version},<{int(major[0]) + 1}")
    return [kept[name] for name in sorted(kept)]


# --- The lock ---------------------------------------------------------------------------------------------


def missing(lock: str, installed: Iterable[tuple[str, str]]) -> list[str]:
    """The entries of a lock to fetch here: not what the platform keeps, nor what only that needs, nor what is
    there in this very version. `installed` as (name, version), in import order."""
    there: dict[str, str] = {}
    for given, version in installed:
        there.setdefault(_normal(given), version)
    kept = {name for name in there if name in _KEPT or name.startswith(_KEPT_FAMILIES)}
    entries = list(_LOCKED.finditer(lock))
    wanted: set[str] = set()
    while True:
        found = {each[1] for each in entries if each[1] not in kept and _wanted_by(each[0]) & (wanted | {""})}
        if found == wanted:
            return [each[0] for each in entries if each[1] in wanted and there.get(each[1]) != each[2]]
        wanted = found


def _wanted_by(entry: str) -> set[str]:
    """The packages that require this one; "" stands for the job itself, and for a lock that does not say."""
    said = _WANTED_BY.search(entry)
    names = said[1].split(", ") if said is not None else ["-r"]
    return {"" if name.startswith("-r") else name for name in names if not name.startswith("-c")}


def pins(lock: str, installed: Iterable[tuple[str, str]]) -> list[str]:
    """The lines for pip that hold to the lock's version what the platform does not have."""
    there = {_normal(given) for given, _ in installed}
    lines = [
        each[0].partition("\n")[0].rstrip(" \\") for each in _LOCKED.finditer(lock) if each[1] not in there
    ]
    return sorted(lines)


def _read_lock(path: Path) -> str:
    if not path.is_file():
        raise Failed(f"the source has no {path.name}, which the order names as its lock")
    return path.read_text(encoding="utf-8") + "\n"


def _in_two_steps(
    site: Site, python: tuple[str, ...], lock: str, needed: list[str], install: list[str]
) -> str:
    """Shell: fetch what is needed, unless the platform has all of it, which asks no index; then install from
    there, whatever pip's settings say of other places."""
    site.wheels.mkdir()
    listed = site.root / "needed.txt"
    options = [line for line in lock.splitlines() if line.startswith("-")]
    listed.write_text("".join(f"{line}\n" for line in options) + "".join(needed), encoding="utf-8")
    fetch = [*python, *_FETCH, "--log", str(site.pip_log), "--wheel-dir", str(site.wheels), "-r", str(listed)]
    alone = [*install, "--no-index", "--find-links", str(site.wheels)]
    offline = "PIP_CONFIG_FILE=/dev/null PIP_FIND_LINKS= "
    satisfied = f"{offline}{shlex.join([*alone, '--dry-run'])} >/dev/null 2>&1"
    fetched = shlex.join(fetch) if needed else "true"
    return f"{{ {satisfied} || {fetched}; }} && {offline}{shlex.join(alone)}"


def _normal(name: str | None) -> str:
    return re.sub(r"[-_.]+", "-", name or "").lower()


def _seen() -> str:
    """Lines of a .pth file that show a virtual environment all this interpreter imports from, their own .pth
    files included; unlike `--system-site-packages` also from within a virtual environment."""
    folders = [path for path in sys.path if path and Path(path).is_dir()]
    return "".join(f"import site; site.addsitedir({path!r})\n" for path in folders)


def _failed(code: int, tail: list[str], unreachable: bool) -> Failed:
    """Cut off: what ended pip is a connection's failure, or nothing was found and an index out of reach."""
    fatal = [line for line in tail if _FATAL.match(line)] or tail[-1:]
    cut_off = any(_CUT_OFF.search(line) or (unreachable and _NOTHING_KNOWN in line) for line in fatal)
    said = fatal[-1].removeprefix("ERROR: ")[:300] if fatal else f"exit code {code}"
    return Failed(said, "\n".join(tail)[-TAIL_BYTES:], cut_off=cut_off)
