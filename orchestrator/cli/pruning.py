"""`prune`: shows what nothing needs any more, asks, removes. Without a terminal and without `--yes` it only
shows.

Three places: this home, the home store, and the platforms. `orchestrator.pruning` decides and removes in the
first two, `cleaning` knows the third. Here it is put together and told.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from orchestrator.cli import cleaning
from orchestrator.cli.call import Call, Exit, exit_code
from orchestrator.cli.cleaning import Orphan
from orchestrator.cli.output import count_text, size_text
from orchestrator.client import interrupt
from orchestrator.client.wiring import Wired
from orchestrator.errors import InputError, OrchestratorError
from orchestrator.ledger import Ledger
from orchestrator.platforms.platform import BuildingImages, Platform
from orchestrator.pruning import listing, needs, removal, results, rules
from orchestrator.pruning.results import Surplus
from orchestrator.pruning.rules import Judgement, Kind, Needs, Policy
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.store import Store

STRANGE_SHOWN = 10


@dataclass
class Plan:
    """What was found: in the home, in the store, on the platforms."""

    policy: Policy
    judged: tuple[Judgement, ...]
    strange: dict[str, str]
    surplus: list[Surplus] = field(default_factory=list)
    homes: dict[str, str] = field(default_factory=dict)  # run → its home store
    orphans: list[Orphan] = field(default_factory=list)
    images: list[Orphan] = field(default_factory=list)
    results: tuple[int, int] = (0, 0)  # runs that are over and bytes of theirs in the store
    troubles: dict[str, OrchestratorError] = field(default_factory=dict)

    @property
    def doomed(self) -> list[rules.Thing]:
        return [each.thing for each in self.judged if each.goes]

    @property
    def count(self) -> int:
        return sum(row.count for row in self.rows)

    @property
    def size(self) -> int:
        return sum(row.size or 0 for row in self.rows)

    @property
    def rows(self) -> list[Row]:
        """What goes, alike things in one row."""
        found = _grouped(each for each in self.judged if each.goes)
        blobs = [each for each in self.surplus if each.blobs and not each.checkpoints]
        retired = [each for each in self.surplus if each.checkpoints]
        if blobs:
            count, size = sum(len(each.blobs) for each in blobs), sum(each.size for each in blobs)
            found.append(Row("blobs", count, size, "no checkpoint of a finished run holds them"))
        if retired:
            count, size = sum(len(each.checkpoints) for each in retired), sum(each.size for each in retired)
            found.append(Row("checkpoints", count, size, "neither the newest nor the best of a finished run"))
        for several, why in (
            (self.orphans, "left by the session of a finished run"),
            (self.images, "no run that is under way needs it"),
        ):
            kinds = Counter(f"{each.platform}: {each.leftover.kind}" for each in several)
            found += (Row(what, count, None, why) for what, count in sorted(kinds.items()))
        return found


@dataclass(frozen=True)
class Row:
    """Things of one kind with one reason; `size` None: not known."""

    what: str
    count: int
    size: int | None
    why: str

    @property
    def text(self) -> str:
        return f"{self.what}: {self.count:,}, {_size(self.size)}: {self.why}"


def prune(call: Call) -> int:
    """Plans, shows, asks, removes; the exit code tells of what could not be looked at or removed."""
    policy = _policy(call)
    wired = call.wired()
    stores, platforms = wired.stores(), wired.platforms()
    plan = _plan(call, policy, wired, stores, platforms)
    _show(call, plan)
    wanted = not call.options.dry_run and plan.count > 0
    if not (wanted and _consents(call, plan)):
        _document(call, plan, None)
        if plan.count:
            call.out.say("\nNothing was removed; with --yes it is.")
        return _code(plan.troubles)
    with interrupt.noticed() as away:
        outcome = _carry_out(call, plan, stores, platforms, lambda: away.seen)
    _document(call, plan, outcome)
    _tell(call, plan, outcome, interrupted=away.seen)
    return Exit.INTERRUPTED if away.seen else _code(plan.troubles, failed=bool(outcome.troubles))


def _policy(call: Call) -> Policy:
    options = call.options
    if options.keep < 0:
        raise InputError(f"--keep {options.keep}: give a number of runs, 0 or more")
    seconds = _seconds(options.older_than)
    return Policy(call.clock.now(), seconds, options.keep, options.unknown, options.checkpoints)


def _seconds(text: str) -> float:
    from pydantic import TypeAdapter, ValidationError

    from orchestrator.spec.fields import Duration

    if text.rstrip("smhd") == "0":
        return 0.0
    try:
        return float(TypeAdapter(Duration).validate_python(text))
    except (ValidationError, AssertionError):
        raise InputError(f"--older-than {text!r} is no age; valid are 0, or as 90m, 12h, 30d") from None


def _needs(call: Call, ledger: Ledger | None, keep: int) -> Needs:
    return needs.read(ledger, keep=keep, shared=call.home.ledger_beside())


# --- The plan ---------------------------------------------------------------------------------------------


def _plan(
    call: Call, policy: Policy, wired: Wired, stores: Mapping[str, Store], platforms: Mapping[str, Platform]
) -> Plan:
    """Lists first and reads the ledger then: what is made meanwhile is in neither, or in both."""
    with _told(call, "looking at the home"):
        found = listing.look(call.home.path)
    ledger = call.home.ledger_on_a_full_disk()
    with ledger or contextlib.nullcontext():
        needed = _needs(call, ledger, policy.keep)
        plan = Plan(policy, rules.judge(found.things, needed, policy), found.strange)
        if ledger is not None:
            homes = {each.run: each.store or wired.config.home_store for each in ledger.summaries()}
            plan.homes.update(homes)
            for name, store in stores.items():
                with _told(call, f"looking at the store {name}"), _kept_going(plan, f"store {name}"):
                    _look_at_store(plan, name, store, ledger, needed)
    with _told(call, "asking the platforms"):
        left = cleaning.orphans(call, platforms, plan.troubles)
        plan.orphans = [each for each in left if not each.doubt and _is_old(each, needed, policy)]
        shared = rules.shared_with(found.things, needed)
        if not needed.unread and (policy.unknown or not shared):
            plan.images = list(_unneeded_images(call, plan, needed, platforms))
    return plan


def _unneeded_images(
    call: Call, plan: Plan, needed: Needs, platforms: Mapping[str, Platform]
) -> Iterator[Orphan]:
    folders = call.home.folders
    archives = [folders.image(key) for kind, key in needed.content if kind is Kind.IMAGE]
    for name, platform in platforms.items():
        if name not in plan.troubles and isinstance(platform, BuildingImages):
            with _kept_going(plan, name):
                yield from (Orphan(name, each) for each in platform.unneeded_images(archives))


def _look_at_store(plan: Plan, name: str, store: Store, ledger: Ledger, needed: Needs) -> None:
    """Of a store only the runs are looked at whose home it is."""
    held: dict[str, int] = {}
    for run, size in stored.sizes(store):
        if plan.homes.get(run) == name and run in needed.runs and needed.runs[run].over:
            held[run] = held.get(run, 0) + size
    plan.results = (plan.results[0] + len(held), plan.results[1] + sum(held.values()))
    found = results.found(store, ledger, held, needed, plan.policy)
    plan.surplus += found


def _is_old(orphan: Orphan, needed: Needs, policy: Policy) -> bool:
    """What is of no run at all needs no age: it was made for a moment."""
    run = needed.runs.get(orphan.leftover.run)
    return not orphan.leftover.run or (run is not None and not rules.old_enough(run, needed, policy))


@contextlib.contextmanager
def _kept_going(plan: Plan, where: str) -> Iterator[None]:
    """A store that does not answer costs its part, not the others'."""
    try:
        yield
    except OrchestratorError as error:
        plan.troubles[where] = error


