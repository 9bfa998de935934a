"""Asks nvidia-smi, which may hang, lie or be missing. Decides nothing; ships with the agent.

A driver in trouble can make nvidia-smi hang so that not even SIGKILL ends it. So the wait for it is limited,
and nothing else is asked until that one has ended: hanging processes must not pile up.
"""

from __future__ import annotations

import math
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

TOOL = "nvidia-smi"
SECONDS = 10.0  # an idle driver takes some to answer
GPUS_MAX = 64
_PLACES = "/opt/bin:/usr/local/nvidia/bin:/usr/lib/wsl/lib"  # where images and WSL keep it, outside the PATH
_BYTES_MAX = 64 * 1024
_FILE_BYTES_MAX = 1 << 20
_KILL_SECONDS = 1.0
_MIB = 1024**2
_NAME_MAX = 100
_INVENTORY = ("index", "uuid", "name", "memory.total", "mig.mode.current")
_UUID = re.compile(r"GPU-[0-9A-Za-z-]{1,60}")
_WORDS_MAX = 200


@dataclass(frozen=True)
class Gpu:
    """One GPU of this machine. `memory_gb` in units of 1e9 bytes. `mig`: it is divided into slices."""

    index: int
    uuid: str
    name: str
    memory_gb: float
    mig: bool = False


@dataclass(frozen=True)
class Found:
    """The GPUs of this machine. If there are none, `trouble` says why, where that is known."""

    gpus: tuple[Gpu, ...] = ()
    trouble: str = ""


@dataclass(frozen=True)
class Load:
    """What a GPU does right now; None for what it does not say. Memory in units of 1e9 bytes."""

    uuid: str
    percent: float | None = None
    memory_gb: float | None = None
    watts: float | None = None
    celsius: float | None = None


class Asker:
    """Asks one question at a time. `variables`: the environment, whose PATH finds nvidia-smi."""

    def __init__(self, variables: Mapping[str, str] | None = None, seconds: float = SECONDS) -> None:
        self._variables = dict(os.environ if variables is None else variables)
        self._seconds = seconds
        self._lock = threading.Lock()
        self._stuck: subprocess.Popen[bytes] | None = None
        self._running: subprocess.Popen[bytes] | None = None
        self._given_up = False

    def give_up(self) -> None:
        """Asks nothing more, and ends what another thread asks now, without waiting for that."""
        self._given_up = True
        running = self._running
        if running is not None:
            running.kill()

    def gpus(self) -> Found:
        """Every GPU that the driver shows."""
        said, trouble = self.query(_INVENTORY)
        if said is None and trouble.startswith(f"{TOOL}:"):  # such as a driver from before there was MIG
            said, trouble = self.query(_INVENTORY[:-1])
        if said is None:
            return Found(trouble=trouble)
        found = tuple(_gpus(said))
        if found:
            return Found(found)
        words = _words(" ".join(" ".join(each) for each in said))
        return Found(trouble=f"{TOOL}: {words}" if words else f"{TOOL} names no GPU")

    def loads(self, uuids: Sequence[str]) -> tuple[Load, ...]:
        """What these GPUs do. Empty if it does not say."""
        fields = ("uuid", "utilization.gpu", "memory.used", "power.draw", "temperature.gpu")
        said, _ = self.query(fields, ("-i", ",".join(uuids)))
        wanted = set(uuids)
        return tuple(load for row in said or () if (load := _load(row)) is not None and load.uuid in wanted)

    def query(self, fields: Sequence[str], more: Sequence[str] = ()) -> tuple[list[list[str]] | None, str]:
        """The cells of each row, at most GPUS_MAX; or None and why there are none."""
        question = (f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", *more)
        said, trouble = self._ask(question)
        if said is None:
            return None, trouble
        lines = [line for line in said.splitlines() if line.strip()]
        return [[cell.strip() for cell in line.split(",")] for line in lines[:GPUS_MAX]], ""

    def _ask(self, words: Sequence[str]) -> tuple[str | None, str]:
        tool = shutil.which(TOOL, path=f"{self._variables.get('PATH', os.defpath)}:{_PLACES}")
        if tool is None:
            return None, f"{TOOL} is not installed"
        with self._lock:
            if self._given_up:
                return None, f"{TOOL} is not asked any more"
            if self._stuck is not None and self._stuck.poll() is None:
                return None, f"{TOOL} of before still hangs: the driver is in trouble"
            self._stuck = None
            try:
                with tempfile.TemporaryFile() as file:
                    return self._answer([tool, *words], file)
            except OSError as error:
                return None, f"{TOOL}: {error.strerror}"

    def _answer(self, command: list[str], file: object) -> tuple[str | None, str]:
        # Into a file: a pipe would have to be read while we wait, and who inherits it could keep it open.
        running = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,  # type: ignore[call-overload]
            env=self._variables, start_new_session=True,
        )  # fmt: skip
        self._running = running
        if self._given_up:  # it was, before the line above
            running.kill()
        with suppress(OSError, AttributeError):  # only Linux has it; endless output must not fill the disk
            resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (_FILE_BYTES_MAX, _FILE_BYTES_MAX))
        try:
            code = running.wait(self._seconds)
        except subprocess.TimeoutExpired:
            self._end(running)
            return None, f"{TOOL} did not answer within {self._seconds:g} s"
        except BaseException:
            self._end(running)
            raise
        file.seek(0)  # type: ignore[attr-defined]
        said = file.read(_BYTES_MAX).decode(errors="replace")  # type: ignore[attr-defined]
        if code:
            return None, f"{TOOL}: {_words(said) or f'exit code {code}'}"
        return said, ""

    def _end(self, running: subprocess.Popen[bytes]) -> None:
        with suppress(OSError):
            os.killpg(running.pid, signal.SIGKILL)
        try:
            running.wait(_KILL_SECONDS)
        except subprocess.TimeoutExpired:
            self._stuck = running


