"""The platform protocol: where sessions run. Verbs are idempotent by session name, which we choose.

A platform never decides; it does and it reports. Verbs block (the engine calls them in workers) and raise
`Transient`, `QuotaExhausted`, `AccessDenied` or `Rejected`. A `Transient` from `launch` or `stop` may have
taken effect. No handle that a platform issues is needed to find a session again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol, runtime_checkable

from orchestrator.core.offer import Offer
from orchestrator.core.order import Order, Outcome
from orchestrator.core.session import Sighting, StopReply
from orchestrator.session.outbox import Outbox
from orchestrator.session.staging import Materials


@dataclass(frozen=True)
class Sight:
    """What a platform says of one session: whether it waits, runs or has ended.

    `outbox`: opened, to read what the session says of itself; None where nothing of it can be read now.
    `ending` is the platform's own word on how it ended, where it knows better than "ended" (quota, wall,
    killed for memory); a result that the session left counts before it. `notes` are for people.
    """

    sighting: Sighting
    outbox: Outbox | None = None
    ending: Outcome | None = None
    detail: str = ""
    notes: tuple[str, ...] = ()


class Platform(Protocol):
    """`name` is the platform's name in the user's config; sessions of other names are not its own."""

    @property
    def name(self) -> str: ...

    def survey(self) -> tuple[Offer, ...]:
        """The offers now, those unavailable included with their reason. Changes nothing."""

    def prepare(self, order: Order, materials: Materials) -> str | None:
        """Stages all a session needs where it will find it; may take long; starts nothing. Raises `NameTaken`
        where a session of this name was started with another order.

        Returns what the order's image, given by a name that may move, is for good: `name@sha256:…` or an id.
        """

    def launch(self, order: Order) -> None:
        """Starts the session unless one of this name was ever started. Returns without waiting for it.

        `QuotaExhausted` and `Rejected` mean: certainly not started; `NotFound`, which is one, that what was
        prepared is not there.
        """

    def observe(self, names: Iterable[str]) -> Mapping[str, Sight]:
        """One look at each session, in one batched call; a session not found is ABSENT, no error. One that
        cannot be looked at now is left out, which hides no other."""

    def open(self, name: str) -> Outbox:
        """The session's outbox, to be collected, also while the session runs where the platform can.

        Raises `NotFound` where the session left nothing. The outbox raises what the verbs here raise.
        """

    def stop(self, name: str) -> StopReply:
        """Asks the session to save and leave: REQUESTED (observe tells when it has), ENDED where nothing
        of it runs any more or ever will, IMPOSSIBLE where the platform cannot."""

    def discard(self, name: str) -> None:
        """Removes what an ended or never launched session left on the platform. Called only after its
        outbox is safe or given up; discarding what is not there is no error."""


# --- What a platform may offer besides --------------------------------------------------------------------


class Health(StrEnum):
    OK = "ok"
    WARNING = "warning"  # sessions run, and something is not as it should be
    MISSING = "missing"  # sessions do not run before a human has acted


@dataclass(frozen=True)
class Finding:
    """One thing a platform looked at in itself, as `engine` or `disk`. `mend`: what a human does about it,
    or, where all is well, does to have more; one command or sentence a line."""

    what: str
    health: Health
    text: str
    mend: str = ""


@runtime_checkable
class Checkup(Protocol):
    """Optional: a platform that can say more of itself than its offers do."""

    def checkup(self) -> tuple[Finding, ...]:
        """What works and what is missing. Changes nothing; may take seconds. Raises what `survey` raises."""


@dataclass(frozen=True)
class Leftover:
    """Something of this home that lies on the platform, as a container or a volume. `session` and `run` are
    whose it is, empty where it is no session's; `state` is the platform's own word; `alive`: it runs."""

    kind: str
    name: str
    session: str
    run: str
    state: str
    alive: bool = False


@runtime_checkable
class Cleaning(Protocol):
    """Optional: a platform on which something may be left behind that no session's name leads to."""

    def leftovers(self) -> tuple[Leftover, ...]:
        """All that this home has there, what live sessions need included: which of it is left over only the
        ledger knows, read after this. Nothing of other homes, nothing that is not ours. Changes nothing."""

    def remove(self, leftover: Leftover) -> None:
        """Removes it, killing it where it was `alive`; no error where it is not there any more. Raises
        Transient where it has come alive since, or is in use."""


@runtime_checkable
class BuildingImages(Protocol):
    """Optional: a platform with `Cleaning` that builds images for jobs and keeps them for other sessions."""

    def unneeded_images(self, needed: Iterable[Path]) -> tuple[Leftover, ...]:
        """Those it has built for this home that no job with one of these frozen image folders needs; where
        that cannot be told, none. Changes nothing. `remove` takes each away."""


@runtime_checkable
class Tidying(Protocol):
    """Optional: a platform on which a crash leaves what nobody will ask for again."""

    def tidy(self) -> None:
        """Ends and removes it: processes of sessions that are over, drafts of what was being staged. Called
        when a controller starts, beside the other verbs. Nothing of a session that lives, nothing that
        another process is writing, and nothing that a session made."""
