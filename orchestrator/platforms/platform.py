"""The platform protocol: where sessions run. Verbs are idempotent by session name, which we choose.

A platform never decides; it does and it reports. Verbs block (the engine calls them in workers) and raise
`Transient`, `QuotaExhausted`, `AccessDenied` or `Rejected`. A `Transient` from `launch` or `stop` may have
taken effect. No handle that a platform issues is needed to find a session again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from orchestrator.core.checkpoint import Manifest
from orchestrator.core.offer import Offer
from orchestrator.core.session import Observation, Order, StopReply


@dataclass(frozen=True)
class Materials:
    """Local files that go into a session. `bundle` is the source archive (.tar.gz); `agent` the agent as
    one zip application; `resume` a folder holding a verified checkpoint in the layout of
    `orchestrator.core.checkpoint` (`checkpoints/<name>/manifest.json`, `blobs/`), or None; `inputs` the
    folder of verified inputs, or None; `image` the frozen folders of an image to build, or None; `secrets`
    name → value, never journalled or logged. `say` takes a line of progress at any time, from this thread."""

    bundle: Path
    agent: Path
    resume: Path | None = None
    inputs: Path | None = None
    image: Path | None = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    say: Callable[[str], None] = field(default=lambda _: None, repr=False, compare=False)


@dataclass(frozen=True)
class Collected:
    """What `collect` brought: manifests whose blobs are all there and verified, oldest first, and the
    names of checkpoints that were there but failed, each with its reason."""

    manifests: tuple[Manifest, ...]
    corrupt: tuple[tuple[str, str], ...] = ()


class Platform(Protocol):
    """`name` is the platform's name in the user's config; sessions of other names are not its own."""

    @property
    def name(self) -> str: ...

    def survey(self) -> tuple[Offer, ...]:
        """The offers now, those unavailable included with their reason. Changes nothing."""

    def prepare(self, order: Order, materials: Materials) -> str | None:
        """Stages all a session needs where it will find it; may take long; starts nothing.

        Returns what the order's image, given by a name that may move, is for good: `name@sha256:…` or an id.
        """

    def launch(self, order: Order) -> None:
        """Starts the session unless one of this name was ever started. Returns without waiting for it.

        `QuotaExhausted` and `Rejected` mean: certainly not started.
        """

    def observe(self, names: Iterable[str]) -> Mapping[str, Observation]:
        """One reading of each session, in one batched call; a session not found is ABSENT, no error."""

    def collect(self, name: str, into: Path) -> Collected:
        """Brings the outbox (checkpoints, log, progress, status, result) into a local folder.

        Incremental and resumable: what is there already is not brought again. Every manifest returned has
        been verified blob by blob. Raises `NotFound` where the session left nothing.
        """

    def stop(self, name: str) -> StopReply:
        """Asks the session to save and leave: REQUESTED (observe tells when it has), ENDED where nothing
        of it runs any more or ever will, IMPOSSIBLE where the platform cannot."""

    def discard(self, name: str) -> None:
        """Removes what an ended or never launched session left on the platform. Called only after its
        outbox is safe or given up; discarding what is not there is no error."""
