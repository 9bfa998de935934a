"""Which types of platform there are, what options each takes, and how one is made from a user's config.

Imports a platform's code only when one of its type is built. Knows nothing of what a platform does.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from orchestrator.clock import Clock
from orchestrator.errors import InputError
from orchestrator.platforms.platform import Platform


class ProcessOptions(BaseModel):
    """Sessions as processes of this machine. `memory_gb` unset means the host's; `session_seconds` unset
    means no wall. A session that was asked to stop is killed after `grace_seconds`. Of the controller's
    environment the agent sees what names no secret, and the names in `pass_env`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    accelerator: str = Field(default="cpu", min_length=1)
    memory_gb: float | None = Field(default=None, gt=0)
    session_seconds: float | None = Field(default=None, gt=0)
    wall_margin_seconds: float = Field(default=0.0, ge=0)
    slack_seconds: float = Field(default=30.0, ge=0)
    grace_seconds: float = Field(default=300.0, gt=0)
    slots: int = Field(default=1, ge=1)
    visibility_seconds: float = Field(default=5.0, gt=0)
    poll_seconds: float = Field(default=1.0, gt=0)
    setup_seconds: float = Field(default=5.0, ge=0)
    internet: bool = True
    pass_env: tuple[str, ...] = ()


def _process(name: str, options: Any, folder: Path, clock: Clock) -> Platform:
    from orchestrator.platforms.process import ProcessPlatform

    return ProcessPlatform(name, options, folder, clock)


def _simulated_options() -> type:
    from orchestrator.platforms.simulated import Scenario

    return Scenario


def _simulated(name: str, options: Any, folder: Path, clock: Clock) -> Platform:  # noqa: ARG001 - in memory
    from orchestrator.platforms.simulated import SimulatedPlatform

    return SimulatedPlatform(name, options, clock)


@dataclass(frozen=True)
class Entry:
    """A type of platform: the class of its options, and how one is made; both import it when called."""

    options: Callable[[], type]
    make: Callable[[str, Any, Path, Clock], Platform]


TYPES: Mapping[str, Entry] = {
    "process": Entry(lambda: ProcessOptions, _process),
    "simulated": Entry(_simulated_options, _simulated),
}


def build(name: str, type: str, options: Mapping[str, object], *, folder: Path, clock: Clock) -> Platform:
    """The platform `name` of a user's config. `folder` is its own, for what it keeps on this machine.

    Raises InputError naming every option at fault, the valid ones and the nearest.
    """
    if type not in TYPES:
        raise InputError(f"platform {name!r}: unknown type {type!r}{_nearest(type, TYPES)}")
    entry = TYPES[type]
    model: Any = entry.options()
    known = _option_names(model)
    faults = [f"unknown option {key!r}{_nearest(key, known)}" for key in options if key not in known]
    try:
        checked = TypeAdapter(model).validate_python({k: v for k, v in options.items() if k in known})
    except ValidationError as error:
        faults += [_fault(dict(fault)) for fault in error.errors()]
    if faults:
        raise InputError("\n".join(f"platform {name!r} ({type}): {fault}" for fault in faults))
    return entry.make(name, checked, folder, clock)


def _option_names(model: Any) -> tuple[str, ...]:
    names = [f.name for f in fields(model)] if is_dataclass(model) else list(model.model_fields)
    return tuple(sorted(names))


def _nearest(given: str, valid: Iterable[str]) -> str:
    names = sorted(valid)
    near = difflib.get_close_matches(given, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{hint} (valid: {', '.join(names)})"


def _fault(fault: Mapping[str, Any]) -> str:
    path = ".".join(map(str, fault["loc"]))
    return f"option {path!r}: {fault['msg']}, given {fault['input']!r}"
