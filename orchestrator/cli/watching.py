"""Three live views of a run: a panel on a terminal, lines in a pipe, JSON lines for programs.

Knows how to show a run, but not where the readings come from.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from orchestrator.cli.output import Output, clock_text, phase_style
from orchestrator.cli.story import place, short_session, until_text, waiting_text
from orchestrator.cli.terminal import plain
from orchestrator.client import Forecast
from orchestrator.client.attendance import old_seconds
from orchestrator.client.looking import Look
from orchestrator.clock import utc_text
from orchestrator.core.checkpoint import newest
from orchestrator.core.event import Ended, Event, Noted
from orchestrator.core.lifecycle import Awaited, Phase
from orchestrator.core.order import Outcome
from orchestrator.core.wording import count_text, number_text, span

if TYPE_CHECKING:
    from rich.console import RenderableType

LINE_SECONDS = 10.0
DOING_SECONDS = 2.0


def figures(look: Look) -> list[str]:
    """Rate, loss and remaining time, as far as they are known; if they are old, how old."""
    found = look.progress
    parts = []
    if found.steps_per_second:
        parts.append(f"{number_text(found.steps_per_second)} {look.record.job.work.unit}/s")
    if found.loss is not None:
        parts.append(f"loss {number_text(found.loss)}")
    if look.live is not None and (still := look.live.stalled_seconds) is not None:
        parts.append(f"no step for {span(still)}")
    read_at = look.live.at if look.live is not None else None
    old = old_seconds(read_at, look.now, attended=look.controller is not None)
    if old is not None:  # nobody knows whether it has moved since
        parts.append(f"read {span(old)} ago")
    elif look.forecast is not None:
        parts.append(f"done in about {forecast_text(look.forecast, look.now)}")
    elif found.seconds_left is not None:
        parts.append(f"{clock_text(found.seconds_left)} of training left")
    return parts


def forecast_text(forecast: Forecast, now: float) -> str:
    """`3:07:12 (2:50:00 to 3:30:00)`."""
    end, low = clock_text(forecast.end - now), clock_text(forecast.low - now)
    if forecast.high is None:
        return f"{end} ({low} or more)"
    return f"{end} ({low} to {clock_text(forecast.high - now)})"


def whereabouts(look: Look) -> str:
    """The session and its place, or why the run waits."""
    record, session = look.record, look.record.session
    if session is None and record.asleep:
        return record.reason
    if session is None:
        until = until_text(record.until, look.now)
        told = record.waiting_reason(look.now)
        return f"waits{until}: {told}" if told else f"waits{until or ' for a place to run'}"
    words = f"{short_session(session.name)} on {place(session.order)}"
    if record.phase is Phase.PREPARING and look.preparing:
        words += f": {look.preparing}"
    wall = session.wall_at
    if record.awaits is not None:
        words += {Awaited.END: ", may still run", Awaited.OUTPUT: ", over; its output is awaited"}[
            record.awaits
        ]
    elif look.live is not None and look.live.saves:
        words += f", {look.live.saving_text}"
    elif record.phase is Phase.RUNNING and wall is not None:
        words += f", ends in {clock_text(wall - look.now)}"
    since = look.live.waits_since if look.live is not None else None
    if record.phase in (Phase.LAUNCHING, Phase.STOPPING) and since is not None:
        words += f", {waiting_text(since)}"
    if look.live is not None and look.live.trouble:
        words += f"; no answer: {look.live.trouble}"
    return words


def checkpoint_text(look: Look) -> str:
    """The newest checkpoint at home, and a newer one on the platform."""
    best = newest(look.record.accepted)
    home = f"checkpoint {number_text(best.ref.step)}" if best else "no checkpoint yet"
    status = look.live.observation.status if look.live is not None else None
    there = status.checkpoint_step if status is not None else None
    if there is None or (best is not None and there <= best.ref.step):
        return home
    durable = look.record.session is not None and look.record.session.traits.durable_mid_run
    return (
        home
        if durable
        else f"{home}; {number_text(there)} is saved on the platform and is collected when the session ends"
    )


class View(Protocol):
    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def event(self, session: str, event: Event, text: str) -> None:
        """Shows that something has changed."""

    def show(self, look: Look) -> None:
        """Shows the run's present state; called several times a second."""

    def remark(self, text: str) -> None:
        """Prints a remark about the view itself."""


def view(out: Output, run: str) -> View:
    if out.as_json:
        return JsonView(out, run)
    return TerminalView(out, run) if out.is_terminal else PlainView(out)


