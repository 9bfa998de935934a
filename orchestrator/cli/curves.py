"""`curves`: a run's metrics over all its sessions, on the terminal or in a file; and their part of `show`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.cli import pictures, plotting
from orchestrator.cli.call import Call, Exit
from orchestrator.cli.pictures import title
from orchestrator.client import Run
from orchestrator.client.curves import Curve, Curves
from orchestrator.core.wording import count_text, did_you_mean, help_page, number_text
from orchestrator.errors import InputError
from orchestrator.files import write_whole

PLOTS_MAX = 4  # on a terminal, unless more are asked for
SHOWN_MAX = 4  # in `show`
NAMED_MAX = 20  # of those that are not drawn
ROWS = 8
WIDTH_MIN, WIDTH_MAX = 40, 400
_COLUMNS_MIN, _COLUMNS_MAX = 60, 120  # by the terminal's width
_CSV_POINTS = 20_000
_SAMPLED_BYTES = 4 << 20  # what `show` reads at most
_SPARKS, _VALUE = 24, 8
_BESIDE_NAMES = len("metrics  ") + 2 + _VALUE + 2 + _SPARKS + 1
_NAME_MIN = 12
_KINDS = (".csv", ".png", ".svg")


def curves(call: Call) -> int:
    """Draws the run's metrics, or writes them to a file."""
    given, out = call.options, call.out
    target = _target(given.output, force=given.force)
    columns = _columns(given.width)
    run = call.client.run(given.run)
    kind = "" if target is None else target.suffix.lower()
    points = _CSV_POINTS if kind == ".csv" else None
    found = run.curves.read(given.metric, points=points)
    chosen = _chosen(found, given.metric)
    if target is not None:
        shown = chosen if kind == ".csv" else chosen[: pictures.METRICS_MAX]
        _write(target, found, shown, log=given.log)
    out.document({**_json(found, chosen), "file": None if target is None else str(target)})
    if out.as_json:
        return Exit.OK
    if target is not None:
        out.say(f"{target}: {count_text(len(shown), 'metric')} of {run.name}")
    else:
        shown = chosen if given.metric else chosen[:PLOTS_MAX]
        for curve in shown:
            _draw(call, found, curve, columns)
        if not found.metrics:
            how = f"{help_page('curves', 'what-your-script-reports')} says how a script reports them"
            out.say(f"{run.name} has reported no metrics{'' if found.missing else ' yet'}: {how}")
    if others := chosen[len(shown) :]:
        names = ", ".join(title(curve) for curve in others[:NAMED_MAX])
        more = f" and {number_text(len(others) - NAMED_MAX)} more" if len(others) > NAMED_MAX else ""
        out.remark(f"not drawn: {names}{more} (--metric draws one)")
    _remarks(call, found, chosen)
    return Exit.OK


def _target(output: str | None, *, force: bool) -> Path | None:
    if output is None:
        return None
    target = Path(output)
    if target.suffix.lower() not in _KINDS:
        raise InputError(f"-o {output}: give a file that ends with {', '.join(_KINDS[:-1])} or {_KINDS[-1]}")
    if target.exists() and not force:
        raise InputError(f"{target} exists: give another file with -o, or --force to replace it")
    return target


def _columns(width: int | None) -> int:
    if width is None:
        return min(_COLUMNS_MAX, max(_COLUMNS_MIN, shutil.get_terminal_size().columns))
    if not WIDTH_MIN <= width <= WIDTH_MAX:
        raise InputError(f"--width {width}: give {WIDTH_MIN} to {WIDTH_MAX} columns")
    return width


def _chosen(found: Curves, names: Sequence[str]) -> list[Curve]:
    """The metrics that were asked for, in that order; else all, the loss first."""
    by_name = {curve.name: curve for curve in found.metrics}
    if not names:
        return _ordered(found.metrics)
    for name in names:
        if name not in by_name:
            known = [*by_name, *found.left_out]
            hint = did_you_mean(name, known) or (
                f"there are {', '.join(sorted(known)[:20])}; " if known else ""
            )
            raise InputError(
                f"{found.run} reported no metric {name!r}; {hint}see `orchestrator curves --help`"
            )
    return [by_name[name] for name in dict.fromkeys(names)]


def _ordered(metrics: Sequence[Curve]) -> list[Curve]:
    return sorted(metrics, key=lambda curve: (curve.name != "loss", "loss" not in curve.name.lower()))


