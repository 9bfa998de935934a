"""Where the outbox of a session is read: where its uplink shipped it, on its platform, or both.

What was shipped counts first. The platform is asked for the rest if the uplink does not get through, because
nothing is lost that somebody can still read. Opens outboxes; never copies or accepts what is in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from orchestrator.core.action import Collect
from orchestrator.core.offer import Uplink
from orchestrator.errors import BackendError, NotFound, Rejected
from orchestrator.files import Odd
from orchestrator.session import saying
from orchestrator.session.layout import RESULT, STATUS
from orchestrator.session.outbox import Outbox
from orchestrator.stores.store import Store
from orchestrator.uplink import outbox as uplinked
from orchestrator.uplink import registers
from orchestrator.uplink.outbox import StoreOutbox


def outboxes(action: Collect, store: Store, own: Callable[[], Outbox]) -> Iterator[Outbox]:
    """The outboxes to collect, one after the other. `store` is the run's home store, and `own` opens the
    outbox on the platform.

    Before the last look at what was shipped, raises the fence, so that nothing can be published afterwards
    and go unseen. Raises NotFound if the session left nothing.
    """
    if action.uplink is not Uplink.STORE:
        yield own()
        return
    if action.last:
        registers.close_fence(store, action.run, action.generation, action.adoptions)
    shipped = _shipped(action, store)
    if shipped is not None:
        yield shipped
    lacks = _may_lack_something(action, shipped)
    there = _opened(own, action.forgone) if lacks else None
    if there is not None:
        yield there
    elif action.doubts and lacks and not action.forgone:
        raise NotFound(f"{action.session} left nothing on {action.platform}")
    elif shipped is None:
        raise NotFound(f"{action.session} left nothing in the store")


def _shipped(action: Collect, store: Store) -> StoreOutbox | None:
    try:
        return uplinked.opened(store, action.run, action.session, action.generation)
    except NotFound:
        return None


def _opened(own: Callable[[], Outbox], forgone: bool) -> Outbox | None:
    """What the platform itself has of the session, if anything."""
    try:
        return own()
    except Rejected:  # it has nothing, or is no longer in the config
        return None
    except BackendError:
        if forgone:
            return None
        raise


def _may_lack_something(action: Collect, shipped: StoreOutbox | None) -> bool:
    """Whether the store may lack what the platform has: in the last look, if the result did not get there.
    Before, if the store has not heard of the session for long, although somebody has. If all that was heard
    came through the store, that is never so."""
    if shipped is None:
        return action.last or action.stale_before is not None
    with suppress(Odd):
        if action.last:
            return shipped.small(RESULT) is None
        status = saying.status(shipped.small(STATUS))
        written_at = -1.0 if status is None else status.written_at
        return action.stale_before is not None and written_at < action.stale_before
    return True
