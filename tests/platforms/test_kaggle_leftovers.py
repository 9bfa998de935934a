"""What this home has left on the account: found by the account's own lists, known by what it holds."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.clock import SystemClock
from orchestrator.errors import Transient
from orchestrator.platforms import catalog
from orchestrator.platforms.kaggle.platform import KagglePlatform
from orchestrator.platforms.kaggle.uploads import upload
from orchestrator.platforms.kaggle.values import Push
from orchestrator.platforms.trials.running import TRIALS, running
from orchestrator.session.staging import Materials
from orchestrator.spec.fields import NAME_LENGTH_MAX
from tests.cli.calls import caller
from tests.conformance.test_platforms import agent, any_order
from tests.platforms.kaggle_box import FIRST, LEAVES, RUN, SECOND, THIRD, WAITS, Box, Boxes, box, boxes
from tests.platforms.test_kaggle_account import account
from tests.stand_ins.kaggle import LocalKaggle, Settings, State, Warts, local_kaggle

__all__ = ["agent", "box", "boxes"]
OWN = "print('a notebook of mine')\n"
TOO_LONG_JOB = "a-very-long-name-of-a-job" * 3
LONGEST_JOB = TOO_LONG_JOB[:NAME_LENGTH_MAX]


def push(kaggle: LocalKaggle, name: str, text: str = OWN) -> str:
    """The account's user runs a kernel of their own."""
    return account(kaggle).push(Push(name, text, "", False, False, 600, False)).slug


def left(box: Box) -> list[tuple[str, str]]:
    return [(each.kind, each.name) for each in box.platform.leftovers()]


def clean(box: Box) -> None:
    for each in box.platform.leftovers():
        box.platform.remove(each)


def forgotten(box: Box, session: str) -> KagglePlatform:
    """A controller on a machine that has lost its file about a session."""
    (box.folder / "sessions" / "sessions" / f"{session}.json").unlink()
    return box.another_controller()


def notes(box: Box) -> Path:
    path = box.folder / "notes.csv"
    path.write_text("mine")
    return path


def test_a_kernel_without_its_dataset_is_found(box: Box) -> None:
    box.run(WAITS)
    [dataset] = box.datasets()
    box.platform._client.delete_dataset(dataset)
    [found] = box.platform.leftovers()
    assert (found.kind, found.name, found.session, found.run, found.alive) == (
        "kernel", FIRST, FIRST, RUN, True,
    )  # fmt: skip
    box.platform.remove(found)
    assert left(box) == []
    with pytest.raises(KeyError):
        box.kaggle.kernel(FIRST)


def test_a_dataset_without_its_kernel_is_found(box: Box) -> None:
    box.platform.prepare(box.order(), box.materials())
    [dataset] = box.datasets()
    assert left(box) == [("dataset", dataset)]
    clean(box)
    assert box.datasets() == []


def test_a_kernel_to_which_kaggle_gave_another_name_is_found(boxes: Boxes) -> None:
    box = boxes(Warts(slug_ending="-x1"))
    box.run(LEAVES)
    [kernel, _] = box.platform.leftovers()
    assert (kernel.name, kernel.session, kernel.run) == (f"{FIRST}-x1", FIRST, RUN)
    clean(box)
    assert left(box) == []


def test_what_a_home_has_forgotten_is_found_as_well(box: Box) -> None:
    """The lists are enough: what this machine knows of each session may be lost."""
    box.run(LEAVES)
    box.platform = forgotten(box, FIRST)
    assert [kind for kind, _ in left(box)] == ["kernel", "dataset"]


def test_each_kernel_that_a_session_was_given_is_found(box: Box) -> None:
    """After a push that did not find its dataset, the next one has another name."""
    box.kaggle.warts.attach_lag_seconds = 3600.0
    order = box.order()
    box.platform.prepare(order, box.materials_of(LEAVES))
    with pytest.raises(Exception, match="does not find the data"):
        box.platform.launch(order)
    box.kaggle.warts.attach_lag_seconds = 0.0
    box.platform.launch(order)
    [kernel, _] = box.platform.leftovers()
    assert (kernel.name, kernel.session) == (f"{FIRST}-k2", FIRST)


@pytest.mark.parametrize("job", [LONGEST_JOB, TOO_LONG_JOB], ids=["longest", "longer"])
def test_a_shortened_name_hides_no_live_run(box: Box, job: str) -> None:
    """The ledger knows a run by its whole name. Only the names on Kaggle are shortened."""
    run = f"{job}-7f3kq2vd"
    session = f"{run}-s01"
    box.kaggle.warts.attach_lag_seconds = 3600.0
    order = box.order(session, run=run)
    box.platform.prepare(order, box.materials_of(LEAVES))
    with pytest.raises(Exception, match="does not find the data"):
        box.platform.launch(order)
    assert [each.run for each in box.platform.leftovers()] == [run], "its dataset alone"
    box.kaggle.warts.attach_lag_seconds = 0.0
    box.platform.launch(order)
    forgetful = forgotten(box, session)
    for platform in (box.platform, forgetful):
        found = platform.leftovers()
        assert [(each.kind, each.session, each.run) for each in found] == [
            ("kernel", session, run), ("dataset", session, run)
        ]  # fmt: skip
        assert all(len(each.name) <= 50 and each.name != session for each in found)
    clean(box)
    assert left(box) == []


