"""Which wishes are recorded, already granted, pointless, or would lose work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import Client
from orchestrator.client import Phase, Run, Then
from orchestrator.core.event import Cancelled, Event, Faulted, GaveUp, Held, Wished
from orchestrator.core.lifecycle import Awaited, Wish
from orchestrator.core.offer import Uplink
from orchestrator.core.order import Outcome
from orchestrator.errors import AccessDenied, InputError, WorkWouldBeLost
from tests.client.homes import append, ledger_of, run_after
from tests.core.runs import NOW, RUN, TRAITS, assigned, ended, running
from tests.simulation.clock import VirtualClock

FAR = replace(TRAITS, durable_mid_run=False, uplink=Uplink.NONE)
RUNNING_FAR = (assigned(traits=FAR), *running()[1:])
CANCELLED = (Wished(NOW, Wish.CANCEL, False), Cancelled(NOW, "as asked"))
AWAITING = (*RUNNING_FAR, Faulted(NOW, "its output does not appear", awaits=Awaited.OUTPUT))
HELD = (Wished(NOW, Wish.HOLD, False), Held(NOW, "as asked"))


@pytest.fixture(autouse=True)
def controlled(tmp_path: Path) -> Iterator[None]:
    """A home with a controller, so that no wish starts one."""
    with ledger_of(tmp_path) as ledger, ledger.take_over("test", now=NOW):
        yield


def asked(run: Run, wish: Wish, *, discard: bool = False):  # type: ignore[no-untyped-def]
    match wish:
        case Wish.CANCEL:
            return run.cancel(discard=discard)
        case Wish.HOLD:
            return run.hold(discard=discard)
        case Wish.RELEASE:
            return run.release(discard=discard)


@pytest.mark.parametrize(
    ("events", "wish", "then"),
    [
        ((), Wish.CANCEL, Then.AT_ONCE),
        ((), Wish.HOLD, Then.AT_ONCE),
        ((assigned(),), Wish.CANCEL, Then.UNLAUNCHED),
        (running(), Wish.HOLD, Then.SAVED),
        ((*running(), Wished(NOW, Wish.HOLD, False)), Wish.CANCEL, Then.SAVED),
        ((*running(), Wished(NOW, Wish.HOLD, False)), Wish.RELEASE, Then.AT_ONCE),
        (HELD, Wish.RELEASE, Then.AT_ONCE),
        ((Faulted(NOW, "look"),), Wish.RELEASE, Then.AT_ONCE),
    ],
)
def test_a_wish_is_noted(tmp_path: Path, events: tuple[Event, ...], wish: Wish, then: Then) -> None:
    run = run_after(tmp_path, *events)
    answer = asked(run, wish)
    assert (answer.changed, answer.then, answer.controller_started) == (True, then, False)
    newest = run.history()[-1].event
    assert isinstance(newest, Wished)
    assert newest.wish is wish
    assert answer.wish is run.record().wish


@pytest.mark.parametrize("wish", [Wish.CANCEL, Wish.HOLD])
def test_a_session_with_an_uplink_is_stopped_without_discard(tmp_path: Path, wish: Wish) -> None:
    """Its work is in the home store, except for minutes. Without an uplink it would be refused."""
    shipped = replace(FAR, uplink=Uplink.STORE, durable_mid_run=True)
    run = run_after(tmp_path, assigned(traits=shipped), *running()[1:])
    assert asked(run, wish).then is Then.SAVED


@pytest.mark.parametrize(
    ("wish", "discard", "then"),
    [
        (Wish.RELEASE, False, Then.REGAINED),
        (Wish.CANCEL, False, Then.REGAINED),
        (Wish.CANCEL, True, Then.SAVED),
    ],
)
def test_a_wish_waits_for_what_the_config_lacks(
    tmp_path: Path, wish: Wish, discard: bool, then: Then
) -> None:
    run = run_after(tmp_path, *running(), Faulted(NOW, "put it back", ("store 'a'",)))
    answer = asked(run, wish, discard=discard)
    lacking = ("store 'a'",) if then is Then.REGAINED else ()
    assert (answer.changed, answer.then, answer.missing) == (True, then, lacking)


WAITING = (*running(), Faulted(NOW, "put it back", ("platform 'far'",)))
CANCEL = Wished(NOW, Wish.CANCEL)


@pytest.mark.parametrize("looked", [(), (Faulted(NOW, "put it back", ("platform 'far'",)),)])
@pytest.mark.parametrize("wish", [Wish.HOLD, Wish.RELEASE])
def test_a_cancel_that_waits_for_the_config_is_not_taken_back(
    tmp_path: Path, wish: Wish, looked: tuple[Event, ...]
) -> None:
    run = run_after(tmp_path, *WAITING, CANCEL, *looked)
    with pytest.raises(InputError, match=f"is being cancelled: there is nothing to {wish}"):
        asked(run, wish)
    assert run.record().wish is Wish.CANCEL


@pytest.mark.parametrize("wishes", [(Wish.RELEASE, Wish.RELEASE), (Wish.HOLD, Wish.RELEASE), (Wish.HOLD,)])
def test_every_wish_waits_for_the_config(tmp_path: Path, wishes: tuple[Wish, ...]) -> None:
    """Also if no controller has looked since the one before."""
    run = run_after(tmp_path, *WAITING)
    for wish in wishes:
        answer = asked(run, wish)
        assert (answer.changed, answer.then, answer.missing) == (True, Then.REGAINED, ("platform 'far'",))


@pytest.mark.parametrize("missing", [("store 'home'",), ("platform 'PLATFORM'",)])
def test_a_run_that_is_given_up_ends_now(tmp_path: Path, missing: tuple[str, ...]) -> None:
    platform = run_after(tmp_path, *running()).record().session.order.platform  # type: ignore[union-attr]
    missing = tuple(each.replace("PLATFORM", platform) for each in missing)
    append(tmp_path, [Faulted(NOW, "put it back", missing)])
    run = Client(tmp_path, clock=VirtualClock(NOW)).run(RUN)
    for _ in range(2):
        answer = run.cancel(discard=True)
        left = (platform,) if "platform" in missing[0] else ()
        assert (answer.then, answer.left_on, answer.missing) == (Then.ABANDONED, left, ())


@pytest.mark.parametrize(
    ("events", "wish", "phase"),
    [
        (CANCELLED, Wish.CANCEL, Phase.CANCELLED),
        (HELD, Wish.HOLD, Phase.HELD),
        ((Faulted(NOW, "look"),), Wish.HOLD, Phase.HELD),
        (running(), Wish.RELEASE, Phase.RUNNING),
    ],
)
def test_what_is_so_already_changes_nothing(
    tmp_path: Path, events: tuple[Event, ...], wish: Wish, phase: Phase
) -> None:
    run = run_after(tmp_path, *events)
    before = run.record()
    answer = asked(run, wish)
    assert (answer.changed, answer.phase, answer.then) == (False, phase, Then.NOTHING)
    assert run.record() == before


def test_a_wish_is_noted_once(tmp_path: Path) -> None:
    run = run_after(tmp_path, *running())
    run.cancel()
    before = run.record()
    assert run.cancel().changed, "it has yet to be granted"
    assert run.record() == before


@pytest.mark.parametrize(
    ("events", "wish", "reason"),
    [
        (CANCELLED, Wish.HOLD, "is cancelled: there is nothing to hold"),
        (CANCELLED, Wish.RELEASE, "is cancelled: there is nothing to release"),
        ((*running(), CANCELLED[0]), Wish.HOLD, "is being cancelled: there is nothing to hold"),
    ],
)
def test_a_wish_in_vain_is_refused(
    tmp_path: Path, events: tuple[Event, ...], wish: Wish, reason: str
) -> None:
    with pytest.raises(InputError, match=f"{RUN} {reason}"):
        asked(run_after(tmp_path, *events), wish)


@pytest.mark.parametrize("wish", [Wish.CANCEL, Wish.HOLD])
def test_work_is_lost_only_by_who_agrees(tmp_path: Path, wish: Wish) -> None:
    run = run_after(tmp_path, *RUNNING_FAR)
    run.client.clock.advance(7200.0)  # type: ignore[attr-defined]
    with pytest.raises(
        WorkWouldBeLost, match=f"if you {wish} {RUN} now, 2.0 h of work in .* are lost"
    ) as error:
        asked(run, wish)
    assert isinstance(error.value, AccessDenied), "a person must act"
    assert (error.value.run, error.value.session) == (RUN, f"{RUN}-s01")
    assert error.value.seconds == pytest.approx(7200.0)
    assert run.record().wish is None
    answer = asked(run, wish, discard=True)
    assert (answer.then, answer.session) == (Then.GIVEN_UP, f"{RUN}-s01")
    assert run.record().discard


@pytest.mark.parametrize("events", [(assigned(traits=FAR),), (*RUNNING_FAR, ended(Outcome.COMPLETED))])
def test_nothing_is_lost_before_a_launch_or_after_the_end(tmp_path: Path, events: tuple[Event, ...]) -> None:
    assert run_after(tmp_path, *events).cancel().changed


# --- What a session left, and what platforms lost ---------------------------------------------------------


@pytest.mark.parametrize(("discard", "then"), [(False, Then.AWAITED), (True, Then.AT_ONCE)])
def test_a_run_that_awaits_output_goes_on_without_it_only_with_discard(
    tmp_path: Path, discard: bool, then: Then
) -> None:
    run = run_after(tmp_path, *AWAITING)
    answer = asked(run, Wish.RELEASE, discard=discard)
    assert (answer.changed, answer.then, run.record().forgone) == (True, then, discard)


@pytest.mark.parametrize("events", [(), running(), HELD, (*running(), Faulted(NOW, "look"))])
def test_a_run_that_awaits_nothing_has_nothing_to_discard(tmp_path: Path, events: tuple[Event, ...]) -> None:
    run = run_after(tmp_path, *events)
    with pytest.raises(InputError, match="does not wait for what a session left"):
        run.release(discard=True)


@pytest.mark.parametrize("wish", [Wish.CANCEL, Wish.HOLD])
def test_without_consent_a_wish_waits_for_the_output_that_is_awaited(tmp_path: Path, wish: Wish) -> None:
    run = run_after(tmp_path, *AWAITING)
    ask = {Wish.CANCEL: run.cancel, Wish.HOLD: run.hold}[wish]
    waits = ask()
    assert (waits.changed, waits.then, waits.wish) == (True, Then.AWAITED, wish)
    assert run.record().awaits is Awaited.OUTPUT
    assert ask(discard=True).then is not Then.AWAITED


def test_a_run_that_its_platform_failed_is_released(tmp_path: Path) -> None:
    """Later versions hold such a run; older ones failed it."""
    run = run_after(tmp_path, *running(), ended(Outcome.LOST), GaveUp(NOW, "no newer checkpoint"))
    answer = run.release()
    assert (answer.changed, answer.wish) == (True, Wish.RELEASE)
    assert not run.release().changed


def test_a_run_that_failed_by_its_own_doing_is_not_released(tmp_path: Path) -> None:
    run = run_after(tmp_path, *running(), ended(Outcome.CRASHED), GaveUp(NOW, "no newer checkpoint"))
    with pytest.raises(InputError, match="failed by its own doing: `orchestrator why"):
        run.release()
    assert run.record().wish is None