# --- Shown, and asked -------------------------------------------------------------------------------------


def _show(call: Call, plan: Plan) -> None:
    rows = [(row.what, f"{row.count:,}", _size(row.size), row.why) for row in plan.rows]
    if rows:
        total = ("total", f"{plan.count:,}", _size(plan.size), "")
        headers = ("WHAT", "COUNT", "SIZE", "WHY NOTHING NEEDS IT")
        call.out.table(headers, [*rows, total], right=frozenset({1, 2}))
    else:
        call.out.say("Nothing here is unneeded.")
    call.out.say()
    call.out.facts([
        *(("kept", row.text) for row in _grouped(each for each in plan.judged if not each.goes)),
        ("kept", _results_text(plan)),
        *(("kept", f"checkpoints of {each.run}: {each.trouble}") for each in plan.surplus if each.trouble),
        *(("not ours", f"{path}: {what}") for path, what in _first(plan.strange)),
        *(("unheard", f"{name}: {error}") for name, error in plan.troubles.items()),
    ])  # fmt: skip


def _results_text(plan: Plan) -> str:
    """Checkpoints are what runs are for: that they stay is said, and how they go."""
    runs, size = plan.results
    if not runs:
        return ""
    size -= sum(each.size for each in plan.surplus)
    why = "they are the results; --checkpoints removes all but the newest and the best"
    if plan.policy.checkpoints:
        why = "the newest and the best of each, and all of those that ended lately"
    return f"checkpoints of {count_text(runs, 'finished run')}, {_size(size)}: {why}"


