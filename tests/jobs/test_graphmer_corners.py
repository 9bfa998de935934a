"""GraphMER's batches in corner cases: few entities, short passages, facts that the text does not mention."""

from __future__ import annotations

import numpy as np
from graphmer import plan, tokens
from graphmer.corpus import RELATION, Corpus
from graphmer.graph import Graph, Passage, Triple
from graphmer.negatives import NONE, Negatives
from graphmer.pages import HIDDEN, IGNORED, QUERIES, TRUE
from graphmer.plan import Plan

LEAVES, ROOM = 6, 58


def corpus(*passages: tuple[str, ...]) -> Corpus:
    """A corpus of one module's passages, each given as its text and its facts. A token is a letter."""
    made = (
        Passage("m", "m", text, tuple(Triple(*fact.split()) for fact in facts)) for text, *facts in passages
    )
    return Corpus.build(Graph(tuple(made)), vocabulary=258, passage_tokens=2 * ROOM, held_out=0)


def planned(small: Corpus, size: int = 1) -> Plan:
    return Plan(small, seed=7, global_batch=size, group=size, phases=((0, ROOM + LEAVES),), leaves=LEAVES)


def test_the_same_rows_are_hidden_otherwise_at_another_step() -> None:
    other = planned(corpus(("a " * 25, *(f"a likes b{i}" for i in range(9)))))
    batches = [other[step] for step in range(1, 9)]
    for name in ("word_places", "leaf_state", "leaf_tail", "candidates"):
        assert len({batch[name].tobytes() for batch in batches}) > 2, name


def test_where_no_tail_is_false_none_is_made_up() -> None:
    small = corpus(("a b", "a likes a", "a likes b"))
    negatives, draws = Negatives(small), np.random.default_rng(0)
    asked = small.facts[:, RELATION:].astype(np.int64)
    assert (negatives.consistent(draws, asked, 2) == NONE).all()
    assert (negatives.hard(draws, asked, np.zeros(2, dtype=np.int64), 2) == NONE).all()
    batch = planned(small, 2)[1]
    assert sorted(batch["leaf_state"][0]) == [0] * 4 + [TRUE, HIDDEN]
    assert batch["query_valid"].tolist() == [[True, False, False]] * 2
    free = np.argwhere(~batch["excluded"]).tolist()
    own = [
        [row, query, (row * QUERIES + query) * plan.CANDIDATES] for row in (0, 1) for query in range(QUERIES)
    ]
    assert [place for place in free if place[1] == 0] == [place for place in own if place[1] == 0]
    assert free == own


def test_of_few_entities_no_candidate_comes_twice() -> None:
    made = planned(corpus(("c", "c likes d"), ("a", *(f"a likes b{i}" for i in range(4)))))
    for step in range(1, 40):
        batch = made[step]
        for query in np.flatnonzero(batch["query_valid"][0]):
            own = query * plan.CANDIDATES + np.arange(plan.CANDIDATES)
            used = batch["candidates"][0, query][~batch["excluded"][0, query, own]].tolist()
            true = made.corpus.entities[used[0]]
            assert len(set(used)) == len(used) == (5 if true == "d" else 4)  # for head a: a, c and d
    negatives, draws = Negatives(made.corpus), np.random.default_rng(0)
    asked = np.repeat(made.corpus.facts[:1, RELATION:].astype(np.int64), 99, axis=0)  # c likes d
    hard = negatives.hard(draws, asked, np.zeros(99, dtype=np.int64), 2)
    names = {made.corpus.entities[each] for each in hard.ravel()}
    assert names == {f"b{i}" for i in range(4)}


def test_a_head_that_the_row_does_not_reach_hangs_from_the_first_token() -> None:
    small = corpus(("b " * 30 + "aaa", "aaa likes c", "b likes c"))
    assert small.facts[:, 1:3].tolist() == [[60, 3], [0, 1]]
    batch = planned(small)[1]
    assert batch["leaf_state"].any()
    assert not batch["leaf_anchor"].any()
    assert not batch["places"][0, ROOM:].any()
    cut = (batch["leaf_state"] > 0) & (batch["leaf_head"] == small.entities.index("aaa"))
    assert cut.any()
    assert not batch["leaf_span"][cut].any(), "its mention is not in the row"


def test_a_mention_that_the_row_cuts_is_as_long_as_is_left_of_it() -> None:
    small = corpus(("b " * 28 + "aaaa", "aaaa likes c"))
    batch = planned(small)[1]
    leaves = batch["leaf_state"] > 0
    assert set(batch["leaf_anchor"][leaves]) == {56}
    assert set(batch["leaf_span"][leaves]) == {2}


def test_passages_of_one_word_are_hidden_each_for_itself() -> None:
    batch = planned(corpus(*(("a", f"a likes b{i}") for i in range(20))))[1]
    assert (batch["tokens"] == tokens.MASK).sum() == 3  # 15 % of 20
    assert (batch["word_targets"] != IGNORED).sum() == 3


def test_a_class_that_shares_its_parents_name_is_no_cycle() -> None:
    made = planned(corpus(("x", "p.X inherits_from q.X", "p.X inherits_from Y", "p.Z inherits_from Y")))
    name = made.corpus.entities.index
    seen = {tuple(edge) for step in range(1, 20) for edge in made[step]["edges"][0].tolist()}
    assert seen == {(name("X"), name("Y")), (name("Z"), name("Y")), (-1, -1)}
