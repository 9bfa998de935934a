"""What a trial's readings show: values in, verdict out. Reads an outbox, and asks Colab nothing."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.core.bounds import size_text
from orchestrator.core.order import AgentStatus, Outcome, Result
from orchestrator.platforms.colab import surveying
from orchestrator.platforms.colab.values import CPU, Reading, Units
from orchestrator.platforms.platform import Sight
from orchestrator.platforms.trials import materials, training
from orchestrator.platforms.trials.assumption import FAILS, HOLDS, NOT_SEEN, Judgement, of
from orchestrator.session import saying
from orchestrator.session.layout import RESULT, STATUS
from orchestrator.session.outbox import Outbox, collect

PYTHON_OLDEST = (3, 11)


def left_whole(outbox: Outbox, into: Path, otherwise: str) -> Judgement:
    """Whether the session left as it was asked to, with the checkpoint of its last step. `otherwise`: what to
    say if it left nothing."""
    found = result(outbox)
    if found is None or found.outcome is not Outcome.STOPPED:
        return FAILS, otherwise if found is None else f"{found.outcome}: {found.message}"
    brought = collect(outbox, into, sync=False)
    if brought.corrupt or not brought.manifests:
        corrupt = "; ".join(f"{name}: {why}" for name, why in brought.corrupt)
        return FAILS, f"it left no checkpoint that is intact {corrupt}".strip()
    newest = brought.manifests[-1]
    state = materials.content(into, newest, training.STATE)
    if state["value"] != training.uninterrupted(state["step"]) or state["step"] != found.step:
        return FAILS, f"its checkpoint is not that of step {found.step}"
    return (
        HOLDS,
        f"left at step {found.step}, with a checkpoint of {size_text(newest.size)} that is intact",
    )


def units(said: Units) -> Judgement:
    lacks = [
        name for name, value in (("eligibleGpus", said.gpus), ("eligibleTpus", said.tpus)) if value is None
    ]
    if not surveying.is_paid(said) and said.free_left is None:
        lacks.append("freeCcuQuotaInfo")
    has = (*(said.gpus or ()), *(said.tpus or ()))
    return of(not lacks, f"no {', no '.join(lacks)}" if lacks else f"may use {', '.join(has) or 'nothing'}")


def cost(before: Units, after: Units) -> Judgement:
    """By what all machines of the account use together, before and after one more."""
    more = after.per_hour - before.per_hour
    if after.assignments not in (0, before.assignments + 1):
        return NOT_SEEN, "other machines began or ended meanwhile"
    return of(0.0 < more <= surveying.RATES[CPU], f"{more:.3f} units an hour")


def found(endpoint: str, reading: Reading, session: str, none: str) -> Judgement:
    if none in reading.endpoints:
        return FAILS, "asking for a notebook's machine started one"
    shown = reading.endpoints.get(session)
    if shown is None:
        return FAILS, "Colab did not find it"
    return of(
        shown == endpoint, "found, and none started" if shown == endpoint else "it found another machine"
    )


def queued(said: dict[str, Any]) -> Judgement:
    """By what a second cell says that has run."""
    return (FAILS, "both ran at the same time") if said["beside"] else (NOT_SEEN, "the first cell had ended")


def python(seen: dict[str, Any]) -> Judgement:
    version = str(seen.get("python", ""))
    numbers = tuple(int(each) for each in version.split(".")[:2] if each.isdigit())
    torch = seen.get("torch")
    return of(
        numbers >= PYTHON_OLDEST and bool(torch),
        f"Python {version}, {f'torch {torch}' if torch else 'no torch'}",
    )


def status(sight: Sight) -> AgentStatus | None:
    return None if sight.outbox is None else saying.status(sight.outbox.small(STATUS))


def step(sight: Sight) -> int | None:
    said = status(sight)
    return None if said is None else said.step


def result(outbox: Outbox) -> Result | None:
    data = outbox.small(RESULT)
    with suppress(ValueError):
        return None if data is None else saying.result(data)
    return None
