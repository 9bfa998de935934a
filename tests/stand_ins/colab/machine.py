"""A machine of the local Colab: a real Jupyter server, in a folder that is its whole file system.

Paths of its contents API start at the folder, and kernels run in its `content`, which they know as /content
too. Everything that runs on a machine dies with it. Decides nothing about when that is.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.platforms.colab.starting import Forked, Forks, Start
from orchestrator.processes import end, find

JUPYTER = Path(__file__).with_name("jupyter.py")
LOCK = Path(__file__).with_name("machine.lock")
START_SECONDS = 60.0
MARK = "LOCAL_COLAB_MACHINE"
# What a kernel runs first. A real machine has /content; here it is a name for the machine's own folder.
_STARTUP = """\
import os as _os
_content, _real = {content!r}, {{name: getattr(_os, name) for name in ("chdir", "makedirs")}}
def _here(name):
    def call(path, *given, **named):
        text = _os.fspath(path)
        if text == "/content" or text.startswith("/content/"):
            path = _content + text[len("/content"):]
        return _real[name](path, *given, **named)
    return call
for _name in _real:
    setattr(_os, _name, _here(_name))
_os.chdir(_content)
if {python!r}:
    import platform as _platform
    _platform.python_version = lambda: {python!r}
"""
# The part of Colab's own package that gives the machine back.
_RUNTIME = """\
import os, urllib.request
def unassign():
    urllib.request.urlopen(urllib.request.Request(os.environ["LOCAL_COLAB_UNASSIGN"], method="POST")).close()
