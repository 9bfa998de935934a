"""What `doctor` looks at in an S3 store: conditional writes, the clock, the connection and its speed.

Decides what deserves advice. Must never know how it is shown.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import obstore

from orchestrator.clock import SystemClock
from orchestrator.core.bounds import MIB
from orchestrator.errors import BackendError
from orchestrator.stores.checkup import Remark
from orchestrator.stores.s3 import conditions
from orchestrator.stores.s3.clients import Clients
from orchestrator.stores.s3.conditions import PROBES
from orchestrator.stores.s3.pacing import paced

_SAMPLE_BYTES = 4 * MIB
_SKEW_SECONDS_MAX = 300  # the services refuse 900
_GB = 1e9


def remarks(clients: Clients) -> Iterator[Remark]:
    yield _conditional(clients)
    yield from _carried(clients)
    place = clients.place
    if place.endpoint.startswith("http://") and not place.is_loopback:
        advice = "use an https endpoint, or encrypt the store: anyone on the way can read the checkpoints"
        yield Remark("connection", f"{place.endpoint} is not encrypted", advice)


def _conditional(clients: Clients) -> Remark:
    what = "conditional writes"
    client = clients.now()
    try:
        with clients.reporting("probe"):
            found = conditions.tried(client.small)
    except BackendError as error:
        return Remark(what, f"could not be tried: {error}")
    if found.swaps:
        return Remark(what, "honoured, so sessions can have an uplink")
    more = "" if found.creates else "; each put looks first whether its key is free"
    return Remark(what, found.why + more, "for sessions with an uplink, take another service")


def _carried(clients: Clients) -> Iterator[Remark]:
    """Sends and fetches a few megabytes, and compares the service's clock with ours."""
    clock, key = SystemClock(), f"{PROBES}-{secrets.token_hex(8)}"
    client, sample = clients.now(), secrets.token_bytes(_SAMPLE_BYTES)
    with clients.reporting("probe"):
        began = clock.monotonic()
        obstore.put(client.sends, key, sample, use_multipart=False)
        sent, now = clock.monotonic(), clock.now()
        try:
            result = obstore.get(client.fetches, key)
            there = result.meta["last_modified"].timestamp()
            result.bytes()
            fetched = clock.monotonic()
        finally:
            paced(lambda: obstore.delete(client.small, key))
    up, down = _SAMPLE_BYTES / max(sent - began, 1e-3), _SAMPLE_BYTES / max(fetched - sent, 1e-3)
    text = f"{up / 1e6:,.1f} MB/s up, {down / 1e6:,.1f} MB/s down in one request"
    yield Remark("speed", f"{text}; sending 1 GB takes about {_GB / up:,.0f} s or less")
    skew = now - there
    if abs(skew) > _SKEW_SECONDS_MAX:
        side = "ahead of" if skew > 0 else "behind"
        advice = (
            "set this machine's clock (timedatectl set-ntp true): S3 refuses requests that are 15 minutes off"
        )
        yield Remark("clock", f"{abs(skew):,.0f} s {side} the service's", advice)
