"""What doctor says of a Colab account, from what was read before. Reads and changes nothing."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from urllib.parse import urlsplit

from orchestrator.platforms.colab.options import WORDS, ColabOptions
from orchestrator.platforms.colab.surveying import FREE_TIER, RATES, SIGNUP, is_entitled, is_paid, kind
from orchestrator.platforms.colab.values import CPU, Reading, Units
from orchestrator.platforms.platform import Finding, Health


def findings(
    options: ColabOptions, units: Units, rates: Mapping[str, float], reading: Reading
) -> tuple[Finding, ...]:
    """`rates` are the measured ones, by `surveying.kind`."""
    return (*_units(options, units), _accelerators(options, units, rates), _machines(reading))


def _units(options: ColabOptions, units: Units) -> Iterator[Finding]:
    if is_paid(units):
        yield Finding("units", Health.OK, f"{units.balance:.1f} compute units, {_use(units)}")
        return
    free = (
        "" if units.free_left is None else f"; the free tier has {units.free_left:.1f} left{_refill(units)}"
    )
    if options.free_tier:
        yield Finding("units", Health.WARNING, f"no compute units{free}", f"the free tier: {FREE_TIER}")
    else:
        advice = f"buy units at {SIGNUP}\nor set `free_tier: true` for this platform: {FREE_TIER}"
        yield Finding("units", Health.MISSING, f"no compute units{free}", advice)


def _use(units: Units) -> str:
    if units.per_hour <= 0.0:
        return "none in use"
    hours = units.balance / units.per_hour
    return f"{units.per_hour:.2f} an hour in use: {hours:.1f} hours at this rate"


def _refill(units: Units) -> str:
    at = units.free_refill_at
    return "" if at is None else f", more at {datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%MZ}"


def _accelerators(options: ColabOptions, units: Units, rates: Mapping[str, float]) -> Finding:
    allowed = [each for each in options.accelerators if is_entitled(units, WORDS[each])]
    rest = [each for each in options.accelerators if each not in allowed]
    text = ", ".join(_priced(each, options, rates) for each in allowed)
    health = (
        Health.OK if set(allowed) - {name for name, word in WORDS.items() if word == CPU} else Health.WARNING
    )
    advice = f"not for this account now: {', '.join(rest)}" if rest else ""
    return Finding("accelerators", health, text or "none", advice)


def _priced(accelerator: str, options: ColabOptions, rates: Mapping[str, float]) -> str:
    word = WORDS[accelerator]
    measured = rates.get(kind(word, options.high_mem))
    if measured is None:
        return f"{accelerator} (about {RATES[word]:g} units an hour, not measured yet)"
    return f"{accelerator} ({measured:.2f} units an hour)"


def _machines(reading: Reading) -> Finding:
    found = [each.accelerator for each in reading.assignments]
    names = ["without an accelerator" if each == CPU else each for each in found]
    text = (
        f"{len(names)} running ({', '.join(names)}), your own notebooks included" if names else "none running"
    )
    return Finding("machines", Health.OK, text)


def on_loopback(url: str | None) -> bool:
    """Whether the URL leads to this machine."""
    host = "" if url is None else urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
