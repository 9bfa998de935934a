"""The platform protocol: where sessions run. Verbs are idempotent by session name, which we choose.

A platform never decides; it acts and reports. Verbs block (the engine calls them in workers) and raise
`Transient`, `QuotaExhausted`, `AccessDenied` or `Rejected`. After a `Transient`, `launch` or `stop` may have
taken effect. A session can always be found by its name alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol, runtime_checkable

from orchestrator.core.offer import Offer
from orchestrator.core.order import Order, Outcome
from orchestrator.core.own_accelerators import Own
from orchestrator.core.session import Sighting, StopReply
from orchestrator.errors import Remedy
from orchestrator.session.mailbox import Mail
from orchestrator.session.outbox import Outbox
from orchestrator.session.signing import Keys
from orchestrator.session.staging import Materials, Shipping


@dataclass(frozen=True)
class Sight:
    """What a platform reports about one session: whether it waits, runs or has ended.

    `outbox` is opened, to read what the session reports itself; None if it cannot be read now. `ending` says
    how it ended, if the platform knows more than "ended" (quota, session limit, killed for memory). A result
    in the outbox takes precedence over `ending`. `notes` are for people; so is `log`, the newest lines of the
    session's log if the outbox does not show them yet. `partial`: the outbox shows only a part of what the
    session reports, and perhaps late.
    """

    sighting: Sighting
    outbox: Outbox | None = None
    ending: Outcome | None = None
    detail: str = ""
    notes: tuple[str, ...] = ()
    log: str = ""
    partial: bool = False


class Platform(Protocol):
    """`name` is the platform's name in the user's config. Sessions of other platforms are not its own."""

    @property
    def name(self) -> str: ...

    def survey(self) -> tuple[Offer, ...]:
        """The current offers. Includes unavailable ones, with their reason. Changes nothing."""

    def prepare(self, order: Order, materials: Materials) -> str | None:
        """Stages everything that a session needs. May take long. Starts nothing. Raises `NameTaken` if a
        session of this name was started with another order.

        The name of the order's image may point to another image later, so this returns what it means now:
        `name@sha256:…` or an id.
        """

    def launch(self, order: Order) -> None:
        """Starts the session unless one of this name was ever started. Returns without waiting for it.

        After `QuotaExhausted` or `Rejected` it was certainly not started. `NotFound`, a kind of `Rejected`,
        means that the prepared session is missing.
        """

    def observe(self, names: Iterable[str]) -> Mapping[str, Sight]:
        """Looks once at each session, in one batched call. A missing session is ABSENT, not an error. A
        session that cannot be read now is left out; the others are still reported."""

    def open(self, name: str) -> Outbox:
        """The session's outbox, for collecting. If the platform can, also while the session runs.

        Raises `NotFound` if the session left nothing. The outbox raises the same errors as the verbs here.
        """

    def stop(self, name: str) -> StopReply:
        """Asks the session to save and exit. Returns REQUESTED (observe shows when it has ended), ENDED if
        nothing of it runs or ever will, or IMPOSSIBLE if the platform cannot stop sessions."""

    def discard(self, name: str) -> None:
        """Removes what an ended or never launched session left on the platform. Called only after its
        outbox is safe or given up. No error if there is nothing."""


# --- Optional protocols -----------------------------------------------------------------------------------


class Health(StrEnum):
    OK = "ok"
    WARNING = "warning"  # sessions run, but something is not as it should be
    MISSING = "missing"  # sessions do not run until a human acts


@dataclass(frozen=True)
class Finding:
    """The result of one check, such as `engine` or `disk`. `advice`: what a human can do about it, or what
    would improve things if all is well. One command or sentence per line."""

    what: str
    health: Health
    text: str
    advice: str = ""


@runtime_checkable
class Checkup(Protocol):
    """Optional: a platform that can report more about itself than its offers."""

    def checkup(self) -> tuple[Finding, ...]:
        """What works and what is missing. Changes nothing; may take seconds. Raises what `survey` raises."""


@dataclass(frozen=True)
class Leftover:
    """Something of this home on the platform, such as a container or a volume. `session` and `run` say whose
    it is; empty if it belongs to no session. `state` is the platform's own word. `alive`: it runs.
    `in_trial`: a trial that is under way made it, and removes it."""

    kind: str
    name: str
    session: str
    run: str
    state: str
    alive: bool = False
    in_trial: bool = False


@runtime_checkable
class Cleaning(Protocol):
    """Optional: a platform on which something may be left behind that belongs to no known session."""

    def leftovers(self) -> tuple[Leftover, ...]:
        """Everything that this home has there, including what live sessions need. The caller then reads the
        ledger to find out what is left over. Nothing of other homes or users. Changes nothing."""

    def remove(self, leftover: Leftover) -> None:
        """Removes it; kills it first if it was `alive`. No error if it is already gone. Raises Transient if
        it is in use, also by a trial, or has started since."""


@runtime_checkable
class BuildingImages(Protocol):
    """Optional: a platform with `Cleaning` that builds images for jobs and keeps them for other sessions."""

    def unneeded_images(self, needed: Iterable[Path]) -> tuple[Leftover, ...]:
        """Images built for this home that no job with one of these frozen image folders needs. Empty if that
        is unknown. Changes nothing. `remove` removes one."""


@runtime_checkable
class Tidying(Protocol):
    """Optional: a platform on which a crash leaves things that nobody needs again."""

    def tidy(self) -> None:
        """Ends and removes these: processes of ended sessions, drafts of what was being staged. Called when a
        controller starts, in parallel to the other verbs. Must not touch a live session, anything that
        another process is writing, or anything that a session made."""


@runtime_checkable
class LoggingIn(Protocol):
    """Optional: a platform with a login of its own, which a person does on a terminal."""

    def log_in(self, say: Callable[[str], None]) -> None:
        """Uses this process's terminal. `say` takes a line of progress. Raises AccessDenied if the service
        does not accept the login; an earlier one is then kept."""


@runtime_checkable
class Placed(Protocol):
    """Optional: a platform that can tell where its sessions run."""

    @property
    def this_machine(self) -> bool:
        """Whether they run on this machine, so that they see its folders and servers."""


@dataclass(frozen=True)
class Notebook:
    """A notebook to open: its bytes, the name of the secret that it asks for, and where a person opens it.
    `may_replace`: whether these are the bytes of an earlier one, which nobody has edited."""

    content: bytes
    secret_name: str
    link: str
    may_replace: Callable[[bytes], bool]


@runtime_checkable
class Equipped(Protocol):
    """Optional: a platform that offers the accelerator of the user's choice."""

    def equip(self, own: Own) -> None:
        """Tells it the accelerators that the user's config describes. Called before any verb."""


