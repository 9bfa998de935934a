"""`quota`: each platform's quota as the platform reports it, what our runs used of it and for what, and what
is running and planned."""

from __future__ import annotations

from orchestrator.cli.call import Call, Exit
from orchestrator.cli.output import Output
from orchestrator.client.quota import Planned, Pool, Quotas, Running
from orchestrator.core.wording import date, number_text, span, units_text

ALIKE_SECONDS = 60.0  # a smaller difference between our count and the platform's is not mentioned
BAR_CELLS = 40


def quota(call: Call) -> int:
    """Shows the quotas of all platforms, or of the one named. The exit code reports platforms that failed."""
    name = call.options.name
    return tell(call, call.client.quota(() if name is None else (name,)))


def tell(call: Call, found: Quotas) -> int:
    """Prints the quotas and the errors of the platforms that were asked; returns the exit code."""
    out, silent, without = call.out, found.no_answer, found.without_quota
    out.document({"quotas": found.pools, "without_quota": without, "no_answer": silent})
    for number, pool in enumerate(found.pools):
        if number:
            out.say()
        _show(out, pool, found.at)
    if without and not found.pools and not silent:
        names = ", ".join(without)
        out.say(f"{names} has no quota" if len(without) == 1 else f"no platform has a quota: {names}")
    if found.pools and silent:
        out.say()
    for each in silent:
        out.say(f"{out.paint(each.platform, 'bold')}: no answer, so its quota is unknown: {each.trouble}")
        if each.denied:
            out.say(f"  to find the cause: {call.command('doctor', each.platform)}")
    if any(each.denied for each in silent):
        return Exit.HUMAN
    return Exit.UNAVAILABLE if silent else Exit.OK


def _show(out: Output, pool: Pool, now: float) -> None:
    title = f"{pool.platform} {pool.pool}".strip()
    out.say(f"{out.paint(title, 'bold')}  {_bar(out, pool)}".rstrip())
    out.facts(_facts(pool, now))
    _show_runs(out, pool)
    if pool.running:
        out.say()
        headers = ("RUNNING", "ON", "SO FAR", "BUDGET")
        out.table(headers, [_running_row(each) for each in pool.running], right=frozenset({2}))
    if pool.planned:
        out.say()
        headers = ("PLANNED", "ON", "QUOTA", "WHEN")
        out.table(headers, [_planned_row(each, now) for each in pool.planned], right=frozenset({2}))


def _bar(out: Output, pool: Pool) -> str:
    """The quota as a bar: used by our runs, used by others, set aside for running sessions, and free."""
    allowed, used = pool.quota.allowed_seconds, pool.balance.used
    if not allowed or used is None:
        return ""
    used = pool.quota.lasts(used)
    ours = min(used, pool.quota.lasts(pool.balance.our_units or pool.balance.ours.seconds))
    free = min(pool.free_seconds, pool.quota.left_seconds - pool.quota.reserved_seconds)
    ends = [min(1.0, max(0.0, at / allowed)) for at in (ours, used, allowed - max(0.0, free), allowed)]
    cells = [round(end * BAR_CELLS) for end in ends]
    marks = (("█", "cyan"), ("▓", "yellow"), ("▒", "cyan"), ("░", "dim"))
    parts = zip(marks, [0, *cells], cells, strict=False)
    return "".join(out.paint(mark * max(0, to - start), colour) for (mark, colour), start, to in parts)


def _facts(pool: Pool, now: float) -> list[tuple[str, str]]:
    given = pool.quota
    rows = [("for", ", ".join(pool.accelerators)), ("window", _window_text(pool, now))]
    if given.allowed_seconds is not None:
        rows += [("allowed", _amount(pool, given.taken(given.allowed_seconds))), ("used", _used_text(pool))]
    if given.reserved_seconds > 0:
        reserved = _amount(pool, given.taken(given.reserved_seconds))
        rows.append(("reserved", f"{reserved} by the platform, for running sessions"))
    left = _amount(pool, given.taken(max(0.0, given.left_seconds)))
    free = _amount(pool, given.taken(pool.free_seconds))
    if pool.free_seconds < given.left_seconds and free != left:
        left += f": {free} free, the rest set aside for our running sessions"
    return [*rows, ("left", left), *_lasting(pool)]


def _amount(pool: Pool, taken: float) -> str:
    return units_text(taken) if pool.units_per_hour else span(taken)


def _lasting(pool: Pool) -> list[tuple[str, str]]:
    """How long the free units last on each accelerator."""
    return [
        (
            "" if number else "lasts",
            f"{span(pool.units_free / rate * 3600)} on {name}, at {number_text(rate)} an hour",
        )
        for number, (name, rate) in enumerate(zip(pool.accelerators, pool.units_per_hour, strict=False))
    ]


def _window_text(pool: Pool, now: float) -> str:
    refresh, since = pool.quota.refresh_at, pool.balance.since
    if refresh is None:
        return "none: a balance of units" if pool.units_per_hour else "refresh time unknown"
    begun = f"since {date(since)}, " if since is not None else ""
    if refresh <= now:
        return f"{begun}refresh was due {date(refresh)}"
    return f"{begun}refreshes {date(refresh)}, in {span(refresh - now)}"


def _used_text(pool: Pool) -> str:
    found = pool.balance
    assert found.used is not None
    assert found.others is not None
    used = _amount(pool, max(0.0, found.used))
    ours = _amount(pool, found.our_units or found.ours.seconds)
    alike = pool.quota.taken(ALIKE_SECONDS)
    if found.others > alike:
        others = f"{_amount(pool, found.others)} by others (your own notebooks, the platform's rounding)"
        return f"{used}: {ours} by our runs, {others}"
    if found.others < -alike:
        less = _amount(pool, -found.others)
        return f"{used}; our runs used {ours}: the platform counts {less} less so far"
    return used if found.ours.seconds == 0 else f"{used}, all by our runs"


def _show_runs(out: Output, pool: Pool) -> None:
    if not pool.runs:
        return
    rows = [(each.run, each.spent, each.units) for each in pool.runs]
    if len(rows) > 1:
        rows.append(("all", pool.balance.ours, pool.balance.our_units))
    headers = ["OUR RUNS", "USED", "USEFUL", "SET-UP", "REDONE", "LOST"]
    unsaved = any(spent.open > 0 for _, spent, _ in rows)
    headers += ["UNSAVED"] if unsaved else []
    headers += ["UNITS"] if pool.units_per_hour else []
    cells = []
    for run, spent, units in rows:
        parts = [spent.seconds, spent.useful, spent.set_up, spent.redone, spent.lost]
        parts += [spent.open] if unsaved else []
        told = [span(part) if part >= 0.5 else "–" for part in parts]
        told += [number_text(units)] if pool.units_per_hour else []
        cells.append((run, *told))
    out.say()
    out.table(headers, cells, right=frozenset(range(1, len(headers))))


def _running_row(each: Running) -> tuple[str, ...]:
    budget = "no time limit" if each.budget_seconds is None else span(each.budget_seconds)
    if each.given_up:
        budget = "given up as lost and fenced; may still be running"
    return each.session, each.accelerator, span(each.seconds), budget


def _planned_row(each: Planned, now: float) -> tuple[str, ...]:
    if each.quota_seconds is not None:
        used = span(each.quota_seconds)
        if each.quota_units:
            used = f"{units_text(each.quota_units)}, {used}"
        return each.run, each.accelerator, used, "now"
    until = "" if each.at is None or each.at <= now else f" until {date(each.at)}"
    return each.run, each.accelerator, "–", f"waits{until}: {each.reason}"
