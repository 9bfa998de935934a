"""Whether this ledger may still write to its stores, or another copy of it does: a copied or rewound home.

A store shows in a register which copy of a ledger is in charge there: the token that its last controller
drew. A controller that starts draws a new token, and shows it by compare-and-swap if the one that is there is
in its ledger. If it is not, another copy of the ledger has been here since: this one waits and changes
nothing in that store. A controller in charge reads the token before it writes, and stops if it is another's.

Stores without registers show only the versions of deposits, which an honest ledger is never behind. Decides
nothing about a run. docs/decisions/041-copies-of-a-home.md says why.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.clock import Clock
from orchestrator.core import wire
from orchestrator.core.checkpoint import CheckpointRef
from orchestrator.errors import BackendError, Conflict, OrchestratorError, Superseded, Transient
from orchestrator.ledger import Identity, Ledger, LedgerReader, Made, identity
from orchestrator.stores import deposits
from orchestrator.stores.register import Held
from orchestrator.stores.store import Store, is_empty

WATCH_SECONDS = 60.0  # between two looks at a store to which nothing is written
FIRST_LOOK_SECONDS = 3.0  # a controller that starts waits this long for its stores
TRIES = 5
TAKE_OVER = "orchestrator adopt --take-over"
ADOPTED = "another ledger has adopted {} from its store, so nothing of it is deleted there"


@dataclass(frozen=True)
class Place:
    """Where a copy of a ledger is: its machine, its home, and the number of the ledger's file there. With a
    server there is no file, and the number is 0."""

    host: str
    path: str
    inode: int = 0

    def __str__(self) -> str:
        return f"{self.host}:{self.path}"


@dataclass(frozen=True)
class Mark:
    """What a store shows of a ledger. `count` grows with each token. `at`: since when it is there. `asked`:
    the place of another copy that waits."""

    count: int
    token: str
    place: Place
    at: float
    asked: str = ""


class _Everything(Made):
    def knows(self, ref: CheckpointRef) -> bool:  # noqa: ARG002
        return False

    def has(self, ref: CheckpointRef) -> bool:  # noqa: ARG002
        return True

    def has_lineage(self, incarnation: str) -> bool:  # noqa: ARG002
        return True


class Ownership:
    """Of a ledger without copies: every store is its own, and so is what lies there of its runs."""

    def check(self, name: str) -> None:
        """Raises Superseded if another copy of the ledger is in charge of this store."""

    def check_run(self, name: str, run: str, order: tuple[int, int], adoptions: int) -> None:  # noqa: ARG002
        """Raises Superseded if the run is another ledger's. `order`: of the newest deposit that the store has
        of it."""
        if order[0] > adoptions:
            raise Superseded(ADOPTED.format(run))

    def there(self, name: str, store: Store, run: str, adoptions: int) -> tuple[CheckpointRef, ...]:
        """The run's checkpoints in the store. Raises Superseded as the two checks do."""
        self.check(name)
        order, refs = deposits.there(store, run)
        self.check_run(name, run, order, adoptions)
        return refs

    def falls_behind(self, name: str, run: str) -> None:
        """To call if the store has newer checkpoints of the run than the ledger has ever heard of. May raise
        Superseded: then nothing more is done before they are adopted."""

    def elsewhere(self, name: str) -> str:  # noqa: ARG002
        """Why nothing is done for runs of this store; empty if nothing is known against it. Asks nobody."""
        return ""

    def made(self, run: str) -> Made:  # noqa: ARG002
        """What this ledger may delete of the run."""
        return _Everything()


class Known(Ownership):
    """As far as the ledger and the store say, for a command that changes a store once."""

    def __init__(self, ledger: LedgerReader, stores: Mapping[str, Store]) -> None:
        self._ledger = ledger
        self._stores = stores

    def check(self, name: str) -> None:
        rival = rival_of(self._stores[name], identity.of(self._ledger))
        if rival is not None:
            raise Superseded(used_by(name, rival))

    def check_run(self, name: str, run: str, order: tuple[int, int], adoptions: int) -> None:
        super().check_run(name, run, order, adoptions)
        if order > (adoptions, self._version(run)):  # read after the listing: deposits follow the ledger
            raise Superseded(behind(name, run))

    def _version(self, run: str) -> int:
        return max((each.version for each in self._ledger.summaries(run=run)), default=0)

    def made(self, run: str) -> Made:
        return self._ledger.made(run)