class JsonView:
    """Prints every event as one line, and the progress at most every LINE_SECONDS."""

    def __init__(self, out: Output, run: str) -> None:
        self._out = out
        self._run = run
        self._told_at: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def event(self, session: str, event: Event, text: str) -> None:
        self._out.record({"run": self._run, "session": session, "event": event, "text": text})

    def show(self, look: Look) -> None:
        if self._told_at is None or look.monotonic - self._told_at >= LINE_SECONDS:
            self._told_at = look.monotonic
            found = look.progress
            self._out.record({
                "run": self._run, "at": look.now, "phase": look.record.standing, "step": found.step,
                "steps_total": found.total, "steps_per_second": found.steps_per_second, "loss": found.loss,
                "seconds_left": found.seconds_left, "forecast": look.forecast,
                "session": look.record.session.name if look.record.session else None,
                "preparing": look.preparing or None,
            })  # fmt: skip

    def remark(self, text: str) -> None:
        self._out.record({"run": self._run, "remark": text})


class PlainView:
    """Prints a line for each change, one when a session's rate is known, then one every LINE_SECONDS."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._told_at = 0.0
        self._told = ""
        self._session = ""  # the session whose rate was shown

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def event(self, session: str, event: Event, text: str) -> None:
        self._line(event.at, session, text)

    def show(self, look: Look) -> None:
        found, record = look.progress, look.record
        if record.phase is Phase.PREPARING and record.session is not None and look.preparing:
            self._doing(look, record.session.name, look.preparing)
            return
        if look.live is not None and look.live.saves and record.session is not None:
            self._doing(look, record.session.name, look.live.saving_text)
            return
        if record.phase is not Phase.RUNNING or record.session is None or found.steps_per_second is None:
            return
        session = record.session.name
        if session == self._session and look.monotonic - self._told_at < LINE_SECONDS:
            return
        step = (
            f"{record.job.work.unit} {number_text(found.step)}/{number_text(found.total)} ({found.share:.0%})"
        )
        text = "  ".join([step, *figures(look), checkpoint_text(look)])
        if text != self._told:
            self._told_at, self._told, self._session = look.monotonic, text, session
            self._line(look.now, short_session(session), text)

    def _doing(self, look: Look, session: str, text: str) -> None:
        if text != self._told and look.monotonic - self._told_at >= DOING_SECONDS:
            self._told_at, self._told = look.monotonic, text
            self._line(look.now, short_session(session), text)

    def remark(self, text: str) -> None:
        self._out.say(f"{' ' * 11}{text}")
        sys.stdout.flush()

    def _line(self, at: float, session: str, text: str) -> None:
        first, *more = self._out.fitted(text, 15) or [""]
        self._out.say(f"{utc_text(at)[11:]}  {session:4}{first}")
        for line in more:
            self._out.say(f"{'':15}{line}")
        sys.stdout.flush()


class TerminalView:
    """Changes scroll by; the present state stays below them."""

    def __init__(self, out: Output, run: str) -> None:
        from rich.console import Console
        from rich.live import Live as LivePanel

        self._run = run
        self._console = Console(highlight=False)
        self._panel = LivePanel(console=self._console, auto_refresh=False, transient=True)
        del out

    def __enter__(self) -> Self:
        self._console.print()
        self._panel.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._panel.__exit__(kind, error, trace)

    def event(self, session: str, event: Event, text: str) -> None:
        from rich.table import Table
        from rich.text import Text

        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_row(
            Text(utc_text(event.at)[11:], style="dim"),
            Text(session.ljust(3)),
            Text(plain(text), style=_event_style(event)),
        )
        self._console.print(line)

    def remark(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text(plain(text), style="yellow"))

    def show(self, look: Look) -> None:
        self._panel.update(_panel(self._run, look), refresh=True)


def _event_style(event: Event) -> str:
    if isinstance(event, Ended) and event.outcome not in (Outcome.COMPLETED, Outcome.STOPPED):
        return "yellow"
    return "yellow" if isinstance(event, Noted) else ""


def _panel(run: str, look: Look) -> RenderableType:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    found, phase = look.progress, look.record.standing
    head = Table.grid(expand=True)
    head.add_column(no_wrap=True)
    head.add_column(justify="right", no_wrap=True)
    head.add_row(Text(run, style="bold"), Text(phase.value, style=phase_style(phase.value)))
    bar = Table.grid(expand=True, padding=(0, 2, 0, 0))
    bar.add_column(ratio=1)
    bar.add_column(justify="right", no_wrap=True)
    bar.add_column(justify="right", no_wrap=True)
    bar.add_row(
        ProgressBar(
            total=max(1, found.total),
            completed=found.total if found.counted else found.step,
            complete_style="cyan",
            finished_style="green",
        ),
        Text(
            count_text(found.step, "save")
            if found.counted
            else f"{number_text(found.step)}/{number_text(found.total)}"
        ),
        Text(f"{found.share:.0%}"),
    )
    known = Text(" · ".join(figures(look)) or "–")
    where = Text(" · ".join([plain(whereabouts(look)), checkpoint_text(look)]), style="dim")
    return Group(Text(), head, bar, known, where)
