"""`ps --watch`: the list of runs, drawn again and again until Ctrl-C.

On a terminal it stays in place; in a pipe, and on a terminal that cannot go back, a new list is printed only
when something other than a duration has changed. It only reads.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.cli import health, listing, runs_table, streams
from orchestrator.cli.call import Call, Exit
from orchestrator.cli.listing import Listed
from orchestrator.cli.terminal import plain
from orchestrator.client import interrupt
from orchestrator.client.interrupt import Interrupt
from orchestrator.clock import utc_text

if TYPE_CHECKING:
    from rich.console import RenderableType

REDRAW_SECONDS = 1.0
PRINT_SECONDS = 5.0  # between two lists that are printed one below the other
_ALWAYS_CHANGES = frozenset({"READ", "AGE", "TOOK", "SESSION", "LEFT", "STEPS/S"})


def watch(call: Call) -> int:
    """Shows the runs until the user presses Ctrl-C."""
    try:
        with interrupt.noticed() as away:
            if call.out.is_terminal:
                _redrawn(call, away)
            else:
                _printed(call, away)
    except KeyboardInterrupt:
        pass
    return Exit.INTERRUPTED


def _redrawn(call: Call, away: Interrupt) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(no_color=not call.out.is_coloured, highlight=False)
    with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as panel:
        while not away.seen:
            panel.update(_panel(call, listing.look(call), console.height), refresh=True)
            _pause(call, away, REDRAW_SECONDS)


def _printed(call: Call, away: Interrupt) -> None:
    before: object = None
    while not away.seen:
        listed = listing.look(call)
        seen = _settled(listed)
        if seen != before:
            if before is not None:
                call.out.say()
            before = seen
            call.out.record(listing.document(listed))
            if not call.out.as_json:
                call.out.say(f"{utc_text(listed.now)}:")
                listing.say(call, listed)
            call.out.flush()
        streams.check()
        _pause(call, away, PRINT_SECONDS)


def _pause(call: Call, away: Interrupt, seconds: float) -> None:
    """In small parts, so that Ctrl-C ends the view at once."""
    never, end = threading.Event(), call.clock.monotonic() + seconds
    while not away.seen and (left := end - call.clock.monotonic()) > 0:
        call.clock.wait(never, min(left, 0.1))


def _settled(listed: Listed) -> object:
    """What a reader would call a change."""
    shown = runs_table.table(listed.runs, listed.attendance, listed.now)
    kept = [place for place, header in enumerate(shown.headers) if header not in _ALWAYS_CHANGES]
    rows = tuple(tuple(row[place] for place in kept) for row in shown.rows)
    return rows, [run for run, _ in shown.notes], listed.attendance.state


def _panel(call: Call, listed: Listed, height: int) -> RenderableType:
    """No higher than the terminal: what does not fit is counted."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    turned = call.out.local
    parts: list[RenderableType] = []
    if listed.is_unattended:
        parts.append(Text(plain(turned(health.absence_text(call, listed.attendance))), style="yellow"))
    if not listed.runs:
        parts.append(Text(plain(listing.nothing_text(call))))
    shown = listing.table(call, replace(listed, runs=listed.runs[: max(1, height - 6)]))
    if shown.rows:
        rows = [[turned(cell) for cell in row] for row in shown.rows]
        parts.append(call.out.rich_table(shown.headers, rows, right=shown.right, spare=shown.spare))
    if shown.notes:
        notes = Table.grid(padding=(0, 2, 0, 0))
        for run, note in shown.notes:
            notes.add_row(Text(run, style="dim"), Text(plain(turned(note))))
        parts.append(Padding(notes, (1, 0, 0, 0)))
    hidden = len(listed.runs) - len(shown.rows)
    if hidden or listed.more:
        parts.append(Text(f"… and {f'{hidden:,} ' if not listed.more else ''}more", style="dim"))
    at = turned(utc_text(listed.now))
    parts.append(Text(f"{at}; Ctrl-C ends the view, never a run", style="dim"))
    return Group(*parts)