"""
# The driver's names (docs/references/accelerators.md).
_GPUS = {
    "T4": "Tesla T4",
    "L4": "NVIDIA L4",
    "A100": "NVIDIA A100-SXM4-40GB",
    "H100": "NVIDIA H100 80GB HBM3",
}


@dataclass
class Machine:
    """`endpoint` is its name; `notebook` the hash that it belongs to. `tokens` are what opened it."""

    endpoint: str
    notebook: str
    accelerator: str
    high_mem: bool
    folder: Path
    python: Path  # with Jupyter
    url: str  # where others reach the local Colab
    began: float
    root: str = "."  # what the contents API shows, from the folder
    python_told: str = ""  # to its cells
    gone: float | None = None
    busy_at: float = 0.0  # when a kernel was last seen busy
    tokens: dict[str, float] = field(default_factory=dict, repr=False)  # token → when it expires
    _process: Forked | None = None
    _starting: threading.Lock = field(default_factory=threading.Lock)
    _sockets: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="colab-")))

    @property
    def content(self) -> Path:
        return self.folder / "content"

    @property
    def door(self) -> Path:
        return self._sockets / "jupyter"

    @property
    def base(self) -> str:
        return f"/runtime/{self.endpoint}"

    def new_token(self, seconds: float) -> str:
        token = secrets.token_urlsafe(16)
        self.tokens[token] = time.monotonic() + seconds
        return token

    def start(self) -> None:
        """Starts Jupyter, unless it runs or the machine is gone."""
        with self._starting:
            if self._process is None and self.gone is None:
                self._process = self._start()

    def _start(self) -> Forked:
        root, startup = self.folder / "root", self.folder / "root" / "ipython" / "profile_default" / "startup"
        google = self.folder / "packages" / "google" / "colab"
        programs = self.folder / "bin"
        there = self.folder / self.root / "content"
        for each in (self.content, there, startup, google, self.folder / "tmp", programs):
            each.mkdir(parents=True, exist_ok=True)
        if self.accelerator in _GPUS:
            tool = programs / "nvidia-smi"
            tool.write_text(f"#!/bin/sh\necho '{_GPUS[self.accelerator]}'\n")
            tool.chmod(0o755)
        first = _STARTUP.format(content=str(self.content), python=self.python_told)
        (startup / "00-machine.py").write_text(first)
        (google / "__init__.py").touch()
        (google / "runtime.py").write_text(_RUNTIME)
        environ = {name: os.environ[name] for name in ("LANG", "LC_ALL") if name in os.environ} | {
            "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
            "HOME": str(root), "TMPDIR": str(self.folder / "tmp"), "IPYTHONDIR": str(root / "ipython"),
            "PYTHONPATH": str(google.parent.parent), "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
            MARK: self.endpoint, "LOCAL_COLAB_UNASSIGN": f"{self.url}{self.base}/local-unassign",
            "COLAB_RELEASE_TAG": "local",
        }  # fmt: skip
        options = {
            "sock": self.door, "base_url": f"{self.base}/", "root_dir": self.folder / self.root,
            "allow_root": True, "open_browser": False, "disable_check_xsrf": True, "allow_origin": "*",
            "allow_remote_access": True,
            "jpserver_extensions": "{}",
        }  # fmt: skip
        words = [f"--ServerApp.{name}={value}" for name, value in options.items()]
        words += ["--IdentityProvider.token=", "--ContentsManager.allow_hidden=True", "--log-level=WARN"]
        with (self.folder / "jupyter.log").open("wb") as log:
            return _forks(self.python).start(Start(words, environ, self.folder, log.fileno()))

    def connect(self) -> socket.socket:
        """A connection to Jupyter, as soon as it takes one. Starts it, if nobody came before."""
        self.start()
        until = time.monotonic() + START_SECONDS
        while True:
            made = socket.socket(socket.AF_UNIX)
            try:
                made.connect(str(self.door))
            except OSError:
                made.close()
                if self.gone is not None or time.monotonic() > until:
                    raise
                threading.Event().wait(0.05)
            else:
                return made

    def kernels(self) -> list[dict[str, Any]]:
        """Jupyter's list of kernels, with their `execution_state`; empty before it has started."""
        found: list[dict[str, Any]] = self._ask("GET", "") or []
        return found

    def is_busy(self) -> bool:
        """Whether a cell runs."""
        return any(each["execution_state"] == "busy" for each in self.kernels())

    def new_kernel(self) -> Any:
        return self._ask("POST", "")

    def interrupt(self) -> None:
        """Interrupts all cells."""
        for each in self.kernels():
            self._ask("POST", f"/{each['id']}/interrupt")

    def _ask(self, method: str, path: str) -> Any:
        """Jupyter's answer about kernels; None if there is none."""
        if self._process is None:
            return None
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(5)
        try:
            connection.sock.connect(str(self.door))
            connection.request(method, f"{self.base}/api/kernels{path}")
            answer = connection.getresponse()
            said = json.loads(answer.read())
            return said if answer.status < 400 else None  # such as one that is about to end
        except (OSError, ValueError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def running(self) -> bool:
        """Whether any process of the machine is alive."""
        found = find(f"{MARK}={self.endpoint}", sessions=True)
        for process in found:
            os.close(process)
        return bool(found) or (self._process is not None and not self._process.ended(0.0))

    def end(self) -> None:
        """Kills everything on the machine. Its files stay for the test to look at, as nobody else can."""
        with self._starting:
            self.gone = self.gone if self.gone is not None else time.monotonic()
        if self._process is not None:
            self._process.kill()
        end(f"{MARK}={self.endpoint}", sessions=True)
        shutil.rmtree(self._sockets, ignore_errors=True)


@cache
def _forks(python: Path) -> Forks:
    """One for all machines: importing Jupyter takes longer than all that a test does with it."""
    return Forks(python, str(JUPYTER))


def jupyter(folder: Path) -> Path:
    """The Python of an environment with Jupyter, made in the folder if it is not there. It sees this
    environment's packages too, so that a training command finds torch."""
    import fcntl
    import hashlib
    import sysconfig

    from uv import find_uv_bin

    whole = LOCK.read_bytes() + sys.executable.encode()
    made = folder / f"colab-machine-{hashlib.sha256(whole).hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "colab-machine.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (made / "complete").exists():
            return made / "bin" / "python"
        shutil.rmtree(made, ignore_errors=True)
        uv = [find_uv_bin(), "--no-config", "--quiet"]
        subprocess.run([*uv, "venv", "--no-project", "--python", sys.executable, str(made)], check=True)
        python = made / "bin" / "python"
        locked = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "--compile-bytecode"]
        subprocess.run([*uv, "pip", "install", *locked, "--python", str(python), "-r", str(LOCK)], check=True)
        [site] = made.glob("lib/python*/site-packages")
        (site / "zz-ours.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
        (made / "complete").touch()
    return python
