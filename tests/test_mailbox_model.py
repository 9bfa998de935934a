"""Two notebooks at once, in every interleaving: never do both publish, and no session waits for ever."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from orchestrator.session import mailbox
from orchestrator.session.mailbox import Box, Worker
from tests.mailbox_model import ACCELERATOR, REAL, Model, Notebook, Run, State, explore

TWO = (Notebook("a"), Notebook("b"))


ONE = pytest.param(State(TWO, (Run("r"),)), 1, 5000, id="one run")
# A session whose notebook died, and whose controller never comes back: nobody but another notebook ends it.
ABANDONED = mailbox.Post("q-s01", "q", ACCELERATOR, launched=True, worker="gone")
LEFT = State(TWO[:1], (Run("r"),), box=Box(posts=(ABANDONED,)), worker=Worker("gone"))
ONE_LEFT = pytest.param(LEFT, 1, 100, id="one run, and what another home has left")
TWO_RUNS = pytest.param(State(TWO[:1], (Run("q"), Run("r"))), 1, 500, id="two runs, one notebook")
LONG = [
    pytest.param(State(TWO, (Run("r"),)), 2, 20_000, id="a second session"),
    pytest.param(State(TWO, (Run("r", wish=True),)), 1, 5000, id="it may be cancelled"),
    pytest.param(State((Notebook("a", starts=1), TWO[1]), (Run("r"),)), 1, 5000, id="one starts again"),
]


@pytest.mark.parametrize(
    ("begin", "generations", "states_min"),
    [
        ONE,
        TWO_RUNS,
        ONE_LEFT,
        *(pytest.param(*each.values, id=each.id, marks=pytest.mark.soak) for each in LONG),
    ],
)
def test_every_interleaving_is_safe_and_ends(begin: State, generations: int, states_min: int) -> None:
    found = explore(Model(generations_max=generations), begin)
    assert found.trouble == ""
    assert found.states >= states_min, "the model has lost its steps"


# --- The checker finds planted bugs -----------------------------------------------------------------------


def _taken_again(box: Box, me: Worker) -> Box:
    """Takes what a worker that seems to be gone has begun."""
    for post in box.posts:
        if post.is_open and not post.stop and post.worker != me.id:
            return box.with_(replace(post, worker=me.id))
    return box


def _freed(box: Box, session: str, lost: bool) -> Box:
    """Gives a session back instead of ending it, once its worker seems to be gone."""
    post = box.find(session)
    if post is not None and post.worker and lost:
        return box.with_(replace(post, worker="", ended="", stop=False))
    return mailbox.stopped(box, session, lost)


def _never_taken(box: Box, me: Worker) -> Box:
    del me
    return box


def _unstoppable(box: Box, session: str, lost: bool) -> Box:
    """Does not end a session that nobody has taken."""
    after = mailbox.stopped(box, session, lost)
    post = after.find(session)
    if post is not None and post.ended and not post.worker:
        return after.with_(replace(post, ended=""))
    return after


def _never_cleared(box: Box, me: Worker, attending: Callable[[], Worker | None]) -> Box:
    del me, attending
    return box


def _cleared_by_anybody(box: Box, me: Worker, attending: Callable[[], Worker | None]) -> Box:
    """Ends the sessions of others, also after it has lost the mailbox to one of them."""
    del attending
    return mailbox.cleared(box, me, lambda: me)


@pytest.mark.parametrize(
    ("rule", "bug", "trouble", "begin"),
    [
        ("taken", _taken_again, "was run by two notebooks", State(TWO, (Run("r"),))),
        ("stopped", _freed, "was run by two notebooks", State(TWO, (Run("r"),))),
        ("stopped", _unstoppable, "waits for ever", State(TWO[:1], (Run("r", wish=True),))),
        ("taken", _never_taken, "waits for ever", State(TWO, (Run("r"),))),
        ("cleared", _never_cleared, "waits for ever", LEFT),
        (
            "cleared",
            _cleared_by_anybody,
            "was ended for its notebook, which attends",
            State(TWO, (Run("r"),)),
        ),
    ],
)
def test_a_planted_bug_is_found(rule: str, bug: Callable[..., object], trouble: str, begin: State) -> None:
    rules = SimpleNamespace(**{**vars(REAL), rule: bug})
    found = explore(Model(rules, generations_max=1), begin)
    assert trouble in found.trouble
