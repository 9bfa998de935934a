"""Kernels: push, status, output, logs, quota and deletion, as docs/references/kaggle.md describes them.

Its methods are the client's RPCs, with JSON in and out. The caller holds the lock. Knows nothing of HTTP
except the status codes of its answers.
"""

from __future__ import annotations

import re
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tests.stand_ins.kaggle.datasets import Datasets
from tests.stand_ins.kaggle.listing import iso_now, missing, page
from tests.stand_ins.kaggle.machine import Hardware, Machine, remove
from tests.stand_ins.kaggle.quota import Quota
from tests.stand_ins.kaggle.session import KernelSession, State
from tests.stand_ins.kaggle.settings import Refusal, Settings, Warts

Request = dict[str, Any]


class Sign(Protocol):
    def __call__(self, path: Path, lag: float = 0.0, lasts: float = 0.0) -> str:
        """A URL for the file, which works only after `lag` seconds, and then for `lasts` seconds; 0: for
        ever."""


_T4X2 = Hardware("gpu", ("Tesla T4", "Tesla T4"), 15_360)
_P100 = Hardware("gpu", ("Tesla P100-PCIE-16GB",), 16_384)
_TPU = Hardware("tpu", has_tpu=True)
_CPU = Hardware("cpu")
# Retired shapes are substituted silently (docs/references/kaggle.md#accelerators).
_SHAPES = {
    "NvidiaTeslaT4": _T4X2, "NvidiaTeslaP100": _T4X2, "TpuV5E8": _TPU, "TpuV38": _TPU, "Tpu1VmV38": _TPU,
    "TpuV232": _CPU, "TpuV2256": _CPU, "": _CPU, "None": _CPU, "Cpu": _CPU,
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
    gone_at: float | None = None  # when it disappears after its deletion

    def __post_init__(self) -> None:
        self.first_slug = self.slug

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
        self._deleted: set[str] = set()
        self._made = 0
        self.quota = Quota(settings, warts)
        self.pushed: list[Request] = []
        self.ever: list[KernelSession] = []  # all sessions, also those of deleted kernels

    def advance(self) -> float:
        """Advances every session to the present and returns that time. Starts, ends, publishes and bills."""
        now = time.monotonic()
        self._forget_deleted()
        for session in list(self._sessions()):
            session.advance(now, partial(self._start, session))
        self.quota.settle(self._sessions(), now)
        for session in self._sessions():
            if self.quota.is_used_up(session.kind) and session.is_active:
                session.run_out()
        self._let_queued_start()
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

    def names(self) -> set[str]:
        """Every slug that a kernel has, or had if deleted ones stay reserved."""
        return {*self._all, *(self._deleted if self._warts.deleted_stay_reserved else ())}

    def save(self, request: Request) -> Request:
        """SaveKernel. A refusal is an answer with `error` (docs/references/kaggle.md#refusals)."""
        self.pushed.append(request)
        if len(request.get("text", "").encode()) > self._settings.text_bytes_max:
            raise Refusal(400, "The kernel source is too large")
        kernel = self._pushed_to(request)
        if kernel is None:
            return {"error": "Notebook not found"}
        if kernel.gone_at is not None or (not kernel.sessions and self._is_taken(kernel.slug)):
            return {"error": f"The requested title '{kernel.title}' is already in use."}
        hardware = _asked_for(request)
        is_run = request.get("kernelExecutionType") != "QUICK_SAVE"
        if hardware is None:
            return {"error": f"The accelerator {request['machineShape']} is not available to you."}
        if is_run and (refusal := self._refusal(hardware.kind)):
            return {"error": refusal}
        session = self._add(kernel, request, self._given(hardware))
        if is_run:
            session.starts_at = time.monotonic() + self._warts.push_lag_seconds
            self._let_queued_start()
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
                each for each in _listed(request, "dataset") if self._datasets.attached(each) is None
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
        glitch = self._warts.status_glitch
        if glitch.isdecimal():
            raise Refusal(int(glitch), "Permission 'kernelSessions.get' was denied")
        if session.state is not State.QUEUED or not self._warts.queued_is_omitted:
            reply["status"] = self._warts.unknown_status or glitch or self._word(session.shown_state)
        if session.failure:
            reply["failureMessage"] = session.failure
        return reply

    def output(self, request: Request) -> Request:
        session = self._session_of(request)
        seconds = session.seconds_over(time.monotonic())
        names = session.outputs if seconds >= self._warts.output_lag_seconds else []
        names = self._grown(names, seconds)[: self._warts.output_files_max or None]
        if self._warts.hostile_output_name and names:
            names = [*names, (self._warts.hostile_output_name, names[0][1])]
        items, token = page(names, request, self._warts)
        has_log = seconds >= self._warts.log_lag_seconds
        return {
            "files": [{"url": self._signed(path, seconds), "fileName": name} for name, path in items],
            "log": session.machine.log.text() if has_log else "",
            "nextPageToken": token,
        }

    def _signed(self, path: Path, seconds: float) -> str:
        return self._sign(path, lag=self._warts.url_lag_seconds - seconds, lasts=self._warts.url_seconds)

    def _grown(self, names: list[tuple[str, Path]], seconds: float) -> list[tuple[str, Path]]:
        """The part of the list that is there: what the agent writes last comes first, its log above all."""
        lasts = self._warts.output_grows_seconds
        if seconds >= lasts:
            return names
        order = sorted(names, key=lambda each: ("/log/" not in each[0], "manifest" not in each[0], each[0]))
        return order[: int(len(order) * seconds / lasts) if seconds > 0 else 0]

    def list_files(self, request: Request) -> Request:
        items, token = page(self._session_of(request).outputs, request, self._warts)
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
            raise Refusal(self._warts.cancel_refusal, "Permission 'kernelSessions.cancel' was denied")
        found[0].cancel()
        return {}

    def delete(self, request: Request) -> Request:
        """Stops the run and its billing, and loses the outputs
        (docs/references/kaggle.md#cancelling-and-deleting)."""
        kernel = self._find(request.get("userName", ""), request.get("kernelSlug", ""))
        for session in kernel.sessions:
            session.discard()
        self.quota.settle(self._sessions(), time.monotonic())
        self._deleted.add(kernel.slug)
        kernel.gone_at = kernel.gone_at or time.monotonic() + self._warts.delete_lag_seconds
        self._forget_deleted()
        return {}

    def _forget_deleted(self) -> None:
        for kernel in list(self._all.values()):
            if kernel.gone_at is not None and time.monotonic() >= kernel.gone_at:
                del self._all[kernel.slug]
                remove(self._home(kernel))

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
        now = time.monotonic()
        there = [each for each in self._all.values() if is_mine and now >= each.visible_at]
        found = [each for each in there if wanted in f"{each.slug} {each.title}".lower()]
        items, token = page(found, request, self._warts)
        return {"kernels": [self._describe(each) for each in items], "nextPageToken": token}

    def rename(self, slug: str, title: str) -> None:
        kernel = self._all.pop(slug)
        kernel.slug, kernel.title = _slug(title), title
        self._all[kernel.slug] = kernel

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
        slug = _slug(title) + self._warts.slug_ending
        return self._all.get(slug) or Kernel(
            0, slug, title, time.monotonic() + self._settings.visible_seconds + self._warts.push_lag_seconds
        )

    def _is_taken(self, slug: str) -> bool:
        reserved = self._warts.deleted_stay_reserved and slug in self._deleted
        return reserved or (self._warts.names_are_shared and slug in self._datasets.names())

    def _refusal(self, kind: str) -> str:
        """Why one more session of this kind is refused, or "" (docs/references/kaggle.md#refusals)."""
        now, slots = self.advance(), self._slots[kind]
        active = sum(session.kind == kind and session.is_active for session in self._sessions())
        if active >= slots and self._warts.beyond_slots == "refused":
            return f"Maximum batch {kind.upper()} session count of {slots} reached."
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
        home = self._home(kernel)
        folder = home / "kaggle" if number == 1 else home / f"v{number}" / "kaggle"
        machine = Machine(folder, hardware, internet=request.get("enableInternet", False),
                          session_id=self._made)  # fmt: skip
        session = KernelSession(
            number, self._made, request, machine, hardware, self._settings, self._warts, self._lock
        )
        kernel.sessions.append(session)
        self.ever.append(session)
        self._all[kernel.slug] = kernel
        return session

    def _home(self, kernel: Kernel) -> Path:
        return self._folder / "kernels" / kernel.first_slug

    def _let_queued_start(self) -> None:
        """A session that waits for a slot starts when one of its kind is free, the oldest first."""
        for kind, count in self._slots.items():
            active = [each for each in self._sessions() if each.kind == kind and each.is_active]
            active.sort(key=lambda each: (not each.has_started, each.session_id))
            for place, session in enumerate(active):
                session.may_start = place < count

    @property
    def _slots(self) -> dict[str, int]:
        settings = self._settings
        return {"gpu": settings.gpu_slots, "tpu": settings.tpu_slots, "cpu": settings.cpu_slots}

    def _start(self, session: KernelSession) -> None:
        """Lays out the inputs, perhaps while the script runs already."""
        mounts = []
        for kind in ("dataset", "kernel"):
            for source in _listed(session.request, kind):
                files = self._dataset_at(source) if kind == "dataset" else self._outputs_at(source)
                if files is not None:
                    mounts.append((files, session.folder / "input" / self._mount_point(kind, source)))
        lag = self._warts.mount_lag_seconds

        def mount() -> None:
            with self._lock:
                for files, into in mounts if session.is_active else ():
                    self._lay_out(files, into)

        if lag:
            later = threading.Timer(lag, mount)
            later.daemon = True
            later.start()
        else:
            mount()
        session.machine.start(session.request.get("text", ""))

    def _mount_point(self, kind: str, source: str) -> str:
        owner, slug = source.split("/")[:2]
        folder = "datasets" if kind == "dataset" else "notebooks"
        return slug if self._warts.old_input_layout else f"{folder}/{owner}/{slug}"

    def _lay_out(self, files: list[tuple[str, Path]], into: Path) -> None:
        if self._warts.inputs_are_links:
            into.parent.mkdir(parents=True, exist_ok=True)
            elsewhere = self._folder / "mounts" / f"{uuid.uuid4().hex}"
            into.symlink_to(elsewhere)
            into = elsewhere
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


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
