"""What a session gets: the files in its folder before its start, the same on every platform.

Each platform copies, packs or uploads them in its own way. Reads and writes nothing itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core import wire
from orchestrator.core.order import Order
from orchestrator.errors import Rejected
from orchestrator.session.layout import (
    AGENT,
    BLOBS,
    BUNDLE,
    CHECKPOINTS,
    INPUTS,
    ORDER,
    PARCEL,
    SECRETS,
    STAGED,
    STORE,
    UPLINK,
    manifest_path,
)


@dataclass(frozen=True)
class Shipping:
    """What a session needs to ship its own outbox to the home store.

    `program` is the uplink as one zip application. `store` tells it how to open the store, credential
    included. `this_machine`: that works on this machine only. `refusal`: why no session can open the store.
    `parcel`, if it is not empty, tells it what to fetch from there, which then does not come any other way.
    `needed`: no session of the platform can do without.
    """

    program: Path
    store: bytes = field(default=b"", repr=False)
    this_machine: bool = False
    refusal: str = ""
    parcel: bytes = field(default=b"", repr=False)
    needed: bool = False

    def unusable(self, *, here: bool) -> str:
        """Why a session cannot open the store; empty if it can. `here`: the session runs on this machine."""
        if self.refusal or here or not self.this_machine:
            return self.refusal
        return (
            "only this machine can open that store, a folder or a server here, and the session runs elsewhere"
        )


@dataclass(frozen=True)
class Materials:
    """Local files that go into a session.

    `bundle` is the source archive (.tar.gz), `agent` the agent as one zip application, `resume` a folder with
    a verified checkpoint in outbox layout, `inputs` the folder of verified inputs, and `image` the archive of
    an image's frozen folders. The last three may be None. `secrets`, name → value, are never journalled or
    logged, nor is what `shipping` holds, which is None for a session without an uplink. `say` takes a line of
    progress at any time, from this thread.
    """

    bundle: Path
    agent: Path
    resume: Path | None = None
    inputs: Path | None = None
    image: Path | None = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    shipping: Shipping | None = None
    say: Callable[[str], None] = field(default=lambda _: None, repr=False, compare=False)


@dataclass(frozen=True)
class Content:
    """One file or folder of the session, by its path there: bytes, a local file, or a local folder with
    everything below it. Only the session's owner may read it. With `read_only`, a folder's files must not be
    writable."""

    name: str
    content: bytes | Path
    read_only: bool = False


def contents(
    order: Order, materials: Materials, *, staged: bool = True, here: bool = False
) -> Iterator[Content]:
    """All contents, the order last: if the order is there, everything is. `staged=False` leaves out the
    checkpoint to resume from, which comes another way. What the session fetches itself is left out, too.
    `here`: the session runs on this machine, and sees its folders and servers.

    Raises Rejected if the order resumes at a checkpoint that the materials lack, or if the session is to ship
    to a store that it cannot open.
    """
    yield Content(AGENT, materials.agent, read_only=True)
    if materials.shipping is None or not materials.shipping.parcel:
        yield from fetchable(order, materials, staged=staged)
    if materials.secrets:
        yield Content(SECRETS, json.dumps(dict(materials.secrets)).encode())
    if materials.shipping is not None:
        yield from _uplink(order, materials.shipping, here)
    yield Content(ORDER, wire.encode(order))


def fetchable(order: Order, materials: Materials, *, staged: bool = True) -> Iterator[Content]:
    """What a session may also fetch itself, from its home store. Raises Rejected as `contents` does."""
    yield Content(BUNDLE, materials.bundle, read_only=True)
    if staged and order.resume is not None:
        resume = materials.resume
        if resume is None or not (resume / manifest_path(order.resume)).is_file():
            raise Rejected(f"the order resumes at {order.resume}, but the materials lack it")
        path = f"{CHECKPOINTS}/{order.resume}"
        yield Content(f"{STAGED}/{path}", resume / path)
        yield Content(f"{STAGED}/{BLOBS}", resume / BLOBS)
    if materials.inputs is not None:
        yield Content(INPUTS, materials.inputs, read_only=True)


def _uplink(order: Order, shipping: Shipping, here: bool) -> Iterator[Content]:
    remedy = "give the run a home store that its sessions can reach"
    if not shipping.needed:
        remedy += f", or set `uplink: false` for {order.platform} in config.yaml"
    if why := shipping.unusable(here=here):
        raise Rejected(f"{order.session} cannot ship to its home store: {why}; {remedy}")
    yield Content(UPLINK, shipping.program, read_only=True)
    yield Content(STORE, shipping.store)
    if shipping.parcel:
        yield Content(PARCEL, shipping.parcel)
