"""What is true in training, and false tails: type-consistent ones and hard ones.

Decides which tails may replace a true one. Held-out facts are not used. Must never know texts or batches.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from graphmer.corpus import HEAD, PASSAGE, RELATION, TAIL, Corpus
from graphmer.ontology import KINDS

NONE = -1
_TRIES = 16  # members of a pool that are tried; a smaller pool is searched completely

Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Negatives:
    """Draws tails that no training fact states. All arrays have n facts, with ids for
    entities and relations."""

    def __init__(self, corpus: Corpus) -> None:
        facts = corpus.facts[~corpus.held_out[corpus.facts[:, PASSAGE]]].astype(np.int64)
        modules = corpus.modules[facts[:, PASSAGE]].astype(np.int64)
        self._entities = len(corpus.entities)
        self._relations = len(corpus.relations)
        self._truth = np.unique(self._key(facts[:, HEAD], facts[:, RELATION], facts[:, TAIL]))
        self._in_module = _Pools(modules * self._relations + facts[:, RELATION], facts[:, TAIL])
        self._of_head = _Pools(facts[:, HEAD], facts[:, TAIL])
        known = np.flatnonzero(corpus.entity_known)
        members, kinds = np.nonzero(corpus.entity_kinds[known][:, None] >> np.arange(len(KINDS)) & 1)
        self._of_kind = _Pools(kinds, known[members])
        self._kinds = corpus.entity_kinds

    def true(self, heads: Ids, relations: Ids, tails: Ids) -> Flags:
        """Whether training states these facts. The arrays are broadcast."""
        keys = self._key(heads, relations, tails)
        places = np.searchsorted(self._truth, keys)
        return np.asarray(self._truth[np.minimum(places, len(self._truth) - 1)] == keys)

    def consistent(
        self, random: np.random.Generator, facts: Ids, count: int, avoid: Ids | None = None
    ) -> Ids:
        """Known entities (n, count) that share a kind with the tails of `facts` (n, 3: relation, head, tail).

        They are distinct in a row, not in `avoid` (n, any), and not true for (head, relation).
        NONE if none was found.
        """
        return self._pick(facts, self._alike(random, facts), count, avoid)

    def hard(self, random: np.random.Generator, facts: Ids, modules: Ids, count: int) -> Ids:
        """Tails (n, count) that the same module states under the same relation, but that are not true here.

        If there are none, tails of the same head under other relations. If there are none of these either,
        type-consistent ones. `modules` (n,) are the modules that state the facts.
        """
        stated = self._in_module.probe(random, modules * self._relations + facts[:, 0])
        pools = [stated, self._of_head.probe(random, facts[:, 1]), self._alike(random, facts)]
        return self._pick(facts, np.concatenate(pools, axis=1), count, None)

    def _alike(self, random: np.random.Generator, facts: Ids) -> Ids:
        """Members of two of the tail's kinds, in random order, or twice of its only kind."""
        has = self._kinds[facts[:, 2]][:, None] >> np.arange(len(KINDS)) & 1
        order = np.argsort(random.random(has.shape) - has, axis=1, kind="stable")[:, :2]
        order[:, 1] = np.where(has.sum(axis=1) > 1, order[:, 1], order[:, 0])
        return np.concatenate([self._of_kind.probe(random, order[:, i]) for i in (0, 1)], axis=1)

    def _pick(self, facts: Ids, offered: Ids, count: int, avoid: Ids | None) -> Ids:
        relations, heads, _ = facts.T
        good = (offered != NONE) & ~self.true(heads[:, None], relations[:, None], offered)
        for column in [] if avoid is None else avoid.T:
            good &= offered != column[:, None]
        rows = np.arange(len(offered))
        picked = np.full((len(offered), count), NONE, dtype=np.int64)
        for column in picked.T:
            first = good.argmax(axis=1)
            column[:] = np.where(good[rows, first], offered[rows, first], NONE)
            good &= offered != column[:, None]
        return picked

    def _key(self, heads: Ids, relations: Ids, tails: Ids) -> Ids:
        return (heads * self._relations + relations) * self._entities + tails


class _Pools:
    """Sets of entities by key, each in a fixed random order, so that neighbours are a fair sample."""

    def __init__(self, keys: Ids, members: Ids) -> None:
        width = int(members.max(initial=0)) + 1
        keys, members = np.divmod(np.unique(keys * width + members), width)
        shuffled = np.random.Generator(np.random.Philox(key=0)).permutation(width)
        order = np.lexsort((shuffled[members], keys))
        self._members = members[order]
        self._keys, self._starts, self._sizes = np.unique(keys, return_index=True, return_counts=True)

    def probe(self, random: np.random.Generator, keys: Ids) -> Ids:
        """Up to _TRIES distinct members (n, _TRIES) of each key's set, from a random place on; then NONE."""
        places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        sizes = np.where(self._keys[places] == keys, self._sizes[places], 0)
        first = (random.random(len(keys)) * sizes).astype(np.int64)
        tries = np.arange(_TRIES)
        chosen = self._starts[places][:, None] + (first[:, None] + tries) % np.maximum(sizes, 1)[:, None]
        return np.where(tries < sizes[:, None], self._members[chosen], NONE)