def test_what_a_trial_left_is_of_no_run_and_needs_no_doubt(box: Box) -> None:
    """Also a run of the same name is not taken for a trial."""
    run = "kaggle-trial-7f3kq2vd"
    session = f"{run}-s01"
    trials = box.another_controller(f"sessions/{TRIALS}")
    order = box.order(session, run=run)
    trials.prepare(order, box.materials_of(LEAVES))
    trials.launch(order)
    assert {(each.kind, each.session, each.run) for each in box.platform.leftovers()} == {
        ("kernel", session, ""), ("dataset", session, "")
    }  # fmt: skip
    with running(box.folder / "sessions" / TRIALS, run):
        found = box.platform.leftovers()
        assert all(each.in_trial for each in found)
        with pytest.raises(Transient, match="is under way"):
            box.platform.remove(found[0])
    assert not any(each.in_trial for each in box.platform.leftovers())
    box.run(LEAVES, f"{run}-s02", run=run)
    mine = [("kernel", f"{run}-s02", run), ("dataset", f"{run}-s02", run)]
    found = box.platform.leftovers()
    assert [(each.kind, each.session, each.run) for each in found if each.run] == mine
    for each in found:
        box.platform.remove(replace(each, run=""))
    assert [(each.kind, each.session, each.run) for each in box.platform.leftovers()] == mine


# --- Of earlier versions ----------------------------------------------------------------------------------


@pytest.fixture
def landed(box: Box) -> Box:
    """A session that an earlier version started and this one finds: its dataset is called like its kernel,
    whose text does not say the home, and this machine has no file about it."""
    box.run(LEAVES)
    box.until(lambda: box.kaggle.kernel(FIRST).state is State.COMPLETE)
    request = box.kaggle.kernel(FIRST).request
    [home] = re.findall(r'\\"home\\": \\"\w+\\", ', request["text"])
    request["text"] = request["text"].replace(home, "")
    [name] = box.datasets()
    box.kaggle.datasets.rename(name, FIRST)
    box.platform = forgotten(box, FIRST)
    return box


def test_what_an_earlier_version_left_is_found(landed: Box) -> None:
    assert [(each.kind, each.name, each.run) for each in landed.platform.leftovers()] == [
        ("kernel", FIRST, RUN), ("dataset", FIRST, RUN)
    ]  # fmt: skip
    assert landed.another_controller("another-home").leftovers() == ()
    clean(landed)
    assert left(landed) == []


def test_a_session_of_an_earlier_version_is_discarded_with_its_dataset(landed: Box) -> None:
    assert landed.until_ended(FIRST).result is not None
    landed.platform.discard(FIRST)
    assert left(landed) == []
    assert landed.kaggle.datasets.names() == set()


def test_what_is_known_of_no_session_is_discarded_with_its_dataset(box: Box) -> None:
    """What this machine knew of it is lost. Another session's dataset stays, and one of the user."""
    box.run(LEAVES)
    box.platform.prepare(box.order(SECOND, generation=2), box.materials())
    box.until_ended(FIRST)
    [mine] = box.datasets()
    theirs = f"{FIRST}-dmine"
    account(box.kaggle).create_dataset(theirs, [upload(account(box.kaggle), notes(box), print)])
    forgotten(box, FIRST).discard(FIRST)
    assert box.datasets() == [theirs]
    assert len(box.datasets(SECOND)) == 1
    assert mine != theirs


def test_what_the_user_has_is_never_touched(box: Box) -> None:
    box.run(LEAVES)
    box.until_ended(FIRST)  # the account runs five at once
    text = box.kaggle.pushed[0]["text"]
    other = box.another_controller("another-home")
    order = box.order(SECOND, generation=2)
    other.prepare(order, box.materials_of(LEAVES))
    other.launch(order)
    theirs = [
        push(box.kaggle, THIRD),  # a similar name
        push(box.kaggle, f"fork-of-{FIRST}", text),  # a copied source
        push(box.kaggle, "notes", text),
        push(box.kaggle, f"{FIRST}-and-more", f"# {text.splitlines()[-1]}\n"),
        SECOND,  # another home's
    ]
    mine = left(box)
    assert [name for kind, name in mine if kind == "kernel"] == [FIRST]
    [kernel, dataset] = box.platform.leftovers()
    for name in (SECOND, THIRD):
        box.platform.remove(replace(kernel, name=name))
        box.platform.remove(replace(dataset, name=name))
    clean(box)
    assert left(box) == []
    for name in theirs:
        assert box.kaggle.kernel(name)
    assert len(box.datasets(SECOND)) == 1


def test_doctor_cleans_the_account_by_its_own_list(tmp_path: Path) -> None:
    folder = tmp_path / "user"
    folder.mkdir()
    with local_kaggle(tmp_path / "kaggle", Settings()) as kaggle, caller(folder) as user:
        key = folder / "key"
        key.write_text(kaggle.settings.key)
        options = {"endpoint": kaggle.url, "username": "ada", "key_file": str(key)}
        written = ", ".join(f"{name}: {value!r}" for name, value in options.items())
        user.config(f"platforms:\n  kaggle: {{type: kaggle, {written}}}\n")
        launch(user.home, options, folder)
        push(kaggle, f"{RUN}-s02")
        kaggle.datasets._all.clear()
        removed = user("doctor", "--clean", "--yes", "--discard", "--json").json["removed"]
        assert removed == [f"kaggle: kernel {FIRST}"]
        assert kaggle.kernel(f"{RUN}-s02")
        with pytest.raises(KeyError):
            kaggle.kernel(FIRST)


def launch(home: Path, options: dict[str, str], folder: Path) -> None:
    """What a controller of this home started before its ledger was lost."""
    platform = catalog.build(
        "kaggle", "kaggle", options, folder=home / "platforms" / "kaggle", clock=SystemClock()
    )
    for name in ("bundle.tar.gz", "agent.pyz"):
        (folder / name).write_bytes(b"x")
    order = any_order(FIRST, 10, 1, run=RUN, platform="kaggle")
    platform.prepare(order, Materials(folder / "bundle.tar.gz", folder / "agent.pyz"))
    platform.launch(order)
