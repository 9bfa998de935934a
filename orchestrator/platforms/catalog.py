"""Which types of platform there are, what options each takes, and how one is made from a user's config.

Imports a platform's code only when one of its type is built. Knows nothing of what a platform does.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from orchestrator.clock import Clock
from orchestrator.errors import InputError
from orchestrator.platforms.platform import Platform


def _process_options() -> type:
    from orchestrator.platforms.process import ProcessOptions

    return ProcessOptions


def _process(name: str, options: Any, folder: Path, clock: Clock) -> Platform:
    from orchestrator.platforms.process import ProcessPlatform

    return ProcessPlatform(name, options, folder, clock)


def _simulated_options() -> type:
    from orchestrator.platforms.simulated import Scenario

    return Scenario


def _simulated(name: str, options: Any, folder: Path, clock: Clock) -> Platform:  # noqa: ARG001 - in memory
    from orchestrator.platforms.simulated import SimulatedPlatform

    return SimulatedPlatform(name, options, clock)


def _docker_options() -> type:
    from orchestrator.platforms.docker.options import DockerOptions

    return DockerOptions


def _docker(name: str, options: Any, folder: Path, clock: Clock) -> Platform:
    from orchestrator.platforms.docker.platform import DockerPlatform

    return DockerPlatform(name, options, folder, clock)


def _kaggle_options() -> type:
    from orchestrator.platforms.kaggle.options import KaggleOptions

    return KaggleOptions


def _kaggle(name: str, options: Any, folder: Path, clock: Clock) -> Platform:
    from orchestrator.platforms.kaggle.account import Account
    from orchestrator.platforms.kaggle.platform import KagglePlatform

    return KagglePlatform(name, options, Account(name, options, clock), folder, clock)


@dataclass(frozen=True)
class Entry:
    """A type of platform: the class of its options, and how one is made; both import it when called.
    `single`: why a config may have only one of it."""

    options: Callable[[], type]
    make: Callable[[str, Any, Path, Clock], Platform]
    single: str = ""


TYPES: Mapping[str, Entry] = {
    "docker": Entry(_docker_options, _docker),
    "kaggle": Entry(
        _kaggle_options,
        _kaggle,
        single="Kaggle's terms allow a person one account, and several to get around its limits least of all",
    ),
    "process": Entry(_process_options, _process),
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


def check_single(name: str, type: str, others: Iterable[tuple[str, str]]) -> None:
    """Raises InputError with the reason where a platform of a type that stands alone has company: `others`
    are (name, type) of those before it in the config."""
    reason = TYPES[type].single if type in TYPES else ""
    for other, its_type in others:
        if reason and its_type == type:
            raise InputError(f"platform {name!r} ({type}): {other!r} is one already; {reason}")


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
    if not path:  # of several options together
        return str(fault["msg"]).removeprefix("Value error, ")
    return f"option {path!r}: {fault['msg']}, given {fault['input']!r}"
