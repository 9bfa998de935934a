"""Whether the sessions of a platform reach a store. Asks neither of them, and reads no credential."""

from __future__ import annotations

from orchestrator.platforms.platform import Placed
from orchestrator.stores.portable import is_on_this_machine
from orchestrator.stores.store import Store

ADVICE = "add a store that they can reach, with `orchestrator init hf`, `init s3` or `init drive`"


def refusal(name: str, store: Store, platform: Placed) -> str:
    """Why they do not reach this store, and what to do; empty if they may."""
    if platform.this_machine or not is_on_this_machine(store):
        return ""
    return f"only this machine can open the home store {name!r}, and the sessions run elsewhere: {ADVICE}"
