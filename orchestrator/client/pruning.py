"""Plans and removes what is no longer needed in the home, in the stores and on the platforms.

`orchestrator.pruning` decides and removes in the home and the stores, and `leftovers` on the platforms; this
module combines them. It reads the ledger again before it removes anything. Must never ask the user: the
caller shows the plan first.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from orchestrator.client import leftovers
from orchestrator.client.home import Home
from orchestrator.client.leftovers import Doubt, Orphan
from orchestrator.client.wiring import Wired
from orchestrator.clock import Clock
from orchestrator.errors import InputError, OrchestratorError
from orchestrator.ledger import Ledger, forgetting
from orchestrator.platforms.platform import BuildingImages, Platform
from orchestrator.pruning import listing, needs, removal, results, rules
from orchestrator.pruning.results import Surplus as Surplus
from orchestrator.pruning.rules import Judgement, Kind, Needs, Policy, Thing
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.abandoned import abandoned
from orchestrator.stores.store import Store, Upload, abort


@dataclass(frozen=True)
class Row:
    """Things of the same kind and with the same reason. `size` in bytes; None if unknown."""

    what: str
    count: int
    size: int | None
    why: str


@dataclass(frozen=True)
class PrunePlan:
    """What may go, what stays, and why.

    `judged`: things in the home. `surplus`: what may go of each run's checkpoints. `orphans` and `images` lie
    on platforms. `strange`: paths in the home that are not ours, and what they are. `troubles`: stores and
    platforms that gave no answer; the plan contains nothing of theirs. `uploads`: abandoned ones, by store.
    """

    policy: Policy
    judged: tuple[Judgement, ...] = ()
    surplus: tuple[Surplus, ...] = ()
    orphans: tuple[Orphan, ...] = ()
    images: tuple[Orphan, ...] = ()
    strange: Mapping[str, str] = field(default_factory=dict)
    troubles: Mapping[str, OrchestratorError] = field(default_factory=dict)
    homes: Mapping[str, str] = field(default_factory=dict)  # run → its home store
    finished_runs: int = 0  # with checkpoints in a store
    finished_bytes: int = 0  # the size of these checkpoints
    uploads: Mapping[str, tuple[Upload, ...]] = field(default_factory=dict)
    histories: Mapping[str, int] = field(default_factory=dict)  # run → its events that may go

    @property
    def goes(self) -> tuple[Row, ...]:
        """What goes, with similar things in one row."""
        found = _grouped(each for each in self.judged if each.goes)
        blobs = [each for each in self.surplus if each.blobs and not each.checkpoints]
        retired = [each for each in self.surplus if each.checkpoints]
        if blobs:
            count, size = sum(len(each.blobs) for each in blobs), sum(each.size for each in blobs)
            found.append(Row("blobs", count, size, "no checkpoint of a finished run holds them"))
        if retired:
            count, size = sum(len(each.checkpoints) for each in retired), sum(each.size for each in retired)
            found.append(Row("checkpoints", count, size, "neither the newest nor the best of a finished run"))
        lost = sum(map(len, self.uploads.values()))
        if lost:
            found.append(Row("uploads", lost, None, "their writers died before the end"))
        if self.histories:
            why = "`why`, `quota` and `replay` then know no more of runs that ended long ago"
            found.append(Row("events", sum(self.histories.values()), None, why))
        for several, why in (
            (self.orphans, "left by the session of a finished run"),
            (self.images, "no run that is under way needs it"),
        ):
            kinds = Counter(f"{each.platform}: {each.leftover.kind}" for each in several)
            found += (Row(what, count, None, why) for what, count in sorted(kinds.items()))
        return tuple(found)

    @property
    def stays(self) -> tuple[Row, ...]:
        """What stays in the home, with similar things in one row."""
        return tuple(_grouped(each for each in self.judged if not each.goes))

    @property
    def count(self) -> int:
        return sum(row.count for row in self.goes)

    @property
    def size(self) -> int:
        """Bytes, without uploads and things on platforms: their sizes are unknown."""
        return sum(row.size or 0 for row in self.goes)


@dataclass(frozen=True)
class Pruned:
    """The result of a plan. `freed` in bytes, without uploads and platforms.

    `kept`: path or place → why it stays after all. `failed`: path → the disk's error. `troubles`: run or
    place → the error of its store or platform. `interrupted`: it was told to stop; everything else is intact.
    """

    removed: tuple[Thing, ...] = ()
    freed: int = 0
    kept: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    troubles: Mapping[str, OrchestratorError] = field(default_factory=dict)
    interrupted: bool = False


def _never() -> bool:
    return False


def _silent(_: object) -> None:
    return None


def _grouped(judged: Iterable[Judgement]) -> list[Row]:
    rows: dict[tuple[str, str], Row] = {}
    for each in judged:
        key = (each.thing.kind.value, each.why)
        row = rows.get(key, Row(*key[:1], 0, 0, each.why))
        rows[key] = replace(row, count=row.count + 1, size=(row.size or 0) + each.thing.size)
    return [rows[key] for key in sorted(rows)]


@contextlib.contextmanager
def _kept_going(troubles: dict[str, OrchestratorError], where: str) -> Iterator[None]:
    """Records an error, so that a store that does not answer does not stop the others."""
    try:
        yield
    except OrchestratorError as error:
        troubles[where] = error


def _needed(home: Home, ledger: Ledger | None, policy: Policy) -> Needs:
    return needs.read(ledger, keep=policy.keep, shared=home.ledger_beside())


# --- The plan ---------------------------------------------------------------------------------------------


def plan(home: Home, clock: Clock, policy: Policy, progress: Callable[[str], None] | None) -> PrunePlan:
    """Lists the home before it reads the ledger, so that each thing in the list is in the ledger, too."""
    if policy.keep < 0:
        raise InputError(f"keep={policy.keep} is not a number of runs: give 0 or more")
    if not policy.older_than_seconds >= 0:  # not a number fails, too
        raise InputError(f"older_than_seconds={policy.older_than_seconds} is not an age: give 0 or more")
    say = progress or _silent
    wired = Wired.from_home(home.path, clock)
    stores, platforms = wired.stores(), wired.platforms()
    say("looking at the home")
    found = listing.look(home.path)
    troubles: dict[str, OrchestratorError] = {}
    homes: dict[str, str] = {}
    held: dict[str, int] = {}
    surplus: list[Surplus] = []
    uploads: dict[str, tuple[Upload, ...]] = {}
    histories: dict[str, int] = {}
    ledger = home.ledger_on_a_full_disk()
    with ledger or contextlib.nullcontext():
        needed = _needed(home, ledger, policy)
        if ledger is not None:
            if policy.history:
                old = [
                    run for run, facts in needed.runs.items() if not rules.old_enough(facts, needed, policy)
                ]
                histories = forgetting.forgettable(ledger, old)
            homes = {each.run: each.store or wired.config.home_store for each in ledger.summaries()}
            for name, store in stores.items():
                say(f"looking at the store {name}")
                with _kept_going(troubles, f"store {name}"):
                    there = _held(store, {run for run in homes if homes[run] == name}, needed)
                    held |= there
                    surplus += results.found(store, ledger, there, needed, policy)
    for name, store in stores.items():
        if f"store {name}" not in troubles:
            with _kept_going(troubles, f"store {name}"):
                if found_there := abandoned(store):
                    uploads[name] = found_there
    say("asking the platforms")
    left = leftovers.find(home, platforms)
    troubles |= left.troubles
    images: list[Orphan] = []
    if not needed.unread and (policy.unknown or not rules.shared_with(found.things, needed)):
        images += _unneeded_images(home, needed, platforms, troubles)
    return PrunePlan(
        policy,
        rules.judge(found.things, needed, policy),
        tuple(surplus),
        tuple(each for each in left.orphans if _is_old(each, needed, policy)),
        tuple(images),
        found.strange,
        troubles,
        homes,
        len(held),
        sum(held.values()),
        uploads,
        histories,
    )


def _held(store: Store, runs: set[str], needed: Needs) -> dict[str, int]:
    """The runs among these that are over and use space in the store → their bytes."""
    held: dict[str, int] = {}
    for run, size in stored.sizes(store):
        if run in runs and run in needed.runs and needed.runs[run].over:
            held[run] = held.get(run, 0) + size
    return held


def _unneeded_images(
    home: Home, needed: Needs, platforms: Mapping[str, Platform], troubles: dict[str, OrchestratorError]
) -> Iterator[Orphan]:
    archives = [home.folders.image(key) for kind, key in needed.content if kind is Kind.IMAGE]
    for name, platform in platforms.items():
        if name not in troubles and isinstance(platform, BuildingImages):
            with _kept_going(troubles, name):
                yield from (Orphan(name, each) for each in platform.unneeded_images(archives))


def _is_old(orphan: Orphan, needed: Needs, policy: Policy) -> bool:
    """Things of no run are old at any age, because they were made for a moment only."""
    if orphan.doubt is not Doubt.NONE:
        return False
    run = needed.runs.get(orphan.leftover.run)
    return not orphan.leftover.run or (run is not None and not rules.old_enough(run, needed, policy))


# --- Carried out ------------------------------------------------------------------------------------------


def carry_out(
    home: Home,
    clock: Clock,
    given: PrunePlan,
    stopped: Callable[[], bool] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Pruned:
    """Removes from the home first, because its disk may be full, and then the ledger cannot be written."""
    stopped, progress = stopped or _never, progress or _silent
    wired = Wired.from_home(home.path, clock)
    platforms = wired.platforms()
    troubles: dict[str, OrchestratorError] = {}
    outcome = removal.carry_out(
        home.path,
        [each.thing for each in given.judged if each.goes],
        lambda: _again(home, given.policy),
        stopped=stopped,
        told=lambda _: progress(1),
    )
    sizes = {each.thing.path: each.thing.size for each in given.judged}
    freed = sum(sizes.get(thing.path, 0) for thing in outcome.removed)
    for surplus in given.surplus:
        if stopped():
            break
        with _kept_going(troubles, f"store: {surplus.run}"), home.runs() as ledger:
            results.remove(wired.store(given.homes[surplus.run]), ledger, surplus, clock.now())
            freed += surplus.size
            progress(len(surplus.checkpoints) or len(surplus.blobs))
    for name, several in given.uploads.items():
        with _kept_going(troubles, f"store {name}"):
            for upload in several:
                if stopped():
                    break
                abort(wired.store(name), upload)
                progress(1)
    if given.histories and not stopped():
        freed += _forget(home, given, stopped, progress, troubles)
    kept = dict(outcome.kept)
    if (given.orphans or given.images) and not stopped():
        images = _still_unneeded(home, given, platforms, troubles)
        done = leftovers.remove(home, platforms, [*given.orphans, *images])
        kept |= {each.place: why for each, why in done.kept.items()}
        troubles |= {each.place: error for each, error in done.troubles.items()}
    return Pruned(tuple(outcome.removed), freed, kept, outcome.troubles, troubles, stopped())


def _forget(
    home: Home,
    given: PrunePlan,
    stopped: Callable[[], bool],
    progress: Callable[[int], None],
    troubles: dict[str, OrchestratorError],
) -> int:
    """Removes the histories; returns the bytes by which the ledger shrank."""
    sizes: list[int] = []
    with _kept_going(troubles, "ledger"), home.runs() as ledger:
        sizes.append(ledger.size())
        forgetting.forget(ledger, given.histories, stopped, lambda _: None)
        progress(sum(given.histories.values()))
        forgetting.compact(ledger)
        sizes.append(ledger.size())
    return max(0, sizes[0] - sizes[-1]) if sizes else 0


def _still_unneeded(
    home: Home,
    given: PrunePlan,
    platforms: Mapping[str, Platform],
    troubles: dict[str, OrchestratorError],
) -> list[Orphan]:
    """The images that are still not needed, not even by runs submitted meanwhile."""
    if not given.images:
        return []
    ledger = home.ledger_on_a_full_disk()
    with ledger or contextlib.nullcontext():
        needed = _needed(home, ledger, given.policy)
    still = [] if needed.unread else list(_unneeded_images(home, needed, platforms, troubles))
    return [each for each in given.images if each in still]


def _again(home: Home, policy: Policy) -> tuple[Judgement, ...]:
    """Judges the home again by the present ledger."""
    found = listing.look(home.path, measure=False)
    ledger = home.ledger_on_a_full_disk()
    with ledger or contextlib.nullcontext():
        return rules.judge(found.things, _needed(home, ledger, policy), policy)