def _write(target: Path, found: Curves, chosen: Sequence[Curve], *, log: bool) -> None:
    if not found.metrics:
        raise InputError(f"{found.run} has reported no metrics: nothing to write to {target}")
    if target.suffix.lower() == ".csv":
        data = pictures.csv_of(found, chosen)
    elif target.suffix.lower() == ".svg":
        data = pictures.svg(found, chosen, log=log)
    else:
        data = pictures.png(found, chosen, log=log)
    try:
        write_whole(target, data, mode=0o644)
    except OSError as error:
        raise InputError(
            f"{target} cannot be written ({error.strerror}): give another file with -o"
        ) from error


def _json(found: Curves, chosen: Sequence[Curve]) -> dict[str, object]:
    names = {hop.number: hop.name for hop in found.hops}
    return {
        "run": found.run,
        "sessions": [
            {"session": hop.name, "number": hop.number, "from_step": hop.from_step, "here": hop.here}
            for hop in found.hops
        ],
        "metrics": [
            {
                "name": curve.name, "reports": curve.reports, "thinned": curve.thinned,
                "not_finite": curve.not_finite,
                "last": None if curve.last is None else curve.last._asdict(),
                "points": [
                    {"step": step, "value": value, "session": names[session], "time": at}
                    for step, value, session, at in curve.points
                ],
            }
            for curve in chosen
        ],
        "missing": found.missing, "notes": found.notes, "left_out": found.left_out,
    }  # fmt: skip


def _draw(call: Call, found: Curves, curve: Curve, columns: int) -> None:
    log, out = call.options.log, call.out
    pieces = pictures.pieces(found, curve, log=log)
    figures = f"{_figures(curve)}{', logarithmic' if log else ''}"
    if out.has_width and len(title(curve)) + len(figures) + 2 > columns:
        out.wrapped(title(curve), "bold")
        out.wrapped(figures, "dim")
    else:
        out.say(f"{out.paint(title(curve), 'bold')}  {figures}")
    if not pieces:
        what = "nothing above 0 to draw on a logarithmic scale" if log and curve.points else "no finite value"
        out.say(f"  ({what})")
    else:
        nice = plotting.fancy(sys.stdout.encoding)
        marks = pictures.boundaries(found)
        for line in plotting.plot(pieces, marks, columns=columns, rows=ROWS, log=log, nice=nice):
            out.say(line)
    out.say()


def _figures(curve: Curve) -> str:
    if curve.last is None:
        return f"{count_text(curve.reports, 'report')}, none finite"
    values = [point.value for point in curve.points]
    said = f"last {number_text(curve.last.value)} at step {number_text(curve.last.step)}"
    said += f", lowest {number_text(min(values))}, highest {number_text(max(values))}"
    return said + (f", {number_text(curve.not_finite)} not finite" if curve.not_finite else "")


def _remarks(call: Call, found: Curves, chosen: Sequence[Curve]) -> None:
    for sentence in (*found.missing, *found.notes):
        call.out.remark(sentence)
    thinned = [curve for curve in chosen if curve.thinned]
    if thinned and (call.options.output or "").lower().endswith(".csv"):
        call.out.remark(f"{count_text(len(thinned), 'metric')} had more reports than a file holds: of each "
                        "stretch of them the lowest and the highest are kept")  # fmt: skip


# --- In `show` --------------------------------------------------------------------------------------------


def section(call: Call, run: Run) -> None:
    """The main metrics with their last values, each in one line; nothing if none were reported."""
    if call.out.as_json:
        return
    found = run.curves.read(bytes_max=_SAMPLED_BYTES)
    shown = _ordered(found.metrics)[:SHOWN_MAX]
    if not shown:
        return
    room = max(_NAME_MIN, shutil.get_terminal_size().columns - _BESIDE_NAMES) if call.out.has_width else None
    names = [_cut(title(curve), room) for curve in shown]
    width = max(map(len, names))
    rows = [f"{name.ljust(width)}  {_last(curve)}" for name, curve in zip(names, shown, strict=True)]
    more = len(found.metrics) - len(shown)
    rest = f"; {count_text(more, 'more metric')}" if more > 0 else ""
    draws = f"`{call.command('curves', run.name)}` draws them{rest}"
    call.out.say()
    call.out.facts(("metrics", row) for row in (*rows, draws))


def _cut(name: str, room: int | None) -> str:
    return name if room is None or len(name) <= room else f"{name[: room - 3]}..."


def _last(curve: Curve) -> str:
    """The last finite value and a sparkline. If a loss has become NaN, nobody may take it for a good one."""
    if curve.last is None:
        return f"{'nan'.rjust(_VALUE)}  none finite"
    nice = plotting.fancy(sys.stdout.encoding)
    spark = plotting.sparkline([(point.step, point.value) for point in curve.points], _SPARKS, nice=nice)
    odd = "  not all finite" if curve.not_finite else ""  # uncounted: of a large file only samples are read
    return f"{number_text(curve.last.value).rjust(_VALUE)}  {spark}{odd}"
