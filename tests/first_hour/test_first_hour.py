"""The first hour with one's own script: submitted, its machine lost, its time over, resumed and pulled."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from orchestrator.core.lifecycle import Phase
from orchestrator.core.order import Outcome
from tests.end_to_end.user import ROOT, User
from tests.first_hour.person import Person, differing
from tests.first_hour.stories import CROSSVAL, STORIES, WRONG, Story, table

pytestmark = pytest.mark.timeout(1200)
BY_HAND = frozenset({"huggingface", "lightning", "dataset"})  # dear, and much like the others
ATTEMPTS = 4  # on a busy machine a run may be over before its person loses the machine


@pytest.mark.parametrize(
    "story",
    [
        pytest.param(each, id=each.folder, marks=[pytest.mark.soak] * (each.folder in BY_HAND))
        for each in STORIES
    ],
)
def test_a_script_that_knows_nothing_of_us_is_finished(user: User, story: Story) -> None:
    person = Person(user, story)
    person.submit()
    person.loses_the_machine()
    person.meets_the_limit()
    person.comes_to_its_end()
    check_endings(person)
    checkpoint = person.pull("checkpoint")
    outputs = person.pull("outputs", "--outputs") if story.leaves else user.folder / "no-outputs"
    check_went_on(person, outputs)
    check_result(person, checkpoint, outputs)
    user.run("down")
    user.wait_for_silence()


def test_a_script_without_checkpoints_is_done_and_said_not_to_be_resumable(user: User) -> None:
    person = Person(user, CROSSVAL)
    for _ in range(ATTEMPTS):
        person.submit()
        person.loses_the_machine_after("penalty 1")
        user.wait_for_end(person.run)
        if person.has_lost_one:
            break
    assert [ending.outcome for ending in person.endings()] == [Outcome.LOST, Outcome.COMPLETED]
    assert "not resumable: no checkpoint, see `orchestrator help any-script`" in user.run("show", person.run)
    refused = user.run("pull", person.run, expect=2)
    assert f"is done and left no checkpoint; `orchestrator pull {person.run} --outputs`" in refused
    outputs = person.pull("outputs", "--outputs")
    assert differing(CROSSVAL.exact, person.by_hand(), outputs) == []


def test_a_wrong_script_is_not_repeated_and_goes_on_once_it_is_fixed(user: User) -> None:
    """A wrong import, then a wrong name in epoch 30. The fixed code finishes what the wrong one has begun."""
    person = Person(user, WRONG)
    for _ in range(ATTEMPTS):
        fails_twice_and_is_fixed(person)
        if person.has_lost_one:
            break
    resumed = [order.resume_step for order in person.orders()]
    assert resumed[:4] == [0, 0, 29, 29]
    assert len(resumed) == 5
    assert person.told(person.logs()[-1])[0] == resumed[-1] + 1
    assert differing(WRONG.exact, person.by_hand("fixed"), person.pull("checkpoint")) == []


def fails_twice_and_is_fixed(person: Person) -> None:
    user = person.user
    person.submit()
    user.wait_for_end(person.run, Phase.FAILED)
    assert len(person.orders()) == 1
    told = user.run("show", person.run)
    assert "ModuleNotFoundError: No module named 'nunpy'" in told
    assert "it would fail again, so it is not repeated" in told
    person.retries("second")
    user.wait_for_end(person.run, Phase.FAILED)
    told = user.run("show", person.run)
    assert "the same error at step 29 as in the session before, so it is not repeated" in told
    assert "NameError: name 'vall_loss' is not defined" in told
    person.retries("fixed")
    person.loses_the_machine_after("epoch 35 ")
    user.wait_for_end(person.run)


def test_the_table_in_the_docs_counts_what_is_there() -> None:
    text = (ROOT / "docs" / "any-script.md").read_text(encoding="utf-8")
    assert "\n".join(table()) in text


def check_endings(person: Person) -> None:
    """A lost machine, a limit, and perhaps more of them on a busy machine, where a session may not come to
    its first save; then the end."""
    lost, *limited, done = endings = person.endings()
    assert lost.outcome is Outcome.LOST, endings
    assert done.outcome is Outcome.COMPLETED, endings
    assert all("the session's deadline" in ending.message for ending in limited), endings
    assert any(ending.outcome is Outcome.STOPPED for ending in limited), endings


def check_went_on(person: Person, outputs: Path) -> None:
    """Each session continued from the newest checkpoint, none left anything out, and the last came to the
    end. On a busy machine a session may not come to its first save, and the next begins where it began; it
    may even reach its limit before it trains anything."""
    story, orders = person.story, person.orders()
    texts = person.logs()
    if story.told_in:  # of the last session
        texts = ["".join(path.read_text() for path in sorted(outputs.glob(story.told_in)))]
        orders = orders[-1:]
    trained = [person.told(text) for text in texts]
    assert len(trained) == len(orders)
    resumed = [order.resume_step for order in orders]
    assert resumed == sorted(resumed)
    told = [pair for pair in zip(trained, resumed, strict=True) if pair[0]]
    trained, resumed = [numbers for numbers, _ in told], [step for _, step in told]
    if story.told_in and person.had_nothing_left():
        return
    assert trained, texts
    for numbers in trained:
        assert numbers == list(range(numbers[0], numbers[-1] + 1, story.stride))
    assert resumed[-1] > 0
    assert all(
        (numbers[0] > story.first) == (step > 0) for numbers, step in zip(trained, resumed, strict=True)
    )
    for before, after in pairwise(trained):
        assert before[0] <= after[0]
        assert story.late or after[0] <= before[-1] + story.stride
    assert trained[-1][-1] == story.last
    if story.numbered:
        assert [numbers[0] - story.stride for numbers in trained] == resumed


def check_result(person: Person, checkpoint: Path, outputs: Path) -> None:
    story = person.story
    if story.exact or story.others:
        alone = person.by_hand()
        assert differing(story.exact, alone, checkpoint, outputs) == []
        assert differing(story.others, alone, checkpoint, outputs) == list(story.others)
        assert all((checkpoint / name).exists() for name in story.others)
    left = [name for name in story.leaves if name != story.told_in or not person.had_nothing_left()]
    assert [name for name in left if not list(outputs.glob(name))] == []
