"""Plays one schedule from one seed, and checks it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.simulation import checks as states
from tests.simulation import (
    fires,
    homes,
    hostile,
    leavings,
    overlong,
    promises,
    replays,
    scheduled,
    told,
    unforeseen,
    unreadable,
    uplinks,
)
from tests.simulation.checks import Check
from tests.simulation.shipping import ShippingWorld
from tests.simulation.world import CALM_HOURS, World

ALL: tuple[Check, ...] = (*states.ALL, *promises.ALL, *uplinks.ALL, *leavings.ALL, *told.ALL, *replays.ALL)
_MEMORY = Path("/dev/shm")


def play(
    seed: int,
    checks: Sequence[Check] = ALL,
    hours: float = CALM_HOURS,
    make: Callable[[int, Path], World] = World,
) -> list[str]:
    """Returns the violations that the checks find in this seed's world; empty if there are none.

    `hours` is the time in which runs must finish once faults have stopped.
    """
    with _folder_in_memory() as folder:
        world = make(seed, folder)
        try:
            world.run(hours * 3600.0)
            return [f"{check.__name__}: {found}" for check in checks for found in check(world)]
        finally:
            world.ledger.close()


def play_hostile(seed: int) -> list[str]:
    """One hostile run next to healthy ones."""
    return play(seed, (hostile.neighbours_finish, *ALL), hostile.CALM_HOURS, hostile.HostileWorld)


def play_unforeseen(seed: int, make: Callable[[int, Path], World] = unforeseen.BuggyWorld) -> list[str]:
    """Platforms and a store with unforeseen bugs."""
    return play(seed, ALL, CALM_HOURS, make)


def play_shipping(seed: int) -> list[str]:
    """Every session ships its own outbox, through bad weather."""
    return play(seed, ALL, CALM_HOURS, ShippingWorld)


def play_scheduled(seed: int) -> list[str]:
    """Every run comes from a schedule."""
    return play(seed, (*fires.ALL, *ALL), scheduled.CALM_HOURS, scheduled.ScheduledWorld)


def play_unreadable(seed: int) -> list[str]:
    """Every session ships, and nobody can read it while it runs."""
    return play(seed, ALL, unreadable.CALM_HOURS, unreadable.UnreadableWorld)


def play_overlong(seed: int) -> list[str]:
    """Sessions outlive their limits, and their users are impatient."""
    return play(seed, ALL, CALM_HOURS, overlong.OverlongWorld)


def play_homes(seed: int) -> list[str]:
    """The home is copied while its runs go on, or put back as it was before."""
    return play(seed, homes.ALL, CALM_HOURS, homes.HomesWorld)


@contextmanager
def _folder_in_memory() -> Iterator[Path]:
    """For the world and its temporary folders: real disks are not part of the simulation."""
    usual = tempfile.tempdir
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        tempfile.tempdir = folder
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = usual
