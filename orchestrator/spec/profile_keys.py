"""The keys of a job's profiles: what is wrong with one, and what was probably meant."""

from __future__ import annotations

import re
from collections.abc import Iterator

from orchestrator.core.accelerator_words import unknown_accelerator
from orchestrator.core.own_accelerators import Own, row_named
from orchestrator.core.profiles import GPU, is_general, least_memory_gb
from orchestrator.core.wording import with_valid
from orchestrator.spec.document import Problem, shown

_FORM = "gpu>=24GB"
_VALID = f"{GPU}, or {GPU}>=NGB, such as {_FORM}: GPUs with at least so much memory each"
_ALSO = (GPU, _FORM, "default")
_ANY = frozenset({"cuda", "nvidia", "gpus", "any_gpu", "anygpu"})
_EVERY = frozenset({"any", "auto", "all", "*", "other", "else"})
_COMPARED = re.compile(
    r"gpus?\W*?(>=|=>|≥|>|==|=|<=|<|:|@)?\s*([0-9]+(?:\.[0-9]+)?)\s*(g|gb|gib|m|mb|mib)?", re.IGNORECASE
)


def profile_problems(profiles: object, own: Own) -> Iterator[Problem]:
    """Every key that names nothing, and two that say the same memory."""
    sizes: dict[float, str] = {}
    for name in profiles if isinstance(profiles, dict) else ():
        if not isinstance(name, str):
            continue
        size = least_memory_gb(name)
        if size is not None:
            if size in sizes:
                yield Problem(
                    ("profiles", name), f"the same as {sizes[size]!r}; valid: one key for each size"
                )
            sizes.setdefault(size, name)
        elif not is_general(name) and row_named(name, own) is None:
            yield Problem(("profiles", name), _told(name, own))


def _told(name: str, own: Own) -> str:
    plain = name.strip().lower()
    match = _COMPARED.fullmatch(plain) if len(plain) <= 40 else None
    if match is not None:
        return with_valid(_compared(match, name), _VALID)
    if plain in _ANY or plain == GPU:
        told = f"unknown accelerator {shown(name)}; did you mean {GPU!r}?"
        return with_valid(told, f"{_VALID}, or a name such as T4")
    if plain in _EVERY:
        return f"unknown accelerator {shown(name)}; write default, which is for every one that is not named"
    if plain.startswith(GPU) and not plain[len(GPU) :].isalnum():
        return with_valid(f"given {shown(name)}", _VALID)
    told = unknown_accelerator(f"accelerator {shown(name)}", name, own=own, also=_ALSO)
    return f"{told}, which is for every other one"


def _compared(match: re.Match[str], name: str) -> str:
    """What was given, and what was probably meant by it."""
    sign, number, unit = match[1] or "", match[2], (match[3] or "").lower()
    if sign.startswith("<"):
        return f"given {shown(name)}: a profile has no upper limit, the largest {GPU}>=NGB that fits is used"
    if unit.startswith("m"):
        whole = f"{float(number) / 1000:.3f}".rstrip("0").rstrip(".")
        return f"given {shown(name)}; did you mean '{GPU}>={whole}GB'?"
    return f"given {shown(name)}; did you mean '{GPU}>={number}GB'?"
