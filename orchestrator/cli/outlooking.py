"""`plan`: what is expected of every run, and of a job as if it were submitted now. Launches nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

from orchestrator.cli import health, imagining, leaving, submitting
from orchestrator.cli.call import Call, Exit
from orchestrator.cli.output import GAP, Output
from orchestrator.cli.timeline import Timeline, when, zone_text
from orchestrator.client import Alone, Expected, Fits, Hop, Outlook, Verdict
from orchestrator.core.wording import (
    count_text,
    money_text,
    number_text,
    price_text,
    quota_text,
    span,
    units_text,
)

RUNS_SHOWN = 20
HOPS_SHOWN = 6  # of each run; of the one that was asked about more
ASKED_HOPS_SHOWN = 20
MIDDLE = 72  # columns from which there is room for whole names
TAKES, TO_STEP, QUOTA, COST, ENDS_BY = 3, 4, 5, 6, 7  # columns of the table
LEAST_NEEDED = (COST, QUOTA, TO_STEP, ENDS_BY, TAKES)  # left out in this order if there is no room
PIPED_WIDTH = 100
NAME_WIDTH = 24


def plan(call: Call) -> int:
    """Prints the expected sessions of every run, or of the job beside them."""
    imagined = imagining.of(call)  # first: it is quick, and says what is wrong with what was given
    found = call.client.outlook(
        call.options.job, platforms=call.options.platform, deadline=call.options.deadline
    )
    call.out.document({**_document(found), **imagining.document(imagined)})
    if found.plan is not None:
        submitting.show_plan(call, found.plan)
    show(call.out, found)
    if found.plan is not None:
        imagining.show(call.out, found.plan.job, imagined)
        leaving.show(call.out, found.plan)
    call.out.say()
    call.out.say(call.out.paint("Nothing was launched.", "dim"))
    if any(each is not found.asked for each in found.runs):
        health.tell_absence(call, call.client.ledgers.owner())
    verdict = None if found.plan is None else found.plan.verdict
    return (
        {Verdict.NEVER: Exit.INPUT, Verdict.HUMAN: Exit.HUMAN}.get(verdict, Exit.OK) if verdict else Exit.OK
    )


def show(out: Output, found: Outlook) -> None:
    """Prints the sessions of the job that was asked about, those of the other runs, and a timeline."""
    view, asked = _View(out, found), found.asked
    if asked is not None:
        view.asked(asked)
    others = [each for each in found.runs if each is not asked]
    if asked is None and not others and not found.left_out:
        out.say("no run is under way, waiting or scheduled")
    view.others(others)
    view.left_out()
    view.timeline()


def _document(found: Outlook) -> Mapping[str, object]:
    job = {} if found.plan is None else submitting.plan_json(found.plan)
    asked = found.asked
    if asked is not None and asked.hops:
        job = {**job, "hops": asked.hops}
    return {
        **job, "at": found.at, "timezone": found.timezone, "deadline": found.deadline,
        "currency": None if found.prices is None else found.prices.currency,
        "runs": [_run_json(found, each) for each in found.runs],
        "fits": found.fits, "left_out": found.left_out,
    }  # fmt: skip


def _run_json(found: Outlook, run: Expected) -> Mapping[str, object]:
    return {
        "run": run.run, "job": run.job, "planned": run.planned, "standing": run.standing,
        "hops": run.hops, "forecast": run.forecast,
        "quota_seconds": run.quota_seconds, "quota_units": run.quota_units, "cost": found.cost(run),
        "deadline": run.deadline, "meets_deadline": run.meets_deadline,
        "reason": run.reason or None, "alone": run.alone,
    }  # fmt: skip


class _View:
    """The outlook on this terminal, or in a pipe."""

    def __init__(self, out: Output, found: Outlook) -> None:
        self._out = out
        self._found = found
        self._zone = ZoneInfo(found.timezone)
        piped = PIPED_WIDTH if not out.is_terminal else 80
        self._width = shutil.get_terminal_size((piped, 24)).columns

    # --- The job that was asked about -------------------------------------------------------------------

    def asked(self, run: Expected) -> None:
        """Its sessions, and whether it meets its deadline."""
        out = self._out
        if run.hops:
            out.say()
            self._hops([run], ASKED_HOPS_SHOWN, named=False)
        facts = [("ends", self._end_text(run)), *self._deadline(run)]
        facts += [("cost", self._cost_text(run))]
        facts += [("per week" if fit.window_seconds == 7 * 86400.0 else f"per {span(fit.window_seconds)}",
                   _fits_text(fit)) for fit in self._found.fits]  # fmt: skip
        out.say()
        out.facts(facts)

    def _deadline(self, run: Expected) -> Iterator[tuple[str, str]]:
        if run.deadline is None:
            return
        yield "deadline", f"{self._when(run.deadline)}: {deadline_text(run)}"
        met = [each for each in run.alone if each.end <= run.deadline]
        late = [each for each in run.alone if each.end > run.deadline]
        for each in met:
            yield "met by", self._alone_text(each)
        for each in late:
            yield "missed by", self._alone_text(each)

    def _alone_text(self, each: Alone) -> str:
        return (
            f"{each.platform}/{each.accelerator} alone: {self._when(each.end)} "
            f"({self._when(each.low)} to {self._when(each.high)})"
        )

    # --- All runs ---------------------------------------------------------------------------------------

    def others(self, runs: Sequence[Expected]) -> None:
        """The table of the other runs' sessions, and what does not fit into one."""
        if not runs:
            return
        out = self._out
        out.say()
        if self._found.asked is not None:
            out.say(out.paint("Beside it:", "bold"))
        shown = runs[:RUNS_SHOWN]
        self._hops(shown, HOPS_SHOWN, named=True)
        if more := len(runs) - len(shown):
            out.say(f"… and {count_text(more, 'further run')}; --json has them")
        out.say()
        out.facts((self._name(run), self._summary(run)) for run in shown)

    def left_out(self) -> None:
        """How many runs nobody laid out, so that not even --json has them."""
        if self._found.left_out:
            self._out.say()
            self._out.say(f"not laid out: {count_text(self._found.left_out, 'newer waiting run')}")

    def _summary(self, run: Expected) -> str:
        """`running, ends Fri 27 Nov 09:00 (…), 12 h of quota`."""
        ends = "ends " if run.forecast is not None else "end "
        parts = [f"{run.standing.value}, {ends}{self._end_text(run)}"]
        if run.quota_seconds:
            parts.append(quota_text(run.quota_seconds, run.quota_units))
        if cost := self._cost_text(run):
            parts.append(cost)
        if run.deadline is not None:
            parts.append(f"deadline {self._when(run.deadline)}: {deadline_text(run)}")
        return ", ".join(parts)

    def _end_text(self, run: Expected) -> str:
        """`Fri 27 Nov 09:00 (Thu 26 Nov 18:00 to Sat 28 Nov 02:00)`, or why it is unknown."""
        if run.forecast is None:
            return f"unknown: {run.reason}" if run.reason else "unknown until its speed is measured"
        end, low, high = run.forecast.end, run.forecast.low, run.forecast.high
        latest = "later" if high is None else self._when(high)
        return f"{self._when(end)} ({self._when(low)} to {latest})"

    def _cost_text(self, run: Expected) -> str:
        cost, prices = self._found.cost(run), self._found.prices
        return "" if cost is None or prices is None else money_text(cost, prices.currency)

    def _hops(self, runs: Iterable[Expected], limit: int, *, named: bool) -> None:
        rows = [row for run in runs for row in self._rows(run, limit, named=named)]
        headers = (
            "RUN" if named else "HOP",
            "WHERE",
            "STARTS",
            "TAKES",
            "TO STEP",
            "QUOTA",
            "COST",
            "ENDS BY",
        )
        columns = [0, 1, 2, 3, 4, 5, 6, 7]
        if self._found.prices is None:
            columns.remove(COST)
        widths = [max(map(len, cells)) for cells in zip(headers, *rows, strict=True)]
        for least in LEAST_NEEDED:
            if (
                sum(widths[each] for each in columns) + len(GAP) * len(columns) > self._width
                and least in columns
            ):
                columns.remove(least)
        right = frozenset(place for place, column in enumerate(columns) if column in (TO_STEP, COST))
        self._out.table(
            [headers[column] for column in columns], [[row[column] for column in columns] for row in rows],
            right=right,
        )  # fmt: skip

    def _rows(self, run: Expected, limit: int, *, named: bool) -> list[tuple[str, ...]]:
        name = self._name(run, NAME_WIDTH if self._width >= MIDDLE else 14)
        if not run.hops:
            return [(name, *["–"] * 7)]
        rows: list[tuple[str, ...]] = [
            (
                (name if number == 1 else "") if named else str(number),
                f"{hop.platform}/{hop.accelerator}", self._start_text(hop), self._takes_text(hop),
                number_text(hop.to_step), _quota_text(hop), self._hop_cost(hop), hop.why_it_ends,
            )
            for number, hop in enumerate(run.hops, start=1)
        ]  # fmt: skip
        if len(rows) <= limit:
            return rows
        left_out = len(rows) - limit + 1
        middle = ("", f"… {left_out} more", "", "", "", "", "", "")
        return [*rows[: limit - 2], middle, rows[-1]]

    def _start_text(self, hop: Hop) -> str:
        return "now" if hop.start <= self._found.at + 60.0 else self._when(hop.start)

    def _takes_text(self, hop: Hop) -> str:
        """How long it takes from its start on, or from now on if it runs already."""
        return span(max(0.0, hop.end - max(hop.start, self._found.at)))

    def _hop_cost(self, hop: Hop) -> str:
        prices = self._found.prices
        return "" if prices is None else price_text(prices.cost([hop]))

    def _name(self, run: Expected, width: int | None = None) -> str:
        """The run, or `nightly Thu 01:00` for a fire to come; the name of its schedule is cut first."""
        if run.planned is None:
            return run.run if width is None else _short(run.run, width)
        local = datetime.fromtimestamp(run.planned, self._zone)
        at = local.strftime("%a %H:%M:%S" if local.second else "%a %H:%M")
        return f"{run.job if width is None else _short(run.job, max(1, width - len(at) - 1))} {at}"

    def _when(self, at: float) -> str:
        return when(at, self._zone, self._found.at)

    # --- The timeline -----------------------------------------------------------------------------------

    def timeline(self) -> None:
        """One line for each run with sessions, the meaning of the letters, and the zone of all times."""
        runs = [run for run in self._found.runs if run.hops][: RUNS_SHOWN + 1]
        out = self._out
        if not runs or out.as_json:
            if self._found.runs:  # the times above have a zone, too
                out.say()
                out.facts([("times", zone_text(self._found.at, self._zone))])
            return
        width = min(max(len(self._name(run)) for run in runs), NAME_WIDTH if self._width >= MIDDLE else 14)
        line = Timeline([run.hops for run in runs], self._found.at, self._width - width - len(GAP))
        out.say()
        out.say(out.paint(f"{' ' * width}{GAP}{line.axis(self._zone)}", "dim"))
        for run in runs:
            bar = self._painted(line, line.bar(run.hops, run.planned))
            out.say(f"{self._name(run, width).ljust(width)}{GAP}{bar}")
        out.say()
        pairs = [(line.letter_of(place), f"{place[0]}/{place[1]}") for place in line.offers]
        legend = ", ".join([*(f"{letter} {name}" for letter, name in pairs), ". waits"])
        out.facts([
            ("legend", legend),
            ("times", f"{zone_text(self._found.at, self._zone)}; a letter is {span(line.cell_seconds)}"),
        ])  # fmt: skip

    def _painted(self, line: Timeline, bar: str) -> str:
        """Each stretch of one letter in its colour."""
        parts, begun = [], 0
        for place in range(1, len(bar) + 1):
            if place == len(bar) or bar[place] != bar[begun]:
                piece, letter = bar[begun:place], bar[begun]
                parts.append(self._out.paint(piece, line.style(letter)) if letter.isalpha() else piece)
                begun = place
        return "".join(parts)


def deadline_text(run: Expected) -> str:
    """Whether the run meets its deadline, in words."""
    due, told = run.deadline, run.forecast
    if told is None or due is None:
        return "nobody knows yet whether it is met"
    if told.high is not None and told.high <= due:
        return "it is met"
    if told.end <= due:
        return "it is probably met, but not for sure"
    if told.low <= due:
        return "it is probably missed"
    return "it cannot be met"


def _fits_text(fit: Fits) -> str:
    each = quota_text(fit.quota_seconds, fit.quota_units)
    runs = count_text(fit.runs, "run") if fit.runs else "less than one run"
    return f"{runs} of this job on {fit.platform}/{fit.accelerator}, at {each} each"


def _quota_text(hop: Hop) -> str:
    if hop.quota_units:
        return units_text(hop.quota_units)
    return span(hop.quota_seconds) if hop.quota_seconds else "–"


def _short(name: str, width: int) -> str:
    return name if len(name) <= width else f"{name[: width - 1]}…"
