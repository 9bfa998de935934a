"""Shows how far a submit has fetched its inputs: a bar with size and time left, or plain lines in a pipe."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from orchestrator.cli.call import Call
from orchestrator.core.wording import size_text

SHOWN_BYTES = 1_000_000  # smaller inputs arrive at once


@contextlib.contextmanager
def shown(call: Call) -> Iterator[None]:
    """Shows what is fetched meanwhile. To standard error: standard output may be JSON."""
    with contextlib.ExitStack() as stack:
        call.client.fetch_progress = _Bars(stack) if call.out.is_terminal else _lines(call)
        try:
            yield
        finally:
            call.client.fetch_progress = None


def _lines(call: Call) -> Callable[[str, int, int | None], None]:
    told: set[str] = set()

    def say(name: str, done: int, total: int | None) -> None:
        if name not in told and (total is None or total >= SHOWN_BYTES):
            told.add(name)
            size = "" if total is None else f" ({size_text(total)})"
            more = f", going on after {size_text(done)}" if done else ""
            call.out.remark(f"fetching {name}{size}{more}")

    return say


class _Bars:
    """One line for each input. The bar's program is loaded when there is something to show."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._updates: dict[str, Callable[[int, int | None], None]] = {}
        self._add: Callable[[str], Callable[[int, int | None], None]] | None = None

    def __call__(self, name: str, done: int, total: int | None) -> None:
        if name not in self._updates:
            if total is not None and total < SHOWN_BYTES:
                return
            self._add = self._add or _progress(self._stack)
            self._updates[name] = self._add(name)
        self._updates[name](done, total)


def _progress(stack: contextlib.ExitStack) -> Callable[[str], Callable[[int, int | None], None]]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    bars = stack.enter_context(Progress(*columns, transient=True, console=Console(stderr=True)))

    def add(name: str) -> Callable[[int, int | None], None]:
        task = bars.add_task(escape(f"fetching {name}"), total=None)
        # A data set may have thousands of files; those that are here would push the others out of sight.
        return lambda done, total: bars.update(task, completed=done, total=total, visible=done != total)

    return add
