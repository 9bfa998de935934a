"""The prices of a config: what an hour or a unit costs, by platform, or by platform and accelerator.

The one place that knows how a price is written. What runs cost by them: `orchestrator.core.prices`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated

from pydantic import Field

from orchestrator.core.accelerator_words import unknown_accelerator
from orchestrator.core.own_accelerators import NO_OWN, Own, row_named
from orchestrator.core.prices import Prices, Where
from orchestrator.spec.document import Path, Problem, shown
from orchestrator.spec.fields import Amount, Section
from orchestrator.spec.mistakes import unknown

KINDS = ("per_hour", "per_unit")
_WORDS = "a mapping of PLATFORM or PLATFORM/ACCELERATOR to a price, such as {box: 0.05, box/RTX3050: 0.06}"
Table = dict[Annotated[str, Field(min_length=1, max_length=100)], Amount]


class PricesSection(Section):
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$", description="three capital letters, such as EUR")]
    per_hour: Table | None = Field(default=None, min_length=1, description=_WORDS)
    per_unit: Table | None = Field(default=None, min_length=1, description=_WORDS)

    def build(self) -> Prices:
        return Prices(self.currency, _built(self.per_hour), _built(self.per_unit))


def _built(table: Table | None) -> tuple[tuple[Where, float], ...]:
    return tuple((_where(key), price) for key, price in (table or {}).items())


def _where(key: str) -> Where:
    platform, _, accelerator = key.partition("/")
    return platform, accelerator


def price_problems(
    prices: object, platforms: Collection[str], path: Path, own: Own = NO_OWN
) -> Iterator[Problem]:
    """What is wrong with prices beyond the types of their values: names that nothing has."""
    if not isinstance(prices, dict):
        return
    if not any(kind in prices for kind in KINDS):
        yield Problem(path, f"given no price; valid: {' or '.join(KINDS)}, each {_WORDS}")
    for kind in KINDS:
        table = prices.get(kind)
        for key in table if isinstance(table, dict) else ():
            if not isinstance(key, str):
                continue
            platform, slash, accelerator = key.partition("/")
            if platform not in platforms:
                yield Problem((*path, kind, key), unknown("platform", platform, platforms))
            elif slash and row_named(accelerator, own) is None:
                yield Problem(
                    (*path, kind, key),
                    unknown_accelerator(f"accelerator {shown(accelerator)}", accelerator, own=own),
                )
