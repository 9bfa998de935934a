"""`python -m tests.end_to_end.linked_homes FOLDER SECONDS`: sessions put links in the place of our folders.

Prints as JSON what became of the folders that the links point at, in which a user has files with our names.
Must run confined (tests/confined.py). Decides nothing: tests/end_to_end/test_links.py does.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

from orchestrator.clock import SystemClock
from tests import warm
from tests.cli.calls import PATIENCE, Caller
from tests.waiting import wait_until
from tests.warm import Ended

CONFIG = """
platforms:
  here:
    {type: process, accelerator: cpu, slots: 10, session_seconds: 600, setup_seconds: 1, grace_seconds: 1,
     poll_seconds: 0.2, threads: 1}
"""
JOB = """
name: {name}
source: source
command: python train.py {words}
work: {{total: 1000, global_batch: 1}}
checkpoint: {{interval: 1s}}
retry: {{without_progress: {retries}}}
profiles:
  cpu: {{micro_batch: 1, precision: fp32}}
"""
# It saves into the folder that it was given, by descriptor: whatever it links, it follows no link itself.
TRAINING = """
import os, sys, time
place, victim, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
checkpoints = os.environ["ORCHESTRATOR_CHECKPOINT_DIR"]
root, run = os.path.dirname(os.path.dirname(checkpoints)), os.environ["ORCHESTRATOR_RUN"]
home, saves = os.path.dirname(os.path.dirname(os.path.dirname(root))), os.open(checkpoints, os.O_DIRECTORY)

def save(step):
    os.mkdir(".tmp-save", dir_fd=saves)
    inside = os.open(".tmp-save", os.O_DIRECTORY, dir_fd=saves)
    os.write(os.open("weights", os.O_WRONLY | os.O_CREAT, dir_fd=inside), b"%d" % step)
    os.rename(".tmp-save", f"step-{step}", src_dir_fd=saves, dst_dir_fd=saves)

save(1)
while not os.path.exists(f"{home}/go"):  # until all are submitted
    time.sleep(0.05)
places = {"root": root, "work": f"{root}/work", "platform": os.path.dirname(root), "checkpoints": checkpoints,
          "run": f"{home}/runs/{run}", "logs": f"{home}/runs/{run}/{os.path.basename(root)}"}
for part in ("outbox", "outbox/log", "outbox/blobs", "outbox/checkpoints"):
    places[part] = f"{root}/{part}"
for part in ("runs", "bundles", "store", "platforms", "store/runs"):
    places[part] = f"{home}/{part}"
if place in places:
    os.rename(places[place], f"{places[place]}.moved")
    os.symlink(victim, places[place])
until, step = time.monotonic() + seconds, 1
while time.monotonic() < until:
    time.sleep(0.2)
    step += 1
    save(step)
"""
OURS = (
    "lock", "outbox", "work", "staged", "stop", "inputs", "checkpoints", "log", "blobs", "runs", "here",
    "incarnation", "order.json", "agent.pid", "status.json", "result.json", "progress.jsonl", "live.json",
    "manifest.json", "000001.log", "secrets.json", "home-id", "save-request", "published",
)  # fmt: skip
# Each group has a home of its own: what one run links is in the way of the others.
GROUPS = (
    ("root", "outbox", "outbox/log", "work", "checkpoints", "run", "logs", "bundles"),
    ("platform", "store/runs"),
    ("runs", "store"),
)
OVER = ("done", "failed", "cancelled", "held")
_EXCHANGE = 2


@dataclass(frozen=True)
class Victim:
    """A folder of the user's, in which every second name is a folder with a file in it."""

    folder: Path

    @classmethod
    def made(cls, folder: Path) -> Victim:
        for number, name in enumerate(OURS):
            path = folder / name / "thesis.txt" if number % 2 else folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("mine")
        return cls(folder)

    def changes(self) -> list[str]:
        there = {path.relative_to(self.folder).as_posix(): path for path in self.folder.rglob("*")}
        before = {name: "" if number % 2 else "mine" for number, name in enumerate(OURS)}
        before |= {f"{name}/thesis.txt": "mine" for name, content in before.items() if not content}
        found = {name: "" if path.is_dir() else path.read_text() for name, path in there.items()}
        return sorted(name for name in found.keys() | before.keys() if found.get(name) != before.get(name))


def user(folder: Path) -> Caller:
    caller = Caller(folder, folder / "home")
    (folder / "source").mkdir(parents=True)
    (folder / "source" / "train.py").write_text(TRAINING)
    caller.config(CONFIG)
    return caller


def submitted(caller: Caller, name: str, words: str, retries: int) -> str:
    (caller.folder / f"{name}.yaml").write_text(JOB.format(name=name, words=words, retries=retries))
    return caller.submitted(f"{name}.yaml")


