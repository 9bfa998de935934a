"""`doctor --live`: finds the platform whose service can be tried, tries it, and writes the report.

The platform decides what it makes and what it checks. Must never ask the user: the caller does that before it
calls `run`.
"""

from __future__ import annotations

import platform as machine
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator import __version__
from orchestrator.agent import archive
from orchestrator.client.adding import TRIED, how_to_add
from orchestrator.client.home import Home
from orchestrator.client.leftovers import check_names
from orchestrator.client.trial_store import HomeStoreOfTrials
from orchestrator.client.wiring import Wired
from orchestrator.clock import Clock, utc_text
from orchestrator.core.wording import count_text
from orchestrator.errors import InputError, OrchestratorError
from orchestrator.files import make_folder, write_whole
from orchestrator.home import TRIALS
from orchestrator.platforms.platform import Supplies, Trial, Tried, Trying, Verdict
from orchestrator.platforms.trials.running import TRIALS as TRIALS_THERE
from orchestrator.platforms.trials.running import under_way
from orchestrator.stores.store import Store
from orchestrator.uplink import archive as uplink_archive

__all__ = ["Live", "Tried", "Verdict", "counted", "prepared", "report"]

SHIPPED = "shipped"  # among a platform's trials: the sessions that may have shipped something
ACCOUNT = "ACCOUNT"  # stands for the account's name in a report


@dataclass(frozen=True)
class Live:
    """A trial of the platform `name` that has not begun."""

    name: str
    trial: Trial
    home: Home
    clock: Clock
    store: Callable[[], Store]

    def run(self, say: Callable[[str], None]) -> tuple[Tried, Path]:
        """Returns what it found, and where the report is."""
        began = self.clock.now()
        with tempfile.TemporaryDirectory(prefix="orchestrator-") as folder:
            agent, uplink = Path(folder, "agent.pyz"), Path(folder, "uplink.pyz")
            archive.build(agent)
            uplink_archive.build(uplink)
            trials = self.home.folders.platform(self.name) / TRIALS_THERE
            store = HomeStoreOfTrials(self.store, uplink, trials / SHIPPED)
            with suppress(OrchestratorError, OSError):  # the trial says what is wrong with the store
                store.clear_dead(lambda: under_way(trials))
            tried = self.trial.run(Supplies(agent, store), say)
        path = self.home.path / TRIALS / f"{tried.run}.md"
        make_folder(path.parent)
        write_whole(path, report(self.name, tried, began, self.clock.now()).encode())
        return tried, path


def prepared(home: Home, clock: Clock, names: Collection[str], *, long: bool) -> Live:
    """The trial of the platform of this name; without a name, of the only one whose service can be tried.

    Raises InputError if there is none. Asks nobody yet.
    """
    wired = Wired.from_home(home.path, clock)
    check_names(home, wired.config, names)
    types = {each.name: each.type for each in wired.config.platforms}
    trials: dict[str, Trial] = {}
    for name, each in wired.platforms().items():
        trial = each.trial(long=long) if isinstance(each, Trying) else None
        if trial is not None:
            trials[name] = trial
    how = "; ".join(f"to use {type}, {how_to_add(home, type)}" for type in TRIED)
    can = f"only {' or '.join(trials)} can" if trials else how
    for name in names:
        if name not in trials:
            what = f"platform of type {types[name]}" if name in types else "store"
            raise InputError(f"{name} is a {what} and cannot be tried live: {can}")
    wanted = list(names or trials)
    if not wanted:
        raise InputError(f"the config has no platform that can be tried live: {can}")
    if len(wanted) > 1:
        raise InputError(f"--live tries one platform at a time: name {' or '.join(wanted)}")
    return Live(wanted[0], trials[wanted[0]], home, clock, lambda: wired.store(""))


# --- The report -------------------------------------------------------------------------------------------


def counted(tried: Tried) -> str:
    """How many assumptions hold, fail, and were not seen."""
    verdicts = [each.verdict for each in tried.checks]
    hold, fail, unseen = (verdicts.count(each) for each in (Verdict.HOLDS, Verdict.FAILS, Verdict.NOT_SEEN))
    fails = "fails" if fail == 1 else "fail"
    return f"{count_text(len(verdicts), 'assumption')}: {hold} hold, {fail} {fails}, {unseen} not seen"


def report(name: str, tried: Tried, began: float, ended: float) -> str:
    """Markdown to attach to an issue, without the account's name."""
    tried = _anonymous(tried)
    return "\n".join((
        f"# doctor --live: {name}, {utc_text(began)} to {utc_text(ended)}",
        "",
        f"orchestrator {__version__}, Python {machine.python_version()}",
        "",
        f"This file holds no credentials. {ACCOUNT} stands for the account's name.",
        "",
        f"{counted(tried)}.",
        *([f"\nIt ended early: {_cell(tried.trouble)}"] if tried.trouble else ()),
        *(["\nIt was interrupted."] if tried.interrupted else ()),
        *([f"\nLeft behind: {', '.join(map(_cell, tried.left))}"] if tried.left else ()),
        "",
        "| id | outcome | assumption | seen |",
        "|---|---|---|---|",
        *_rows((each.id, _shown(each.verdict), each.text, each.seen) for each in tried.checks),
        "",
        "## What else was seen",
        "",
        "| what | seen |",
        "|---|---|",
        *_rows(tried.facts),
        "",
    ))  # fmt: skip


def _anonymous(tried: Tried) -> Tried:
    name = re.compile(rf"(?<![A-Za-z0-9]){re.escape(tried.account)}(?![A-Za-z0-9])", re.IGNORECASE)

    def hidden(text: str) -> str:
        return name.sub(ACCOUNT, text) if tried.account else text

    return replace(
        tried,
        checks=tuple(replace(each, seen=hidden(each.seen)) for each in tried.checks),
        facts=tuple((what, hidden(seen)) for what, seen in tried.facts),
        left=tuple(map(hidden, tried.left)),
        trouble=hidden(tried.trouble),
    )


def _shown(verdict: Verdict) -> str:
    return f"**{verdict}**" if verdict is Verdict.FAILS else verdict.value


def _rows(rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    return (f"| {' | '.join(map(_cell, row))} |" for row in rows)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