def _first(strange: Mapping[str, str]) -> list[tuple[str, str]]:
    shown = sorted(strange.items())
    more = len(shown) - STRANGE_SHOWN
    return [*shown[:STRANGE_SHOWN], *([("…", f"{more:,} more")] if more > 0 else [])]


def _consents(call: Call, plan: Plan) -> bool:
    if call.options.yes:
        return True
    if not (call.out.is_terminal and sys.stdin.isatty()):
        return False
    try:
        answer = input(f"\nRemove {count_text(plan.count, 'thing')}, {_size(plan.size)}? [y/N] ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")


# --- Carried out ------------------------------------------------------------------------------------------


def _carry_out(
    call: Call,
    plan: Plan,
    stores: Mapping[str, Store],
    platforms: Mapping[str, Platform],
    stopped: Callable[[], bool],
) -> removal.Outcome:
    """The home first, as it may be full: the ledger cannot be written on a full disk."""
    with _bar(call, plan.count) as step:
        outcome = removal.carry_out(
            call.home.path,
            plan.doomed,
            lambda: _again(call, plan.policy),
            stopped=stopped,
            told=lambda _: step(1),
        )
        for surplus in plan.surplus:
            if stopped():
                break
            with _kept_going(plan, _place(surplus)), call.home.runs() as ledger:
                results.remove(stores[plan.homes[surplus.run]], ledger, surplus, call.clock.now())
                step(len(surplus.checkpoints) or len(surplus.blobs))
        if (plan.orphans or plan.images) and not stopped():
            tally = cleaning.Tally()
            doomed = [*plan.orphans, *_still_unneeded(call, plan, platforms)]
            cleaning.remove(call, platforms, doomed, tally)
            plan.troubles |= tally.troubles
            outcome.kept |= tally.kept
    return outcome


def _place(surplus: results.Surplus) -> str:
    """How troubles with what is in the store are headed."""
    return f"store: {surplus.run}"


def _still_unneeded(call: Call, plan: Plan, platforms: Mapping[str, Platform]) -> list[Orphan]:
    """The images that a run submitted meanwhile does not need either."""
    ledger = call.home.ledger_on_a_full_disk()
    with ledger or contextlib.nullcontext():
        needed = _needs(call, ledger, plan.policy.keep)
    ask = bool(plan.images) and not needed.unread
    still = list(_unneeded_images(call, plan, needed, platforms)) if ask else []
    return [each for each in plan.images if each in still]


