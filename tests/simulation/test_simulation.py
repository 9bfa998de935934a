"""A fixed share of the simulation. More by hand: `python -m tests.simulation --minutes 20`."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.simulation.play import (
    play,
    play_homes,
    play_hostile,
    play_overlong,
    play_scheduled,
    play_shipping,
    play_unforeseen,
    play_unreadable,
)
from tests.simulation.unforeseen import BuggyWorld

pytestmark = pytest.mark.timeout(1800)  # more of the processor than any other test, beside all of them
SHARES, SEEDS_A_SHARE = 4, 9
SOAK_SECONDS = 1200.0


@pytest.mark.parametrize("share", range(SHARES))
def test_worlds_of_faults(share: int) -> None:
    for seed in range(share * SEEDS_A_SHARE, (share + 1) * SEEDS_A_SHARE):
        assert play(seed) == [], f"to reproduce: python -m tests.simulation --seed {seed} --count 1"


def test_worlds_in_which_every_session_ships() -> None:
    for seed in range(7):
        found = play_shipping(seed)
        assert found == [], f"to reproduce: python -m tests.simulation --shipping --seed {seed} --count 1"


def test_worlds_in_which_no_running_session_can_be_read() -> None:
    for seed in range(6):
        found = play_unreadable(seed)
        assert found == [], f"to reproduce: python -m tests.simulation --unreadable --seed {seed} --count 1"


def test_worlds_in_which_sessions_outlive_their_limits() -> None:
    for seed in range(6):
        found = play_overlong(seed)
        assert found == [], f"to reproduce: python -m tests.simulation --overlong --seed {seed} --count 1"


def test_worlds_in_which_every_run_comes_from_a_schedule() -> None:
    for seed in range(6):
        found = play_scheduled(seed)
        assert found == [], f"to reproduce: python -m tests.simulation --scheduled --seed {seed} --count 1"


def test_worlds_in_which_the_home_is_copied_or_put_back() -> None:
    for seed in (1, 3, 4, 5):
        found = play_homes(seed)
        assert found == [], f"to reproduce: python -m tests.simulation --homes --seed {seed} --count 1"


def test_a_hostile_session_costs_its_neighbours_nothing() -> None:
    for seed in range(10):
        assert play_hostile(seed) == [], f"seed {seed}"


def test_what_nobody_foresaw_costs_no_run_anything_but_a_wait() -> None:
    met: Counter[str] = Counter()

    class Counted(BuggyWorld):
        def calm(self) -> None:
            super().calm()
            met.update(platforms=self.bugs.met, store=self.store_bugs.met, told=len(self.told))

    for seed in range(10):
        assert play_unforeseen(seed, Counted) == [], f"seed {seed}"
    assert min(met["platforms"], met["store"], met["told"]) > 0, met


@pytest.mark.soak
@pytest.mark.parametrize(
    ("game", "share"),
    [
        (play, 0.2),
        (play_homes, 0.05),
        (play_overlong, 0.05),
        (play_scheduled, 0.1),
        (play_shipping, 0.2),
        (play_unreadable, 0.1),
        (play_hostile, 0.15),
        (play_unforeseen, 0.15),
    ],
)
def test_worlds_for_twenty_minutes(game: Callable[[int], list[str]], share: float) -> None:
    """Starts from the current time as seed; a failure prints the seed."""
    first = seed = int(time.time()) * 10_000
    end = time.monotonic() + share * SOAK_SECONDS
    while time.monotonic() < end:
        assert game(seed) == [], f"{game.__name__} of seed {seed}"
        seed += 1
    sys.stdout.write(f"{game.__name__}: {seed - first} schedules from seed {first}\n")