def removed(caller: Caller, runs: Sequence[str]) -> str:
    """Cancels the runs and removes all that is left of them. The link in the place of the one folder that all
    runs of a store share goes when `rm` asks for it. Returns what `rm` said if it failed."""
    shared = caller.home / "store" / "runs"
    for run in runs:
        _said(caller, "cancel", "--discard", run)
    said: list[Ended] = []

    def gone() -> bool:
        said.append(_said(caller, "rm", "--yes", *runs))
        if f"remove the link ({shared})" in said[-1].out:
            shared.unlink()
        return said[-1].code == 0

    with contextlib.suppress(AssertionError):
        wait_until(lambda: _are_over(caller, runs), "the runs to be over", 60.0)
        wait_until(gone, "the runs to be removed", 60.0)
    _said(caller, "prune", "--yes", "--older-than", "0d")
    caller("down")
    return "" if said and said[-1].code == 0 else f"{said}"


def _said(caller: Caller, *words: str) -> Ended:
    """What a command says, whatever it ends with."""
    return warm.run(("orchestrator", *words), caller.folder, caller.environment(), None, PATIENCE)


def _are_over(caller: Caller, runs: Sequence[str]) -> bool:
    return all(caller.record(run).standing in OVER for run in runs)


def links(folder: Path, places: Sequence[str]) -> dict[str, object]:
    """What a run does that links each place to a victim of its own, once."""
    caller = user(folder)
    victims = {place: Victim.made(folder / "victims" / place.replace("/", "-")) for place in places}
    runs = [
        submitted(caller, f"linked-{number}", f"{place} {victims[place].folder} 1", 1)
        for number, place in enumerate(places)
    ]
    (caller.home / "go").touch()
    with contextlib.suppress(AssertionError):  # what is linked may keep a run from its end
        wait_until(lambda: _are_over(caller, runs), "the runs to be over", 6.0)
    _timed(f"over {places}")
    left = removed(caller, runs)
    _timed(f"removed {left}")
    return {place: {"changes": victims[place].changes(), "left": left} for place in places}


def swaps(folder: Path, seconds: float) -> dict[str, object]:
    """What runs do while somebody swaps links in and out of every folder of theirs and of the home: they
    save and are collected, one ends, one is cancelled, and these are cleaned up."""
    caller = user(folder)
    victim = Victim.made(folder / "victim")
    runs = [
        submitted(caller, f"swapped-{number}", f"nothing {victim.folder} {lasts}", 1000)
        for number, lasts in enumerate((1, 1000, 1000))
    ]
    wait_until(lambda: all(caller.record(run).accepted for run in runs), "a checkpoint of each")
    (caller.home / "go").touch()
    with ThreadPoolExecutor(1) as pool:
        swapping = pool.submit(_swap, caller.home, victim.folder, seconds)
        wait_until(lambda: caller.record(runs[0]).standing in OVER or swapping.done(), "the end of one run")
        _said(caller, "cancel", "--discard", runs[1])
        count = swapping.result()
    _timed(f"swapped {count}, {[caller.record(run).standing for run in runs]}")
    return {"changes": victim.changes(), "swaps": count, "left": removed(caller, runs)}


def _swap(home: Path, victim: Path, seconds: float) -> int:
    """Exchanges a folder and a link in one step, and back, as often as it can. Returns how often."""
    clock, draw, count = SystemClock(), Random(1), 0
    until = clock.monotonic() + seconds
    exchange = ctypes.CDLL(None, use_errno=True).renameat2
    while clock.monotonic() < until:
        for place in _places(home, draw):
            link = place.with_name(f"{place.name}.link")
            with contextlib.suppress(FileExistsError, FileNotFoundError):
                link.symlink_to(victim)
            for _ in range(2 * draw.choice((1, 20, 200))):
                if exchange(-100, bytes(place), -100, bytes(link), _EXCHANGE) == 0:
                    count += 1
            if place.is_symlink() and not link.is_symlink():
                exchange(-100, bytes(place), -100, bytes(link), _EXCHANGE)
            with contextlib.suppress(OSError):
                if link.is_symlink():
                    link.unlink()
    return count


def _places(home: Path, draw: Random) -> list[Path]:
    found = [
        home / part for part in ("runs", "bundles", "store", "store/runs", "platforms", "platforms/here")
    ]
    for root in (*home.glob("platforms/here/*-s*"), *home.glob("runs/*"), *home.glob("runs/*/*-s*")):
        found += [root, *(root / part for part in ("outbox", "work", "work/checkpoints", "log", "blobs"))]
        found += [root / "outbox" / part for part in ("log", "blobs", "checkpoints")]
    found = [path for path in found if path.is_dir() and not path.is_symlink()]
    draw.shuffle(found)
    return found


def _timed(what: str) -> None:
    sys.stderr.write(f"{SystemClock().monotonic():.1f} {what}\n")


def main(folder: Path, seconds: float) -> None:
    told: dict[str, object] = {"swaps": swaps(folder / "swaps", seconds)}
    for number, places in enumerate(GROUPS):
        told |= links(folder / f"links-{number}", places)
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
