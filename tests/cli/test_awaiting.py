"""What a user reads of a run that is held for what its session left, and what they can do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.client.live import Writer
from orchestrator.core.event import Event, Faulted
from orchestrator.core.lifecycle import Awaited
from orchestrator.core.offer import Uplink
from orchestrator.core.reports import ways
from orchestrator.core.session import Observation, Sighting
from orchestrator.home import Folders
from tests.cli.calls import Caller
from tests.client.homes import ledger_of, run_after
from tests.core.runs import NOW, RUN, TRAITS, assigned, record, running

FAR = replace(TRAITS, durable_mid_run=False, uplink=Uplink.NONE)


def held(awaits: Awaited) -> tuple[Event, ...]:
    return (*_running(), Faulted(NOW, f"look at its page; {ways(awaits)}", awaits=awaits))


def _running() -> tuple[Event, ...]:
    return (assigned(traits=FAR), *running()[1:])


@pytest.mark.parametrize(
    ("awaits", "where", "goes_on"),
    [
        (Awaited.OUTPUT, "over; its output is awaited", "when it appears, the run goes on by itself"),
        (Awaited.END, "may still run", "when the session has ended, the run goes on by itself"),
    ],
)
def test_a_run_that_awaits_something_tells_what_to_do(
    user: Caller, awaits: Awaited, where: str, goes_on: str
) -> None:
    run_after(user.home, *held(awaits))
    shown = user("show", RUN).out
    assert where in shown
    assert "look at its page" in shown
    assert goes_on in shown
    told = user("why", RUN).out
    assert f"release {RUN} --discard" in told
    assert "continue it without its session's output" in told
    assert f"cancel {RUN} --discard" in told


def test_a_session_whose_output_is_being_saved_is_not_shown_as_running(user: Caller) -> None:
    run_after(user.home, *_running())
    saving = Observation(Sighting.SAVING, detail="its output is not visible yet; look at its page")
    Writer(Folders(user.home)).reading(record(*_running()), saving, NOW)
    shown = user("show", RUN).out
    assert "over; its output is not visible yet; look at its page" in shown
    assert "ends in" not in shown
    assert "s01 is over; its output is not visible yet" in user("why", RUN).out
    refused = user("cancel", RUN, code=3).err
    assert "is over, and here still saves what it left" in refused
    assert "of work" in refused


def test_its_release_and_cancel_say_what_they_wait_for(user: Caller) -> None:
    run_after(user.home, *held(Awaited.OUTPUT))
    with ledger_of(user.home) as ledger, ledger.take_over("test", now=NOW):
        for wish, then in (("release", "continues"), ("hold", "is held"), ("cancel", "ends")):
            waits = user(wish, RUN).out
            assert f"{then} once what its session left is there" in waits
            assert f"{wish} {RUN} --discard" in waits
