"""`doctor --clean`: what sessions left on the platforms though no run needs it any more; removed on consent.

Left over is what bears this home's mark and is of no live run of the ledger. Platforms are read before the
ledger, and a session is in the ledger before it is anywhere else: what is being prepared is never taken for
left over. What still runs, or is of a run that this ledger never had (it may be another database's), goes
with `--discard` only. Decides which; the platforms say what there is, and remove it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace

from orchestrator.cli.call import Call, Exit, exit_code
from orchestrator.cli.output import count_text
from orchestrator.errors import AccessDenied, InputError, OrchestratorError, Transient
from orchestrator.platforms.platform import Cleaning, Leftover, Platform


@dataclass(frozen=True)
class Orphan:
    """Something left over, and the platform that it is on, by its name in the config."""

    platform: str
    leftover: Leftover
    known: bool = True  # its run is in the ledger, and over

    @property
    def place(self) -> str:
        return f"{self.platform}: {self.leftover.kind} {self.leftover.name}"

    @property
    def doubt(self) -> str:
        """Why removing it might lose something; empty where it cannot."""
        if self.leftover.alive:
            return "it still runs: `--discard` kills it"
        return "" if self.known else "this ledger does not know its run: `--discard` removes it all the same"


@dataclass
class Tally:
    """What came of it; places as `Orphan.place` has them."""

    removed: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)  # place → why
    troubles: dict[str, OrchestratorError] = field(default_factory=dict)  # platform or place → what

    def fail(self, orphan: Orphan, error: OrchestratorError) -> None:
        self.kept[orphan.place] = str(error)
        self.troubles[orphan.place] = error

    @property
    def exit_code(self) -> Exit:
        codes = {exit_code(error) for error in self.troubles.values()}
        return next((code for code in (Exit.HUMAN, Exit.INPUT, Exit.UNAVAILABLE) if code in codes), Exit.OK)


def clean(call: Call, platforms: Mapping[str, Platform]) -> int:
    """Lists what is left over on these platforms, asks, removes. Without a terminal and without `--yes` it
    only lists."""
    tally = Tally()
    found = orphans(call, platforms, tally.troubles)
    doomed = [each for each in found if call.options.discard or not each.doubt]
    tally.kept = {each.place: each.doubt for each in found if each not in doomed}
    _show(call, found)
    if doomed and _consents(call, doomed):
        remove(call, platforms, doomed, tally)
    elif doomed:
        tally.kept |= {each.place: "not asked for: `--yes` removes it" for each in doomed}
    _tell(call, found, tally)
    return tally.exit_code


def check_options(call: Call) -> None:
    """Raises InputError for options that say how to clean where nothing is to be cleaned."""
    options = call.options
    if (options.yes or options.discard) and not options.clean:
        raise InputError(
            f"--yes and --discard go with --clean: `{call.command('doctor', '--clean', '--yes')}`"
        )


def orphans(
    call: Call, platforms: Mapping[str, Platform], troubles: dict[str, OrchestratorError]
) -> list[Orphan]:
    """What is left over; platforms that do not answer are put into `troubles`."""
    there: list[Orphan] = []
    for name, platform in platforms.items():
        try:
            if isinstance(platform, Cleaning):
                there += (Orphan(name, each) for each in platform.leftovers())
        except OrchestratorError as error:
            troubles[name] = error
    return list(_of_no_live_run(call, there)) if there else []


def _of_no_live_run(call: Call, there: Iterable[Orphan]) -> Iterator[Orphan]:
    """Raises what opening the ledger raises: without its word nothing is left over."""
    ledger = call.home.ledger_on_a_full_disk()
    live: set[str] = set()
    known = {""}  # what is of no run: a moment's container
    if ledger is not None:
        with ledger:
            runs = ledger.summaries()
            live = {each.run for each in ledger.live()}  # runs that are over too, if a session may still run
            live |= set(ledger.unreadable)
        live |= {each.run for each in runs if not each.phase.final}
        known |= {each.run for each in runs}
    for each in there:
        if each.leftover.run not in live:
            yield replace(each, known=each.leftover.run in known)


def _show(call: Call, found: list[Orphan]) -> None:
    if not found:
        call.out.say("Nothing is left over.")
        return
    rows = [
        (
            each.platform,
            each.leftover.session or "–",
            each.leftover.kind,
            each.leftover.name,
            each.leftover.state,
        )
        for each in found
    ]
    call.out.table(("PLATFORM", "SESSION", "WHAT", "NAME", "STATE"), rows)


def _consents(call: Call, doomed: list[Orphan]) -> bool:
    if call.options.yes:
        return True
    if not (call.out.is_terminal and sys.stdin.isatty()):
        return False
    alive = sum(each.leftover.alive for each in doomed)
    warning = f", {alive} of them running" if alive else ""
    try:
        answer = input(f"\nRemove {count_text(len(doomed), 'thing')}{warning}? [y/N] ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")


def remove(call: Call, platforms: Mapping[str, Platform], doomed: list[Orphan], tally: Tally) -> None:
    """Removes what is left over, and tells the tally. The ledger is asked again: the question may have waited
    for its answer for long."""
    still = list(_of_no_live_run(call, doomed))
    tally.kept |= {each.place: "its run is live" for each in doomed if each not in still}
    for each in still:
        platform = platforms[each.platform]
        assert isinstance(platform, Cleaning)
        try:
            platform.remove(each.leftover)
            tally.removed.append(each.place)
        except OrchestratorError as error:
            tally.fail(each, error)
        except OSError as error:  # one thing that resists is no reason to leave the others
            kind = AccessDenied if exit_code(error) is Exit.HUMAN else Transient
            tally.fail(each, kind(error.strerror or str(error)))


def _tell(call: Call, found: list[Orphan], tally: Tally) -> None:
    call.out.document({
        "leftovers": [{"platform": each.platform, **asdict(each.leftover)} for each in found],
        "removed": tally.removed,
        "kept": tally.kept,
        "troubles": {where: str(error) for where, error in tally.troubles.items()},
    })  # fmt: skip
    if found:
        call.out.say()
    unheard = {where: str(error) for where, error in tally.troubles.items() if where not in tally.kept}
    call.out.facts([
        *(("removed", place) for place in tally.removed),
        *(("kept", f"{place}: {why}") for place, why in tally.kept.items()),
        *(("unheard", f"{name}: {text}") for name, text in unheard.items()),
    ])  # fmt: skip
