"""Kernels: push, status, output, logs, quota and deletion, as docs/references/kaggle.md describes them.

Its methods are the client's RPCs, with JSON in and out. The caller holds the lock. Knows nothing of HTTP
except the status codes of its answers.
"""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.stand_ins.kaggle.datasets import Datasets
from tests.stand_ins.kaggle.listing import iso_now, missing, page
from tests.stand_ins.kaggle.machine import Hardware, Machine, remove
from tests.stand_ins.kaggle.quota import Quota
from tests.stand_ins.kaggle.session import KernelSession, State
from tests.stand_ins.kaggle.settings import Refusal, Settings, Warts

Request = dict[str, Any]
Sign = Callable[[Path], str]

_T4X2 = Hardware("gpu", ("Tesla T4", "Tesla T4"), 15_360)
_P100 = Hardware("gpu", ("Tesla P100-PCIE-16GB",), 16_384)
_TPU = Hardware("tpu", has_tpu=True)
_CPU = Hardware("cpu")
# Retired shapes are substituted silently (docs/references/kaggle.md#accelerators). By what is assumed.
_SHAPES = {
    "NvidiaTeslaT4": _T4X2, "NvidiaTeslaP100": _T4X2, "TpuV5E8": _TPU, "TpuV38": _TPU, "Tpu1VmV38": _TPU,
    "": _CPU, "None": _CPU, "Cpu": _CPU,
}  # fmt: skip


@dataclass
class Kernel:
    """One slug with all its versions. Status and output are of the newest
    (docs/references/kaggle.md#status)."""

    id: int
    slug: str
    title: str
    visible_at: float
    sessions: list[KernelSession] = field(default_factory=list)

    @property
    def newest(self) -> KernelSession:
        return self.sessions[-1]


