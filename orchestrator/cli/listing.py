"""`ps`: one line for each run, and the notes below. Starts fast: reads only the ledger's columns and the
newest readings."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.cli import health
from orchestrator.cli.call import Call, Exit
from orchestrator.cli.output import clock_text, number_text
from orchestrator.client.status import RunStatus
from orchestrator.clock import utc_text
from orchestrator.core.lifecycle import FINAL, Phase
from orchestrator.errors import InputError

REASON_CHARACTERS = 80
ASLEEP = "asleep"  # how the reason of a run begins that waits for its schedule
PAGE = 50  # runs on a terminal
AT_REST = FINAL | {Phase.HELD}  # these phases need no controller


def ps(call: Call) -> int:
    """Lists the runs that are not over, or every run with --all; the newest first. With --store it lists the
    runs that a store has, by name."""
    if call.options.store:
        return _of_store(call, call.options.store)
    limit, after = _limit(call), call.options.after
    # One more than is shown, to know whether there are more.
    found = call.client.runs(all=call.options.all, limit=None if limit is None else limit + 1, after=after)
    more = limit is not None and len(found) > limit
    found = found[:limit]
    paged = {} if limit is None else {"more": more}
    call.out.document({**paged, "runs": [
        {**vars(status), "phase": None if status.unreadable else status.phase,
         "trouble": status.trouble or None, "unreadable": status.unreadable or None}
        for status in found
    ]})  # fmt: skip
    if not found and after is not None:
        call.out.say(f"there are no more runs behind {after}")
        return Exit.OK
    if not found:
        hidden = not call.options.all and call.client.runs(all=True, limit=1)
        hint = f"; `{call.command('ps', '--all')}` also lists runs that are over" if hidden else ""
        call.out.say(f"no run is under way{hint}" if hidden else "there are no runs yet")
        return Exit.OK
    headers: tuple[str, ...]
    headers, now = ("RUN", "PHASE", "STEP", "", "STEPS/S", "LOSS", "LEFT", "WHERE"), call.clock.now()
    rows = [_row(status, now) for status in found]
    if call.options.wide:
        headers, rows = _widened(headers, rows, found)
    call.out.table(headers, rows, right=frozenset({2, 3, 4, 5, 6}),
                   spare=(5, 4, 3, 7))  # fmt: skip
    notes = [(status.run, note) for status in found if (note := _note(status, now))]
    if notes:  # below the table: beside eight columns a narrow terminal has no room for them
        call.out.say()
        call.out.facts(notes)
    if more:
        flags = ("--all",) if call.options.all else ()
        again = call.command("ps", *flags, "--after", found[-1].run)
        call.out.remark(f"… and more: `{again}` shows the next, `--limit 0` all")
    if any(status.phase not in AT_REST for status in found):
        health.tell_absence(call, call.client.ledgers.owner())
    return Exit.OK


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
         "–" if each.step is None else f"{each.step:,}", f"{each.checkpoints_count:,}")
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


def _row(status: RunStatus, now: float) -> tuple[str, ...]:
    left = status.seconds_left if status.forecast is None else status.forecast.end - now
    told = "in slices" if status.in_slices else "–" if left is None else clock_text(left)
    where = f"{status.platform}/{status.accelerator}" if status.platform else "–"
    return (
        status.run,
        "unreadable" if status.unreadable else status.phase.value,
        f"{status.step:,}/{status.steps_total:,}",
        f"{status.progress.share:.0%}",
        number_text(status.steps_per_second),
        number_text(status.loss),
        told,
        where,
    )


def _widened(
    headers: tuple[str, ...], rows: Sequence[tuple[str, ...]], found: Sequence[RunStatus]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The table with how busy each run's GPUs are."""
    from orchestrator.cli import gpus  # slow to import, and few lists need it

    return (*headers, *gpus.HEADERS), [
        (*row, *gpus.cells(each)) for row, each in zip(rows, found, strict=True)
    ]


def _note(status: RunStatus, now: float) -> str:
    if status.unreadable:
        return _short(status.unreadable)
    if status.trouble:
        return _short(f"no answer: {status.trouble}")
    if status.waits_since is not None:
        from orchestrator.cli.story import waiting_text  # slow to import, and few lists need it

        return waiting_text(status.waits_since)
    if status.phase is Phase.QUEUED and status.reason.startswith(ASLEEP):
        return _short(status.reason)
    if status.phase is Phase.QUEUED and status.until is not None and status.until > now:
        return f"waits until {utc_text(status.until)}"
    if status.phase is Phase.DONE and status.step >= status.steps_total:
        return ""
    if status.phase not in (Phase.QUEUED, Phase.HELD, Phase.FAILED, Phase.DONE):  # only these keep a reason
        return ""
    return _short(status.reason)


def _short(reason: str) -> str:
    """Its first line, shortened, but never within an address that a person is to open."""
    line = reason.partition("\n")[0]
    if len(line) <= REASON_CHARACTERS:
        return line
    cut = REASON_CHARACTERS - 1
    begun = line[:cut].rpartition(" ")[2]
    if "://" in begun:
        cut += len(line[cut:].partition(" ")[0].partition(";")[0])
    return line[:cut] + ("…" if cut < len(line) else "")
