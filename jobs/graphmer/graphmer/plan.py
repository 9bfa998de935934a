"""Batches: every one a function of (seed, step), whoever makes it and after however many resumes.

Decides what is hidden, which facts are shown as leaves and against what a hidden one is told apart. Order and
masks come from counters, not from generators that advance (docs/references/training.md#exact-resume). Must
never know the model, nor how a batch is divided into micro-batches.
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

POSITIVES = 2  # true leaves an anchor has at most, and as many negative ones
CONSISTENT, HARD = 2, 2  # negatives a query is scored against
CANDIDATES = 1 + CONSISTENT + HARD
EDGES = 16  # edges of acyclic relations that a group shows at most
_MASKS, _HELD_OUT = 0, 3  # streams of random numbers; the others are in packing


@dataclass(frozen=True)
class _Chosen:
    """Facts (n,) to show, by row and in it by anchor: numbers, slots of their passages, rows."""

    facts: Ids
    slots: Ids
    rows: Ids


class Plan:
    """The training's batches by step, counted from 1: a map-style dataset for torch's DataLoader.

    Shapes are static for a padded length L: B = global_batch, N = leaves, R = L − N columns of text, Q query
    slots a row, C candidates a query, G = group. All are int64, unless said.

    - `tokens` (B, L): PAD in the leaves' columns and in padding; hidden words are MASK.
    - `segments` (B, L): from 1 the number of the passage in its row, a leaf's that of its anchor; 0 padding.
    - `places` (B, L): the index in the passage, a leaf's that of its anchor.
    - `relations` (B, L): relation + 1 at leaves, else 0.
    - `leaf_tail`, `leaf_head` (B, N): entities; the tail of a hidden leaf is not shown but 0.
    - `leaf_anchor`, `leaf_span` (B, N): first column of the head's mention, and its columns (1 at no leaf,
      0 where the passage, or the part of it in the row, does not mention it).
    - `leaf_state` (B, N): 0 no leaf, TRUE, FALSE (its tail was replaced) or HIDDEN (a query).
    - `word_places`, `word_targets` (B, K): columns and ids of hidden tokens; unused slots 0 and −100.
    - `query_leaf` (B, Q): the leaf asked for; `query_valid` (B, Q) bool.
    - `candidates` (B, Q, C): the true tail, type-consistent and hard negatives; 0 in slots unused.
    - `excluded` (B, Q, G·Q·C + G·N) bool: of the group's pool, its rows' candidates and then the tails that
      its leaves show, what is no negative of the query: unused slots and true tails, but for its own first
      candidate. An unused query excludes all but that.
    - `leaf_excluded` (B, N, G·Q·C + G·N) bool: the same of TRUE leaves, without their own true tails; other
      leaves exclude all.
    - `edges` (B / G, EDGES, 2): head and tail of the group's TRUE leaves of acyclic relations, −1 unused.
      None is from an entity to itself: a class and its parent in another module may share a name.
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
        """Raises ValueError where the batch is no whole number of groups, or nothing is left to train on."""
        if global_batch % group:
            raise ValueError(f"a batch of {global_batch} is no whole number of groups of {group}")
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
        """Of each row's anchors some, and up to POSITIVES facts of each, as many as half the leaves."""
        numbers, slots = self._reader.facts_of(page.passages)
        heads = self.corpus.facts[numbers, HEAD]
        _, anchors = np.unique(slots * len(self.corpus.entities) + heads, return_inverse=True)
        by_anchor = draws.random(len(anchors))[anchors]  # as many draws as facts: enough for the anchors
        order = np.lexsort((draws.random(len(numbers)), by_anchor, page.rows[slots]))
        order = order[ranks(anchors[order]) < POSITIVES]
        rows = page.rows[slots[order]]
        few = ranks(rows) < (self.leaves + 1) // 2
        order = order[few]
        return _Chosen(numbers[order], slots[order], rows[few])

    def _leaves(self, chosen: _Chosen, draws: np.random.Generator) -> Leaves:
        """The chosen facts, some hidden, and each once more with its tail replaced where there is room."""
        size = self.global_batch
        counts = np.bincount(chosen.rows, minlength=size)
        asked = np.clip(np.floor(counts * self.shares[1] + draws.random(size)), 1, QUERIES)
        order = np.argsort(chosen.rows + draws.random(len(chosen.rows)), kind="stable")
        hidden = np.empty(len(order), dtype=np.bool_)
        hidden[order] = ranks(chosen.rows[order]) < asked[chosen.rows[order]]
        facts = self.corpus.facts[chosen.facts][:, RELATION:].astype(np.int64)
        replaced = self._negatives.consistent(draws, facts, 1)[:, 0]
        room = ranks(chosen.rows) < (self.leaves - counts)[chosen.rows]
        false = np.flatnonzero((replaced != NONE) & room & ~hidden)  # a hidden leaf's would tell of it
        every = np.concatenate([np.arange(len(facts)), false])
        states = np.where(hidden, HIDDEN, TRUE)
        tails = facts[:, 2]
        rows = chosen.rows[every]
        mixed = np.argsort(
            rows + draws.random(len(rows)), kind="stable"
        )  # a leaf's place tells nothing of its truth
        every = every[mixed]
        return Leaves(
            facts=chosen.facts[every],
            slots=chosen.slots[every],
            rows=rows[mixed],
            tails=np.concatenate([tails, replaced[false]])[mixed],
            states=np.concatenate([states, np.full(len(false), FALSE)])[mixed],
        )

    def _ask(self, page: Page, leaves: Leaves, draws: np.random.Generator) -> None:
        """Adds the queries, their candidates and what each must not be scored against, and the edges."""
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
        """(groups, G·Q·C + G·N): what a group's facts are told apart from, NONE in unused slots."""
        groups = self.global_batch // self.group
        state = page.batch["leaf_state"]
        tails = np.where((state == TRUE) | (state == FALSE), page.batch["leaf_tail"], NONE)
        return np.concatenate([candidates.reshape(groups, -1), tails.reshape(groups, -1)], axis=1)

    def _excluded(self, pools: Ids, shape: tuple[int, int], rows: Ids, slots: Ids, facts: Ids) -> Flags:
        """(*shape, pool) bool: all but what the row's pool has and is not true of the fact (n, 3) there."""
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
    """All held-out passages without leaves, in batches of `size` rows, hidden alike whatever the seed.

    Passages whose tokens a training passage has too are left out. The last batch may have fewer rows. Raises
    ValueError where no passage is held out.
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
    """Facts, by number, asked with the text of their passages: one passage a row, and all leaves hidden.

    Each batch has up to `size` rows of like length, at most `length` columns, and `query_fact`
    (rows, leaves): the fact that each leaf asks for, or −1. Every fact is asked once.
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
        slots = place[rows[asked]]  # a row has one passage: its slot is its row
        page.hang(Leaves(facts[asked], slots, slots, np.zeros_like(asked), np.full_like(asked, HIDDEN)))
        page.batch["query_fact"] = np.full((len(taken), leaves), -1, dtype=np.int64)
        page.batch["query_fact"][slots, ranks(slots)] = facts[asked]
        yield page.batch


def _text(corpus: Corpus, passage: int) -> bytes:
    return corpus.tokens[corpus.starts[passage] : corpus.starts[passage + 1]].tobytes()
