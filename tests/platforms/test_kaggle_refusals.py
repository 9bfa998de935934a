"""Refusals are weighed: what may pass is asked again, ever more rarely, and holds no run for hours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from orchestrator.core.event import Launched, Prepared
from orchestrator.core.job import Claim, Precision, Profile
from orchestrator.core.lifecycle import Phase
from orchestrator.core.session import Sighting
from orchestrator.errors import AccessDenied, QuotaExhausted, Refused, Transient
from orchestrator.platforms.kaggle import refusals
from orchestrator.platforms.kaggle.account import Account
from orchestrator.platforms.kaggle.options import KaggleOptions
from orchestrator.platforms.kaggle.platform import KagglePlatform
from orchestrator.platforms.kaggle.values import Push
from orchestrator.platforms.simulated import Scenario, SimulatedOffer
from tests.conformance.test_platforms import agent
from tests.platforms.kaggle_box import FIRST, LEAVES, WAITS, Box, Hasty, box, boxes
from tests.platforms.kaggle_wire import KEY, NESTED, QUOTA, said, wire
from tests.platforms.kaggle_world import KaggleWorld
from tests.platforms.test_kaggle_account import account
from tests.simulation.clock import VirtualClock
from tests.stand_ins.kaggle import Fault, LocalKaggle, Settings, Warts, local_kaggle

__all__ = ["agent", "box", "boxes"]
HOUR = 3600.0
UNKNOWN = "The moon is in the wrong phase."
CONFLICT = "A database conflict occurred. Please try again."
USED_UP = "Maximum weekly GPU quota of 30.00 hours reached."
QUOTA_CALL = "GetAcceleratorQuotaStatistics"
Worlds = Callable[..., KaggleWorld]


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[Worlds]:
    """Makes a world; its arguments are those of KaggleWorld and, as `settings`, of Settings."""
    with ExitStack() as stack:

        def make(
            settings: Settings | None = None, warts: Warts | None = None, **given: object
        ) -> KaggleWorld:
            kaggle = stack.enter_context(local_kaggle(tmp_path / "kaggle", settings, warts))
            world = KaggleWorld(tmp_path, kaggle, WAITS, **given)  # type: ignore[arg-type]
            stack.callback(world.close)
            return world

        yield make


def launched(world: KaggleWorld) -> bool:
    return any(isinstance(event, Launched) for event in world.events())


def turned_away(world: KaggleWorld, times: int = 1) -> Callable[[], bool]:
    return lambda: len(world.turned_away()) >= times


def uploads(world: KaggleWorld) -> int:
    return world.kaggle.calls.count("upload")


# --- What may pass ----------------------------------------------------------------------------------------


def sources_are_invalid(kaggle: LocalKaggle) -> None:
    """Its own, right after READY."""
    kaggle.warts.attach_lag_seconds = HOUR


CAUSES: dict[str, Callable[[LocalKaggle], None]] = {
    "its own sources are invalid": sources_are_invalid,
    "a single 403": lambda kaggle: kaggle.fail("SaveKernel", Fault.NESTED),
    "an unknown sentence": lambda kaggle: kaggle.refuse("SaveKernel", UNKNOWN),
    "a transient conflict": lambda kaggle: kaggle.refuse("SaveKernel", CONFLICT),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_what_passes_costs_minutes_and_nothing_is_uploaded_again(worlds: Worlds, cause: str) -> None:
    world = worlds()
    CAUSES[cause](world.kaggle)
    world.submit()
    world.until(turned_away(world))
    world.kaggle.warts.attach_lag_seconds = 0.0
    [event] = world.turned_away()
    assert event.cooldown.until is not None
    assert 60.0 < event.cooldown.until - event.at <= 300.0
    assert world.until(lambda: launched(world)) < 0.2
    assert len(world.turned_away()) == 1
    assert uploads(world) == 1
    assert world.record().session is not None
    assert world.record().generation == 1, "its name is the same"
    assert "denied access" not in world.why()


@pytest.mark.parametrize("is_refused", [True, False])
def test_a_dataset_that_is_refused_for_now_is_tried_again_in_minutes(
    worlds: Worlds, is_refused: bool
) -> None:
    world = worlds()
    if is_refused:
        world.kaggle.refuse("CreateDataset", CONFLICT)
    else:
        world.kaggle.fail("CreateDataset", Fault.NESTED)
    world.submit()
    assert world.until(lambda: launched(world)) < 0.3
    assert "denied access" not in world.why()


def test_the_reason_is_said_in_kaggles_own_words(box: Box) -> None:
    order = box.order()
    box.platform.prepare(order, box.materials_of(LEAVES))
    for sentence in (UNKNOWN, CONFLICT, "Notebook not found"):
        box.kaggle.refuse("SaveKernel", sentence)
        with pytest.raises(Refused) as refused:
            box.platform.launch(order)
        assert str(refused.value) == f"Kaggle refuses the session: {sentence}"
        assert refused.value.until is None
    box.kaggle.fail("SaveKernel", Fault.NESTED)
    with pytest.raises(Refused, match="Kaggle does not allow this for ada"):
        box.platform.launch(order)
    box.platform.launch(order)
    assert box.until_ended(FIRST).result is not None
    assert len(box.kaggle.pushed) == 1


def test_a_403_for_the_status_says_nothing(box: Box) -> None:
    """The account's list still has the kernel."""
    box.run(WAITS)
    box.kaggle.fail("GetKernelSessionStatus", Fault.NESTED)
    assert box.platform.observe([FIRST]) == {}
    assert box.see(FIRST).sighting is Sighting.RUNNING


