"""What Colab's command line answers, as frozen values. Its wire format is decoded only here.

Pure. The client itself rejects a whole list if one entry has an accelerator that it does not know
(docs/references/colab.md#listing), so these are decoded from the raw answers. A decoder raises KeyError,
TypeError or ValueError for input that it cannot read.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from orchestrator.core import bounds

CPU = "NONE"  # Colab's word for a machine without an accelerator
GPUS = ("T4", "L4", "G4", "A100", "H100")
TPUS = ("V5E1", "V6E1")
ACCELERATORS = (
    CPU,
    *GPUS,
    *TPUS,
)  # what the command line can ask for (docs/references/colab.md#accelerators)
RATE_MIN, RATE_MAX = 0.01, 1000.0  # units an hour that any machine may take
_SPACE = uuid.UUID("2f9c7f0e-5a34-5d6b-9a0b-6f6d3b1c8a57")


def notebook(session: str) -> uuid.UUID:
    """The notebook that a session's machine belongs to. Colab gives a notebook one machine, so a session
    that is allocated twice gets the same one (docs/references/colab.md#allocating)."""
    return uuid.uuid5(_SPACE, session)


@dataclass(frozen=True)
class Assignment:
    """A machine of this account. `endpoint` is Colab's name of it; `accelerator` is Colab's word for what it
    has, which may be another than the one asked for."""

    endpoint: str
    accelerator: str
    high_mem: bool = False


@dataclass(frozen=True)
class Units:
    """The account's compute units (docs/references/colab.md#units). None: Colab did not say.

    `balance`: paid units left; `per_hour`: what all its machines use now; `free_left`: units of the free
    tier, and `free_refill_at`, when there will be more (unix seconds). `gpus` and `tpus` are what the account
    may ask for, `ineligible_gpus` what it may not: Colab's words.
    """

    balance: float
    per_hour: float
    assignments: int
    free_left: float | None = None
    free_refill_at: float | None = None
    gpus: tuple[str, ...] | None = None
    ineligible_gpus: tuple[str, ...] | None = None
    tpus: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Entry:
    """A file or folder on a machine. `size` is in bytes, None for a folder; `modified` is in unix seconds."""

    name: str
    is_folder: bool
    size: int | None = None
    modified: float | None = None


@dataclass(frozen=True)
class Found:
    """What was read on the machine of one session. Paths are those that were asked for; one that does not
    exist is left out. `problem` says why some of it was not read; it may be there next time."""

    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    folders: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)
    too_large: Mapping[str, int] = field(default_factory=dict)  # path → size of a file that was not read
    problem: str = ""


@dataclass(frozen=True)
class Reading:
    """One look at the account.

    `assignments` are all its machines, also those of the user's own notebooks. `endpoints` is, for each name
    that was asked for, its machine, if it has one: one that is in the list, or that Colab gives for the
    name's notebook though the list lacks it. `found` is session → what was read there, for those that have a
    machine. `units` is None unless it was asked for.
    """

    assignments: tuple[Assignment, ...]
    endpoints: Mapping[str, str] = field(default_factory=dict)
    units: Units | None = None
    found: Mapping[str, Found] = field(default_factory=dict)

    def assignment(self, session: str) -> Assignment | None:
        """The session's machine, if the list has it."""
        endpoint = self.endpoints.get(session)
        return next((each for each in self.assignments if each.endpoint == endpoint), None)


def decode_assignments(body: Mapping[str, Any]) -> tuple[Assignment, ...]:
    return tuple(
        Assignment(
            str(each["endpoint"]),
            str(each.get("accelerator") or CPU).upper(),
            str(each.get("machineShape", 0)) in ("1", "HIGH_RAM"),
        )
        for each in body.get("assignments") or ()
    )


def decode_units(body: Mapping[str, Any]) -> Units:
    free = body.get("freeCcuQuotaInfo") or {}
    left, refill = free.get("remainingTokens"), free.get("nextRefillTimestampSec")
    refill_at = None if refill is None else _number(refill)
    return Units(
        balance=_number(body["currentBalance"]),
        per_hour=_number(body.get("consumptionRateHourly") or 0),
        assignments=int(_number(body.get("assignmentsCount") or 0)),
        free_left=None if left is None else _number(left) / 1000,
        free_refill_at=None if refill_at is None or not 0.0 <= refill_at <= bounds.TIME_MAX else refill_at,
        gpus=_words(body, "eligibleGpus"),
        ineligible_gpus=_words(body, "ineligibleGpus"),
        tpus=_words(body, "eligibleTpus"),
    )


def _number(value: object) -> float:
    """Raises ValueError unless it is a finite number, or text that is one."""
    number = float(str(value))
    if not math.isfinite(number):
        raise ValueError(f"{number} is not a finite number")
    return number


def _words(body: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    return None if body.get(key) is None else tuple(str(each).upper() for each in body[key])


def is_rate(per_hour: float) -> bool:
    """Whether a machine may take so many units an hour."""
    return RATE_MIN <= per_hour <= RATE_MAX


def decode_entry(body: Mapping[str, Any]) -> Entry:
    """An entry of a folder, as Jupyter describes it."""
    is_folder = body.get("type") == "directory"
    size, modified = body.get("size"), body.get("last_modified")
    return Entry(
        str(body["name"]),
        is_folder,
        None if is_folder or size is None else int(_number(size)),
        None if not modified else _unix(str(modified)),
    )


def _unix(time: str) -> float:
    read = datetime.fromisoformat(time)
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
