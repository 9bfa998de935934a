"""What the relations of code demand of the entities that they join, and what kinds of entity follow.

Decides the kinds, and which relations are antisymmetric or acyclic. Must never know texts, splits or models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

KINDS = (
    "module",
    "class",
    "function",
    "parameter",
    "attribute",
    "name",
    "exception",
    "type",
    "value",
    "other",  # of relations that the ontology does not know
)
_SCOPE = frozenset({"module", "class", "function"})


@dataclass(frozen=True)
class Rule:
    """The kinds that a relation's heads and tails are of. Antisymmetric: never both (a, b) and (b, a)."""

    head: frozenset[str]
    tail: frozenset[str]
    antisymmetric: bool = False
    acyclic: bool = False


def _rule(head: str, tail: str, *, antisymmetric: bool = False, acyclic: bool = False) -> Rule:
    return Rule(frozenset(head.split()), frozenset(tail.split()), antisymmetric, acyclic)


ONTOLOGY = {
    "contains": _rule("module class function", "class function", antisymmetric=True, acyclic=True),
    "has_method": _rule("class", "function", antisymmetric=True),
    "imports": _rule("module class function", "module name"),
    "inherits_from": _rule("class", "class", antisymmetric=True, acyclic=True),
    "has_parameter": _rule("function", "parameter", antisymmetric=True),
    "defaults_to": _rule("parameter", "value"),
    "annotated_with": _rule("module class function parameter", "type"),
    "returns": _rule("function", "value"),
    "raises": _rule("module class function", "exception"),
    "catches": _rule("module class function", "exception"),
    "decorated_by": _rule("class function", "function"),
    "assigns": _rule("module class", "name"),
    "sets_attribute": _rule("module class function", "attribute"),
    "calls": _rule("module class function", "class function"),
}


def mask(kinds: frozenset[str]) -> int:
    """Kinds as bits, that of KINDS[0] the lowest."""
    return sum(1 << KINDS.index(kind) for kind in kinds)


def kinds_of(
    facts: NDArray[np.int32] | NDArray[np.int64], relations: Sequence[str], entities: int
) -> NDArray[np.int64]:
    """The kinds (entities,) that roles in `facts` (n, 3: relation, head, tail) imply, as bitmasks; 0: none.

    A role of one kind gives it. A role that leaves a choice gives all of it to an entity that no other role
    made one of these kinds.
    """
    kinds = np.zeros(entities, dtype=np.int64)
    roles = [
        (kind, facts[facts[:, 0] == r, place])
        for r, name in enumerate(relations)
        for kind, place in _roles(name)
    ]
    for allowed, members in roles:
        if allowed.bit_count() == 1:
            kinds[members] |= allowed
    certain = kinds.copy()
    for allowed, members in roles:
        kinds[members] |= np.where(certain[members] & allowed == 0, allowed, 0)
    return kinds


def _roles(relation: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """For heads (column 1 of a fact) and tails (column 2) the kinds that the relation takes."""
    rule = ONTOLOGY.get(relation, _rule("other", "other"))
    return (mask(rule.head), 1), (mask(rule.tail), 2)
