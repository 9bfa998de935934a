"""What sessions left on a platform is found and removed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from orchestrator.client import leftovers
from orchestrator.client.home import Home
from orchestrator.client.leftovers import Doubt
from orchestrator.clock import SystemClock
from orchestrator.core import wire
from orchestrator.core.event import Cancelled, Submitted
from orchestrator.errors import InputError, Remedy, remedy
from orchestrator.platforms.platform import Leftover
from orchestrator.platforms.process import ProcessPlatform
from orchestrator.platforms.process_options import ProcessOptions
from tests.conformance.test_platforms import any_order
from tests.core import runs

LONG_AGO = 1_600_000_000.0


class Stubborn(ProcessPlatform):
    """A platform that may not remove the first of its session folders, for example because somebody else owns
    it."""

    def remove(self, leftover: Leftover) -> None:
        if leftover.name == "over-s01":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "over-s01/work")
        super().remove(leftover)


def test_a_session_folder_that_may_not_be_removed_is_told_and_the_others_go(tmp_path: Path) -> None:
    home = Home(tmp_path)
    folder = home.folders.platform("here")
    platform = Stubborn("here", ProcessOptions(accelerator="cpu"), folder, SystemClock())
    with home.ledger() as ledger:
        submitted = ledger.submit(Submitted("over", runs.job(), LONG_AGO))
        ledger.append(submitted, [Cancelled(LONG_AGO)], due_at=None)
    for name in ("over-s01", "over-s02"):
        (folder / name).mkdir(parents=True)
        (folder / name / "order.json").write_bytes(wire.encode(any_order(name, 10, 1, run="over")))
    platforms = {"here": platform}
    found = leftovers.find(home, platforms)
    done = leftovers.remove(home, platforms, found.orphans)
    assert [each.place for each in done.removed] == ["here: session folder over-s02"]
    [(kept, why)] = done.kept.items()
    assert (kept.place, why) == ("here: session folder over-s01", "Permission denied")
    assert [remedy(error) for error in done.troubles.values()] == [Remedy.ACT]


def left(home: Home, *names: str) -> dict[str, ProcessPlatform]:
    """A platform with session folders of these names."""
    folder = home.folders.platform("here")
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "order.json").write_bytes(wire.encode(any_order(name, 10, 1, run=name[:-4])))
    return {"here": ProcessPlatform("here", ProcessOptions(accelerator="cpu"), folder, SystemClock())}


def test_what_a_run_has_come_to_need_since_it_was_listed_stays(tmp_path: Path) -> None:
    home = Home(tmp_path)
    platforms = left(home, "young-s01")
    found = leftovers.find(home, platforms)
    assert [each.doubt for each in found.orphans] == [Doubt.UNKNOWN_RUN]
    with home.ledger() as ledger:
        ledger.submit(Submitted("young", runs.job(), LONG_AGO))
    done = leftovers.remove(home, platforms, found.orphans)
    assert list(done.kept.values()) == ["its run is live"]
    assert (home.folders.platform("here") / "young-s01").exists()
    assert not leftovers.find(home, platforms).orphans


def test_what_lies_on_a_platform_that_was_taken_out_of_the_config_stays(tmp_path: Path) -> None:
    home = Home(tmp_path)
    found = leftovers.find(home, left(home, "strange-s01"))
    done = leftovers.remove(home, {}, found.orphans)
    assert not done.removed
    [error] = done.troubles.values()
    assert isinstance(error, InputError)
    assert (home.folders.platform("here") / "strange-s01").exists()
