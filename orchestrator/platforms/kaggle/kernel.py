"""One session on Kaggle: a private kernel and a private dataset, both named after the session.

The dataset's file names and the kernel's text say whose they are. Pure: makes no request.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core import wire
from orchestrator.core.checkpoint import CheckpointRef
from orchestrator.core.order import Order, session_name
from orchestrator.platforms.kaggle.mounting import Mount
from orchestrator.platforms.kaggle.options import KaggleOptions
from orchestrator.platforms.kaggle.values import Push

CREDENTIAL = "credential"  # the kind of the file with what opens the home store
SLUG_MAX = 50  # of a dataset's name: docs/references/kaggle.md#datasets
TIMEOUT_MARGIN_SECONDS = 60  # the time-out must be below the limit: docs/references/kaggle.md#push
# A tar is recognised by its beginning, a zip by its last 64 KiB: the agent is one.
HEADER, FOOTER = b"orchestrator: not an archive".ljust(64), bytes((1 << 16) + 22)
_NAME = re.compile(r"(?P<job>[a-z0-9][a-z0-9-]*)(?P<rest>-[a-z0-9]{8}-s\d{2,})")
_KERNEL = re.compile(rf"{_NAME.pattern}(?:-k(?P<attempt>\d{{1,9}}))?")
_DATASET = re.compile(rf"(?P<session>{_NAME.pattern})(?:-d(?P<mark>[a-z0-9]{{4}}))?")
_CALL = re.compile(r"^sys\.exit\(main\(json\.loads\((\".*\")\)\)\)$", re.MULTILINE)
# Kaggle unpacks archives (docs/references/kaggle.md#datasets). It must not know these by suffix or content.
_FILE = re.compile(
    r"(materials|checkpoint|credential)-([0-9a-f]{12})-([0-9a-f]{12})-([0-9a-f]{64})\.orchestrator"
)
AGENT_SETTINGS = {"probe": True, "requirements": True, "heartbeat": 5.0}
BEAT_SECONDS = 30.0  # of an uplink: a heartbeat is a request, and the log tells as much as often


@dataclass(frozen=True)
class Machine:
    """What a push asks for (docs/references/kaggle.md#accelerators).

    `shape` is Kaggle's name for it; empty means no accelerator. `pool` is the quota that it spends; empty
    means none.
    """

    shape: str
    pool: str


MACHINES = {
    "T4x2": Machine("NvidiaTeslaT4", "gpu"),
    "T4": Machine("NvidiaTeslaT4", "gpu"),  # uses one of two GPUs: no machine has only one
    "TPUv5e-8": Machine("TpuV5E8", "tpu"),
    "cpu": Machine("", ""),
}
RETIRED = {  # by our names; Kaggle's other retired shapes are no accelerators that a job can name
    "P100": "Kaggle has retired it and silently gives a machine with two T4 instead: ask for T4 or T4x2",
    "TPUv3-8": "Kaggle has retired it and silently gives a TPU v5e-8 instead: ask for TPUv5e-8",
}


@dataclass(frozen=True)
class StagedFile:
    """One file of a session's datasets.

    `kind` is materials, checkpoint or credential. `home` and `order` are the first digits of the id of the
    home that staged it and of the order's hash.
    """

    kind: str
    home: str
    order: str
    sha256: str

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.home}-{self.order}-{self.sha256}.orchestrator"

    @classmethod
    def parse(cls, name: str) -> StagedFile | None:
        match = _FILE.fullmatch(name)
        return cls(*match.groups()) if match else None


def slug(session: str, attempt: int = 1) -> str:
    """The name for the session's kernel. A deleted kernel's name is not used again
    (docs/references/kaggle.md#datasets), so each attempt has its own."""
    return _ending(session, f"-k{attempt}" if attempt > 1 else "")


def dataset_slug(session: str, mark: str) -> str:
    """The name for a dataset of the session. `mark` is random, because kernels and datasets may share their
    names and a deleted name may stay taken (docs/references/kaggle.md#datasets)."""
    return _ending(session, f"-d{mark}")


def _ending(session: str, suffix: str) -> str:
    """The session's name with a suffix. If that is too long, the job's part is shortened."""
    match = _NAME.fullmatch(session)
    room = SLUG_MAX - len(suffix)
    if match is None or len(session) <= room:
        return session[:room] + suffix
    return match["job"][: room - len(match["rest"])].rstrip("-") + match["rest"] + suffix


def page(owner: str, name: str) -> str:
    """Where a person sees the kernel."""
    return f"https://www.kaggle.com/code/{owner}/{name}"


def is_kernel(name: str) -> bool:
    """Whether a kernel seems to be named after a session. A name proves nothing."""
    return _KERNEL.fullmatch(name) is not None


def is_kernel_of(name: str, session: str) -> bool:
    """Whether a kernel of the session may have this name, whatever the attempt."""
    match = _KERNEL.fullmatch(name)
    return match is not None and name == slug(session, int(match["attempt"] or 1))


def session_of_dataset(name: str) -> str | None:
    """The session, perhaps shortened, after which a dataset seems to be named. A name proves nothing."""
    match = _DATASET.fullmatch(name)
    return None if match is None else match["session"]


def is_dataset_of(name: str, session: str) -> bool:
    """Whether a dataset of the session may have this name. Those of earlier versions have no mark."""
    match = _DATASET.fullmatch(name)
    mark = None if match is None else match["mark"]
    return name == (slug(session) if mark is None else dataset_slug(session, mark))


def origin(source: str) -> tuple[str | None, str] | None:
    """The home that pushed a kernel, and the session for which it did, by the kernel's text. None if it is
    not a session's. Earlier versions did not write the home. A user's copy has the same text, but another
    name."""
    match = _CALL.search(source)
    if match is None:
        return None
    try:
        found = json.loads(json.loads(match[1]))
        home = found.get("home")
        return None if home is None else str(home), str(found["name"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def writer(order: Order) -> str | None:
    """The session that wrote the checkpoint to resume from. It has a kernel only if it ran on Kaggle. None if
    the order does not resume."""
    ref = None if order.resume is None else CheckpointRef.parse(order.resume)
    return None if ref is None else session_name(order.run, ref.generation)


def fingerprint(order: Order) -> str:
    """A hash that identifies an order, short enough for a file name."""
    return hashlib.sha256(wire.encode(order)).hexdigest()[:12]


def push(
    options: KaggleOptions,
    order: Order,
    *,
    name: str,
    home: str,
    datasets: tuple[str, ...],
    files: Iterable[StagedFile],
    hand_over: str | None,
    mounts: tuple[Mount, ...] = (),
) -> Push:
    """The push that starts the session, as the kernel `name`. Its `datasets` have `files`. `mounts` are
    inputs that Kaggle has.

    If the checkpoint to resume from is not among them, `hand_over` is the slug of the kernel whose output
    has it.
    """
    machine, seconds = MACHINES[order.accelerator], timeout_seconds(options, order)
    sent = tuple(files)
    ships = any(each.kind == CREDENTIAL for each in sent)
    session = {
        "name": order.session,
        "home": home,
        "header": len(HEADER),
        "mount_seconds": options.mount_seconds,
        "files": {each.name: each.sha256 for each in sent},
        "inputs": {
            each.name: {"place": each.place, "path": each.path, "sha256": each.sha256} for each in mounts
        },
        "hand_over": order.resume if hand_over is not None else None,
        "hand_over_sha256": order.resume_sha256 if hand_over is not None else None,
        "machine": machine.pool or "cpu",
        "seconds": seconds,
        "settings": AGENT_SETTINGS | options.uplink_settings(BEAT_SECONDS),
        "report_seconds": options.report_seconds,
    }
    return Push(
        slug=name,
        text=text(session),
        machine_shape=machine.shape,
        gpu=machine.pool == "gpu",
        tpu=machine.pool == "tpu",
        timeout_seconds=seconds,
        internet=ships or needs_internet(order),
        datasets=tuple(dict.fromkeys((*datasets, *(each.source for each in mounts)))),
        kernels=(hand_over,) if hand_over is not None else (),
    )


def needs_internet(order: Order) -> bool:
    """Whether the kernel needs the internet: for the job, or to install its requirements."""
    return order.internet or order.requirements is not None


def text(session: object) -> str:
    """The kernel's source: the runner and a call of it. The session is JSON inside a string literal."""
    runner = Path(__file__).with_name("runner.py").read_text()
    call = f"sys.exit(main(json.loads({json.dumps(json.dumps(session))})))"
    return f"{runner}\n\n{call}\n"


def timeout_seconds(options: KaggleOptions, order: Order) -> int:
    """After how many seconds Kaggle is to end the session: when its budget and the margin are used up, and in
    any case below the platform's limit. So even a wedged session ends by itself."""
    margin = options.wall_margin_seconds
    short = max(1.0, min(TIMEOUT_MARGIN_SECONDS, margin / 2))
    below = wall_seconds(options, order.accelerator) - short
    allowed = below if order.budget_seconds is None else order.budget_seconds + margin
    return max(1, int(min(below, allowed)))


def wall_seconds(options: KaggleOptions, accelerator: str) -> float:
    """The time after which Kaggle ends a session."""
    if MACHINES[accelerator].pool == "tpu":
        return options.tpu_session_seconds
    return options.session_seconds