class InCharge(Known):
    """Of a controller. Safe to use from several threads."""

    def __init__(
        self,
        ledger: Ledger,
        stores: Mapping[str, Store],
        place: Place,
        clock: Clock,
        warn: Callable[[str], None],
    ) -> None:
        super().__init__(ledger, stores)
        self._changes = ledger
        self._place = place
        self._clock = clock
        self._warn = warn
        # The stores that a controller of this same place has used: an older ledger was put back here.
        self._behind: set[str] = set()
        self._wake = threading.Event()
        self._elsewhere: dict[str, str] = {}
        self._before: dict[str, Place] = {}  # store → who was in charge when this controller started
        self._told: set[tuple[str, str]] = set()
        self._locks = {name: threading.Lock() for name in stores}
        self._found = identity.of(ledger)
        self._token = secrets.token_hex(8)
        mine = identity.change(ledger, token=self._token)  # before any store hears of it
        self._id, self._tokens = mine.ledger, mine.tokens

    # --- What others ask --------------------------------------------------------------------------------

    def check(self, name: str) -> None:
        if name not in self._stores:
            return
        with self._locks[name]:
            if name not in self._elsewhere:
                self._look(name) if name in self._before else self._enter(name)
            if reason := self._elsewhere.get(name):
                raise Superseded(reason)

    def check_run(self, name: str, run: str, order: tuple[int, int], adoptions: int) -> None:
        try:
            super().check_run(name, run, order, adoptions)
        except Superseded:
            if order[0] <= adoptions:
                self.falls_behind(name, run)
            raise

    def falls_behind(self, name: str, run: str) -> None:
        with self._locks[name]:
            self._wait(name, behind(name, run), self._before.get(name))
        raise Superseded(self._elsewhere[name])

    def elsewhere(self, name: str) -> str:
        return self._elsewhere.get(name, "")

    def taken_over(self) -> bool:
        """Whether a person has taken a store over since, so that this process has to start again."""
        return bool(self._elsewhere) and identity.of(self._ledger).tokens != self._tokens

    @property
    def catches_up(self) -> bool:
        """Whether this ledger is about to take from a store what it lacks."""
        return bool(self._behind)

    @contextlib.contextmanager
    def at_work(self, names: Iterable[str], catch_up: Callable[[str], bool]) -> Iterator[None]:
        """Looks at these stores, and at each that is used later, while the context is open. Waits for the
        first look, but not for a store that does not answer. `catch_up` takes from a store what this ledger
        lacks, and returns whether that is done."""
        over, first = threading.Event(), threading.Event()

        def work() -> None:
            wanted = set(names)
            while not over.is_set():
                self._wake.clear()
                for name in sorted(wanted | set(self._before)):
                    with contextlib.suppress(OrchestratorError, OSError):  # whoever writes there looks again
                        self.check(name)
                first.set()
                for name in sorted(self._behind):
                    if catch_up(name):
                        self._behind.discard(name)
                self._clock.wait(self._wake, WATCH_SECONDS)

        threading.Thread(target=work, name="ownership", daemon=True).start()
        self._clock.wait(first, FIRST_LOOK_SECONDS)
        try:
            yield
        finally:
            over.set()
            self._wake.set()
            if not self._elsewhere:
                identity.change(self._changes, running=False)

    # --- Looking ----------------------------------------------------------------------------------------

    def _enter(self, name: str) -> None:
        """Shows the store this controller's token, if the one there is this ledger's."""
        store, found = self._stores[name], self._found
        if store.registers is None:
            self._before[name] = Place("", "")
            return
        for _ in range(TRIES):
            held, mark = read(store, self._id)
            if mark is None and name in found.stores and is_empty(store):
                self._before[name] = (
                    self._place
                )  # an unmounted disk looks like this: nothing is written there
                return
            if mark is not None and mark.token not in identity.of(self._ledger).tokens:
                self._wait(name, used_by(name, mark), mark.place)
            elif mark is not None and is_copy(found, mark.place, self._place):
                self._wait(name, used_by(name, mark), mark.place, forget=True)
            if name in self._elsewhere:
                self._ask(name, held, mark)
                return
            self._tell_asked(name, mark)
            identity.change(self._changes, store=name, running=True)
            count = 1 if mark is None else mark.count + 1
            shown = Mark(
                count, self._token, self._place, self._clock.now(), "" if mark is None else mark.asked
            )
            try:
                swap(store, self._id, shown, held)
            except Conflict:
                continue
            self._before[name] = self._place if mark is None else mark.place
            return
        raise Transient(f"the register of this ledger in the store {name} changes all the time")

    def _look(self, name: str) -> None:
        _, mark = read(self._stores[name], self._id)
        if mark is None:
            return
        if mark.token != self._token and mark.token not in identity.of(self._ledger).tokens:
            self._wait(name, used_by(name, mark))
            return
        self._tell_asked(name, mark)

    def _wait(self, name: str, reason: str, other: Place | None = None, *, forget: bool = False) -> None:
        """From now on nothing is done for this store. `other`: who was in charge before this controller."""
        if name in self._elsewhere:
            return
        if forget:
            identity.change(self._changes, forget=True)
            self._tokens = ()
        here = other is not None and (other.host, other.path) == (self._place.host, self._place.path)
        if here:
            self._behind.add(name)
            self._wake.set()
            reason = f"an older copy of this home was put back: the store {name} is asked for what it lacks"
        self._elsewhere[name] = reason
        self._warn(reason)

    def _ask(self, name: str, held: Held | None, mark: Mark | None) -> None:
        """Tells the other copy, which hears it when it looks next."""
        if mark is None or name in self._behind:
            return
        with contextlib.suppress(BackendError, Conflict):
            asked = replace(mark, asked=str(self._place))
            swap(self._stores[name], self._id, asked, held)

    def _tell_asked(self, name: str, mark: Mark | None) -> None:
        asked = "" if mark is None else mark.asked
        if asked and asked != str(self._place) and (name, asked) not in self._told:
            self._told.add((name, asked))
            self._warn(
                f"another copy of this home, {asked}, waits for the store {name}, which this one uses. If "
                f"the other is to go on, run `{TAKE_OVER}` there; if not, delete it"
            )


