"""Whether the sessions of a platform reach a store. Asks neither of them."""

from __future__ import annotations

from orchestrator.errors import Rejected
from orchestrator.platforms.platform import Placed
from orchestrator.stores.opening import carried
from orchestrator.stores.store import Store

ADVICE = "add a store that they can reach, with `orchestrator init hf`, `init s3` or `init drive`"
COMMANDS = ("orchestrator init --help",)


def refusal(name: str, store: Store, platform: Placed) -> str:
    """Why they do not reach this store, and what to do; empty if they do."""
    try:
        portable = carried(store)
    except Rejected as why:
        return f"no session can open the home store {name!r}: {why}; {ADVICE}"
    if portable.this_machine and not platform.this_machine:
        return f"only this machine can open the home store {name!r}, and the sessions run elsewhere: {ADVICE}"
    return ""
