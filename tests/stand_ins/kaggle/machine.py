"""The machine of one kernel session: a folder for /kaggle, the hardware it claims, a process, and its log.

There is no container and no mount: every "/kaggle/" in a script's text is replaced by the folder. Knows
nothing of quotas, versions or HTTP. All processes that a machine started end with it, by process id.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import site
import subprocess
import threading
import time
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

_MARK = "LOCAL_KAGGLE_MACHINE"
_PASSED_ON = ("PIP_", "SSL_CERT_", "REQUESTS_CA_")


@dataclass(frozen=True)
class Hardware:
    """`kind` is the quota that it spends: gpu, tpu or cpu. `gpus` are names in nvidia-smi,
    `memory` MiB each."""

    kind: str
    gpus: tuple[str, ...] = ()
    memory: int = 0
    has_tpu: bool = False

    def nvidia_smi(self) -> str:
        """The program's text. It answers the queries of probes and of the GPUs' use, where the first GPU is
        the least busy, and fails like the real one without GPUs."""
        if not self.gpus:
            return '#!/bin/sh\necho "No devices were found" >&2\nexit 6\n'
        use = "\n".join(f"GPU-local-{i}, {11 + 10 * i}, 6144, 38.50, 55" for i in range(len(self.gpus)))
        wide = "\n".join(f"{i}, GPU-local-{i}, {name}, {self.memory}" for i, name in enumerate(self.gpus))
        return (
            '#!/bin/sh\ncase "$1" in\n'
            f"--query-gpu=index,uuid,name,memory.total) cat <<'EOT'\n{wide}\nEOT\n;;\n"
            "--query-gpu=uuid,utilization.gpu,memory.used,power.draw,temperature.gpu)"
            f" cat <<'EOT'\n{use}\nEOT\n;;\n"
            f"--query-gpu=name) cat <<'EOT'\n{chr(10).join(self.gpus)}\nEOT\n;;\n"
            '*) echo "the local Kaggle does not know: nvidia-smi $*" >&2; exit 2;;\nesac\n'
        )

    def environment(self) -> dict[str, str]:
        """The variables that Cloud TPU VMs set (assumed for Kaggle's); none for GPUs and CPUs."""
        if not self.has_tpu:
            return {}
        return {
            "TPU_ACCELERATOR_TYPE": "v5litepod-8",
            "TPU_CHIPS_PER_HOST_BOUNDS": "2,4,1",
            "TPU_WORKER_ID": "0",
        }


class Log:
    """Events {stream_name, time, data} in order. `time` is in seconds since the machine's start."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._is_closed = False
        self._born = time.monotonic()

    def add(self, stream: str, data: str) -> None:
        with self._changed:
            elapsed = round(time.monotonic() - self._born, 6)
            self._events.append({"stream_name": stream, "time": elapsed, "data": data})
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def text(self) -> str:
        """The whole log as Kaggle keeps it, which is the text of a JSON array."""
        with self._changed:
            return json.dumps(self._events)

    def after(self, count: int, seconds: float) -> tuple[list[dict[str, Any]], bool]:
        """The events after the first `count`, and whether they are the last. Waits up to
        `seconds` for them."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or len(self._events) > count, seconds)
            return self._events[count:], self._is_closed


class Machine:
    """`folder` is the machine's /kaggle. Its home, its programs and its Python are next to it."""

    def __init__(self, folder: Path, hardware: Hardware, *, internet: bool, session_id: int = 0) -> None:
        self.folder = folder
        self.session_id = session_id
        self.log = Log()
        self._hardware = hardware
        self._internet = internet
        self._process: subprocess.Popen[bytes] | None = None
        self._readers: list[threading.Thread] = []
        for name in ("working", "input", "src"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self, text: str) -> None:
        """Runs the script in its own process session, in /kaggle/working, with a clean environment."""
        script = self.folder / "src" / "script.py"
        script.write_text(text.replace("/kaggle/", f"{self.folder}/"), encoding="utf-8")
        self._process = subprocess.Popen(
            [_interpreter(self.folder.parent / "python"), str(script)],
            cwd=self.folder / "working",
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        pipes = (("stdout", self._process.stdout), ("stderr", self._process.stderr))
        for name, pipe in pipes:
            assert pipe is not None
            reader = threading.Thread(target=self._read, args=(name, pipe), daemon=True)
            reader.start()
            self._readers.append(reader)

    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def end(self) -> None:
        """Ends every process of the machine, even detached ones, and closes the log."""
        while found := list(_processes(self.folder)):
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        if self._process is not None:
            if not Path("/proc/self").exists() and self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for reader in self._readers:
            reader.join()
        self.log.close()

    def outputs(self) -> list[tuple[str, Path]]:
        """The regular files under /kaggle/working, sorted by their relative names."""
        working = self.folder / "working"
        found = (path for path in sorted(working.rglob("*")) if path.is_file() and not path.is_symlink())
        return [(path.relative_to(working).as_posix(), path) for path in found]

    def _read(self, name: str, pipe: IO[bytes]) -> None:
        with pipe:
            for line in pipe:
                self.log.add(name, line.decode("utf-8", "replace"))

    def _environment(self) -> dict[str, str]:
        beside = self.folder.parent
        programs, home, scratch = (beside / name for name in ("bin", "root", "tmp"))
        for each in (programs, home, scratch):
            each.mkdir(exist_ok=True)
        if self._hardware.gpus or any(_finds("nvidia-smi")):
            program = programs / "nvidia-smi"
            program.write_text(self._hardware.nvidia_smi(), encoding="utf-8")
            program.chmod(0o755)
        return {
            "HOME": str(home),
            "PATH": os.pathsep.join([str(programs), str(beside / "python" / "bin"), os.environ["PATH"]]),
            "LANG": "C.UTF-8",
            "TMPDIR": str(scratch),
            "KAGGLE_KERNEL_RUN_TYPE": "Batch",
            "KAGGLE_CONTAINER_NAME": f"kaggle_local-{self.session_id}",
            _MARK: str(self.folder),
            **self._network(),
            **self._hardware.environment(),
        }

    def _network(self) -> dict[str, str]:
        if not self._internet:
            nowhere = "http://127.0.0.1:9"
            return {"http_proxy": nowhere, "https_proxy": nowhere, "PIP_NO_INDEX": "1"}
        names = (
            name for name in os.environ if name.startswith(_PASSED_ON) or name.lower().endswith("_proxy")
        )
        return {name: os.environ[name] for name in names}


def remove(folder: Path) -> None:
    """Removes a folder, including read-only folders in it."""
    for each in [folder, *folder.rglob("*")]:
        if each.is_dir() and not each.is_symlink():
            each.chmod(0o755)
    shutil.rmtree(folder)


def _interpreter(folder: Path) -> Path:
    """A Python that has our packages except editable ones. pip installs only into this Python."""
    venv.EnvBuilder(symlinks=True).create(folder)
    packages = next((folder / "lib").glob("python*/site-packages"))
    (packages / "ours.pth").write_text("".join(f"{each}\n" for each in site.getsitepackages()))
    return folder / "bin" / "python"


def _finds(program: str) -> Iterator[Path]:
    for folder in os.environ["PATH"].split(os.pathsep):
        if (path := Path(folder) / program).exists():
            yield path


def _processes(folder: Path) -> Iterator[int]:
    """The live processes that have the machine's mark, or work in its folder."""
    mark = f"{_MARK}={folder}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            carries = mark in (entry / "environ").read_bytes().split(b"\0")
            stands = (entry / "cwd").readlink().is_relative_to(folder)
        except OSError:  # gone, a zombie, or somebody else's
            continue
        if carries or stands:
            yield int(entry.name)
