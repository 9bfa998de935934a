"""Decides what may be removed, and why: things × the runs' needs × the user's policy → a judgement of each.

Pure: the caller lists, reads the ledger and knows the time. Must never touch a file, a store or a platform.
In doubt a thing stays: if it changed recently, if a run may need it, or if this ledger does not know it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from orchestrator.core.wording import span

GRACE_SECONDS = 3600.0  # a submit writes its archives before its run is in the ledger


class Kind(StrEnum):
    SOURCE = "source"  # frozen source, by its content
    IMAGE = "image folders"  # frozen folders that images are built from, by their content
    INPUT = "inputs"  # verified copies, by their content
    RESUME = "resume copies"  # a checkpoint on its way into a session
    LOG = "logs"  # collected from a session: log, progress, status, result
    DRAFT = "drafts"  # left by a writer that was killed


BY_CONTENT = frozenset({Kind.SOURCE, Kind.IMAGE, Kind.INPUT})


@dataclass(frozen=True)
class Thing:
    """A file or folder of ours. `path` is relative to the home, with forward slashes. `size` is its bytes on
    the disk; `changed_at` is unix time. `run` is the run that it belongs to, or `key` the content hash in
    its name.

    `identity` distinguishes it from another thing of the same name. `set_aside`: an earlier prune renamed it
    and died. `unpublished`: it holds a checkpoint that was collected but never reached the store.
    """

    kind: Kind
    path: str
    size: int
    changed_at: float
    run: str = ""
    key: str = ""
    identity: tuple[int, int] = (0, 0)
    set_aside: bool = False
    in_use: bool = False
    unpublished: bool = False


@dataclass(frozen=True)
class RunFacts:
    """A run of the ledger. `over`: it is final and has nothing on a platform any more. `damaged`: what of it
    the ledger cannot read."""

    run: str
    job: str
    over: bool
    ended_at: float | None = None
    damaged: str = ""


@dataclass(frozen=True)
class Needs:
    """The ledger's runs, and the content that runs which are not over (or are kept) need.

    `shared`: why another ledger may need things that this one does not know. `unread`: why a run of this
    ledger may need any content. Both are empty if there is no such reason.
    """

    runs: Mapping[str, RunFacts] = field(default_factory=dict)
    content: frozenset[tuple[Kind, str]] = frozenset()
    kept: frozenset[str] = frozenset()
    shared: str = ""
    unread: str = ""


@dataclass(frozen=True)
class Policy:
    """What the user asked for. `unknown`: include what this ledger does not know. `checkpoints`: include
    results. `history`: include the ledger's events."""

    now: float
    older_than_seconds: float
    keep: int = 0
    unknown: bool = False
    checkpoints: bool = False
    history: bool = False


@dataclass(frozen=True)
class Judgement:
    """`why` it goes, or why it stays."""

    thing: Thing
    goes: bool
    why: str


def newest_of_each_job(runs: Iterable[RunFacts], count: int) -> frozenset[str]:
    """The `count` runs of each job that ended last. They keep everything."""
    over = [run for run in runs if run.over]
    over.sort(key=lambda run: (run.ended_at or 0.0, run.run), reverse=True)
    taken: dict[str, int] = {}
    kept = set()
    for run in over:
        taken[run.job] = taken.get(run.job, 0) + 1
        if taken[run.job] <= count:
            kept.add(run.run)
    return frozenset(kept)


def old_enough(run: RunFacts, needs: Needs, policy: Policy) -> str:
    """Why a run's things stay; empty if they may go."""
    if run.damaged:
        return f"its run is damaged: {run.damaged}"
    if not run.over:
        return "its run is not over, or has a session on a platform"
    if run.run in needs.kept:
        return f"one of the newest {policy.keep} runs of its job (--keep)"
    if run.ended_at is None or policy.now - run.ended_at < policy.older_than_seconds:
        return f"its run ended less than {span(policy.older_than_seconds)} ago (--older-than)"
    return ""


def judge(things: Sequence[Thing], needs: Needs, policy: Policy) -> tuple[Judgement, ...]:
    """One judgement for each thing, in the same order."""
    shared = shared_with(things, needs)
    return tuple(_judged(thing, needs, policy, shared) for thing in things)


def shared_with(things: Iterable[Thing], needs: Needs) -> str:
    """Why another ledger may need things that this one does not; empty if there is no reason."""
    strangers = sorted({thing.run for thing in things if thing.run and thing.run not in needs.runs})
    return needs.shared or (f"this ledger does not know {_some(strangers)}" if strangers else "")


def _judged(thing: Thing, needs: Needs, policy: Policy, shared: str) -> Judgement:
    reason, stays = _reason(thing, needs, policy, shared)
    return Judgement(thing, not stays, reason)


def _reason(thing: Thing, needs: Needs, policy: Policy, shared: str) -> tuple[str, bool]:
    """(why, whether it stays)."""
    if thing.in_use:
        return "it is being written", True
    if thing.kind is Kind.LOG and thing.run in needs.runs:  # the run's age counts, not its own
        return _of_run(thing, needs, policy)
    if not thing.set_aside and policy.now - thing.changed_at < GRACE_SECONDS:
        return f"changed less than {span(GRACE_SECONDS)} ago", True
    if thing.kind is Kind.DRAFT:
        return "its writer was killed", False
    if thing.kind in BY_CONTENT:
        return _of_content(thing, needs, policy, shared)
    return _of_run(thing, needs, policy)


def _of_content(thing: Thing, needs: Needs, policy: Policy, shared: str) -> tuple[str, bool]:
    if (thing.kind, thing.key) in needs.content:
        return "a run needs it", True
    if needs.unread:
        return f"a run may need it: {needs.unread}", True
    if shared and not policy.unknown:
        return f"another ledger may need it, because {shared} (--unknown)", True
    return "no run that is under way needs it", False


def _of_run(thing: Thing, needs: Needs, policy: Policy) -> tuple[str, bool]:
    run = needs.runs.get(thing.run)
    if thing.unpublished and not policy.checkpoints:
        return "it holds a checkpoint that never reached the store (--checkpoints)", True
    if run is None:
        if not policy.unknown:
            return "this ledger does not know its run (--unknown)", True
        if not thing.set_aside and policy.now - thing.changed_at < policy.older_than_seconds:
            return f"changed less than {span(policy.older_than_seconds)} ago (--older-than)", True
        return "this ledger does not know its run", False
    if thing.kind is Kind.RESUME and run.over:
        return "its session is over", False
    stays = old_enough(run, needs, policy)
    ago = f"ended more than {span(policy.older_than_seconds)} ago" if policy.older_than_seconds else "is over"
    return stays or f"its run {ago}", bool(stays)


def _some(names: Sequence[str]) -> str:
    more = len(names) - 1
    return names[0] if not more else f"{names[0]} and {more} more"