class Kernels:
    """All kernels of the account, and the quota that they spend."""

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        warts: Warts,
        datasets: Datasets,
        sign: Sign,
        lock: threading.RLock,
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._warts = warts
        self._datasets = datasets
        self._sign = sign
        self._lock = lock
        self._all: dict[str, Kernel] = {}
        self._made = 0
        self.quota = Quota(settings)
        self.pushed: list[Request] = []

    def advance(self) -> float:
        """Advances every session to the present and returns that time. Starts, ends, publishes and bills."""
        now = time.monotonic()
        for session in list(self._sessions()):
            session.advance(now, partial(self._start, session))
        self.quota.settle(self._sessions(), now)
        for session in self._sessions():
            if self.quota.is_used_up(session.kind) and session.is_active:
                session.run_out()
        return now

    def close(self) -> None:
        for session in self._sessions():
            session.machine.end()

    def session(self, owner: str, slug: str, label: str = "") -> KernelSession:
        """The newest session, or version `vN`. A plain `N` is not found (KC#1200)."""
        kernel = self._find(owner, slug)
        if not label:
            return kernel.newest
        found = [each for each in kernel.sessions if f"v{each.version}" == label]
        if not found:
            raise Refusal(404, "Not found")
        return found[0]

    def save(self, request: Request) -> Request:
        """SaveKernel. A refusal is an answer with `error` (docs/references/kaggle.md#refusals)."""
        self.pushed.append(request)
        if len(request.get("text", "").encode()) > self._settings.text_bytes_max:
            raise Refusal(400, "The kernel source is too large")
        kernel = self._pushed_to(request)
        if kernel is None:
            return {"error": "Notebook not found"}
        hardware = _asked_for(request)
        is_run = request.get("kernelExecutionType") != "QUICK_SAVE"
        if hardware is None:
            return {"error": f"The accelerator {request['machineShape']} is not available to you."}
        if is_run and (refusal := self._refusal(hardware.kind)):
            return {"error": refusal}
        session = self._add(kernel, request, self._given(hardware))
        if is_run:
            session.advance(time.monotonic(), partial(self._start, session))
        else:
            session.state = State.NEW_SCRIPT
        ref = f"{self._settings.username}/{kernel.slug}"
        return {
            "ref": f"/code/{ref}",
            "url": f"https://www.kaggle.com/code/{ref}",
            "versionNumber": session.version,
            "kernelId": kernel.id,
            "invalidDatasetSources": [
                each for each in _listed(request, "dataset") if self._dataset_at(each) is None
            ],
            "invalidKernelSources": [
                each for each in _listed(request, "kernel") if self._outputs_at(each) is None
            ],
            "invalidCompetitionSources": _listed(request, "competition"),
            "invalidModelSources": _listed(request, "model"),
        }

    def status(self, request: Request) -> Request:
        kernel = self._find(request.get("userName", ""), request.get("kernelSlug", ""))
        if time.monotonic() < kernel.visible_at:
            raise Refusal(404, "Not found")
        session = self.session(self._settings.username, kernel.slug, request.get("versionLabel", ""))
        reply: Request = {}
        if session.state is not State.QUEUED or not self._warts.queued_is_omitted:
            reply["status"] = self._warts.unknown_status or self._word(session.state)
        if session.failure:
            reply["failureMessage"] = session.failure
        return reply

    def output(self, request: Request) -> Request:
        session = self._session_of(request)
        seconds = session.seconds_over(time.monotonic())
        names = session.outputs if seconds >= self._warts.output_lag_seconds else []
        names = names[: self._warts.output_files_max or None]
        if self._warts.hostile_output_name and names:
            names = [*names, (self._warts.hostile_output_name, names[0][1])]
        items, token = page(names, request)
        has_log = seconds >= self._warts.log_lag_seconds
        return {
            "files": [{"url": self._sign(path), "fileName": name} for name, path in items],
            "log": session.machine.log.text() if has_log else "",
            "nextPageToken": token,
        }

    def list_files(self, request: Request) -> Request:
        items, token = page(self._session_of(request).outputs, request)
        files = [
            {"name": name, "size": path.stat().st_size, "creationDate": iso_now()} for name, path in items
        ]
        return {"files": files, "nextPageToken": token}

    def download(self, request: Request) -> str:
        """The signed URL of one output file."""
        number = request.get("versionNumber")
        session = self.session(request["ownerSlug"], request["kernelSlug"], f"v{number}" if number else "")
        path = dict(session.outputs).get(request.get("filePath", ""))
        if path is None:
            raise Refusal(404, "Not found")
        return self._sign(path)

    def cancel(self, request: Request) -> Request:
        found = [each for each in self._sessions() if each.session_id == request.get("kernelSessionId")]
        if not found or not self._warts.cancel_works:
            raise Refusal(403, "Permission 'kernelSessions.cancel' was denied")
        found[0].cancel()
        return {}

    def delete(self, request: Request) -> Request:
        """Stops the run and its billing, and loses the outputs
        (docs/references/kaggle.md#cancelling-and-deleting)."""
        kernel = self._find(request.get("userName", ""), request.get("kernelSlug", ""))
        for session in kernel.sessions:
            session.discard()
        self.quota.settle(self._sessions(), time.monotonic())
        del self._all[kernel.slug]
        remove(self._folder / "kernels" / kernel.slug)
        return {}

    def get(self, request: Request) -> Request:
        kernel = self._find(request.get("userName", ""), request.get("kernelSlug", ""))
        source = kernel.newest.request
        blob = {
            "source": source.get("text", ""),
            "language": "python",
            "kernelType": "script",
            "slug": kernel.slug,
        }
        return {"metadata": self._describe(kernel), "blob": blob}

    def list_kernels(self, request: Request) -> Request:
        """Lists `mine` or those of a user. There are no public ones here."""
        is_mine = request.get("group") == "PROFILE" or request.get("user") == self._settings.username
        wanted = request.get("search", "").lower()
        found = [
            each for each in self._all.values() if is_mine and wanted in f"{each.slug} {each.title}".lower()
        ]
        items, token = page(found, request)
        return {"kernels": [self._describe(each) for each in items], "nextPageToken": token}

    def statistics(self, request: Request) -> Request:
        del request
        return self.quota.statistics(self._sessions(), self.advance())

    def _sessions(self) -> Iterator[KernelSession]:
        return (session for kernel in self._all.values() for session in kernel.sessions)

    def _find(self, owner: str, slug: str) -> Kernel:
        found = self._all.get(slug) if owner == self._settings.username else None
        if found is None:
            raise missing("kernels.get", self._warts)
        return found

    def _session_of(self, request: Request) -> KernelSession:
        label = request.get("versionLabel", "")
        return self.session(request.get("userName", ""), request.get("kernelSlug", ""), label)

    def _pushed_to(self, request: Request) -> Kernel | None:
        """The kernel of this push. A new one is created by its title (docs/references/kaggle.md#push)."""
        if number := request.get("id"):
            return next((each for each in self._all.values() if each.id == number), None)
        owner, _, slug = request.get("slug", "").partition("/")
        if owner != self._settings.username:
            return None
        title = request.get("newTitle", "")
        if slug in self._all or not title:
            return self._all.get(slug)
        slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
        return self._all.get(slug) or Kernel(
            0, slug, title, time.monotonic() + self._settings.visible_seconds
        )

    def _refusal(self, kind: str) -> str:
        """Why one more session of this kind is refused, or "" (docs/references/kaggle.md#refusals)."""
        now = self.advance()
        slots = {
            "gpu": self._settings.gpu_slots,
            "tpu": self._settings.tpu_slots,
            "cpu": self._settings.cpu_slots,
        }
        active = sum(session.kind == kind and session.is_active for session in self._sessions())
        if active >= slots[kind]:
            return f"Maximum batch {kind.upper()} session count of {slots[kind]} reached."
        return self.quota.refusal(kind, self._sessions(), now)

    def _given(self, hardware: Hardware) -> Hardware:
        """What the machine really has (docs/references/kaggle.md#accelerators)."""
        if hardware.kind == "tpu" and self._warts.tpu_is_missing:
            return Hardware("tpu")
        substitute = self._warts.substitute_gpu
        if hardware.kind != "gpu" or not substitute:
            return hardware
        if substitute == "none":
            return Hardware("gpu")
        return _P100 if substitute in _P100.gpus else Hardware("gpu", (substitute,), _T4X2.memory)

    def _add(self, kernel: Kernel, request: Request, hardware: Hardware) -> KernelSession:
        self._made += 1
        kernel.id = kernel.id or self._made
        number = len(kernel.sessions) + 1
        home = self._folder / "kernels" / kernel.slug
        folder = home / "kaggle" if number == 1 else home / f"v{number}" / "kaggle"
        machine = Machine(folder, hardware, internet=request.get("enableInternet", False))
        session = KernelSession(
            number, self._made, request, machine, hardware, self._settings, self._warts, self._lock
        )
        kernel.sessions.append(session)
        self._all[kernel.slug] = kernel
        return session

    def _start(self, session: KernelSession) -> None:
        for kind in ("dataset", "kernel"):
            for source in _listed(session.request, kind):
                files = self._dataset_at(source) if kind == "dataset" else self._outputs_at(source)
                if files is not None:
                    self._lay_out(files, session.folder / "input" / self._mount_point(kind, source))
        session.machine.start(session.request.get("text", ""))

    def _mount_point(self, kind: str, source: str) -> str:
        owner, slug = source.split("/")[:2]
        folder = "datasets" if kind == "dataset" else "notebooks"
        return slug if self._warts.old_input_layout else f"{folder}/{owner}/{slug}"

    def _lay_out(self, files: list[tuple[str, Path]], into: Path) -> None:
        into.mkdir(parents=True, exist_ok=True)
        for name, path in files:
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, into / name)
            (into / name).chmod(0o444)
        for each in sorted(into.rglob("*"), reverse=True):
            if each.is_dir():
                each.chmod(0o555)
        into.chmod(0o555)

    def _dataset_at(self, source: str) -> list[tuple[str, Path]] | None:
        version = self._datasets.version_for_kernel(source)
        return None if version is None else version.files()

    def _outputs_at(self, source: str) -> list[tuple[str, Path]] | None:
        """What the newest ended session of a kernel published; None if there is nothing."""
        owner, slug = [*source.split("/"), ""][:2]
        kernel = self._all.get(slug) if owner == self._settings.username else None
        published = [each for each in kernel.sessions if each.outputs] if kernel else []
        return published[-1].outputs if published else None

    def _describe(self, kernel: Kernel) -> Request:
        request = kernel.newest.request
        kept = ("enableGpu", "enableTpu", "enableInternet", "isPrivate", "machineShape")
        return {
            "id": kernel.id,
            "ref": f"{self._settings.username}/{kernel.slug}",
            "title": kernel.title,
            "author": self._settings.username,
            "slug": kernel.slug,
            "lastRunTime": iso_now(),
            "currentVersionNumber": kernel.newest.version,
            **{name: request[name] for name in kept if name in request},
            **{f"{kind}DataSources": _listed(request, kind) for kind in ("dataset", "kernel")},
        }

    def _word(self, state: State) -> str:
        if not self._warts.camel_case_status:
            return state.value
        first, *others = state.value.lower().split("_")
        return first + "".join(word.capitalize() for word in others)


def _listed(request: Request, kind: str) -> list[str]:
    return list(request.get(f"{kind}DataSources", []))


def _asked_for(request: Request) -> Hardware | None:
    """The shape wins over the flags (docs/references/kaggle.md#push). None for a shape that only competitions
    or admins get."""
    if shape := request.get("machineShape"):
        return _SHAPES.get(shape)
    if request.get("enableTpu"):
        return _TPU
    return _T4X2 if request.get("enableGpu") else _CPU
