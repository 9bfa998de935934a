"""What the relations of code require of the entities they join, and which kinds of entities follow from that.

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
    "other",  # for relations that the ontology does not know
)
_SCOPE = frozenset({"module", "class", "function"})


@dataclass(frozen=True)
class Rule:
    """The kinds of a relation's heads and tails. Antisymmetric means never both (a, b) and (b, a)."""

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
    """Kinds as bits; KINDS[0] is the lowest bit."""
    return sum(1 << KINDS.index(kind) for kind in kinds)


def kinds_of(
    facts: NDArray[np.int32] | NDArray[np.int64], relations: Sequence[str], entities: int
) -> NDArray[np.int64]:
    """The kinds (entities,) that follow from roles in `facts` (n, 3: relation, head, tail), as bitmasks.

    A role with one kind gives that kind. A role with several gives all of them, unless another role already
    gave the entity one of them. 0 means that no kind is known.
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
    """The kinds that the relation takes as heads (column 1 of a fact) and as tails (column 2)."""
    rule = ONTOLOGY.get(relation, _rule("other", "other"))
    return (mask(rule.head), 1), (mask(rule.tail), 2)