@runtime_checkable
class Mailed(Placed, Protocol):
    """Optional: a platform whose sessions run in a notebook that a person opens, and which reaches them
    through a mailbox in the home store."""

    def connect(self, mail: Mail) -> None:
        """Gives it its mailbox. Called before any verb."""

    def keys(self) -> Keys | None:
        """The keys that it shares with its notebook; None if there are none. Raises AccessDenied if they
        cannot be read."""

    def keep(self, keys: Keys, *, anew: bool) -> None:
        """Keeps new keys; unless `anew`, only if there are none."""

    def notebook(self, program: bytes, packages: str, place: str) -> Notebook:
        """The notebook. `program` is the worker as one zip application, `packages` the locked list of what it
        needs, and `place` a name of the home store."""


class Verdict(StrEnum):
    """Whether an assumption about the service behind a platform is right."""

    HOLDS = "holds"
    FAILS = "fails"
    NOT_SEEN = "not seen"


@dataclass(frozen=True)
class Check:
    """One assumption that a trial checked. `seen`: what it saw, or why it saw nothing."""

    id: str
    text: str
    verdict: Verdict
    seen: str


@dataclass(frozen=True)
class Tried:
    """What a trial found. Contains no secrets. `account` is the account's name, which is not for everybody.

    `facts` are what else it saw, as name and text. `left`: what it made and could not remove. `trouble`: why
    it ended early, and `remedy` what the caller does about that.
    """

    run: str
    account: str
    checks: tuple[Check, ...]
    facts: tuple[tuple[str, str], ...] = ()
    left: tuple[str, ...] = ()
    trouble: str = ""
    remedy: Remedy = Remedy.NONE
    interrupted: bool = False


class TrialStore(Protocol):
    """The home store, as a session of a trial ships to it. Verbs raise what a store raises."""

    def shipping(self) -> Shipping:
        """What a session needs to ship there. Changes nothing."""

    def begin(self, session: str, generation: int) -> None:
        """Lets this session ship."""

    def outbox(self, session: str, generation: int) -> Outbox:
        """What it has shipped."""

    def clear(self, session: str) -> None:
        """Removes all of that. The session ships nothing any more, even if it still runs."""


@dataclass(frozen=True)
class Supplies:
    """What the sessions of a trial may get. `agent`: the agent as one zip application."""

    agent: Path
    store: TrialStore


class Trial(Protocol):
    """Sessions of no run that check what is assumed about a service. Removes what it makes."""

    def intent(self) -> tuple[tuple[str, str], ...]:
        """What it will make and what that costs, as name and text. Changes nothing. Raises as `survey`
        does, and Transient if another trial is under way."""

    def run(self, supplies: Supplies, say: Callable[[str], None]) -> Tried:
        """Takes minutes, and raises nothing that it can report instead. `say` takes a line of progress. The
        first KeyboardInterrupt makes it clean up."""


@runtime_checkable
class Trying(Protocol):
    """Optional: a platform whose service can be tried."""

    def trial(self, *, long: bool) -> Trial | None:
        """A trial that has not begun; `long`: also sessions that take half an hour. None if there is no
        service to try."""
