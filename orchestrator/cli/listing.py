"""`ps`: one line for each run, and the notes below. Starts fast: reads only the ledger's columns and the
newest readings."""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.cli import health, runs_table
from orchestrator.cli.call import Call, Exit
from orchestrator.client.attendance import Attendance, attendance
from orchestrator.client.health import State
from orchestrator.client.status import RunStatus
from orchestrator.core.lifecycle import FINAL, Phase
from orchestrator.core.wording import number_text
from orchestrator.errors import InputError

PAGE = 50  # runs on a terminal
AT_REST = FINAL | {Phase.HELD}  # these phases need no controller


def ps(call: Call) -> int:
    """Lists the runs that are not over, or every run with --all; the newest first. With --store it lists the
    runs that a store has, by name; with --watch it does so again and again."""
    if call.options.store:
        if call.options.watch:
            raise InputError("--watch shows the runs of this ledger: it takes no --store")
        return _of_store(call, call.options.store)
    if call.options.watch:
        from orchestrator.cli import watching_runs

        return watching_runs.watch(call)
    listed = look(call)
    call.out.document(document(listed))
    if call.out.as_json:
        return Exit.OK
    say(call, listed)
    return Exit.OK


def say(call: Call, listed: Listed) -> None:
    """Prints them for people."""
    if not listed.runs:
        call.out.say(nothing_text(call))
        return
    if listed.is_unattended:
        health.tell_first(call, listed.attendance)
    shown = table(call, listed)
    call.out.table(shown.headers, shown.rows, right=shown.right, spare=shown.spare)
    if shown.notes:  # below the table: beside so many columns a narrow terminal has no room for them
        call.out.say()
        call.out.facts(shown.notes)
    if listed.more:
        call.out.remark(more_text(call, listed))


def table(call: Call, listed: Listed) -> runs_table.Table:
    """The runs as a table; with --wide also how busy their GPUs are."""
    shown = runs_table.table(listed.runs, listed.attendance, listed.now)
    if not call.options.wide:
        return shown
    from orchestrator.cli import gpus  # slow to import, and few lists need it

    rows = tuple((*row, *gpus.cells(each)) for row, each in zip(shown.rows, listed.runs, strict=True))
    return replace(shown, headers=(*shown.headers, *gpus.HEADERS), rows=rows)


def status(call: Call) -> int:
    """`ps`, or `show` if a run is given."""
    if call.options.run is None:
        return ps(call)
    given = [
        name for name in ("all", "store", "limit", "after", "watch", "wide") if getattr(call.options, name)
    ]
    if given:
        raise InputError(f"--{given[0]} lists runs: give either a run or --{given[0]}")
    from orchestrator.cli import showing

    call.options.follow = False
    return showing.show(call)


# --- What is listed ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Listed:
    """The runs at one moment. `more`: there are others behind them; None if there is no limit."""

    runs: tuple[RunStatus, ...]
    more: bool | None
    attendance: Attendance
    now: float

    @property
    def is_unattended(self) -> bool:
        """Whether runs wait here for a controller."""
        return not self.attendance.is_attended and any(
            each.phase not in AT_REST and not each.unreadable for each in self.runs
        )


def look(call: Call) -> Listed:
    limit, after = _limit(call), call.options.after
    # One more than is shown, to know whether there are more.
    found = call.client.runs(all=call.options.all, limit=None if limit is None else limit + 1, after=after)
    more = None if limit is None else len(found) > limit
    attended = attendance(call.client) if found else Attendance(State.TICKS)
    return Listed(found[:limit], more, attended, call.clock.now())


def document(listed: Listed) -> dict[str, object]:
    """The same as JSON."""
    paged = {} if listed.more is None else {"more": listed.more}
    attended = listed.attendance
    control = {"controller": attended.controller, "controller_state": attended.state,
               "unattended_since": attended.since} if listed.runs else {}  # fmt: skip
    return {**paged, **control, "runs": [
        {**status.values, "phase": None if status.unreadable else status.phase,
         "trouble": status.trouble or None, "unreadable": status.unreadable or None}
        for status in listed.runs
    ]}  # fmt: skip


def nothing_text(call: Call) -> str:
    """What to say if there is no run to list."""
    if call.options.after is not None:
        return f"there are no more runs behind {call.options.after}"
    if not call.options.all and call.client.runs(all=True, limit=1):
        return f"no run is under way; `{call.command('ps', '--all')}` also lists runs that are over"
    return "there are no runs yet"


def more_text(call: Call, listed: Listed) -> str:
    flags = ("--all",) if call.options.all else ()
    again = call.command("ps", *flags, "--after", listed.runs[-1].run)
    return f"… and more: `{again}` shows the next, `--limit 0` all"


def _limit(call: Call) -> int | None:
    """A screen of runs on a terminal; all of them in a pipe and as JSON, unless a limit is given."""
    given: int | None = call.options.limit
    if given is not None and given < 0:
        raise InputError(f"--limit {given}: give 0 or more runs")
    if given is None:
        return PAGE if call.out.is_terminal else None
    return given or None


def _of_store(call: Call, store: str) -> int:
    found = call.client.stores.runs(store)
    call.out.document({"store": store, "runs": [
        {"run": each.run, "phase": each.phase, "step": each.step, "checkpoints": each.checkpoints_count,
         "adoptable": each.told, "encrypted": each.encrypted, "troubles": each.troubles}
        for each in found
    ]})  # fmt: skip
    if not found:
        say_no_runs(call, store)
        return Exit.OK
    headers = ("RUN", "PHASE", "STEP", "CHECKPOINTS")
    call.out.table(headers, [
        (each.run, "–" if each.phase is None else each.phase.value,
         "–" if each.step is None else number_text(each.step), number_text(each.checkpoints_count))
        for each in found
    ], right=frozenset({2, 3}))  # fmt: skip
    for each in found:
        for trouble in each.troubles:
            told = "" if each.encrypted else "ignored what the store was told: "
            call.out.remark(f"{each.run}: {told}{trouble}")
    return Exit.HUMAN if any(each.encrypted for each in found) else Exit.OK


def say_no_runs(call: Call, store: str) -> None:
    """Says that the store has no runs, and why, if it knows."""
    why = call.client.stores.absence(store)
    call.out.say(f"the store {store} has no runs{f': {why}' if why else ''}")