def _again(call: Call, policy: Policy) -> tuple[Judgement, ...]:
    """The home and the ledger as they are now."""
    found = listing.look(call.home.path, measure=False)
    ledger = call.home.ledger_on_a_full_disk()
    with ledger or contextlib.nullcontext():
        return rules.judge(found.things, _needs(call, ledger, policy.keep), policy)


# --- Told -------------------------------------------------------------------------------------------------


def _tell(call: Call, plan: Plan, outcome: removal.Outcome, *, interrupted: bool) -> None:
    sizes = {each.thing.path: each.thing.size for each in plan.judged}
    here = sum(sizes.get(thing.path, 0) for thing in outcome.removed)
    done = [each for each in plan.surplus if _place(each) not in plan.troubles]
    elsewhere = 0 if interrupted else sum(each.size for each in done)
    call.out.say(f"\n{size_text(here + elsewhere)} are free again.")
    if interrupted:
        call.out.say(f"Interrupted: what is left stays whole; `{call.command('prune')}` goes on.")
    call.out.facts([
        *(("kept", f"{path}: {why}") for path, why in outcome.kept.items() if why != "interrupted"),
        *(("failed", f"{path}: {why}") for path, why in outcome.troubles.items()),
        *(("failed", f"{where}: {error}") for where, error in plan.troubles.items()),
    ])  # fmt: skip


def _document(call: Call, plan: Plan, outcome: removal.Outcome | None) -> None:
    call.out.document({
        "removes": [{"what": row.what, "count": row.count, "bytes": row.size, "why": row.why}
                    for row in plan.rows],
        "things": [{"kind": each.thing.kind, "path": each.thing.path, "run": each.thing.run,
                    "bytes": each.thing.size, "goes": each.goes, "why": each.why} for each in plan.judged],
        "checkpoints": [{"run": each.run, "names": each.checkpoints, "blobs": [b.key for b in each.blobs],
                         "bytes": each.size, "trouble": each.trouble} for each in plan.surplus],
        "leftovers": [each.place for each in (*plan.orphans, *plan.images)],
        "not_ours": plan.strange,
        "total": {"count": plan.count, "bytes": plan.size},
        "removed": None if outcome is None else [thing.path for thing in outcome.removed],
        "kept": {} if outcome is None else outcome.kept,
        "troubles": {where: str(error) for where, error in plan.troubles.items()}
                    | ({} if outcome is None else outcome.troubles),
    })  # fmt: skip


def _code(troubles: Mapping[str, OrchestratorError], *, failed: bool = False) -> Exit:
    codes = {exit_code(error) for error in troubles.values()} | ({Exit.HUMAN} if failed else set())
    return next((code for code in (Exit.HUMAN, Exit.INPUT, Exit.UNAVAILABLE) if code in codes), Exit.OK)


def _grouped(judged: Iterator[Judgement]) -> list[Row]:
    rows: dict[tuple[str, str], Row] = {}
    for each in judged:
        key = (each.thing.kind.value, each.why)
        row = rows.get(key, Row(*key[:1], 0, 0, each.why))
        rows[key] = replace(row, count=row.count + 1, size=(row.size or 0) + each.thing.size)
    return [rows[key] for key in sorted(rows)]


def _size(size: int | None) -> str:
    return "–" if size is None else size_text(size)


@contextlib.contextmanager
def _told(call: Call, text: str) -> Iterator[None]:
    """What takes a while, as long as it does; on a terminal only."""
    if not call.out.is_terminal:
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield


@contextlib.contextmanager
def _bar(call: Call, total: int) -> Iterator[Callable[[int], None]]:
    """Takes how many more things are gone."""
    if not call.out.is_terminal:
        yield lambda _: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, transient=True) as bar:
        task = bar.add_task("removing", total=total)
        yield lambda count: bar.advance(task, count)
