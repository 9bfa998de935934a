"""Batches. Each is a function of (seed, step), in every process and after any number of resumes.

Decides what is hidden, which facts are shown as leaves, and which candidates a hidden fact is scored against.
Order and masks come from counters, not from generators that advance
(docs/references/training.md#exact-resume). Must never know the model, or how a batch is split into
micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from graphmer import ontology
from graphmer.corpus import HEAD, PASSAGE, RELATION, TAIL, Corpus
from graphmer.negatives import NONE, Flags, Ids, Negatives
from graphmer.packing import BUCKET, Phases, Rows, Timetable, random
from graphmer.pages import FALSE, HIDDEN, QUERIES, TRUE, Batch, Leaves, Page, Reader, mask_words, ranks

POSITIVES = 2  # maximum of true leaves of an anchor, and of false ones
CONSISTENT, HARD = 2, 2  # negatives that a query is scored against
CANDIDATES = 1 + CONSISTENT + HARD
EDGES = 16  # maximum of edges of acyclic relations in a group
_MASKS, _HELD_OUT = 0, 3  # streams of random numbers; packing has the others


@dataclass(frozen=True)
class _Chosen:
    """Facts (n,) to show, by row and then by anchor: numbers, slots of their passages, rows."""

    facts: Ids
    slots: Ids
    rows: Ids


class Plan:
    """The training's batches by step, counted from 1, as a map-style dataset for torch's DataLoader.

    Shapes are static for a padded length L. B = global_batch, N = leaves, R = L − N columns of text, Q =
    query slots in a row, C = candidates of a query, G = group. All arrays are int64 unless noted.

    - `tokens` (B, L): PAD in the leaves' columns and in padding; hidden words are MASK.
    - `segments` (B, L): the number of the passage in its row, from 1; for a leaf, that of its
      anchor; 0 is padding.
    - `places` (B, L): the index in the passage; for a leaf, that of its anchor.
    - `relations` (B, L): relation + 1 at leaves, otherwise 0.
    - `leaf_tail`, `leaf_head` (B, N): entities. The tail of a hidden leaf is not shown, but 0.
    - `leaf_anchor`, `leaf_span` (B, N): the first column of the head's mention, and its number of
      columns. The span is 1 where there is no leaf, and 0 if the passage, or its part in the row, does
      not mention the head.
    - `leaf_state` (B, N): 0 for no leaf, TRUE, FALSE (its tail was replaced) or HIDDEN (a query).
    - `word_places`, `word_targets` (B, K): columns and ids of hidden tokens; 0 and −100 in unused slots.
    - `query_leaf` (B, Q): the leaf of the query; `query_valid` (B, Q) bool.
    - `candidates` (B, Q, C): the true tail, type-consistent and hard negatives; 0 in unused slots.
    - `excluded` (B, Q, G·Q·C + G·N) bool: what is not a negative of the query in the group's pool. The pool
      has the candidates of the group's rows, then the tails that its leaves show. Excluded are unused slots
      and true tails, except the query's own first candidate. An unused query excludes all but that.
    - `leaf_excluded` (B, N, G·Q·C + G·N) bool: the same for TRUE leaves, which also exclude their own true
      tails. Other leaves exclude everything.
    - `edges` (B / G, EDGES, 2): head and tail of the group's TRUE leaves of acyclic relations; −1 is unused.
      No edge joins an entity to itself, although a class and its parent in another module may share a name.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        seed: int,
        global_batch: int,
        group: int,
        phases: Phases,
        leaves: int = 10,
        mask_words: float = 0.15,
        mask_nodes: float = 0.20,
        packed: bool = True,
    ) -> None:
        """Raises ValueError if the batch is not a multiple of the group, or if nothing is
        left to train on."""
        if global_batch % group:
            raise ValueError(f"a batch of {global_batch} is not a multiple of the group of {group}")
        self.corpus = corpus
        self.seed = seed
        self.global_batch = global_batch
        self.group = group
        self.leaves = leaves
        self.shares = (mask_words, mask_nodes)
        self.rows = [Rows(corpus, length, leaves, packed=packed) for _, length in phases]
        self.timetable = Timetable(self.rows, phases, seed, global_batch)
        self._reader = Reader(corpus, leaves)
        self._negatives = Negatives(corpus)
        acyclic = (ontology.ONTOLOGY.get(name) for name in corpus.relations)
        self._acyclic = np.array([rule is not None and rule.acyclic for rule in acyclic])

    def __getitem__(self, step: int) -> Batch:
        phase, length, rows = self.timetable.rows(step)
        draws = random(self.seed, _MASKS, step)
        page = self._reader.page([self.rows[phase].passages_of(row) for row in rows.tolist()], length)
        mask_words(page, self.shares[0], draws)
        chosen = self._chosen(page, draws)
        leaves = self._leaves(chosen, draws)
        page.hang(leaves)
        self._ask(page, leaves, draws)
        return page.batch

    def _chosen(self, page: Page, draws: np.random.Generator) -> _Chosen:
        """Some of each row's anchors with up to POSITIVES facts each, at most half as
        many facts as leaves."""
        numbers, slots = self._reader.facts_of(page.passages)
        heads = self.corpus.facts[numbers, HEAD]
        _, anchors = np.unique(slots * len(self.corpus.entities) + heads, return_inverse=True)
        by_anchor = draws.random(len(anchors))[anchors]  # one draw per fact is enough for the anchors
        order = np.lexsort((draws.random(len(numbers)), by_anchor, page.rows[slots]))
        order = order[ranks(anchors[order]) < POSITIVES]
        rows = page.rows[slots[order]]
        few = ranks(rows) < (self.leaves + 1) // 2
        order = order[few]
        return _Chosen(numbers[order], slots[order], rows[few])

    def _leaves(self, chosen: _Chosen, draws: np.random.Generator) -> Leaves:
        """The chosen facts, some hidden. Where there is room, each occurs once more with
        its tail replaced."""
        size = self.global_batch
        counts = np.bincount(chosen.rows, minlength=size)
        asked = np.clip(np.floor(counts * self.shares[1] + draws.random(size)), 1, QUERIES)
        order = np.argsort(chosen.rows + draws.random(len(chosen.rows)), kind="stable")
        hidden = np.empty(len(order), dtype=np.bool_)
        hidden[order] = ranks(chosen.rows[order]) < asked[chosen.rows[order]]
        facts = self.corpus.facts[chosen.facts][:, RELATION:].astype(np.int64)
        replaced = self._negatives.consistent(draws, facts, 1)[:, 0]
        room = ranks(chosen.rows) < (self.leaves - counts)[chosen.rows]
        false = np.flatnonzero((replaced != NONE) & room & ~hidden)  # it would reveal a hidden leaf
        every = np.concatenate([np.arange(len(facts)), false])
        states = np.where(hidden, HIDDEN, TRUE)
        tails = facts[:, 2]
        rows = chosen.rows[every]
        # Mixed, so that the place of a leaf does not reveal its truth.
        mixed = np.argsort(rows + draws.random(len(rows)), kind="stable")
        every = every[mixed]
        return Leaves(
            facts=chosen.facts[every],
            slots=chosen.slots[every],
            rows=rows[mixed],
            tails=np.concatenate([tails, replaced[false]])[mixed],
            states=np.concatenate([states, np.full(len(false), FALSE)])[mixed],
        )

    def _ask(self, page: Page, leaves: Leaves, draws: np.random.Generator) -> None:
        """Adds the queries, their candidates, what each must not be scored against, and the edges."""
        size, group = self.global_batch, self.group
        asked = np.flatnonzero(leaves.states == HIDDEN)
        rows, columns = leaves.rows[asked], ranks(leaves.rows)[asked]
        queries = ranks(rows)
        facts = self.corpus.facts[leaves.facts[asked]][:, RELATION:].astype(np.int64)
        modules = self.corpus.modules[page.passages[leaves.slots[asked]]].astype(np.int64)
        hard = self._negatives.hard(draws, facts, modules, HARD)
        consistent = self._negatives.consistent(draws, facts, CONSISTENT, avoid=hard)
        candidates = np.full((size, QUERIES, CANDIDATES), NONE)
        candidates[rows, queries] = np.concatenate([facts[:, 2:], consistent, hard], axis=1)
        query_leaf = np.zeros((size, QUERIES), dtype=np.int64)
        query_leaf[rows, queries] = columns
        valid = np.zeros((size, QUERIES), dtype=np.bool_)
        valid[rows, queries] = True

        own = (np.arange(size)[:, None] % group * QUERIES + np.arange(QUERIES)) * CANDIDATES
        pools = self._pools(page, candidates)
        excluded = self._excluded(pools, (size, QUERIES), rows, queries, facts)
        np.put_along_axis(excluded, own[:, :, None], False, axis=2)
        shown = np.flatnonzero(leaves.states == TRUE)
        stated = self.corpus.facts[leaves.facts[shown]][:, RELATION:].astype(np.int64)
        at = leaves.rows[shown], ranks(leaves.rows)[shown]
        page.batch |= {
            "query_leaf": query_leaf,
            "query_valid": valid,
            "candidates": np.where(candidates == NONE, 0, candidates),
            "excluded": excluded,
            "leaf_excluded": self._excluded(pools, (size, self.leaves), *at, stated),
            "edges": self._edges(leaves),
        }

    def _pools(self, page: Page, candidates: Ids) -> Ids:
        """(groups, G·Q·C + G·N): the candidates for the facts of a group; NONE in unused slots."""
        groups = self.global_batch // self.group
        state = page.batch["leaf_state"]
        tails = np.where((state == TRUE) | (state == FALSE), page.batch["leaf_tail"], NONE)
        return np.concatenate([candidates.reshape(groups, -1), tails.reshape(groups, -1)], axis=1)

    def _excluded(self, pools: Ids, shape: tuple[int, int], rows: Ids, slots: Ids, facts: Ids) -> Flags:
        """(*shape, pool) bool: False only for entries of the row's pool that are not true
        for its fact (n, 3)."""
        pool = pools[rows // self.group]
        excluded = np.ones((*shape, pool.shape[1]), dtype=np.bool_)
        true = self._negatives.true(facts[:, 1, None], facts[:, 0, None], pool)
        excluded[rows, slots] = (pool == NONE) | true
        return excluded

    def _edges(self, leaves: Leaves) -> Ids:
        facts = self.corpus.facts[leaves.facts]
        shown = (
            (leaves.states == TRUE) & self._acyclic[facts[:, RELATION]] & (facts[:, HEAD] != facts[:, TAIL])
        )
        groups = leaves.rows[shown] // self.group
        places = ranks(groups)
        edges = np.full((self.global_batch // self.group, EDGES, 2), -1, dtype=np.int64)
        room = places < EDGES
        edges[groups[room], places[room]] = facts[shown][room][:, [HEAD, TAIL]]
        return edges


def held_out_words(
    corpus: Corpus, length: int, leaves: int = 10, *, share: float = 0.15, size: int = 32
) -> list[Batch]:
    """All held-out passages without leaves, in batches of `size` rows. The seed does not
    change what is hidden.

    Passages with the same tokens as a training passage are left out. The last batch may have fewer rows.
    Raises ValueError if no passage is held out.
    """
    rows = Rows(corpus, length, leaves, held_out=True)
    trained = {_text(corpus, passage) for passage in np.flatnonzero(~corpus.held_out).tolist()}
    reader = Reader(corpus, leaves)
    batches = []
    kept = (
        [passage for passage in rows.passages_of(row) if _text(corpus, passage) not in trained]
        for row in range(len(rows))
    )
    fresh = [row for row in kept if row]
    for first in range(0, len(fresh), size):
        page = reader.page(fresh[first : first + size], length)
        mask_words(page, share, random(0, _HELD_OUT, first))
        batches.append(page.batch)
    return batches


def queries(corpus: Corpus, facts: Ids, length: int, leaves: int = 10, size: int = 32) -> Iterator[Batch]:
    """Queries for facts (by number) with the text of their passages: one passage per row,
    and all leaves hidden.

    Each batch has up to `size` rows of similar length and at most `length` columns. `query_fact` (rows,
    leaves) is the fact that each leaf queries, or −1. Every fact is queried once.
    """
    facts = np.sort(np.asarray(facts, dtype=np.int64))
    passages = corpus.facts[facts, PASSAGE].astype(np.int64)
    numbers = ranks(passages) // leaves
    _, rows = np.unique(passages * (len(corpus.facts) + 1) + numbers, return_inverse=True)
    texts = np.zeros(rows.max(initial=-1) + 1, dtype=np.int64)
    texts[rows] = passages
    sizes = np.minimum(np.diff(corpus.starts)[texts], length - leaves)
    order = np.argsort(sizes, kind="stable")
    reader = Reader(corpus, leaves)
    for first in range(0, len(order), size):
        taken = order[first : first + size]
        columns = min(-(-(int(sizes[taken].max()) + leaves) // BUCKET) * BUCKET, length)
        page = reader.page([[passage] for passage in texts[taken].tolist()], columns)
        place = np.full(len(texts), -1)
        place[taken] = np.arange(len(taken))
        asked = np.flatnonzero(place[rows] >= 0)
        asked = asked[np.argsort(place[rows[asked]], kind="stable")]
        slots = place[rows[asked]]  # a row has one passage, so its slot is its row
        page.hang(Leaves(facts[asked], slots, slots, np.zeros_like(asked), np.full_like(asked, HIDDEN)))
        page.batch["query_fact"] = np.full((len(taken), leaves), -1, dtype=np.int64)
        page.batch["query_fact"][slots, ranks(slots)] = facts[asked]
        yield page.batch


def _text(corpus: Corpus, passage: int) -> bytes:
    return corpus.tokens[corpus.starts[passage] : corpus.starts[passage + 1]].tobytes()
