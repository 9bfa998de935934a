"""What no weather on Kaggle may cost: the checks of the soak, on what the ledger and the local Kaggle hold.

Pure: reads values and returns sentences, one for each promise that was broken.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from orchestrator.core.checkpoint import CheckpointRef
from orchestrator.core.event import Assigned, CheckpointAccepted, Completed, Event, Faulted, GaveUp, Held
from orchestrator.core.order import session_name
from tests.stand_ins.kaggle import KernelSession

_SESSION = re.compile(r"(.+)-s(\d{2,})(?:-k\d+)?")
_MANIFEST = re.compile(r"outbox/checkpoints/([^/]+)/manifest\.json")
_CLAIM = "outbox/incarnation"


def session_of(pushed: KernelSession) -> tuple[str, int]:
    """The run and the generation for which a kernel was pushed."""
    match = _SESSION.fullmatch(str(pushed.request["newTitle"]))
    assert match is not None, pushed.request["newTitle"]
    return match[1], int(match[2])


def violations(
    run: str, history: Sequence[Event], pushed: Sequence[KernelSession], *, hid: bool
) -> list[str]:
    """`pushed`: every session of this run that Kaggle ever got. `hid`: Kaggle kept outputs hidden for longer
    than they are waited for, so that a run may have been held until they appeared."""
    return [
        f"{run}: {text}"
        for text in (
            *_lost(history, pushed),
            *_destroyed(pushed),
            *_skipped(run, history, pushed),
            *_twice(pushed),
            *_at_once(pushed),
            *_held(history, hid),
        )
    ]


def committed(names: Iterable[str]) -> list[CheckpointRef]:
    """The checkpoints among the names of outputs."""
    refs = (CheckpointRef.parse(match[1]) for name in names if (match := _MANIFEST.fullmatch(name)))
    return [ref for ref in refs if ref is not None]


def _lost(history: Sequence[Event], pushed: Sequence[KernelSession]) -> Iterator[str]:
    accepted = {event.checkpoint.name for event in history if isinstance(event, CheckpointAccepted)}
    for session in pushed:
        for ref in committed(session.published):
            if ref.name not in accepted:
                yield f"checkpoint {ref.name} was published and never accepted"


def _destroyed(pushed: Sequence[KernelSession]) -> Iterator[str]:
    for session in pushed:
        if _CLAIM in session.destroyed:
            name, number = session_of(session)
            names = ", ".join(ref.name for ref in committed(session.destroyed)) or "no checkpoint yet"
            yield f"{session_name(name, number)} was deleted while {session.deleted_in}, with {names}"


def _skipped(run: str, history: Sequence[Event], pushed: Sequence[KernelSession]) -> Iterator[str]:
    """A session must resume from the newest checkpoint that any session before it published."""
    best: dict[int, int] = defaultdict(int)
    for session in pushed:
        _, number = session_of(session)
        best[number] = max([best[number], *(ref.step for ref in committed(session.published))])
    for event in history:
        if isinstance(event, Assigned):
            order = event.order
            newest = max((step for number, step in best.items() if number < order.generation), default=0)
            if order.resume_step < newest:
                yield f"{order.session} resumes at step {order.resume_step}, although {newest} was published"
    if not any(isinstance(event, Completed) for event in history):
        yield f"{run} did not complete"


def _twice(pushed: Sequence[KernelSession]) -> Iterator[str]:
    worked: dict[tuple[str, int], int] = defaultdict(int)
    for session in pushed:
        worked[session_of(session)] += _CLAIM in (*session.published, *session.destroyed)
    for (run, number), count in worked.items():
        if count > 1:
            yield f"{session_name(run, number)} ran {count} times"


def _at_once(pushed: Sequence[KernelSession]) -> Iterator[str]:
    billed = sorted((*session.ran, str(session.request["newTitle"])) for session in pushed)
    for (_, over, before), (began, _, after) in pairwise(billed):
        if began < over:
            yield f"{before} and {after} were billed at once for {over - began:.1f} s"


def _held(history: Sequence[Event], hid: bool) -> Iterator[str]:
    for event in history:
        if isinstance(event, GaveUp | Held) or (isinstance(event, Faulted) and not (event.awaits and hid)):
            yield f"it was held or given up: {event}"[:500]
