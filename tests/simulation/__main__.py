"""Plays simulated schedules for a given time: `python -m tests.simulation --minutes 20 [--seed N]`.

With `--shipping`, every session ships its own outbox. With `--unreadable` it does too, and no platform can
read it while it runs. With `--overlong`, sessions outlive their limits, and users are impatient. With
`--scheduled`, every run comes from a schedule. With `--homes`, the home is copied or put back.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.play import (
    play,
    play_homes,
    play_overlong,
    play_scheduled,
    play_shipping,
    play_unreadable,
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0, help="the first seed; the others follow it")
    parser.add_argument("--count", type=int, help="so many schedules instead of minutes")
    parser.add_argument("--shipping", action="store_true", help="every session ships its own outbox")
    parser.add_argument("--unreadable", action="store_true", help="also, none can be read while it runs")
    parser.add_argument("--overlong", action="store_true", help="sessions outlive their limits")
    parser.add_argument("--scheduled", action="store_true", help="every run comes from a schedule")
    parser.add_argument("--homes", action="store_true", help="the home is copied, or put back")
    options = parser.parse_args()
    game = play_unreadable if options.unreadable else play_shipping if options.shipping else play
    game = play_scheduled if options.scheduled else play_overlong if options.overlong else game
    game = play_homes if options.homes else game
    end = time.monotonic() + 60.0 * options.minutes
    seed, failed = options.seed, []
    while (seed - options.seed < options.count) if options.count else (time.monotonic() < end):
        violations = game(seed)
        if violations:
            failed.append(seed)
            print(f"seed {seed}:", *violations, sep="\n  ", flush=True)
        seed += 1
    print(f"{seed - options.seed} schedules from seed {options.seed}, {len(failed)} failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
