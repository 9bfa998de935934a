"""Curves as files: SVG written here, PNG by matplotlib, CSV. Returns bytes; writes and prints nothing.

Must never know how a run is found. Names of metrics may contain anything.
"""

from __future__ import annotations

import csv
import html
import io
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from orchestrator import installation
from orchestrator.cli.plotting import Place, Scale, ends
from orchestrator.cli.terminal import one_line
from orchestrator.client.curves import Curve, Curves
from orchestrator.core.wording import number_text
from orchestrator.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METRICS_MAX = 12  # in one picture
NAME_MAX = 60
_VALUE_MAX = 1e100  # more makes matplotlib compute with infinities
_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
_WIDTH, _HEIGHT, _LEFT, _TOP, _INNER_WIDTH, _INNER_HEIGHT = 760, 240, 80, 34, 660, 150
_STYLE = (
    "text{font:12px sans-serif;fill:#333}.b{font-weight:bold}.axis{stroke:#999}"
    ".hop{stroke:#bbb;stroke-dasharray:4 3}.line{fill:none;stroke:#1f77b4;stroke-width:1.5}"
    ".dot{fill:#1f77b4}.small{font-size:10px;fill:#777}"
)


def title(curve: Curve) -> str:
    """The metric's name as it may be shown."""
    name = one_line(curve.name)
    return name if len(name) <= NAME_MAX else f"{name[: NAME_MAX - 3]}..."


def pieces(curves: Curves, curve: Curve, *, log: bool) -> list[list[Place]]:
    """The points to connect: not over a session whose reports are missing."""
    found: list[list[Place]] = []
    before: int | None = None
    for point in curve.points:
        if log and point.value <= 0:
            continue
        gap = before is not None and any(before < each < point.session for each in curves.absent)
        if before is None or gap:
            found.append([])
        found[-1].append((point.step, point.value))
        before = point.session
    return found


def boundaries(curves: Curves) -> list[tuple[int, str]]:
    """Where each session but the first began."""
    hops = curves.hops[1:]
    return [(hop.from_step, f"s{hop.number:02d}") for hop in hops if hop.from_step is not None]


# --- CSV --------------------------------------------------------------------------------------------------


def csv_of(curves: Curves, chosen: Sequence[Curve]) -> bytes:
    """One row for each point. The time is in unix seconds, empty if the script did not report it. A name that
    a spreadsheet would take for a formula gets a `'` in front."""
    names = {hop.number: hop.name for hop in curves.hops}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("step", "time", "session", "metric", "value"))
    for curve in chosen:
        name = f"'{curve.name}" if curve.name.lstrip().startswith(_FORMULA) else curve.name
        for step, value, session, at in curve.points:
            writer.writerow((step, "" if at is None else repr(at), names[session], name, repr(value)))
    return text.getvalue().encode("utf-8", "replace")


# --- SVG --------------------------------------------------------------------------------------------------


def svg(curves: Curves, chosen: Sequence[Curve], *, log: bool) -> bytes:
    """One plot below the other. A file of its own: no script, no font, no address."""
    height = _HEIGHT * len(chosen) + 26
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}"><style>{_STYLE}</style>'
        '<rect width="100%" height="100%" fill="#fff"/>'
    )
    lines = [head, _text(_LEFT, 20, curves.run, "b")]
    for number, curve in enumerate(chosen):
        lines.append(f'<g transform="translate({_LEFT} {26 + number * _HEIGHT + _TOP})">')
        lines += _one(curves, curve, log)
        lines.append("</g>")
    return "\n".join([*lines, "</svg>", ""]).encode("utf-8", "replace")


def _one(curves: Curves, curve: Curve, log: bool) -> Iterator[str]:
    drawn = pieces(curves, curve, log=log)
    places = [place for piece in drawn for place in piece]
    values = Scale.over((value for _, value in places), log)
    steps = Scale.over(float(step) for step, _ in places)
    low, high = ends(values)
    yield _text(0, -12, title(curve) + (", logarithmic" if log else ""), "b")
    for step, name in boundaries(curves):
        if steps.low < step < steps.high:
            x = steps.share(step) * _INNER_WIDTH
            yield f'<path class="hop" d="M{x:.1f} 0V{_INNER_HEIGHT}"/>'
            yield _text(x + 3, 10, name, "small")
    yield f'<path class="axis" fill="none" d="M0 0V{_INNER_HEIGHT}H{_INNER_WIDTH}"/>'
    for piece in drawn:
        dots = [(steps.share(step) * _INNER_WIDTH, (1 - values.share(value)) * _INNER_HEIGHT)
                for step, value in piece]  # fmt: skip
        if len(dots) == 1:
            yield f'<circle class="dot" cx="{dots[0][0]:.1f}" cy="{dots[0][1]:.1f}" r="2.5"/>'
        else:
            yield f'<polyline class="line" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in dots)}"/>'
    if not places:
        yield _text(10, _INNER_HEIGHT / 2, "nothing to draw")
        return
    yield _text(-6, 10 if low != high else _INNER_HEIGHT / 2, high, anchor="end")
    if low != high:
        yield _text(-6, _INNER_HEIGHT, low, anchor="end")
    yield _text(0, _INNER_HEIGHT + 18, f"step {number_text(int(steps.low))}")
    if steps.high > steps.low:
        yield _text(_INNER_WIDTH, _INNER_HEIGHT + 18, number_text(int(steps.high)), anchor="end")


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    classes = f' class="{style}"' if style else ""
    said = html.escape(text, quote=False)
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{classes}>{said}</text>'


# --- PNG --------------------------------------------------------------------------------------------------


def png(curves: Curves, chosen: Sequence[Curve], *, log: bool) -> bytes:
    """The same by matplotlib. Raises InputError if it is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(
            "a PNG needs matplotlib in the orchestrator's own environment: "
            f"{installation.found().adding('plots')}; or write an .svg, which needs nothing"
        ) from error
    figure = Figure(figsize=(8, 2.6 * len(chosen)), layout="constrained")
    figure.suptitle(curves.run, parse_math=False)
    for number, curve in enumerate(chosen):
        _plot(figure.add_subplot(len(chosen), 1, number + 1), curves, curve, log)
    found = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name in a script that its font lacks, or a huge value
        FigureCanvasAgg(figure)
        figure.savefig(found, format="png")
    return found.getvalue()


def _plot(axes: Axes, curves: Curves, curve: Curve, log: bool) -> None:
    drawn = pieces(curves, curve, log=log)
    for piece in drawn:
        marker = "o" if len(piece) == 1 else ""
        values = [min(_VALUE_MAX, max(-_VALUE_MAX, value)) for _, value in piece]
        axes.plot([float(step) for step, _ in piece], values, color="#1f77b4", linewidth=1.2,
                  marker=marker, markersize=4)  # fmt: skip
    if log and drawn:
        axes.set_yscale("log")
    steps = [step for piece in drawn for step, _ in piece]
    for step, name in boundaries(curves):
        if steps and min(steps) < step < max(steps):
            axes.axvline(float(step), color="#bbb", linestyle="--", linewidth=0.8)
            axes.annotate(name, (float(step), 1), xycoords=("data", "axes fraction"), fontsize=7,
                          xytext=(2, -8), textcoords="offset points", color="#777")  # fmt: skip
    axes.set_title(title(curve), fontsize=10, loc="left", parse_math=False)
    axes.set_xlabel("step", fontsize=8)
    axes.tick_params(labelsize=8)
