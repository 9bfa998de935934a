"""Whether a running session's work is safe from its end now: traits × what it last reported → yes or no.

An uplink makes a session durable only as long as it ships. Where the platform shows nothing before a
session's end, a session that does not ship, or was never heard of, is treated like one without an uplink: it
is neither given up nor stopped without consent. Pure.
"""

from __future__ import annotations

from orchestrator.core.offer import Traits, Uplink
from orchestrator.core.order import AgentStatus

UNSHIPPED_SECONDS_MAX = 3600.0  # of work that may be at stake: minutes, not hours


def is_durable(traits: Traits, status: AgentStatus | None) -> bool:
    """`status`: the newest one of the session; None if there is none."""
    if traits.uplink is not Uplink.STORE or traits.readable_mid_run:
        return traits.durable_mid_run
    return traits.durable_mid_run and is_shipping(status)


def is_shipping(status: AgentStatus | None) -> bool:
    """Whether all but the newest work was in the home store when the session reported this."""
    unshipped = None if status is None else status.unshipped_seconds
    return unshipped is not None and unshipped <= UNSHIPPED_SECONDS_MAX
