"""A recorded time and the same with another config, in words: per run, in total, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from orchestrator.cli.call import Call, Exit
from orchestrator.client.supposing import Compared, Comparison, Played, Totals
from orchestrator.clock import utc_text
from orchestrator.core.wording import count_text, span

RUNS_SHOWN = 100  # the JSON has all


def show(call: Call, found: Comparison) -> int:
    """Prints the comparison."""
    call.out.document(_json(found))
    if call.out.as_json:
        return Exit.OK
    out = call.out
    out.say(f"{utc_text(found.since)} to {utc_text(found.until)}: {count_text(len(found.runs), 'run')}")
    out.say()
    headers = ("RUN", "TOOK", "PLAYED AGAIN", "WOULD TAKE", "CHANGE", "WAITED", "WOULD WAIT")
    out.table(headers, [_row(each) for each in found.runs[:RUNS_SHOWN]], right=frozenset(range(1, 7)))
    if len(found.runs) > RUNS_SHOWN:
        out.say(f"… and {len(found.runs) - RUNS_SHOWN:,} more; --json lists them all")
    out.say()
    places = sorted({*found.then.seconds, *found.again.seconds, *found.supposed.seconds})
    rows = [
        ("runs with their work done", *_each(found, lambda total: f"{total.finished:,}")),
        ("mean time", *_each(found, lambda total: _span(total.mean_seconds))),
        ("mean wait", *_each(found, lambda total: _span(total.mean_waited))),
        ("the last is done", *_each(found, lambda t: "–" if t.last_at is None else utc_text(t.last_at))),
        *((f"hours on {'/'.join(place)}", *_each(found, partial(_hours, place=place))) for place in places),
    ]
    out.table(("", "THEN", "PLAYED AGAIN", "WITH THE OTHER CONFIG"), rows, right=frozenset({1, 2, 3}))
    out.say()
    out.facts([
        ("error", _error_text(found)),
        *(("not done", f"{each.run}: {each.supposed.reason}") for each in found.runs[:RUNS_SHOWN]
          if each.supposed.reached_at is None),
        *(("assumed", text) for text in found.assumed),
        *(("left out", f"{run}: {why}") for run, why in found.unread.items()),
        ("left out", f"{count_text(len(found.idle), 'run')} that trained nothing then" if found.idle else ""),
    ])  # fmt: skip
    return Exit.OK


def _each(found: Comparison, text: Callable[[Totals], str]) -> tuple[str, str, str]:
    return text(found.then), text(found.again), text(found.supposed)


def _hours(total: Totals, place: tuple[str, str]) -> str:
    return f"{total.seconds.get(place, 0.0) / 3600:.1f}"


def _row(each: Compared) -> tuple[str, ...]:
    took, again, would = (_taken(each, played) for played in (each.then, each.again, each.supposed))
    change = "–" if again is None or would is None or again <= 0 else _change_text(would / again - 1.0)
    return (each.run, _span(took), _span(again), _span(would), change,
            span(each.then.waited), span(each.supposed.waited))  # fmt: skip


def _change_text(share: float) -> str:
    """`−12%`; a dash for less than half a per cent."""
    return "–" if abs(share) < 0.005 else f"{share:+.0%}"


def _taken(each: Compared, played: Played) -> float | None:
    return None if played.reached_at is None else played.reached_at - each.begins_at


def _span(seconds: float | None) -> str:
    return "–" if seconds is None else span(seconds)


def _error_text(found: Comparison) -> str:
    if not found.errors or found.error_median is None:
        return "unknown: no run could be compared with what happened"
    mean = "" if found.error_of_mean is None else f"; the mean time of all runs by {found.error_of_mean:+.1%}"
    return (
        f"played again with the recorded config, a run's time differs by {found.error_median:.1%} in the "
        f"median and {max(found.errors):.1%} at most{mean}. A smaller change means nothing; CHANGE compares "
        "with PLAYED AGAIN"
    )


def _json(found: Comparison) -> dict[str, object]:
    return {
        "since": found.since, "until": found.until,
        "error": {"median": found.error_median, "max": max(found.errors, default=None),
                  "of_mean": found.error_of_mean},
        "then": _total_json(found.then), "again": _total_json(found.again),
        "supposed": _total_json(found.supposed),
        "runs": [{
            "run": each.run, "begins_at": each.begins_at, "done": each.done, "error": each.error,
            "then": _played_json(each.then), "again": _played_json(each.again),
            "supposed": _played_json(each.supposed),
        } for each in found.runs],
        "assumed": found.assumed, "unread": found.unread, "idle": found.idle,
    }  # fmt: skip


def _total_json(total: Totals) -> dict[str, object]:
    return {
        "finished": total.finished, "mean_seconds": total.mean_seconds, "last_at": total.last_at,
        "mean_waited": total.mean_waited,
        "seconds": {"/".join(place): seconds for place, seconds in total.seconds.items()},
    }  # fmt: skip


def _played_json(played: Played) -> dict[str, object]:
    return {
        "reached_at": played.reached_at, "step": played.step, "waited": played.waited,
        "sessions": played.sessions, "reason": played.reason or None, "guessed": played.guessed,
        "seconds": {"/".join(place): seconds for place, seconds in played.seconds.items()},
    }  # fmt: skip
