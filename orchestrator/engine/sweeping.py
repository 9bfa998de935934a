"""Removes the uploads that writers which died have left in the stores: at the start, then once a day.

Decides when it is done, in a thread of its own. A store that does not answer delays nobody: its turn comes
again the next day. Which uploads are abandoned, `orchestrator.stores.abandoned` decides.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from orchestrator.clock import Clock
from orchestrator.core.wording import count_text
from orchestrator.engine.perform import Backends
from orchestrator.errors import OrchestratorError
from orchestrator.stores.abandoned import abandoned
from orchestrator.stores.store import abort

PAUSE_SECONDS = 24 * 3600.0


@contextlib.contextmanager
def at_work(backends: Backends, clock: Clock, say: Callable[[str], None]) -> Iterator[None]:
    """Sweeps while the context is open. Leaving it waits for nothing: a request under way is harmless."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            sweep(backends, say, over.is_set)
            clock.wait(over, PAUSE_SECONDS)

    threading.Thread(target=work, name="sweeping", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def sweep(
    backends: Backends, say: Callable[[str], None], stopped: Callable[[], bool] = lambda: False
) -> None:
    """Removes them from every store of the config, one store after the other."""
    for name, store in backends.stores.items():
        gone = 0
        try:
            for each in abandoned(store):
                if stopped():
                    break
                abort(store, each)
                gone += 1
        except (OrchestratorError, OSError) as error:
            say(f"abandoned uploads in the store {name} could not be removed, trying again in a day: {error}")
        except Exception as error:  # noqa: BLE001 the barrier: told, and the other stores get their turn
            backends.unforeseen(f"sweeping the store {name}", error)
        if gone:
            say(f"removed {count_text(gone, 'abandoned upload')} from the store {name}")
