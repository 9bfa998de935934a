"""Every interleaving of two notebooks, their controllers and the store, as a small graph of states.

The steps are the real rules of `orchestrator.session.mailbox`. A step is one change of one register: reading
and swapping is one step, because a swap takes effect only if nothing changed in between. Time is the worst
there is: any worker may be as slow as it likes, and may be believed to be gone at any moment. An answer may
be lost after its change was made. A worker may die at any moment, and so may a controller, which then repeats
its last step.

Safety is checked in each state; liveness in the whole graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

from orchestrator.errors import NotFound, Refused, Rejected, Transient
from orchestrator.session import mailbox

ACCELERATOR = "cpu"
EMPTY = mailbox.Box()
REAL = SimpleNamespace(**{name: getattr(mailbox, name) for name in (
    "held", "beaten", "left", "cleared", "taken", "own", "reported", "prepared", "launched", "stopped",
    "discarded",
)})  # fmt: skip


@dataclass(frozen=True)
class Notebook:
    """`state`: waiting, attending, running, or dead. `session` runs there. `checked`: its uplink has looked
    at the fence, and may publish. `starts` are left."""

    id: str
    state: str = "waiting"
    session: str = ""
    checked: bool = False
    done: bool = False  # its session has ended, but the mailbox does not say so yet
    starts: int = 0


@dataclass(frozen=True)
class Run:
    """One run and its controller. `phase`: assigned, prepared, launched, closing, stopping, stopped, over.
    `wish`: a person may still cancel it."""

    name: str
    generation: int = 1
    phase: str = "assigned"
    wish: bool = False
    completed: bool = False

    @property
    def session(self) -> str:
        return f"{self.name}-s{self.generation:02d}"


@dataclass(frozen=True)
class State:
    notebooks: tuple[Notebook, ...]
    runs: tuple[Run, ...]
    box: mailbox.Box = EMPTY
    worker: mailbox.Worker | None = None
    fences: tuple[tuple[str, int], ...] = ()
    published: frozenset[tuple[str, str]] = frozenset()  # session, notebook: while the fence allowed it
    ran: frozenset[tuple[str, str]] = frozenset()  # session, notebook

    def with_notebook(self, number: int, **changes: object) -> State:
        notebooks = list(self.notebooks)
        notebooks[number] = replace(notebooks[number], **changes)  # type: ignore[arg-type]
        return replace(self, notebooks=tuple(notebooks))

    def with_run(self, number: int, **changes: object) -> State:
        runs = list(self.runs)
        runs[number] = replace(runs[number], **changes)  # type: ignore[arg-type]
        return replace(self, runs=tuple(runs))

    def fence(self, run: str) -> int:
        return dict(self.fences).get(run, 0)


@dataclass
class Model:
    """`rules` are the real ones, or have a planted bug. A run is given up beyond `generations_max`."""

    rules: SimpleNamespace = field(default_factory=lambda: REAL)
    generations_max: int = 2

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """What may happen next, each with its name. Those that begin with `fault` are nobody's wish."""
        for number, notebook in enumerate(state.notebooks):
            if notebook.state != "dead":
                yield (
                    "fault: dies",
                    _replaced(state, number, Notebook(notebook.id, "dead", starts=notebook.starts)),
                )
                yield from self._notebook(state, number, notebook)
            elif notebook.starts:
                fresh = Notebook(f"{notebook.id}+", starts=notebook.starts - 1)
                yield "fault: starts again", _replaced(state, number, fresh)
        for number, run in enumerate(state.runs):
            yield from self._controller(state, number, run)

    # --- A notebook ---------------------------------------------------------------------------------------

    def _notebook(self, state: State, number: int, notebook: Notebook) -> Iterator[tuple[str, State]]:
        me = mailbox.Worker(id=notebook.id, accelerator=ACCELERATOR)
        if notebook.state == "waiting":
            for gone in (False, True):
                mine = self.rules.held(state.worker, me, gone)
                if mine is not None:
                    there = replace(state, worker=_uncounted(mine))
                    yield "holds", there.with_notebook(number, state="attending")
                    yield "fault: holds, answer lost", there
            return
        beat = self.rules.beaten(state.worker, me)
        if beat is None:  # it kills what runs there, and waits under another id; here once, so that this ends
            lost = Notebook(
                f"{notebook.id}'", "dead" if "'" in notebook.id else "waiting", starts=notebook.starts
            )
            yield "finds the mailbox lost", _replaced(state, number, lost)
        if notebook.state == "attending":
            yield from self._take(state, number, me)
        else:
            yield from self._run(state, number, notebook, me)

    def _take(self, state: State, number: int, me: mailbox.Worker) -> Iterator[tuple[str, State]]:
        box = self.rules.cleared(state.box, me, lambda: state.worker)
        if box != state.box:
            yield "clears the box", replace(state, box=box)
        box = self.rules.taken(box, me)
        post, there = self.rules.own(box, me), replace(state, box=box)
        if box != state.box:
            yield "fault: takes, answer lost", there
        if post is not None:
            ran = there.ran | {(post.session, me.id)}
            yield (
                "takes",
                replace(there, ran=ran).with_notebook(number, state="running", session=post.session),
            )

    def _run(
        self, state: State, number: int, notebook: Notebook, me: mailbox.Worker
    ) -> Iterator[tuple[str, State]]:
        post = self.rules.own(state.box, me)
        mine = post is not None and post.session == notebook.session
        free = {"state": "attending", "session": "", "checked": False, "done": False}
        if not mine:
            yield "finds its session gone", state.with_notebook(number, **free)
        if not notebook.done:
            run, _, generation = notebook.session.rpartition("-s")
            if state.fence(run) == int(generation):
                yield "looks at the fence", state.with_notebook(number, checked=True)
            if notebook.checked:
                there = state.with_notebook(number, checked=False)
                published = there.published | {(notebook.session, notebook.id)}
                yield "publishes", replace(there, published=published)
            yield "ends its session", state.with_notebook(number, done=True, checked=False)
            return
        box = self.rules.reported(state.box, notebook.session, me, "done")
        there = replace(state, box=box)
        yield "reports", there.with_notebook(number, **free)
        if box != state.box:
            yield "fault: reports, answer lost", there

    # --- A controller: each step is idempotent, so a crash is the same as a lost answer ---------------------

    def _controller(self, state: State, number: int, run: Run) -> Iterator[tuple[str, State]]:
        if run.phase == "over":
            return
        if run.wish and run.phase in ("prepared", "launched"):
            yield "is cancelled", state.with_run(number, wish=False, phase="closing", completed=True)
        box = state.box
        match run.phase:
            case "assigned":
                fences = {**dict(state.fences), run.name: run.generation}
                state = replace(state, fences=tuple(sorted(fences.items())))
                post = mailbox.Post(run.session, run.name, ACCELERATOR, run.session)
                yield from self._changed(state, number, lambda: self.rules.prepared(box, post), "prepared")
            case "prepared":
                yield from self._changed(
                    state, number, lambda: self.rules.launched(box, run.session, run.session), "launched"
                )
            case "launched":
                yield from self._observed(state, number, run)
            case "closing":  # the fence rises, then the last look
                fences = {**dict(state.fences), run.name: run.generation + 1}
                yield (
                    "fences",
                    replace(state, fences=tuple(sorted(fences.items()))).with_run(number, phase="stopping"),
                )
            case "stopping":
                yield from self._stopped(state, number, run)
            case "stopped":
                yield from self._discarded(state, number, run)

    def _changed(
        self, state: State, number: int, rule: Callable[[], mailbox.Box], phase: str
    ) -> Iterator[tuple[str, State]]:
        try:
            there = replace(state, box=rule())
        except (Refused, NotFound, Transient):
            return
        except Rejected:
            yield f"is not {phase}", state.with_run(number, phase="closing")
            return
        yield phase, there.with_run(number, phase=phase)
        if there.box != state.box:
            yield f"fault: {phase}, answer lost", there

    def _observed(self, state: State, number: int, run: Run) -> Iterator[tuple[str, State]]:
        post = state.box.find(run.session)
        if post is None or post.ended:
            completed = post is not None and post.ended == "done"
            yield "sees the end", state.with_run(number, phase="closing", completed=completed)
        elif post.worker:  # its worker may be believed to be gone at any moment
            yield "gives it up", state.with_run(number, phase="closing")

    def _stopped(self, state: State, number: int, run: Run) -> Iterator[tuple[str, State]]:
        post = state.box.find(run.session)
        for lost in (False, True):
            if lost and (post is None or not post.worker):
                continue
            box = self.rules.stopped(state.box, run.session, lost)
            there, after = replace(state, box=box), box.find(run.session)
            ended = after is None or after.ended
            if ended:
                yield "is stopped", there.with_run(number, phase="stopped")
            if box != state.box:
                yield "fault: asks it to stop, answer lost" if ended else "asks it to stop", there

    def _discarded(self, state: State, number: int, run: Run) -> Iterator[tuple[str, State]]:
        post = state.box.find(run.session)
        for lost in (False, True):
            if lost and (post is None or not post.worker):
                continue
            try:
                there = replace(state, box=self.rules.discarded(state.box, run.session, lost))
            except Transient:
                continue
            if run.completed or run.generation == self.generations_max:
                yield "is over", there.with_run(number, phase="over")
            else:
                yield "goes on", there.with_run(number, phase="assigned", generation=run.generation + 1)
            if there.box != state.box:
                yield "fault: discards, answer lost", there


