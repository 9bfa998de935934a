"""Whether the sessions of a platform reach the home store. Asks neither of them."""

from __future__ import annotations

from orchestrator.client.wiring import Wired
from orchestrator.errors import InputError, Rejected
from orchestrator.platforms.platform import Placed
from orchestrator.stores.opening import carried

ADVICE = "add a store that they can reach, with `orchestrator init hf`, `init s3` or `init drive`"


def check(wired: Wired, platform: Placed) -> None:
    """Raises InputError if they do not, and says what to do."""
    name = wired.config.home_store
    try:
        portable = carried(wired.store(""))
    except Rejected as refusal:
        raise InputError(f"no session can open the home store {name!r}: {refusal}; {ADVICE}") from None
    if portable.this_machine and not platform.this_machine:
        raise InputError(
            f"only this machine can open the home store {name!r}, and the sessions run elsewhere: {ADVICE}"
        )
