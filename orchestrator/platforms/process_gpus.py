"""The GPUs of this machine for sessions that are processes: which there are, which are free, who gets which.

Asks nvidia-smi alone, and not often. A GPU is held by a lock (`gpu_locks`). Decides nothing about sessions.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator import nvidia
from orchestrator.clock import Clock
from orchestrator.core.accelerators import Accelerator
from orchestrator.core.gpu_names import accelerator_of, may_be
from orchestrator.core.offer import UNDATED, Unavailable, until_human
from orchestrator.core.own_accelerators import Own, own_named, row_named
from orchestrator.core.wording import count_text
from orchestrator.errors import QuotaExhausted, Transient
from orchestrator.nvidia import Found, Gpu
from orchestrator.platforms.gpu_locks import GpuLocks, Holder, folder

ALL = "all"
FRESH_SECONDS = 60.0  # GPUs come and go rarely; one that is taken shows in its lock
VISIBLE = "CUDA_VISIBLE_DEVICES"
GIVEN = "ORCHESTRATOR_GPUS"  # for the agent: the UUIDs of its session's GPUs; empty: none


@dataclass(frozen=True)
class Usable:
    """What sessions may use. `left_out`: one sentence for each GPU that they may not, and why. `outlived`:
    one for each GPU that something uses whose session is over."""

    gpus: tuple[Gpu, ...]
    left_out: tuple[str, ...]
    trouble: str = ""
    outlived: tuple[str, ...] = ()


class MachineGpus:
    """`wanted` are the config's `gpus`: ALL, or indexes and UUIDs. Its accelerator is `accelerator`."""

    def __init__(
        self,
        wanted: str | Sequence[int | str],
        accelerator: str,
        clock: Clock,
        *,
        seconds: float = nvidia.SECONDS,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._wanted = wanted
        self._accelerator = accelerator
        self._clock = clock
        self._variables = dict(os.environ if variables is None else variables)
        self._asker = nvidia.Asker(self._variables, seconds)
        self._locks = GpuLocks(folder(), clock)
        self._lock = threading.Lock()
        self._found: Found | None = None
        self._asked_at = 0.0
        self.own: Own = {}

    @property
    def row(self) -> Accelerator | None:
        return row_named(self._accelerator, self.own)

    @property
    def devices(self) -> int:
        """How many each session gets."""
        return 1 if self.row is None else self.row.devices

    def found(self) -> Found:
        """All GPUs of this machine, as the driver showed them at most a minute ago."""
        with self._lock:
            now = self._clock.monotonic()
            if self._found is None or now - self._asked_at >= FRESH_SECONDS:
                self._found = self._asker.gpus()
                self._asked_at = self._clock.monotonic()
            return self._found

    def usable(self) -> Usable:
        """Those that the config names, that this controller may see, and that are of the accelerator."""
        found = self.found()
        left_out: list[str] = []
        kept: list[Gpu] = []
        seen = nvidia.visible(found.gpus, self._variables.get(VISIBLE))
        for gpu in self._named(found.gpus, left_out):
            why = self._unfit(gpu, seen)
            if why is None:
                kept.append(gpu)
            else:
                left_out.append(f"GPU {gpu.index} ({gpu.name}) is left alone: {why}")
        kept.sort(key=lambda each: each.index)  # so that two that take several do not wait for each other
        return Usable(tuple(kept), tuple(left_out), found.trouble)

    def _named(self, gpus: Sequence[Gpu], left_out: list[str]) -> Iterator[Gpu]:
        if self._wanted == ALL:
            yield from gpus
            return
        named: set[str] = set()
        for name in self._wanted:
            matching = [each for each in gpus if name in (each.index, str(each.index), each.uuid)]
            if matching:
                yield from (each for each in matching if each.uuid not in named)
                named |= {each.uuid for each in matching}
            elif gpus:
                there = ", ".join(str(each.index) for each in gpus)
                left_out.append(f"there is no GPU {name}; there are {there}")

    def _unfit(self, gpu: Gpu, seen: Sequence[Gpu]) -> str | None:
        if gpu not in seen:
            return f"the controller's {VISIBLE}={self._variables.get(VISIBLE, '')} does not name it"
        if gpu.mig:
            return (
                "it is in MIG mode, and sessions get whole GPUs only; `sudo nvidia-smi -mig 0` ends that mode"
            )
        row, own = self.row, own_named(self._accelerator, self.own)
        if row is None or (own is not None and not own.gpu_names):
            return None
        if own is not None:
            return None if may_be(gpu.name, row) else f"it is not {self._accelerator} by its `gpu_names`"
        kind = accelerator_of(gpu.name, gpu.memory_gb)
        if (
            kind is not None
            and row_named(kind) is not None
            and self._accelerator in (kind, f"{kind}x{row.devices}")
        ):
            return None
        return f"it is {kind or 'not in the catalogue'}, not {self._accelerator}"

    def slots(self, root: Path) -> tuple[int, Usable]:
        """How many sessions of this platform fit, counting its own that run: GPUs that others hold do not
        count. `root`: the folder with the platform's sessions."""
        usable = self.usable()
        holders = self._locks.holders(each.uuid for each in usable.gpus)
        others = {uuid: each for uuid, each in holders.items() if Path(each.session).parent != root}
        outlived = _outlived(usable.gpus, others)
        return (len(usable.gpus) - len(others)) // self.devices, replace(usable, outlived=outlived)

    def lack(self, usable: Usable, slots: int, platform: str) -> Unavailable | None:
        """Why no session can start, or None if one can."""
        if slots:
            return None
        if len(usable.gpus) >= self.devices:
            used = "its GPUs are in use by other sessions of this user"
            return Unavailable("; ".join((used, *usable.outlived)), UNDATED)
        reasons = [each for each in (usable.trouble, *usable.left_out) if each]
        if usable.gpus:
            reasons.insert(
                0, f"{self._accelerator} needs {self.devices} GPUs, and {len(usable.gpus)} can be used"
            )
        text = "; ".join(reasons) or "no GPU can be used"
        if usable.trouble:
            advice = "`nvidia-smi` must work here"
        elif VISIBLE in self._variables:
            advice = f"start the controller without {VISIBLE}, or correct `gpus` of {platform} in the config"
        else:
            advice = f"correct `gpus` of {platform} in the config"
        return Unavailable(text, until_human(advice))

    @contextmanager
    def taken(self, devices: int, session: Path) -> Iterator[tuple[tuple[Gpu, ...], tuple[int, ...]]]:
        """GPUs for a session, with the descriptors of their locks, which its agent must inherit.

        Raises QuotaExhausted if too few are free, Transient if the driver does not answer.
        """
        usable = self.usable()
        if not usable.gpus and usable.trouble:
            raise Transient(usable.trouble)
        by_uuid = {each.uuid: each for each in usable.gpus}
        with self._locks.taken(by_uuid, devices, str(session)) as (held, others):
            if not held:
                there = ", ".join(str(each.index) for each in usable.gpus) or "none"
                busy = ", ".join(str(by_uuid[uuid].index) for uuid in others) or "none"
                needs = f"needs {count_text(devices, 'GPU')}; this machine has GPU {there}; in use: {busy}"
                raise QuotaExhausted("; ".join((needs, *_outlived(usable.gpus, others))))
            yield tuple(by_uuid[uuid] for uuid in held), tuple(held.values())


def _outlived(gpus: Sequence[Gpu], holders: Mapping[str, Holder]) -> tuple[str, ...]:
    """A sentence for each GPU that is held by what outlived its session."""
    said = (holders[each.uuid].outlived(f"GPU {each.index}") for each in gpus if each.uuid in holders)
    return tuple(filter(None, said))


def variables_for(gpus: Sequence[Gpu]) -> dict[str, str]:
    """What the agent's environment says of its GPUs. By UUID, so that no order of counting matters."""
    chosen = ",".join(each.uuid for each in gpus)
    return {GIVEN: chosen, VISIBLE: chosen, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