def _replaced(state: State, number: int, notebook: Notebook) -> State:
    return replace(state, notebooks=(*state.notebooks[:number], notebook, *state.notebooks[number + 1 :]))


def _settled(state: State) -> State:
    """Without what cannot matter any more: the history of sessions that no run and no notebook has."""
    live = {run.session for run in state.runs if run.phase != "over"} | {
        each.session for each in state.notebooks
    }
    ran = frozenset(each for each in state.ran if each[0] in live)
    published = frozenset(each for each in state.published if each[0] in live)
    if len(ran) == len(state.ran) and len(published) == len(state.published):
        return state
    return replace(state, ran=ran, published=published)


def _uncounted(worker: mailbox.Worker) -> mailbox.Worker:
    """Without its counter: no rule depends on its value, and the graph stays finite."""
    return replace(worker, beat=0)


# --- What must hold -------------------------------------------------------------------------------------


def broken(state: State) -> str:
    """What is wrong with a state; empty if nothing is."""
    for session in {session for session, _ in state.ran}:
        if len({notebook for each, notebook in state.ran if each == session}) > 1:
            return f"{session} was run by two notebooks"
        if len({notebook for each, notebook in state.published if each == session}) > 1:
            return f"two notebooks published accepted checkpoints of {session}"
    there = "" if state.worker is None else state.worker.id
    for post in state.box.posts:
        if post.ended == mailbox.TAKEN_OVER and post.worker == there:
            return f"{post.session} was ended for its notebook, which attends to the mailbox"
    running = [each.session for each in state.notebooks if each.state == "running" and not each.done]
    if len(running) != len(set(running)):
        return "one session runs in two notebooks at once"
    return ""