def _gpus(rows: list[list[str]]) -> Iterator[Gpu]:
    """The rows that make sense, each GPU once."""
    seen: set[str] = set()
    for row in rows:
        if len(row) not in (len(_INVENTORY) - 1, len(_INVENTORY)):
            continue
        index, uuid, name, memory, *mig = row
        size = _number(memory)
        if not (index.isascii() and index.isdecimal() and len(index) < 4 and _UUID.fullmatch(uuid)):
            continue
        if uuid in seen or size is None or not 0 < size < 1e8:
            continue
        seen.add(uuid)
        plain = "".join(each for each in name if each.isprintable())[:_NAME_MAX]
        yield Gpu(int(index), uuid, plain, size * _MIB / 1e9, mig == ["Enabled"])


def _load(row: list[str]) -> Load | None:
    if len(row) != 5 or not _UUID.fullmatch(row[0]):
        return None
    percent, memory, watts, celsius = (_number(cell) for cell in row[1:])
    return Load(
        row[0],
        percent if percent is not None and percent <= 100 else None,
        memory * _MIB / 1e9 if memory is not None and memory < 1e8 else None,
        watts if watts is not None and watts < 1e5 else None,
        celsius if celsius is not None and celsius < 1e3 else None,
    )


def _words(said: str) -> str:
    """What may be told of it: it ends up on terminals and in the ledger."""
    return "".join(each for each in " ".join(said.split()) if each.isprintable())[:_WORDS_MAX]


def _number(text: str) -> float | None:
    """None for `[N/A]`, `[Unknown Error]` and the like."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def visible(gpus: Sequence[Gpu], said: str | None) -> tuple[Gpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES allows, in its order; all if it is not set. As CUDA does, it stops
    at the first that it does not know. Numbers count in nvidia-smi's order, that of the bus."""
    if said is None:
        return tuple(gpus)
    chosen: list[Gpu] = []
    for word in said.split(","):
        plain = word.strip()
        found = [
            each for each in gpus
            if (plain.isdecimal() and len(plain) < 10 and each.index == int(plain))
            or (len(plain) > len("GPU-") and plain.startswith("GPU-") and each.uuid.startswith(plain))
        ]  # fmt: skip
        if len(found) != 1 or found[0] in chosen:
            break
        chosen += found
    return tuple(chosen)
