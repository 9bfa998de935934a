"""What `doctor` looks at in an S3 store: conditional writes, abandoned uploads, the clock, the connection and
its speed.

Decides what deserves advice. Must never know how it is shown.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import obstore
from obstore import exceptions

from orchestrator.clock import SystemClock
from orchestrator.core.bounds import MIB
from orchestrator.errors import BackendError, Transient
from orchestrator.stores.abandoned import is_abandoned
from orchestrator.stores.checkup import Remark
from orchestrator.stores.s3 import conditions, uploads
from orchestrator.stores.s3.clients import Client, Clients
from orchestrator.stores.s3.conditions import PROBES
from orchestrator.stores.s3.faults import answer_of
from orchestrator.stores.s3.pacing import paced

_SAMPLE_BYTES = 4 * MIB
_SKEW_SECONDS_MAX = 300  # the services refuse 900
_GB = 1e9
_LIFECYCLE = (
    "give the keys s3:ListBucketMultipartUploads, or set a lifecycle rule in the bucket that deletes "
    "incomplete multipart uploads after a few days"
)
_FORBIDDEN = 403
_KEPT = "the bucket keeps, and charges for, what was replaced or deleted; each heartbeat adds a version"
_EXPIRE = (
    "add a lifecycle rule that removes old versions after a day, or suspend versioning "
    "(`orchestrator help stores versions`)"  # in full: this ships into sessions, without our wording
)


def remarks(clients: Clients) -> Iterator[Remark]:
    yield _conditional(clients)
    yield from _carried(clients)
    yield _abandoned(clients)
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


def _abandoned(clients: Clients) -> Remark:
    what = "abandoned uploads"
    try:
        found = uploads.listed(clients)
    except Transient as error:
        return Remark(what, f"could not be counted: {error}")
    except BackendError as error:
        return Remark(what, f"the service does not list them: {error}", _LIFECYCLE)
    count = sum(is_abandoned(each) for each in found)
    if not count:
        return Remark(what, "none that the service knows of")
    told = f"{count:,} whose writers died: their parts are not listed, but stored and charged"
    return Remark(what, told, "the controller removes them once a day, and `orchestrator prune` does at once")


def _carried(clients: Clients) -> Iterator[Remark]:
    """Sends, fetches and deletes a few megabytes, and compares the service's clock with ours."""
    clock, key = SystemClock(), f"{PROBES}-{secrets.token_hex(8)}"
    client, sample = clients.now(), secrets.token_bytes(_SAMPLE_BYTES)
    with clients.reporting("probe"):
        began = clock.monotonic()
        version = obstore.put(client.sends, key, sample, use_multipart=False)["version"]
        sent, now = clock.monotonic(), clock.now()
        try:
            result = obstore.get(client.fetches, key)
            there = result.meta["last_modified"].timestamp()
            result.bytes()
            fetched = clock.monotonic()
        finally:
            paced(lambda: obstore.delete(client.small, key))
        if version is not None and _is_kept(client, key, version):
            yield Remark("versions", _KEPT, _EXPIRE)
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


def _is_kept(client: Client, key: str, version: str) -> bool:
    """Whether a version can still be read after its object was deleted. That services name versions proves
    nothing (docs/references/s3.md#versions). A refusal means yes: AWS wants a right of its own for them."""
    try:
        obstore.get(client.small, key, options={"version": version, "head": True})
    except (exceptions.BaseError, FileNotFoundError) as error:
        return answer_of(error).status == _FORBIDDEN
    return True
