"""Decide with any platforms, store and user, in any order of events: what always holds."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core import wire
from orchestrator.core.action import (
    Action,
    Collect,
    Discard,
    Done,
    Failed,
    Launch,
    Prepare,
    Report,
    Retire,
    Stop,
    Trouble,
)
from orchestrator.core.checkpoint import Accepted, CheckpointRef
from orchestrator.core.decide import decide
from orchestrator.core.draft import Decision, Inputs
from orchestrator.core.event import CheckpointAccepted, Wished
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.core.offer import NEVER, SLOT, Rejection, Route, until_time
from orchestrator.core.order import AgentStatus, Outcome, Result
from orchestrator.core.run import RunRecord, apply
from orchestrator.core.session import ABSENT, Observation, Sighting, StopReply
from orchestrator.core.watch import Watch
from tests.core.runs import NOW, record, routed

INCARNATIONS = ("aaaa", "bbbb")
ALLOWED: dict[Phase, tuple[type[Action], ...]] = {
    Phase.PREPARING: (Prepare,),
    Phase.LAUNCHING: (Launch,),
    Phase.RUNNING: (Collect,),
    Phase.STOPPING: (Stop,),
    Phase.COLLECTING: (Collect,),
}


class Adversary:
    """Draws what comes next: answers to its actions, readings, routes, wishes, and passing time."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data
        self.now = NOW
        self.monotonic = 0.0
        self.wanted: list[Action] = []
        self.watches: dict[str, Watch] = {}

    def choose(self, *values: object) -> object:
        return self._data.draw(st.sampled_from(values))

    def number(self, most: int) -> int:
        return self._data.draw(st.integers(0, most))

    def inputs(self, found: RunRecord) -> Inputs:
        self.now += self.choose(0.5, 5.0, 60.0, 4000.0, -3000.0)  # type: ignore[operator]
        self.monotonic += self.choose(0.5, 5.0, 60.0)  # type: ignore[operator]
        reports = tuple(self.report(a, found) for a in self.wanted if self.number(2))
        self.wanted = [] if self.number(1) else self.wanted
        for name in self.names(found):
            if self.number(1):
                watch = self.watches.get(name) or Watch(self.monotonic)
                self.watches[name] = watch.see(self.observation(), self.monotonic, 2.0)
        session = found.session
        return Inputs(
            now=self.now,
            monotonic=self.monotonic,
            reports=reports,
            watch=self.watches.get(session.name) if session else None,
            strays={s.session: self.watches[s.session] for s in found.strays if s.session in self.watches},
            route=self.route(),
            launch_unknown=not self.number(8),
        )

    def names(self, found: RunRecord) -> list[str]:
        return [s.session for s in found.strays] + ([found.session.name] if found.session else [])

    def route(self) -> Route | None:
        waits = Route(None, (), (Rejection("here", "cpu", "full", SLOT),), ())
        later = Route(None, (), (Rejection("here", "cpu", "no quota", until_time(self.now + 50)),), ())
        never = Route(None, (), (Rejection("here", "cpu", "too small", NEVER),), ())
        return self.choose(None, routed(), routed(), routed(), waits, later, never)  # type: ignore[return-value]

    def observation(self) -> Observation:
        if not self.number(3):
            return ABSENT
        incarnations = self.choose((), ("aaaa",), ("bbbb",), INCARNATIONS)
        who = self.choose(*INCARNATIONS)
        status = AgentStatus(str(who), self.number(3), NOW, "running", checkpoint=str(self.number(3)))
        outcome = self.choose(*Outcome)
        result = Result(str(who), Outcome(str(outcome)), 75, self.number(1000), "it ended", "tail")
        return Observation(
            sighting=self.choose(*Sighting),  # type: ignore[arg-type]
            incarnations=incarnations,  # type: ignore[arg-type]
            status=self.choose(None, status, replace(status, warnings=("loss is nan",))),  # type: ignore[arg-type]
            result=self.choose(None, None, result),  # type: ignore[arg-type]
            ending=self.choose(None, *Outcome),  # type: ignore[arg-type]
        )

    def report(self, action: Action, found: RunRecord) -> Report:
        if not self.number(2):
            trouble = Trouble(str(self.choose(*Trouble)))
            name = found.accepted[-1].name if found.accepted else None
            return Failed(action, trouble, "no", checkpoint=name if trouble is Trouble.CORRUPT else None)
        if isinstance(action, Stop):
            return Done(action, reply=StopReply(str(self.choose(*StopReply))))
        if isinstance(action, Collect):
            ref = CheckpointRef(self.number(1000), max(1, self.number(found.generation + 1)),
                                str(self.choose(*INCARNATIONS)))  # fmt: skip
            return Done(action, checkpoints=(Accepted(ref, 10),), corrupt=(("c", "no"),))
        return Done(action)


def check(before: RunRecord, inputs: Inputs, decision: Decision) -> None:
    assert reduce(apply, decision.events, before) == decision.record
    session = decision.record.session
    strays = {stray.session for stray in decision.record.strays}
    for action in decision.actions:
        if isinstance(action, Retire):
            assert action.keep == {c.name for c in decision.record.accepted}
        elif session is not None and action.session == session.name:
            assert isinstance(action, ALLOWED[decision.record.phase])
        else:
            assert isinstance(action, Stop | Discard)
            assert action.session in strays
    current = before
    for event in decision.events:
        if isinstance(event, CheckpointAccepted):
            assert current.session is not None
            ref = event.checkpoint.ref
            assert (ref.generation, ref.incarnation) == (current.generation, current.session.incarnation)
        current = apply(current, event)
    again = decide(decision.record, replace(inputs, reports=(), route=None, launch_unknown=False))
    assert again.record.phase is decision.record.phase or again.events, "a phase changes by an event"
    assert wire.decode(Inputs, wire.to_json(inputs)) == inputs


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_happens(data: st.DataObject) -> None:
    found = record(without_progress=3)
    adversary = Adversary(data)
    generations = [0]
    for _ in range(25):
        if not adversary.number(9):
            wish = adversary.choose(*Wish)
            found = apply(found, Wished(adversary.now, Wish(str(wish)), bool(adversary.number(1))))
        inputs = adversary.inputs(found)
        decision = decide(found, inputs)
        check(found, inputs, decision)
        if decision.record.phase.final and not found.phase.final:
            assert decision.record.session is None
        found = decision.record
        generations.append(found.generation)
        adversary.wanted += [a for a in decision.actions if a not in adversary.wanted]
    assert all(b - a in (0, 1) for a, b in pairwise(generations))
