"""Whether a survey's figures can be planned with: offer → what is wrong with it.

A platform's answer comes from a server or a plugin. One NaN in it would make the comparisons of every run
false, and a window of no length a plan endless. So an answer with such a figure is not used at all. Must
never decide whether an offer is a good one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from orchestrator.core.bounds import SECONDS_MAX, TIME_MAX
from orchestrator.core.offer import Offer, Quota, Traits

SLOTS_MAX = 10_000
WINDOW_SECONDS_MIN = 60.0  # of a quota; a plan walks from window to window
UNITS_MIN, UNITS_MAX = 1e-6, 1e9  # an hour takes so many
SIZE_GB_MAX = 1e9
_SPANS = tuple(name for name, hint in Traits.__annotations__.items() if hint in ("float", "float | None"))
_Figure = tuple[str, float | None, float, float]


def unusable(offer: Offer) -> str:
    """The first figure that no plan can be made with, in words; empty if there is none."""
    for name, value, least, most in _figures(offer):
        if value is not None and not (math.isfinite(value) and least <= value <= most):
            return f"{name} of {offer.accelerator} is {value!r}; valid: {least:g} to {most:g}"
    return ""


def _figures(offer: Offer) -> Iterator[_Figure]:
    for name in _SPANS:
        yield name, getattr(offer.traits, name), 0.0, SECONDS_MAX
    yield "slots", offer.slots, 0, SLOTS_MAX
    yield "wait_seconds", offer.wait_seconds, 0.0, SECONDS_MAX
    yield "memory_gb", offer.memory_gb, 0.0, SIZE_GB_MAX
    yield "disk_gb", offer.disk_gb, 0.0, SIZE_GB_MAX
    if offer.unavailable is not None:
        yield "unavailable until", offer.unavailable.until.at, 0.0, TIME_MAX
    if offer.quota is not None:
        yield from _figures_of(offer.quota)


def _figures_of(quota: Quota) -> Iterator[_Figure]:
    yield "quota left", quota.left_seconds, -SECONDS_MAX, SECONDS_MAX  # less than nothing: it was overdrawn
    yield "quota allowed", quota.allowed_seconds, 0.0, SECONDS_MAX
    yield "quota reserved", quota.reserved_seconds, 0.0, SECONDS_MAX
    yield "quota refresh", quota.refresh_at, 0.0, TIME_MAX
    yield "quota window", quota.window_seconds or None, WINDOW_SECONDS_MIN, SECONDS_MAX
    yield "units per hour", quota.units_per_hour or None, UNITS_MIN, UNITS_MAX
