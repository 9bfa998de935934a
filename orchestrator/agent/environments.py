"""The job's packages on the user's own machine: one environment for each lock and interpreter, made once.

It is made under the name of a draft and renamed when it is whole, so what a crash leaves never counts. Who
makes it holds its lock; who uses it shares the lock, until the session ends. If the user's Python satisfies
the requirements already, there is none. Requirements that are not locked may mean something else tomorrow, so
they are installed for their session alone. Decides nothing about which packages stay: see `requirements`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import stat
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from orchestrator.agent.folder import Folder
from orchestrator.agent.log import Log
from orchestrator.agent.requirements import Failed, Installation, Site
from orchestrator.clock import Clock
from orchestrator.core.order import Order
from orchestrator.files import flock, make_folder, open_file, remove_tree, rename, write_whole
from orchestrator.interpreters import ALL, Interpreter, Unusable, ask

T = TypeVar("T")
Beside = Callable[[Callable[[], T]], T]
DRAFT = ".draft-"
LOCK = ".lock"
GIVEN = "ORCHESTRATOR_INSTALL_"
"""Before the names of the user's variables for installers, so that the training does not get them."""
_KEY_CHARS = 32
_POLL_SECONDS = 0.2
_SECONDS_MAX = 60.0
_SCRIPT_BYTES_MAX = 1_000_000
_NEVER = threading.Event()
_LOGIN = re.compile(r"://[^/\s@]+@")
# uv's names for what pip calls otherwise. A list of uv is divided by commas, and may name its indexes.
_FROM_UV = {
    "UV_INDEX_URL": "PIP_INDEX_URL",
    "UV_DEFAULT_INDEX": "PIP_INDEX_URL",
    "UV_EXTRA_INDEX_URL": "PIP_EXTRA_INDEX_URL",
    "UV_INDEX": "PIP_EXTRA_INDEX_URL",
    "UV_FIND_LINKS": "PIP_FIND_LINKS",
    "UV_INSECURE_HOST": "PIP_TRUSTED_HOST",
}
# Exits with 0 if this interpreter has what a requirements file asks for, and what that needs in turn.
_SATISFIED = r"""
import sys
sys.path[:] = [path for path in sys.path if path]
from importlib import metadata
try:
    from packaging.requirements import Requirement
except ImportError:
    from pip._vendor.packaging.requirements import Requirement
waiting, seen = [], set()
for line in open(sys.argv[1], encoding="utf-8-sig"):
    line = line.partition(" #")[0].strip()
    if line and not line.startswith("#"):
        waiting.append((Requirement(line), ""))
while waiting:
    need, extra = waiting.pop()
    if need.url or (need.marker is not None and not need.marker.evaluate({"extra": extra})):
        if need.url:
            sys.exit(1)
        continue
    found = metadata.distribution(need.name)
    if not need.specifier.contains(found.version, prereleases=True):
        sys.exit(1)
    for wanted in need.extras or [""]:
        if (need.name, wanted) not in seen:
            seen.add((need.name, wanted))
            waiting += [(Requirement(each), wanted) for each in found.requires or []]
"""


def given(inherited: Mapping[str, str]) -> dict[str, str]:
    """The user's variables for installers, with pip's names for those of uv."""
    found = {
        name.removeprefix(GIVEN): value
        for name, value in inherited.items()
        if name.startswith(GIVEN) and value
    }
    for theirs, ours in _FROM_UV.items():
        if theirs in found and ours not in found:
            found[ours] = " ".join(
                re.sub(r"^[\w-]+=", "", each.strip()) for each in re.split(r"[,\s]+", found[theirs])
            )
    return found


def logins(variables: Mapping[str, str]) -> tuple[str, ...]:
    """The values among these that hold a login, which no log must show."""
    return tuple(
        each for value in variables.values() for each in value.split() if _LOGIN.search(each) is not None
    )