def test_403_to_what_needs_only_credentials_is_believed_after_a_while(tmp_path: Path) -> None:
    clock = VirtualClock()
    with wire() as server:
        platform = on_wire(server.url, tmp_path, clock)
        server.then(QUOTA_CALL, NESTED, NESTED)
        assert platform.survey()
        server.always(QUOTA_CALL, NESTED)
        ends = clock.monotonic() + 540.0
        while clock.monotonic() < ends:
            with pytest.raises(Transient):
                platform.survey()
            clock.advance(120.0)
        with pytest.raises(AccessDenied, match="make a new token"):
            platform.survey()


# --- What does not pass -----------------------------------------------------------------------------------


def test_what_is_refused_for_hours_holds_the_run(worlds: Worlds) -> None:
    world = worlds()
    world.kaggle.refuse("SaveKernel", UNKNOWN, 1000)
    world.submit()
    hours = world.until(lambda: world.record().phase is Phase.HELD, hours=12.0)
    assert 3.0 < hours < 8.0
    pauses = [event.cooldown.until - event.at for event in world.turned_away()[:-1]
              if event.cooldown.until is not None]  # fmt: skip
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (120.0, HOUR)
    assert UNKNOWN in world.record().reason
    assert f"{len(world.turned_away())} times in a row" in world.record().reason
    assert uploads(world) == 1
    assert "denied access" not in world.why()


def test_other_offers_are_taken_meanwhile(worlds: Worlds) -> None:
    slow = SimulatedOffer("cpu", 1.0, session_seconds=12 * HOUR, memory_gb=64.0, disk_gb=100.0)
    box = Scenario(seed=1, offers=(slow,), checkpoint_seconds=240.0, poll_seconds=20.0)
    world = worlds(accelerator="T4", box=box)
    world.kaggle.refuse("SaveKernel", UNKNOWN, 1000)
    world.submit(profiles=(("T4", claimed(4.0)), ("cpu", claimed(1.0))))
    assert world.until(lambda: "box" in world.places()) < 0.1
    assert world.places() == ["kaggle", "box"]
    world.until(lambda: len(world.kaggle.datasets._all) == 0)


def claimed(steps_per_second: float) -> Profile:
    rates = (0.9 * steps_per_second, 1.1 * steps_per_second)
    return Profile(8, Precision.FP32, claim=Claim(rates, 16, "any", "a test", "2026-11-20"))


def test_credentials_that_are_refused_hold_the_run(worlds: Worlds) -> None:
    world = worlds()
    world.kaggle.refuse("SaveKernel", UNKNOWN)
    world.submit()
    world.until(turned_away(world))
    world.kaggle.revoke()
    assert world.until(lambda: world.record().phase is Phase.HELD) < 0.5
    assert "Kaggle refuses the credentials of ada" in world.record().reason
    assert "make a new token at kaggle.com/settings" in world.record().reason


def test_was_denied_access_is_said_where_access_was_denied(worlds: Worlds) -> None:
    world = worlds()
    world.submit()
    world.until(lambda: any(isinstance(event, Prepared) for event in world.events()))
    world.kaggle.revoke()
    world.until(lambda: "denied access" in world.why())
    assert world.kaggle.pushed == []


