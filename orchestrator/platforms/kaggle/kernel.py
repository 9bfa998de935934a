"""One session on Kaggle: a private kernel and a private dataset, both found by the session's name.

The dataset's file names say what is in it, so nothing about a session has to be remembered elsewhere.
Pure: makes no request.
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
from orchestrator.platforms.kaggle.options import KaggleOptions
from orchestrator.platforms.kaggle.values import Push

SLUG_MAX = 50  # of a dataset's name: docs/references/kaggle.md#datasets
_NAME = re.compile(r"(?P<job>[a-z0-9][a-z0-9-]*)(?P<rest>-[a-z0-9]{8}-s\d{2,})")
# A suffix unknown to Kaggle, which unpacks archives (docs/references/kaggle.md#datasets).
_FILE = re.compile(r"(materials|checkpoint)-([0-9a-f]{12})-([0-9a-f]{12})-([0-9a-f]{64})\.orchestrator")
AGENT_SETTINGS = {"probe": True, "requirements": True, "heartbeat": 5.0}


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
RETIRED = {
    "P100": "Kaggle has retired it and silently gives another GPU instead",
    "TPUv3-8": "Kaggle has retired it and silently gives another machine instead",
}


@dataclass(frozen=True)
class StagedFile:
    """One file of a session's dataset.

    `kind` is materials or checkpoint. `home` and `order` are the first digits of the id of the home that
    staged it and of the order's hash.
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


def slug(session: str) -> str:
    """The session's name on Kaggle. If it is too long, the job's part is shortened."""
    match = _NAME.fullmatch(session)
    if match is None or len(session) <= SLUG_MAX:
        return session[:SLUG_MAX]
    room = SLUG_MAX - len(match["rest"])
    return match["job"][:room].rstrip("-") + match["rest"]


def is_session(name: str) -> bool:
    """Whether a slug looks like a session's."""
    return _NAME.fullmatch(name) is not None


def writer(order: Order) -> str | None:
    """The slug of the session that wrote the checkpoint to resume from. It is a kernel only if that session
    ran on Kaggle. None if the order does not resume."""
    ref = None if order.resume is None else CheckpointRef.parse(order.resume)
    return None if ref is None else slug(session_name(order.run, ref.generation))


def fingerprint(order: Order) -> str:
    """A hash that identifies an order, short enough for a file name."""
    return hashlib.sha256(wire.encode(order)).hexdigest()[:12]


def push(options: KaggleOptions, order: Order, files: Iterable[StagedFile], hand_over: str | None) -> Push:
    """The push that starts the session. Its dataset has `files`.

    If the checkpoint to resume from is not among them, `hand_over` is the slug of the kernel whose output
    has it.
    """
    machine = MACHINES[order.accelerator]
    session = {
        "name": slug(order.session),
        "files": {each.name: each.sha256 for each in files},
        "hand_over": order.resume if hand_over is not None else None,
        "hand_over_sha256": order.resume_sha256 if hand_over is not None else None,
        "machine": machine.pool or "cpu",
        "seconds": int(wall_seconds(options, order.accelerator)),
        "settings": AGENT_SETTINGS,
        "report_seconds": options.report_seconds,
    }
    return Push(
        slug=slug(order.session),
        text=text(session),
        machine_shape=machine.shape,
        gpu=machine.pool == "gpu",
        tpu=machine.pool == "tpu",
        timeout_seconds=int(wall_seconds(options, order.accelerator)),
        internet=needs_internet(order),
        datasets=(slug(order.session),),
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


def wall_seconds(options: KaggleOptions, accelerator: str) -> float:
    """The time after which Kaggle ends a session."""
    if MACHINES[accelerator].pool == "tpu":
        return options.tpu_session_seconds
    return options.session_seconds
