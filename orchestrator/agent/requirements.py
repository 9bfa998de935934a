"""Installs the job's own packages with pip before the training. The platform's packages stay as they are.

The packages go into work/site, a virtual environment that sees all the platform's packages. So pip treats
those as installed and removes none of them. It needs no writable site-packages, and an externally-managed
mark does not stop it. None of this can break the agent, which uses only the standard library. The training
still runs on the platform's interpreter, with work/site on PYTHONPATH and its scripts on PATH. PYTHONPATH
reads no .pth files, so an editable install stays invisible. It comes before the standard library, so what
would hide a part of that, such as enum34, is taken out again: by hand, no import finds it either.

torch, JAX and the packages they are built on keep the platform's versions. The one exception is a TPU, where
the lock may bring another back end, and torch with it. Where the order has a lock, pip
first fetches what the lock lists, checks the hashes, and then installs from these files only. A package that
the platform has and the requirements allow stays; any other comes in the lock's version. Decides how a failed
installation is reported, not what happens to the session.
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
from orchestrator.files import make_folder, remove_file, remove_tree, write_whole
from orchestrator.interpreters import Interpreter

# Built for the platform's driver and for each other: another version of one breaks the rest.
_KEPT = frozenset({
    "torch", "torchvision", "torchaudio", "torchtext", "torch-xla", "torch-tpu", "triton", "pytorch-triton",
    "jax", "jaxlib", "libtpu", "libtpu-nightly",
})  # fmt: skip
# torch's back ends for TPUs, and what goes with one version of them only. See `without_other_back_end`.
_TPU_BACK_ENDS = frozenset({"torch-tpu", "torch-xla"})
_WITH_BACK_END = _TPU_BACK_ENDS | {
    "torch",
    "torchvision",
    "torchaudio",
    "torchtext",
    "libtpu",
    "libtpu-nightly",
}
_KEPT_FAMILIES = ("nvidia-", "jax-cuda", "jax-rocm")
# Code compiled for one major version of numpy fails on the next, but works with newer minor versions.
_KEPT_MAJOR = frozenset({"numpy"})

ELSEWHERE = frozenset({"PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PYTHONPATH"})
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
    | Max[ ]retries[ ]exceeded | ERROR:[ ]Wheel[ ].*[ ]is[ ]invalid  # a download that was cut off
    | [Cc]onnection[ ](?:aborted|refused|reset|timed[ ]out) | [Rr]ead[ ]timed[ ]out
    | Network[ ]is[ ]unreachable | No[ ]route[ ]to[ ]host | [nN]ame[ ]resolution
    | HTTP[ ]error[ ](?:429|5\d\d) | (?:429|5\d\d)[ ](?:Client|Server)[ ]Error
    """,
    re.VERBOSE,
)
_NOT_FETCHED = "Could not fetch URL "
_NOTHING_KNOWN = "from versions: none"
_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded")
_FATAL = re.compile(r"^(?:ERROR: |[\w.]+(?:Error|Exception): )")


class Failed(Exception):
    """The requirements are not installed. `tail` is the end of pip's output. `cut_off` means that nothing
    could be fetched, so the requirements themselves may be right. `no_room`: the disk was full."""

    def __init__(self, message: str, tail: str = "", *, cut_off: bool = False, no_room: bool = False) -> None:
        super().__init__(message)
        self.tail = tail
        self.cut_off = cut_off
        self.no_room = no_room


@dataclass(frozen=True)
class Site:
    """The virtual environment of the job's packages. `version` of its Python; None: ours."""

    root: Path
    version: tuple[int, ...] | None = None

    @property
    def python(self) -> Path:
        return self.root / "bin" / "python"

    @property
    def scripts(self) -> Path:
        return self.root / "bin"

    @property
    def pip_log(self) -> Path:
        """pip's full log, which never leaves the session."""
        return self.root / "pip.log"

    @property
    def wheels(self) -> Path:
        """The fetched and checked files of the lock."""
        return self.root / "wheels"

    @property
    def packages(self) -> Path:
        if self.version is not None:
            return self.root / "lib" / f"python{self.version[0]}.{self.version[1]}" / "site-packages"
        base = str(self.root)
        return Path(sysconfig.get_path("purelib", "venv", vars={"base": base, "platbase": base}))


