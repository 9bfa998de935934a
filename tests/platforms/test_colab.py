"""Sessions on Colab: started once whatever happens on the way, found by their names, ended on request."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import processes
from orchestrator.core.claims import Claim, less, used
from orchestrator.core.offer import NEVER
from orchestrator.core.order import Outcome
from orchestrator.core.session import Sighting, StopReply
from orchestrator.errors import (
    AccessDenied,
    BackendError,
    NoCapacity,
    NotFound,
    QuotaExhausted,
    Refused,
    Rejected,
    Transient,
)
from orchestrator.platforms.colab import boot, staging
from orchestrator.platforms.colab.environment import Environment
from orchestrator.platforms.colab.launching import Launcher
from orchestrator.platforms.colab.memory import Memory
from orchestrator.platforms.colab.options import ColabOptions
from orchestrator.platforms.colab.runner import Cli
from orchestrator.platforms.colab.surveying import RATES
from orchestrator.session.staging import Shipping
from tests.conformance.platform_suite import LONG
from tests.conformance.test_platforms import agent, any_order
from tests.leaks import Leaks
from tests.platforms.colab_box import (
    DEAF,
    FAILS,
    FIRST,
    LEAVES,
    RUN,
    SECOND,
    SHIPS,
    WAITS,
    Box,
    Boxes,
    box,
    boxes,
)
from tests.simulation.clock import VirtualClock
from tests.stand_ins.colab import Fault
from tests.stand_ins.colab.machine import MARK

__all__ = ["agent", "box", "boxes"]
EVER = 1e9  # seconds


# --- Starting ---------------------------------------------------------------------------------------------


def test_what_opens_the_store_is_in_one_private_file_there_and_nowhere_else(box: Box) -> None:
    order = box.order()
    program = box.folder / "uplink.pyz"
    program.write_bytes(b"the uplink")
    shipping = Shipping(program, b'{"secret": {"key": "planted-5f2b9c71"}}')
    box.platform.prepare(order, replace(box.materials_of(WAITS), shipping=shipping))
    [packed] = (box.folder / "sessions" / staging.PREPARED).iterdir()
    assert packed.stat().st_mode & 0o777 == 0o600
    box.platform.launch(order)
    root, leaks = box.root(FIRST), Leaks({"key": "planted-5f2b9c71"})
    assert (root / "store.json").stat().st_mode & 0o777 == 0o600
    assert root.stat().st_mode & 0o777 == 0o700
    [found] = leaks.in_folder(box.folder / "colab")
    assert found.where.endswith(f"{boot.FOLDER}/{FIRST}/store.json")
    assert leaks.in_folder(box.folder / "sessions") == []
    assert leaks.in_processes(box.machine().folder) == []
    assert leaks.in_text("requests", "\n".join(box.colab.requests)) == []


def test_a_machine_from_before_a_crash_is_used_and_not_replaced(box: Box) -> None:
    """The controller died after Colab had given it, and nothing on this machine knows of it."""
    order = box.prepared()
    box.platform._cli.new(FIRST, "NONE")
    for path in (box.folder / "sessions" / "cli" / "sessions").glob("*"):
        path.unlink()
    box.another_controller().launch(order)
    assert len(box.colab.account.allocated) == 1
    assert box.see(FIRST).sighting is Sighting.RUNNING


def test_a_session_that_nothing_here_remembers_is_found_and_not_started_again(box: Box) -> None:
    order = box.run()
    box.forget()
    assert box.see(FIRST).sighting is Sighting.RUNNING
    box.platform.prepare(order, box.materials_of(WAITS))
    box.platform.launch(order)
    assert len(box.colab.account.allocated) == 1
    box.forget()
    other = box.prepared(seed=8)
    with pytest.raises(Rejected, match="another order"):
        box.platform.launch(other)


def test_a_session_whose_machine_has_vanished_is_not_started_again(box: Box) -> None:
    order = box.run()
    box.colab.vanish(box.machine().endpoint)
    assert box.see(FIRST).sighting is Sighting.ABSENT
    box.platform.launch(order)
    assert box.machines() == []
    with pytest.raises(NotFound):
        box.platform.open(FIRST)


@pytest.mark.parametrize("asked", ["cpu", "T4"])
def test_another_accelerator_than_asked_is_no_capacity_and_given_back_at_once(
    boxes: Boxes, asked: str
) -> None:
    box = boxes(substitute="A100")
    with pytest.raises(NoCapacity, match="Colab gave A100 instead of"):
        box.run(accelerator=asked)
    assert box.machines() == []


def test_a_substituted_machine_from_before_a_crash_is_given_back_too(boxes: Boxes) -> None:
    box = boxes(substitute="A100")
    order = box.prepared(accelerator="T4")
    box.platform._cli.new(FIRST, "T4")
    with pytest.raises(NoCapacity, match="Colab gave A100 instead of T4"):
        box.platform.launch(order)
    assert box.machines() == []


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"none_left": ("T4",)}, NoCapacity),  # 412
        ({"gpus": ()}, Refused),  # 400: the survey said otherwise, or it is an old one
        ({"outcome": 1}, QuotaExhausted),
        ({"outcome": 5}, AccessDenied),
    ],
)
def test_a_refusal_starts_nothing_and_the_next_try_needs_no_new_files(
    boxes: Boxes, settings: dict[str, object], error: type[BackendError]
) -> None:
    box = boxes(**settings)
    order = box.prepared(accelerator="T4")
    with pytest.raises(error):
        box.platform.launch(order)
    assert box.machines() == []
    box.colab.use(none_left=(), gpus=("T4",), outcome=None)
    box.platform.launch(order)
    assert box.see(FIRST).sighting is Sighting.RUNNING


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.BAD_REQUEST])
def test_a_machine_that_takes_no_files_is_given_back(box: Box, fault: Fault) -> None:
    """Nothing has started, and an idle machine uses units."""
    order = box.prepared()
    box.colab.fail("PUT /api/contents", fault, times=100)
    with pytest.raises(Refused):
        box.platform.launch(order)
    assert box.machines() == []
    box.colab.troubles.clear()
    box.platform.launch(order)
    assert box.see(FIRST).sighting is Sighting.RUNNING


def test_a_machine_that_vanishes_between_upload_and_start_is_replaced(box: Box) -> None:
    order = box.prepared()

    def vanish_after_the_upload() -> None:
        box.until(lambda: any(each.startswith("PUT /api/contents") for each in box.colab.requests))
        box.colab.vanish(box.machine().endpoint)

    box.colab.fail("POST /api/", Fault.HANGS, times=100)  # neither a kernel nor a session of Jupyter's
    thread = threading.Thread(target=vanish_after_the_upload)
    thread.start()
    box.use(start_seconds=5.0)
    with pytest.raises((Refused, Transient)) as raised:
        box.platform.launch(order)
    thread.join()
    assert box.machines() == []
    box.colab.troubles.clear()
    box.use(start_seconds=60.0)
    box.platform.launch(order)
    has_started = box.see(FIRST).sighting is Sighting.RUNNING
    assert has_started == issubclass(raised.type, Refused)  # what may have started is not started again


def test_a_cell_that_does_not_start_in_time_is_pending_and_its_machine_is_given_back_on_request(
    box: Box,
) -> None:
    order = box.prepared()
    box.colab.fail("POST /api/", Fault.HANGS, times=100)
    box.use(start_seconds=1.0)
    with pytest.raises(Transient):
        box.platform.launch(order)
    assert box.see(FIRST).sighting is Sighting.PENDING
    assert box.platform.stop(FIRST) is StopReply.ENDED
    assert box.machines() == []
    with pytest.raises(Rejected, match="was stopped"):
        box.platform.launch(order)


# --- Looking ----------------------------------------------------------------------------------------------


def test_a_machine_that_the_list_lacks_is_there_if_its_notebook_has_it(boxes: Boxes) -> None:
    box = boxes(listed_after_seconds=EVER)
    box.run(accelerator="T4")
    assert box.see(FIRST).sighting is Sighting.RUNNING
    box.colab.use(notebooks_are_forgotten=True)
    assert box.see(FIRST).sighting is Sighting.ABSENT
    box.colab.use(listed_after_seconds=0.0)
    assert box.see(FIRST).sighting is Sighting.RUNNING


def test_a_machine_that_cannot_be_read_runs_as_far_as_colab_says(box: Box) -> None:
    box.run()
    box.colab.fail("GET /api/contents", Fault.ERROR, times=100)
    seen = box.see(FIRST)
    assert seen.sighting is Sighting.RUNNING
    assert "cannot be read" in seen.detail
    with pytest.raises(Transient):
        box.platform.open(FIRST)
    with pytest.raises(Transient):
        box.platform.discard(FIRST)


def test_a_login_that_has_expired_says_what_to_do_and_loses_nothing(box: Box) -> None:
    order = box.run()
    prepared = box.prepared(session=SECOND)
    box.colab.use(login_is_revoked=True, access_seconds=0.0)
    box.colab.account.access.clear()
    with pytest.raises(AccessDenied):
        box.platform.launch(prepared)
    with pytest.raises(Transient):  # it runs, although that cannot be seen
        box.platform.launch(order)
    for verb in (
        box.platform.survey,
        lambda: box.platform.observe([FIRST]),
        lambda: box.platform.stop(FIRST),
    ):
        with pytest.raises(AccessDenied, match="orchestrator colab login here"):
            verb()


def test_an_agent_that_died_has_ended_its_session(box: Box) -> None:
    box.run(FAILS)
    ended = box.until_seen(Sighting.ENDED)
    assert (ended.ending, ended.detail) == (Outcome.LOST, "its agent died (3)")


def test_a_kernel_that_died_leaves_the_session_running_until_its_heart_stops(box: Box) -> None:
    box.use(grace_seconds=0.0)
    box.run(DEAF)
    mark = f"{MARK}={box.machine().endpoint}"
    for pid in processes.find(mark):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended by itself
            if b"ipykernel" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
    seen = box.see(FIRST)
    assert seen.sighting is Sighting.RUNNING
    assert seen.status is not None
    assert not (box.root(FIRST) / boot.LEFT).exists()
    assert box.platform.stop(FIRST) is StopReply.ENDED
    assert box.machines() == []


# --- Ending -----------------------------------------------------------------------------------------------


def test_a_session_that_does_not_leave_is_ended_after_its_grace_period(box: Box) -> None:
    box.use(grace_seconds=1.0)
    box.run(DEAF)
    assert box.platform.stop(FIRST) is StopReply.REQUESTED
    assert (box.root(FIRST) / "stop").exists()
    box.until(lambda: box.platform.stop(FIRST) is StopReply.ENDED)
    assert box.machines() == []


def test_a_machine_that_answers_without_end_is_given_back_all_the_same(box: Box) -> None:
    box.use(grace_seconds=0.0)
    box.run(DEAF)
    box.colab.fail("GET /api/contents", Fault.HANGS, times=100)
    box.platform._cli.patience = replace(box.platform._cli.patience, file=200.0, call=24.0)
    assert "not read within" in box.see(FIRST).detail
    assert box.platform.stop(FIRST) is StopReply.ENDED
    assert box.machines() == []


def test_a_session_that_ships_what_it_saved_may_take_longer(box: Box) -> None:
    box.use(grace_seconds=0.0)
    box.run(SHIPS.replace('"stop"', '"go"'))
    for _ in range(2):
        assert box.platform.stop(FIRST) is StopReply.REQUESTED
    box.use(shipping_seconds=0.0)
    box.until(lambda: box.platform.stop(FIRST) is StopReply.ENDED)
    assert box.machines() == []


def test_a_session_that_nothing_here_remembers_can_be_stopped(box: Box) -> None:
    box.run()
    box.forget()
    assert box.platform.stop(FIRST) is StopReply.REQUESTED
    box.until_seen(Sighting.ENDED)
    assert box.platform.stop(FIRST) is StopReply.ENDED


def test_nobody_has_to_give_the_machine_back(box: Box) -> None:
    """The controller is down when the session ends: the machine would use units until Colab ends it."""
    box.use(linger_seconds=0.0)
    box.run(LEAVES)
    box.until(lambda: box.machines() == [])
    assert box.see(FIRST).sighting is Sighting.ABSENT


def test_a_machine_that_comes_long_after_no_answer_is_given_back(box: Box) -> None:
    order = box.prepared()
    box.colab.use(listed_after_seconds=EVER, notebooks_are_forgotten=True)
    box.colab.fail("POST /tun/m/assign", Fault.LOST_REPLY)
    with pytest.raises(NoCapacity, match="may give one later"):
        box.platform.launch(order)
    box.colab.use(machines_max=0)
    with pytest.raises(NoCapacity, match="too many"):  # which says nothing about the first try
        box.platform.launch(order)
    assert box.platform.stop(FIRST) is StopReply.REQUESTED
    with pytest.raises(Transient, match="may still get a machine"):
        box.platform.discard(FIRST)
    box.colab.use(notebooks_are_forgotten=False)
    box.platform.discard(FIRST)
    assert box.machines() == []


def test_a_machine_that_was_asked_for_long_ago_does_not_come_any_more(box: Box) -> None:
    """An answer may take longer than a new machine needs to be seen."""
    box.use(visibility_seconds=60.0)
    longest = box.platform._cli.patience.new
    for ago, reply in ((longest, StopReply.REQUESTED), (longest + 600.0, StopReply.ENDED)):
        box.platform._memory.note(FIRST, asked_at=box.platform._clock.now() - ago)
        assert box.platform.stop(FIRST) is reply


def test_while_another_process_launches_nothing_has_certainly_ended(box: Box) -> None:
    with box.another_controller()._launcher.alone(1.0):
        assert box.platform.stop(FIRST) is StopReply.REQUESTED
    assert box.platform.stop(FIRST) is StopReply.ENDED


@pytest.mark.parametrize(("sent", "error"), [(False, NoCapacity), (True, Transient)])
def test_a_launch_that_waited_for_another_in_vain_has_sent_nothing(
    tmp_path: Path, sent: bool, error: type[BackendError]
) -> None:
    """Its cell may be there already, from before."""
    clock, memory = VirtualClock(), Memory(tmp_path)
    cli = Cli(Environment(tmp_path / "none"))
    launcher = Launcher("here", cli, memory, ColabOptions(), tmp_path, clock)
    memory.note(FIRST, sent=sent)
    with launcher.alone(0.0), pytest.raises(error, match="has not finished"):
        launcher.launch(any_order(FIRST, LONG, 1))


def test_an_accelerator_that_is_no_longer_offered_is_charged_for_while_a_session_may_use_it(
    box: Box,
) -> None:
    box.prepared(accelerator="T4")
    box.use(accelerators=["L4"])
    charged = [Claim(FIRST, "here", "T4", 3600.0)]
    offers = {each.accelerator: each for each in less(box.platform.survey(), charged, 0.0)}
    assert offers["T4"].unavailable is not None
    assert offers["T4"].unavailable.until == NEVER
    quota = offers["L4"].quota
    assert quota is not None
    assert quota.units(quota.left_seconds) == pytest.approx(100.0 - RATES["T4"])
    assert used(list(offers.values()), charged)["here", "L4"] == 1
    box.platform.discard(FIRST)
    assert "T4" not in {each.accelerator for each in box.platform.survey()}


# --- The user's own ---------------------------------------------------------------------------------------


def test_the_users_own_notebooks_are_never_touched(boxes: Boxes) -> None:
    box = boxes(foreign_accelerator="B200")
    own = box.colab.account.allocate("a notebook of the user's", "T4")
    box.run(LEAVES)
    box.until_seen(Sighting.ENDED)
    [found] = box.platform.leftovers()
    assert (found.kind, found.session, found.run, found.alive) == ("machine", FIRST, RUN, False)
    box.platform.stop(FIRST)
    box.platform.discard(FIRST)
    box.platform.stop("never-7f3kq2vd-s01")
    box.platform.discard("never-7f3kq2vd-s01")
    box.platform.tidy()
    assert box.machines() == [own]
    assert box.platform.leftovers() == ()


def test_what_was_left_behind_is_listed_and_removed(box: Box) -> None:
    box.run()
    box.prepared(session=SECOND)
    packed, machine = sorted(box.platform.leftovers(), key=lambda each: each.alive)
    assert (packed.kind, packed.session, packed.state) == ("packed files", SECOND, "not launched")
    assert (machine.kind, machine.session, machine.state) == ("machine", FIRST, "running")
    with pytest.raises(Transient, match="is running now"):
        box.platform.remove(replace(machine, alive=False))
    for each in (packed, machine):
        box.platform.remove(each)
        box.platform.remove(each)
    assert box.machines() == []
    assert box.platform.leftovers() == ()
    assert list((box.folder / "sessions" / staging.PREPARED).iterdir()) == []


def test_nobody_else_can_read_what_is_kept_here(box: Box) -> None:
    box.run()
    box.prepared(session=SECOND)
    home = box.folder / "sessions" / "cli" / "home"
    assert home.stat().st_mode & 0o777 == 0o700
    here = box.folder / "sessions"
    for path in (here / staging.PREPARED, here / "sessions", here / "cli" / "sessions"):
        assert path.stat().st_mode & 0o777 == 0o700, path
    for path in (here / staging.PREPARED).iterdir():
        assert path.stat().st_mode & 0o777 == 0o600, path
