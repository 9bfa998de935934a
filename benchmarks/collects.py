"""How many requests a collect costs while a session has nothing new, and how many a new checkpoint costs.

    python -m benchmarks.collects [--json] [--checkpoints 200]

Requests are counted, so the machine does not matter. The engine, ledger, decide and outbox are the real ones.
The session has that many accepted checkpoints. All but the newest three are retired, and its outbox still
holds them all.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.counted import Collecting


def measure(checkpoints: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        world = Collecting(Path(folder))
        world.commit(*range(1, checkpoints + 1))
        world.accept(checkpoints)
        outbox, store = world.idle()
        world.store.asked.clear()
        world.commit(checkpoints + 1)
        world.accept(checkpoints + 1)
        world.ledger.close()
        return {
            "idle_outbox_requests": sum(outbox.values()),
            "idle_store_requests": sum(store.values()),
            "new_checkpoint_store_requests": float(world.store.asked.total()),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--checkpoints", type=int, default=200)
    options = parser.parse_args()
    one, many = measure(1), measure(options.checkpoints)
    if options.json:
        print(json.dumps({"1": one, str(options.checkpoints): many}))
    else:
        print(f"{'accepted checkpoints':32} {1:8} {options.checkpoints:8}")
        for name in one:
            print(f"{name:32} {one[name]:8.0f} {many[name]:8.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