# --- The register -----------------------------------------------------------------------------------------


def read(store: Store, ledger: str) -> tuple[Held | None, Mark | None]:
    """What the store shows of this ledger. A value that nobody can read counts as none."""
    held = None if store.registers is None or not ledger else store.registers.read(f"ledgers/{ledger}")
    try:
        return held, None if held is None else wire.decode(Mark, held.value)
    except ValueError:
        return held, None


def swap(store: Store, ledger: str, mark: Mark, held: Held | None) -> None:
    """Raises Conflict if somebody else has changed it since it was read."""
    assert store.registers is not None
    store.registers.swap(f"ledgers/{ledger}", wire.encode(mark), None if held is None else held.version)


def rival_of(store: Store, mine: Identity, here: Place | None = None) -> Mark | None:
    """What the store shows, if another copy of this ledger wrote it. `here`: where this one is, if known."""
    _, mark = read(store, mine.ledger)
    if mark is None or mark.token not in mine.tokens:
        return mark
    return mark if here is not None and is_copy(mine, mark.place, here) else None


def is_copy(mine: Identity, other: Place, here: Place) -> bool:
    """Whether this ledger was copied while a controller ran at the other place, which may run on. One that
    was moved has the same file, and one in a container may have the same path."""
    moved = (other.host, other.path) != (here.host, here.path)
    return mine.running and moved and other.inode != here.inode


def seize(ledger: Ledger, name: str, store: Store, place: Place, now: float) -> None:
    """Puts this copy of the ledger in charge of the store, whoever was. Controllers of the others stop."""
    token = secrets.token_hex(8)
    mine = identity.change(ledger, token=token, store=name)
    for _ in range(TRIES):
        held, mark = read(store, mine.ledger)
        if store.registers is None:
            return
        with contextlib.suppress(Conflict):
            swap(store, mine.ledger, Mark(1 if mark is None else mark.count + 1, token, place, now), held)
            return
    raise Transient(f"the register of this ledger in the store {name} changes all the time: try again")


# --- Words ------------------------------------------------------------------------------------------------


def used_by(name: str, mark: Mark) -> str:
    """Why a copy waits, and how it goes on."""
    since = datetime.fromtimestamp(mark.at, UTC).strftime("%Y-%m-%d %H:%MZ")
    return (
        f"another copy of this home, {mark.place}, uses the store {name} since {since}. Nothing is started, "
        f"stored or deleted here until you run `{TAKE_OVER}`: then this copy goes on from the newest "
        "checkpoints in the store, and the other one stops"
    )


def behind(name: str, run: str) -> str:
    """Why a ledger waits that knows less of a run than its store."""
    return (
        f"the store {name} knows more of {run} than this ledger, so an older copy of the home was put back, "
        f"or another copy is in use. Nothing is started, stored or deleted here until you run `{TAKE_OVER}`: "
        "then this copy goes on from the newest checkpoints in the store"
    )


def place_of(home: Path, ledger: Path | None, host: str) -> Place:
    """Where a ledger is. `ledger`: its file, if it is one."""
    try:
        return Place(host, str(home.resolve()), 0 if ledger is None else ledger.stat().st_ino)
    except OSError:
        return Place(host, str(home))