class Installation:
    """One run of pip. Begin it in the main thread, so that it cannot start after a stop request."""

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
        tpu: bool = False,
        site: Site | None = None,
        python: Interpreter | None = None,
        uv: str | None = None,
    ) -> Installation:
        """Starts pip on `path`, in the folder of the unpacked bundle that holds both `path` and `lock`.

        `site`: where to install, by default in the session's folder. `python`: the interpreter that the
        training runs with, and all its packages; None: ours. `uv`: the program, for a Python without pip.
        `tpu`: the order is for a TPU. pip follows pip.conf and PIP_*, and keeps to the versions of `lock`.
        `variables` must carry the guardian's mark, so that pip dies with the session. Raises Failed, OSError.
        """
        listed = folder.source / path
        if not listed.is_file():
            raise Failed(f"the source has no {path}, which the order names as its requirements")
        site = site or Site(folder.work / "site")
        there = _made(site, python)
        locked = None if lock is None else _read_lock(folder.source / lock)
        if tpu and locked is not None:
            there = without_other_back_end(locked, there)
        kept = constraints(there)
        constraint = site.root / "constraints.txt"
        log.say(f"installing {path}; kept from the platform: {', '.join(kept) or 'nothing'}")
        # -I: the job's source and its PYTHONPATH must not come before pip's own modules
        start = (str(site.python), "-I", "-u")
        install = [*start, *_PIP, "--log", str(site.pip_log), "-r", str(listed), "-c", str(constraint)]
        command = install
        if locked is not None:
            needed = missing(locked, there)
            log.say(f"{lock}: {len(needed)} packages to fetch, each pinned and checked by its hashes")
            kept += pins(locked, there)
            command = ["/bin/sh", "-c", _in_two_steps(site, start, locked, needed, install)]
        command = _with_pip(site, there, command, uv) if python is not None else command
        write_whole(constraint, "".join(f"{line}\n" for line in kept).encode(), sync=False)
        process = subprocess.Popen(
            command,
            cwd=folder.source,
            env={name: value for name, value in variables.items() if name not in ELSEWHERE},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return cls(site, process, log)

    def finish(self) -> Site:
        """Logs pip's output until it ends. Raises Failed."""
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
        _uncover(self._site)
        return self._site

    def _unreachable(self) -> bool:
        """Whether an index did not answer. pip says so only in its own log."""
        try:
            lines = self._site.pip_log.read_text(errors="replace").splitlines()
        except OSError:
            return False
        return any(_NOT_FETCHED in line and _CUT_OFF.search(line) for line in lines)


def _uncover(site: Site) -> None:
    """Removes the modules that would hide one of the standard library."""
    asked = "import sys; print(*getattr(sys, 'stdlib_module_names', ()))"
    said = subprocess.run(
        [str(site.python), "-I", "-S", "-c", asked],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    names = frozenset(said.stdout.decode(errors="replace").split()) or sys.stdlib_module_names
    for found in site.packages.iterdir():
        if found.is_dir() and found.name in names:
            remove_tree(found)
        elif found.suffix in (".py", ".pyc", ".so") and found.name.partition(".")[0] in names:
            remove_file(found)


def _made(site: Site, python: Interpreter | None) -> list[tuple[str, str]]:
    """Makes the virtual environment, which sees all packages of the interpreter. Returns these."""
    if python is None:
        venv.EnvBuilder(symlinks=True).create(site.root)
        _see(site, sys.path)
        return [(found.metadata["Name"], found.version) for found in metadata.distributions()]
    made = subprocess.run(
        [python.path, "-I", "-m", "venv", "--symlinks", "--without-pip", str(site.root)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if made.returncode:
        said = made.stdout.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        raise Failed(f"{python.path} -m venv failed: {said[0]}")
    _see(site, python.folders)
    return list(python.packages.items())


def _with_pip(site: Site, there: list[tuple[str, str]], command: list[str], uv: str | None) -> list[str]:
    """The command after pip itself, for an environment without it, such as one that uv made."""
    if any(_normal(name) == "pip" for name, _ in there):
        return command
    ways = [f"{shlex.quote(str(site.python))} -I -m ensurepip >/dev/null 2>&1"]
    if uv is not None:
        ways.append(shlex.join([uv, "pip", "install", "--quiet", "--python", str(site.python), "pip"]))
    return ["/bin/sh", "-c", f"{{ {' || '.join(ways)}; }} && exec {shlex.join(command)}"]


def masked(line: str) -> str:
    """The line without the credentials and signatures in URLs; empty if it names an index or a proxy."""
    if _UNSAID.search(line):
        return ""
    return _URL_QUERY.sub(r"\1***", _CREDENTIALS.sub("***@", line))


def constraints(installed: Iterable[tuple[str, str]]) -> list[str]:
    """The constraints for pip that keep the platform's versions of torch, JAX and the packages they are built
    on. `installed` as (name, version), in import order."""
    kept: dict[str, str] = {}
    for given, version in installed:
        name = _normal(given)
        if name in _KEPT or name.startswith(_KEPT_FAMILIES):
            kept.setdefault(name, f"{name}=={version}")
        elif name in _KEPT_MAJOR and (major := re.match(r"\d+", version)):
            kept.setdefault(name, f"{name}>={version},<{int(major[0]) + 1}")
    return [kept[name] for name in sorted(kept)]


# --- The lock ---------------------------------------------------------------------------------------------


def without_other_back_end(lock: str, installed: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """What is installed on a TPU machine, less the TPU packages that the lock replaces.

    These are torch's back end and all that goes with one version of it. They stay if the lock has no back end
    or the same one. `installed` as (name, version), in import order; `2.9.0+cpu` is a build of 2.9.0.
    """
    there = [(_normal(name), version) for name, version in installed]
    versions = {name: version.partition("+")[0] for name, version in reversed(there)}
    wanted = {each[1]: each[2] for each in _LOCKED.finditer(lock) if each[1] in _TPU_BACK_ENDS}
    if all(versions.get(name) == version.partition("+")[0] for name, version in wanted.items()):
        return there
    return [each for each in there if each[0] not in _WITH_BACK_END]


def missing(lock: str, installed: Iterable[tuple[str, str]]) -> list[str]:
    """The entries of a lock to fetch here.

    Leaves out what the platform keeps, what only those packages need, and what is installed in the same
    version. `installed` as (name, version), in import order.
    """
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
    """The packages that require this one. "" stands for the job itself, and for a lock that does not say."""
    said = _WANTED_BY.search(entry)
    names = said[1].split(", ") if said is not None else ["-r"]
    return {"" if name.startswith("-r") else name for name in names if not name.startswith("-c")}


def pins(lock: str, installed: Iterable[tuple[str, str]]) -> list[str]:
    """The constraints for pip that pin every package the platform does not have to the lock's version."""
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
    """A shell command that fetches what is needed and then installs from these files only.

    Where the platform has everything, it fetches nothing and asks no index. The installation ignores other
    places that pip's settings name.
    """
    make_folder(site.wheels)
    listed = site.root / "needed.txt"
    options = [line for line in lock.splitlines() if line.startswith("-")]
    text = "".join(f"{line}\n" for line in options) + "".join(needed)
    write_whole(listed, text.encode(), sync=False)
    fetch = [*python, *_FETCH, "--log", str(site.pip_log), "--wheel-dir", str(site.wheels), "-r", str(listed)]
    alone = [*install, "--no-index", "--find-links", str(site.wheels)]
    offline = "PIP_CONFIG_FILE=/dev/null PIP_FIND_LINKS= "
    satisfied = f"{offline}{shlex.join([*alone, '--dry-run'])} >/dev/null 2>&1"
    fetched = shlex.join(fetch) if needed else "true"
    return f"{{ {satisfied} || {fetched}; }} && {offline}{shlex.join(alone)}"


def _normal(name: str | None) -> str:
    return re.sub(r"[-_.]+", "-", name or "").lower()


def _see(site: Site, path: Iterable[str]) -> None:
    write_whole(site.packages / "_platform.pth", _seen(path).encode(), sync=False)


def _seen(path: Iterable[str]) -> str:
    """Lines of a .pth file that show a virtual environment every folder that an interpreter imports from,
    including their own .pth files. Unlike `--system-site-packages`, this also works inside a virtual
    environment."""
    folders = [each for each in path if each and Path(each).is_dir()]
    return "".join(f"import site; site.addsitedir({path!r})\n" for path in folders)


def _failed(code: int, tail: list[str], unreachable: bool) -> Failed:
    """`cut_off` is set when a failed connection ended pip, or when nothing was found and an index did not
    answer."""
    fatal = [line for line in tail if _FATAL.match(line)] or tail[-1:]
    cut_off = any(_CUT_OFF.search(line) or (unreachable and _NOTHING_KNOWN in line) for line in fatal)
    said = fatal[-1].removeprefix("ERROR: ")[:300] if fatal else f"exit code {code}"
    no_room = any(_NO_ROOM.search(line) for line in fatal)
    return Failed(said, "\n".join(tail)[-TAIL_BYTES:], cut_off=cut_off, no_room=no_room)
