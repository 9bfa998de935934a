"""Real torture: `python -m tests.end_to_end.torture --rounds 30 --seed N`.

Each round submits a real job to a real detached controller and kills its processes with -9 at random moments.
A user's next command restarts a dead controller. The run must finish with the same weights as an
uninterrupted training, bit for bit, and no process may be left.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import mkdtemp

from orchestrator.clock import SystemClock
from orchestrator.core.event import Assigned
from tests.end_to_end.user import Role, User, fingerprints, train_in_one_piece, wait_until

SCRIPT = "torture.py"  # with torch
PLAIN = "torture_plain.py"
STEPS, STEP_SECONDS = 200, 0.05
SESSION_SECONDS = 20.0  # on an idle machine
KILLS = (3, 6)  # per round
PAUSE_SECONDS = 5.0  # at most, between two kills
VICTIMS = (Role.CONTROLLER, Role.AGENT, Role.LEADER, Role.WORKER, Role.GUARDIAN)


@dataclass(frozen=True)
class Arena:
    """The place of a torture: how a user is created there, who can be killed, and the result of an
    uninterrupted training there."""

    user: Callable[[Path], User]
    victims: tuple[Role, ...]
    expected: Mapping[str, str]
    revive: Callable[[User, Role], None] = lambda _user, _role: None  # what its own machine restarts
    script: str = SCRIPT
    step_seconds: float = STEP_SECONDS


def on_processes(folder: Path, threads: int = 1) -> Arena:
    """Sessions are processes that train on this many threads. The uninterrupted training always uses one. How
    long it takes tells how busy this machine is, so how long a session needs before it can save."""
    clock = SystemClock()
    began = clock.monotonic()
    expected = train_in_one_piece(folder / "uninterrupted", SCRIPT, STEPS, "0")
    seconds = max(SESSION_SECONDS, 5.0 * (clock.monotonic() - began))
    return Arena(lambda place: User(place, session_seconds=seconds, threads=threads), VICTIMS, expected)


def torture(rounds: int, seed: int, folder: Path, arena: Arena) -> Counter[Role]:
    """Plays the rounds below `folder`; returns how often each kind of victim was killed. Raises
    AssertionError."""
    killed: Counter[Role] = Counter()
    for number in range(rounds):
        place = folder / f"round-{number}"
        try:
            sessions, victims = play(Random(f"{seed} {number}"), place, arena)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, round {number}: {error}") from error
        killed += victims
        told = ", ".join(f"{count} {role}" for role, count in sorted(victims.items()))
        sys.stdout.write(f"round {number}: {sessions} sessions; killed {told}; equal bit for bit\n")
        sys.stdout.flush()
        shutil.rmtree(place)
    return killed


def play(random: Random, folder: Path, arena: Arena) -> tuple[int, Counter[Role]]:
    """One round; returns how many sessions it took and who was killed."""
    user = arena.user(folder)
    try:
        run = user.submit(
            command=f"python {arena.script} {{steps}} {arena.step_seconds}",
            work={"total": STEPS, "global_batch": 16},
            retry={"without_progress": 1000},
        )
        victims = _kill_some(random, user, run, arena)
        user.run("up", "--detach")
        user.wait_for_end(run)
        user.wait_for_silence()
        user.run("pull", run, "-o", str(folder / "final"))
        found = fingerprints(folder / "final")
        differ = sorted(dict(found.items() ^ arena.expected.items()))
        assert not differ, f"differs from an uninterrupted training: {', '.join(differ)}\n{user.story(run)}"
        assert len(victims) > 0
        return sum(isinstance(stored.event, Assigned) for stored in user.history(run)), victims
    finally:
        user.close()


def _kill_some(random: Random, user: User, run: str, arena: Arena) -> Counter[Role]:
    killed: Counter[Role] = Counter()
    clock, never = SystemClock(), threading.Event()
    wanted = random.randint(*KILLS)
    while killed.total() < wanted:
        role = random.choice(arena.victims)
        clock.wait(never, random.uniform(0.0, PAUSE_SECONDS))
        if role is not Role.CONTROLLER:
            wait_until(lambda role=role: user.by_role()[role] or _is_over(user, run), f"a living {role}")  # type: ignore[misc]
            clock.wait(never, random.uniform(0.0, 1.0))
        victims = user.by_role()[role]
        if _is_over(user, run):
            break
        if victims and random.choice(victims).send(signal.SIGKILL):
            killed[role] += 1
            arena.revive(user, role)
        if role is Role.CONTROLLER:
            clock.wait(never, random.uniform(0.0, PAUSE_SECONDS))
            user.run("up", "--detach")
    return killed


def _is_over(user: User, run: str) -> bool:
    return user.record(run).phase.final


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.end_to_end.torture", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="of each session (default: 1)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # through the call that ends the processes
    folder = Path(mkdtemp(prefix="torture-"))
    try:
        killed = torture(options.rounds, options.seed, folder, on_processes(folder, options.threads))
    except AssertionError as error:
        sys.stdout.write(f"FAILED: {error}\nEverything of the failed round is in {folder}\n")
        return 1
    shutil.rmtree(folder)
    told = ", ".join(f"{killed[role]} {role}" for role in VICTIMS)
    sys.stdout.write(
        f"{options.rounds} rounds from seed {options.seed}, all equal bit for bit; killed: {told}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