@dataclass
class Explored:
    states: int
    trouble: str


def explore(model: Model, begin: State, most: int = 2_000_000) -> Explored:
    """Visits every state. Safety: no state is broken. Liveness: wherever a notebook lives, all runs can end
    without another fault."""
    numbers: dict[State, int] = {begin: 0}
    order, before = [begin], {0: (0, "begins")}
    back: list[list[int]] = [[]]
    at = 0
    while at < len(order):
        state = order[at]
        for name, after in model.steps(state):
            after = _settled(after)
            number = numbers.get(after)
            if number is None:
                number = numbers[after] = len(order)
                order.append(after)
                back.append([])
                before[number] = (at, name)
                if trouble := broken(after):
                    return Explored(len(order), f"{trouble}: {_story(before, number)}")
                assert len(order) <= most, "the model has grown too large"
            if not name.startswith("fault"):
                back[number].append(at)
        at += 1
    stuck = _stuck(order, back)
    if stuck is not None:
        return Explored(len(order), f"a run waits for ever, while a notebook lives: {_story(before, stuck)}")
    return Explored(len(order), "")


def _stuck(order: list[State], back: list[list[int]]) -> int | None:
    good = [number for number, state in enumerate(order) if all(run.phase == "over" for run in state.runs)]
    reached = set(good)
    while good:
        for number in back[good.pop()]:
            if number not in reached:
                reached.add(number)
                good.append(number)
    return next(
        (
            number
            for number, state in enumerate(order)
            if number not in reached and any(_may_attend(state, each) for each in state.notebooks)
        ),
        None,
    )


def _may_attend(state: State, notebook: Notebook) -> bool:
    """Whether it lives. One that has lost the mailbox twice is as good as dead: see `_notebook`."""
    lost = notebook.state != "waiting" and (state.worker is None or state.worker.id != notebook.id)
    return notebook.state != "dead" and not (lost and "'" in notebook.id)


def _story(before: dict[int, tuple[int, str]], number: int) -> str:
    steps = []
    while number:
        number, name = before[number]
        steps.append(name)
    return ", ".join(reversed(steps))