class Kept:
    """The environment of one lock and one interpreter, below `folder`. `held` until the session ends."""

    def __init__(self, folder: Path, key: str, log: Log, clock: Clock) -> None:
        self.path = folder / key
        self.draft = folder / f"{DRAFT}{key}"
        self._lock = folder / f"{key}{LOCK}"
        self._log = log
        self._clock = clock
        self.held: int | None = None

    def take(self) -> bool:
        """Waits while another session makes it. True: it is there; False: it is ours to make now."""
        make_folder(self._lock.parent, 0o700)
        descriptor = open_file(self._lock, os.O_RDWR | os.O_CREAT)
        self.held = descriptor
        told = False
        while not self._locked(descriptor):
            if not told:
                self._log.say("another session installs the same requirements: waiting for it")
                told = True
            self._clock.wait(_NEVER, _POLL_SECONDS)
        if not self.path.is_dir():
            remove_tree(self.draft)  # what a crash left
            return False
        os.utime(self.path)  # when it was last used
        return True

    def _locked(self, descriptor: int) -> bool:
        """Takes the lock: shared if it is there, alone if it is not. False: try again."""
        whole = self.path.is_dir()
        if not flock(descriptor, (fcntl.LOCK_SH if whole else fcntl.LOCK_EX) | fcntl.LOCK_NB, self._lock):
            return False
        if self.path.is_dir() == whole:
            return True
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # made or removed meanwhile
        return False

    def complete(self) -> None:
        """Gives the draft its name. Its scripts name their interpreter by its path, so they are rewritten."""
        assert self.held is not None
        before, after = os.fsencode(self.draft), os.fsencode(self.path)
        for script in (self.draft / "bin").iterdir():
            if script.is_symlink() or not script.is_file() or script.stat().st_size > _SCRIPT_BYTES_MAX:
                continue
            content = script.read_bytes()
            if before in content:
                mode = stat.S_IMODE(script.stat().st_mode)
                write_whole(script, content.replace(before, after), sync=False, mode=mode)
        remove_tree(self.draft / "wheels")
        rename(self.draft, self.path)
        fcntl.flock(self.held, fcntl.LOCK_SH)


def installed(
    folder: Folder,
    order: Order,
    python: Interpreter,
    variables: Mapping[str, str],
    log: Log,
    clock: Clock,
    *,
    into: Path,
    uv: str | None,
    beside: Beside[object],
) -> Site | None:
    """The site with the order's requirements; None if the interpreter has them already. `beside` does work
    while the session's heartbeat goes on. Raises Failed, OSError."""
    assert order.requirements is not None
    listed = folder.source / order.requirements
    lock = order.requirements_lock
    if beside(lambda: _satisfied(python, listed)):
        log.say(f"{order.requirements}: {python.path} has everything")
        return None
    everything = beside(lambda: _everything(python))
    assert isinstance(everything, Interpreter)
    kept = None
    if lock is not None:
        key = _key(everything, listed.read_bytes(), (folder.source / lock).read_bytes())
        kept = Kept(into, key, log, clock)
        if beside(kept.take):
            log.say(f"{order.requirements}: installed before, in {kept.path}")
            return Site(kept.path, python.version[:2])
    site = Site(folder.work / "site" if kept is None else kept.draft, python.version[:2])
    try:
        pip = Installation.begin(
            folder, order.requirements, variables, log, lock=lock, site=site, python=everything, uv=uv
        )
        beside(pip.finish)
        if kept is None:
            return site
        kept.complete()
    except (Failed, OSError):
        remove_tree(site.root)  # it may have filled the disk
        raise
    log.say(f"{order.requirements}: installed in {kept.path}, for later sessions too")
    return Site(kept.path, python.version[:2])


def _everything(python: Interpreter) -> Interpreter:
    try:
        return ask(python.path, ALL)
    except Unusable as error:
        raise OSError(str(error)) from error


def _satisfied(python: Interpreter, listed: Path) -> bool:
    """Whether nothing has to be installed. Everything that is not certain means no."""
    try:
        done = subprocess.run(
            [python.path, "-c", _SATISFIED, str(listed)],
            cwd="/",
            env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _key(python: Interpreter, listed: bytes, lock: bytes) -> str:
    """What decides about the content: the requirements, the interpreter, and what that has already."""
    told = [
        hashlib.sha256(listed).hexdigest(),
        hashlib.sha256(lock).hexdigest(),
        python.path,
        str(Path(python.path).resolve()),
        python.version_text,
        platform.machine(),
        list(python.folders),
        sorted(python.packages.items()),
    ]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:_KEY_CHARS]