def test_a_push_that_is_wrong_in_itself_was_not_denied_access(worlds: Worlds) -> None:
    world = worlds(Settings(text_bytes_max=100))
    world.submit()
    assert world.until(lambda: world.record().phase is Phase.HELD) < 0.2
    assert "too large" in world.record().reason
    assert "denied access" not in world.why()


# --- The quota --------------------------------------------------------------------------------------------


def test_a_refusal_for_the_quota_is_not_believed_against_kaggles_own_figures(box: Box) -> None:
    order = box.order(accelerator="T4x2", devices=2)
    box.platform.prepare(order, box.materials_of(LEAVES))
    box.kaggle.refuse("SaveKernel", USED_UP)
    before = box.kaggle.calls.count(QUOTA_CALL)
    with pytest.raises(QuotaExhausted, match=r"its own figures say that 30\.0 h are left") as refused:
        box.platform.launch(order)
    assert box.kaggle.calls.count(QUOTA_CALL) > before, "they are read again"
    assert refused.value.until == pytest.approx(Hasty().now() + refusals.PROJECTED_SECONDS, abs=30.0)
    box.kaggle.use_up("gpu")
    box.kaggle.refuse("SaveKernel", USED_UP)
    with pytest.raises(QuotaExhausted) as refused:
        box.platform.launch(order)
    assert refused.value.until == pytest.approx(box.kaggle_quota().refresh_at, abs=30.0)


@pytest.mark.parametrize("shown", ["used up", "gone", "nothing"])
def test_a_quota_that_is_suddenly_gone_is_read_again(tmp_path: Path, shown: str) -> None:
    used = {**QUOTA["gpuQuota"], "timeUsed": "108000s"}  # type: ignore[dict-item]
    odd = {"used up": {**QUOTA, "gpuQuota": used}, "gone": {"quotaRefreshTime": QUOTA["quotaRefreshTime"]},
           "nothing": {}}[shown]  # fmt: skip
    with wire() as server:
        platform = on_wire(server.url, tmp_path, VirtualClock())
        assert is_open(platform)
        server.then(QUOTA_CALL, said(odd))
        assert is_open(platform)
        assert len(server.calls(QUOTA_CALL)) == 3
        server.then(QUOTA_CALL, said(odd), said(odd))
        assert not is_open(platform), "read twice, it is believed"
        assert is_open(platform)


def is_open(platform: KagglePlatform) -> bool:
    return next(each for each in platform.survey() if each.accelerator == "T4x2").unavailable is None


def on_wire(url: str, folder: Path, clock: VirtualClock) -> KagglePlatform:
    (folder / "key").write_text(KEY)
    options = KaggleOptions(username="ada", key_file=folder / "key", endpoint=url)
    return KagglePlatform("here", options, Account("here", options, clock), folder, clock)


# --- Slots ------------------------------------------------------------------------------------------------


def test_a_run_that_waits_for_a_slot_costs_no_quota_and_little_traffic(worlds: Worlds) -> None:
    world = worlds(Settings(gpu_slots=1), accelerator="T4")
    occupy(world.kaggle)
    world.submit()
    world.until(turned_away(world))
    used, calls = gpu_used(world), len(world.kaggle.calls)
    world.for_hours(2.0)
    asked = world.kaggle.calls[calls:]
    assert set(world.places()) == {"kaggle"}
    assert world.record().phase is not Phase.HELD, "however long it takes"
    assert set(world.kaggle._kernels._all) == {"mine"}
    assert gpu_used(world) - used < 60.0, "only the user's own, in real time"
    assert world.record().generation == 1, "its name is the same"
    assert 5 < asked.count("SaveKernel") < 20, "asked every 15 minutes at the latest, and not all the time"
    assert len(asked) / 2.0 < 120.0, "requests an hour, most of them for the quota"
    account(world.kaggle).delete_kernel("mine")
    assert world.until(lambda: launched(world)) < 0.3
    assert uploads(world) == 1
    assert len(world.kaggle.datasets._all) == 1
    assert "denied access" not in world.why()


def occupy(kaggle: LocalKaggle) -> None:
    """The user's own notebook takes the only GPU."""
    text = "import threading\nthreading.Event().wait()\n"
    assert account(kaggle).push(Push("mine", text, "NvidiaTeslaT4", True, False, 3600, False)).version == 1


def gpu_used(world: KaggleWorld) -> float:
    return world.kaggle._kernels.quota._used["gpu"]
