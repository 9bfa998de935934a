"""How two values of ours differ, field by field, in words: recorded × now → sentences.

Pure. Knows dataclasses only by their JSON, and a route by its offers. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest

from orchestrator.core import wire
from orchestrator.core.event import Event
from orchestrator.core.offer import Choice, Route
from orchestrator.core.wording import date

TOLD_MAX = 20  # differences of one decision; the rest is counted
SHOWN_MAX = 80  # characters of a value
_DATES = frozenset({
    "at", "until", "start", "finish", "finish_low", "finish_high", "retry_at", "since", "left_at",
    "refresh_at",
})  # fmt: skip
_ABSENT = object()


def told(differences: Iterator[str]) -> tuple[str, ...]:
    """The first differences, and how many more there are."""
    first = list(islice(differences, TOLD_MAX))
    more = sum(1 for _ in differences)
    return (*first, *([f"and {more:,} more differences"] if more else []))


def between_events(recorded: Sequence[Event], now: Sequence[Event]) -> Iterator[str]:
    """How the events of one decision differ."""
    kinds = [" + ".join(event.kind.value for event in events) or "nothing" for events in (recorded, now)]
    if kinds[0] != kinds[1]:
        yield f"recorded {kinds[0]}, now {kinds[1]}"
    for before, after in zip(recorded, now, strict=False):
        if before.kind is after.kind:
            yield from _between(wire.to_json(before), wire.to_json(after), before.kind.value)


def between_routes(recorded: Route, now: Route) -> Iterator[str]:
    """How two answers of the router differ: for each offer what became of it, then the rules in force."""
    before, after = _standings(recorded), _standings(now)
    for place in dict.fromkeys([*before, *after]):
        then, today = before.get(place, ("not offered", None)), after.get(place, ("not offered", None))
        if then[0] != today[0]:
            yield f"route: {place} was {then[0]}, now {today[0]}"
        elif then[1] is not None:
            yield from _between(wire.to_json(then[1]), wire.to_json(today[1]), f"route: {place}")
    yield from _between(list(recorded.rules), list(now.rules), "route: rules")


def _standings(route: Route) -> dict[str, tuple[str, Choice | None]]:
    """Each place with what the router says of it; a choice in full, to compare its figures."""
    found: dict[str, tuple[str, Choice | None]] = {}
    for number, choice in enumerate((route.chosen, *route.others)):
        if choice is not None:
            word = "chosen" if number == 0 else f"possible, as number {number + 1}"
            found[f"{choice.offer.platform}/{choice.offer.accelerator}"] = (word, choice)
    for each in route.rejections:
        until = "" if each.until.at is None else f" {date(each.until.at)}"
        word = f"rejected ({each.reason}; until {each.until.kind.value}{until})"
        found[f"{each.platform}/{each.accelerator}"] = (word, None)
    return found


def _between(before: object, after: object, path: str) -> Iterator[str]:
    """The differences of two JSON values below a path."""
    if before == after or (before != before and after != after):  # not a number equals not a number here
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys([*before, *after]):
            yield from _between(before.get(name, _ABSENT), after.get(name, _ABSENT), f"{path}.{name}")
    elif isinstance(before, list) and isinstance(after, list):
        for number, (old, new) in enumerate(zip_longest(before, after, fillvalue=_ABSENT)):
            yield from _between(old, new, f"{path}[{number}]")
    else:
        name = path.rpartition(".")[2]
        old, new = _shown(before, name), _shown(after, name)
        if old == new:  # the difference is smaller than a date shows
            old, new = repr(before), repr(after)
        old, new = _cut(old, new)
        yield f"{path}: recorded {old}, now {new}"


def _shown(value: object, name: str) -> str:
    if value is _ABSENT or value is None:
        return "nothing"
    return date(value) if isinstance(value, float) and name in _DATES else repr(value)


def _cut(old: str, new: str) -> tuple[str, str]:
    """Both texts; long ones only from a little before they differ on."""
    if max(len(old), len(new)) <= SHOWN_MAX:
        return old, new
    same = next(
        (n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new))
    )
    begin = max(0, same - SHOWN_MAX // 4)
    return _part(old, begin), _part(new, begin)


def _part(text: str, begin: int) -> str:
    end = begin + SHOWN_MAX
    return f"{'…' if begin else ''}{text[begin:end]}{'…' if len(text) > end else ''}"
