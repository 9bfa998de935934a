"""GraphMER's batches: complete, without leaks, and a function of (seed, step), checked by brute force."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pickle
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from graphmer import graph, ontology, packing, plan, tokens
from graphmer.corpus import PASSAGE, RELATION, TAIL, Corpus
from graphmer.pages import FALSE, HIDDEN, IGNORED, QUERIES, TRUE, Batch
from graphmer.plan import Plan
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs import source
from tests.training.scripts import ROOT

JOB = ROOT / "jobs/graphmer"
LEAVES, SIZE, GROUP = 6, 16, 4
PHASES = ((0, 96), (20, 160))
STEPS = (1, 2, 20, 21, 22, 40)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> graph.Graph:
    return graph.build(source.copy(tmp_path_factory.mktemp("source")))


def encoded(read: graph.Graph) -> Corpus:
    return Corpus.build(read, vocabulary=1500, passage_tokens=154, held_out=0.25)


@pytest.fixture(scope="module")
def corpus(whole: graph.Graph) -> Corpus:
    return encoded(whole)


def planned(corpus: Corpus, seed: int = 7, **changed: object) -> Plan:
    given = {"global_batch": SIZE, "group": GROUP, "phases": PHASES, "leaves": LEAVES} | changed
    return Plan(corpus, seed=seed, **given)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def made(corpus: Corpus) -> Plan:
    return planned(corpus)


def same(one: Batch, other: Batch) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def digest(batches: list[Batch]) -> str:
    return hashlib.sha256(b"".join(b[name].tobytes() for b in batches for name in sorted(b))).hexdigest()


class Leaf(NamedTuple):
    """A leaf, read back from a batch."""

    row: int
    leaf: int
    passage: int
    head: int
    relation: int
    tail: int
    state: int


def leaves_of(made: Plan, step: int, batch: Batch) -> list[Leaf]:
    phase, length, rows = made.timetable.rows(step)
    found = []
    for row, leaf in zip(*np.nonzero(batch["leaf_state"]), strict=True):
        column = length - made.leaves + leaf
        passage = made.rows[phase].passages_of(int(rows[row]))[batch["segments"][row, column] - 1]
        head, tail = batch["leaf_head"][row, leaf], batch["leaf_tail"][row, leaf]
        relation, state = batch["relations"][row, column] - 1, batch["leaf_state"][row, leaf]
        found.append(Leaf(*map(int, (row, leaf, passage, head, relation, tail, state))))
    return found


Truth = dict[tuple[int, int], set[int]]


def truth_of(corpus: Corpus) -> Truth:
    """The tails that training states, by (head, relation)."""
    truth = defaultdict(set)
    for passage, _, _, relation, head, tail in corpus.facts.tolist():
        if not corpus.held_out[passage]:
            truth[head, relation].add(tail)
    return truth


# Packing


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(40, 50))
def test_every_passage_is_in_one_row_and_no_row_is_too_long(sizes: list[int], room: int) -> None:
    bins = packing.best_fit(np.array(sizes, dtype=np.int64), room)
    assert sorted(index for each in bins for index in each) == list(range(len(sizes)))
    filled = [sum(sizes[i] for i in each) for each in bins]
    assert max(filled, default=0) <= room
    assert sum(one + other <= room for one in filled for other in filled) <= sum(
        2 * n <= room for n in filled
    )


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("held_out", [True, False])
def test_rows_hold_the_passages_of_one_side(corpus: Corpus, packed: bool, held_out: bool) -> None:
    rows = packing.Rows(corpus, 96, LEAVES, packed=packed, held_out=held_out)
    passages = [passage for row in range(len(rows)) for passage in rows.passages_of(row)]
    assert sorted(passages) == np.flatnonzero(corpus.held_out == held_out).tolist()
    lengths = np.minimum(np.diff(corpus.starts), 90)
    assert [
        int(lengths[list(rows.passages_of(row))].sum()) for row in range(len(rows))
    ] == rows.filled.tolist()
    assert rows.filled.max() <= 90
    if packed:
        assert rows.filled.sum() > 0.95 * 90 * len(rows)


def test_buckets_hold_every_row_once_and_are_not_too_small(corpus: Corpus) -> None:
    rows = packing.Rows(corpus, 160, LEAVES, packed=False)
    for least in (1, 50, len(rows) - 1, 10**6):
        buckets = rows.buckets(least)
        assert sorted(np.concatenate(list(buckets.values())).tolist()) == list(range(len(rows)))
        assert all(rows.filled[each].max() + LEAVES <= length for length, each in buckets.items())
        assert len(buckets) == 1 or min(map(len, buckets.values())) >= least
    assert list(rows.buckets(1)) == [64, 128, 160]
    assert list(rows.buckets(10**6)) == [160]


@pytest.mark.parametrize("packed", [True, False])
def test_every_row_comes_once_an_epoch_and_each_epoch_in_another_order(corpus: Corpus, packed: bool) -> None:
    rows = packing.Rows(corpus, 160, LEAVES, packed=packed)
    timetable = packing.Timetable([rows], ((0, 160),), 3, SIZE)
    buckets = rows.buckets(SIZE)
    steps = 3 * len(rows) // SIZE
    taken: defaultdict[int, list[int]] = defaultdict(list)
    for step in range(1, steps + 1):
        phase, length, numbers = timetable.rows(step)
        assert (phase, len(numbers)) == (0, SIZE)
        taken[length] += numbers.tolist()
    assert taken.keys() == buckets.keys()
    for length, each in taken.items():
        size = len(buckets[length])
        assert sorted(each[:size]) == sorted(each[size : 2 * size]) == buckets[length].tolist()
        assert each[:size] != each[size : 2 * size]
        assert len(each) / steps / SIZE == pytest.approx(size / len(rows), rel=0.1)  # proportional


def test_the_curriculum_switches_after_the_step_it_names(made: Plan) -> None:
    lengths = [made[step]["tokens"].shape[1] for step in range(1, 41)]
    assert max(lengths[:20]) == 96
    assert max(lengths[20:]) == 160
    assert [made.timetable.rows(step)[0] for step in (1, 20, 21)] == [0, 0, 1]
    with pytest.raises(IndexError, match="steps count from 1, not 0"):
        made[0]


# A function of (seed, step)


def test_a_batch_is_a_function_of_seed_and_step(corpus: Corpus, made: Plan) -> None:
    other = planned(corpus)
    forwards = [made[step] for step in STEPS]
    backwards = [other[step] for step in reversed(STEPS)][::-1]
    assert all(map(same, forwards, backwards))
    assert not same(made[1], made[2])
    assert not same(made[1], planned(corpus, seed=8)[1])


def test_another_process_makes_the_same_batches(made: Plan, tmp_path: Path) -> None:
    (tmp_path / "plan").write_bytes(pickle.dumps(made))
    script = (
        "import hashlib, pickle, sys\nmade = pickle.load(open(sys.argv[1], 'rb'))\n"
        f"batches = [made[step] for step in {STEPS}]\n"
        "parts = (b[name].tobytes() for b in batches for name in sorted(b))\n"
        "print(hashlib.sha256(b''.join(parts)).hexdigest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "plan")],
        cwd=JOB, env=os.environ | {"PYTHONHASHSEED": "5"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == digest([made[step] for step in STEPS])


def test_held_out_modules_change_no_batch(whole: graph.Graph, corpus: Corpus, made: Plan) -> None:
    other = planned(encoded(source.replaced(whole, corpus.held_out)))
    for step in STEPS:
        assert same(made[step], other[step])
        phase, _, rows = made.timetable.rows(step)
        assert not corpus.held_out[[p for r in rows for p in made.rows[phase].passages_of(int(r))]].any()


# Text


@pytest.mark.parametrize("step", STEPS)
def test_the_text_stands_where_it_should(corpus: Corpus, made: Plan, step: int) -> None:
    phase, length, rows = made.timetable.rows(step)
    batch = made[step]
    for row, number in enumerate(rows.tolist()):
        asked = batch["word_targets"][row] != IGNORED
        text = batch["tokens"][row].copy()
        assert (text[batch["word_places"][row][asked]] == tokens.MASK).all()
        assert (text == tokens.MASK).sum() == asked.sum()
        text[batch["word_places"][row][asked]] = batch["word_targets"][row][asked]
        parts = [
            corpus.tokens[corpus.starts[p] : corpus.starts[p + 1]][: length - LEAVES]
            for p in made.rows[phase].passages_of(number)
        ]
        filled = sum(map(len, parts))
        assert np.array_equal(text[:filled], np.concatenate(parts))
        assert (text[filled:] == tokens.PAD).all()
        assert np.array_equal(
            batch["places"][row, :filled], np.concatenate([np.arange(len(p)) for p in parts])
        )
        segments = np.repeat(np.arange(len(parts)) + 1, [len(p) for p in parts])
        assert np.array_equal(batch["segments"][row, :filled], segments)
        assert not batch["segments"][row, filled : length - LEAVES].any()
        assert not batch["relations"][row, : length - LEAVES].any()


def test_whole_words_are_hidden_and_names_rather_than_marks(corpus: Corpus, made: Plan) -> None:
    hidden: Counter[bool] = Counter()
    seen: Counter[bool] = Counter()
    for step in STEPS:
        phase, length, rows = made.timetable.rows(step)
        batch = made[step]
        for row, number in enumerate(rows.tolist()):
            places = batch["places"][row] * (batch["relations"][row] == 0)
            for segment, passage in enumerate(made.rows[phase].passages_of(number), start=1):
                columns = np.flatnonzero(batch["segments"][row, : length - LEAVES] == segment)
                source = corpus.starts[passage] + places[columns]
                masked = batch["tokens"][row, columns] == tokens.MASK
                for word in np.unique(corpus.words[source]):
                    of_word = corpus.words[source] == word
                    assert masked[of_word].all() or not masked[of_word].any()
                hidden.update(corpus.identifiers[source[masked]].tolist())
                seen.update(corpus.identifiers[source].tolist())
    assert hidden.total() / seen.total() == pytest.approx(0.15, abs=0.015)
    assert hidden[True] / seen[True] > 1.5 * hidden[False] / seen[False]


# Leaves


@pytest.mark.parametrize("step", STEPS)
def test_leaves_say_what_their_passages_state_or_what_nothing_states(
    corpus: Corpus, made: Plan, step: int
) -> None:
    truth, batch = truth_of(corpus), made[step]
    stated = {(f[PASSAGE], *f[RELATION:]): (f[1], f[2]) for f in corpus.facts.tolist()}
    anchors: defaultdict[tuple[int, int, int], Counter[int]] = defaultdict(Counter)
    for row, leaf, passage, head, relation, tail, state in leaves_of(made, step, batch):
        anchors[row, passage, head][TRUE if state == HIDDEN else state] += 1
        if state == HIDDEN:
            assert tail == 0
            query = batch["query_leaf"][row].tolist().index(leaf)
            assert batch["query_valid"][row, query]
            tail = int(batch["candidates"][row, query, 0])
        if state == FALSE:
            assert tail not in truth[head, relation]
            assert corpus.entity_known[tail]
            assert any(
                corpus.entity_kinds[t] & corpus.entity_kinds[tail] and (passage, relation, head, t) in stated
                for t in truth[head, relation]
            )
            continue
        anchor, span = stated[passage, relation, head, tail]
        column = batch["tokens"].shape[1] - LEAVES + leaf
        room = batch["tokens"].shape[1] - LEAVES
        assert batch["places"][row, column] == (anchor if anchor < room else 0)
        first = batch["leaf_anchor"][row, leaf]
        assert batch["segments"][row, first] == batch["segments"][row, column]
        assert batch["places"][row, first] == batch["places"][row, column]
        last = first + max(0, batch["leaf_span"][row, leaf] - 1)
        assert batch["segments"][row, last] == batch["segments"][row, column]
        shown = span if anchor + span <= room else max(0, room - anchor)  # the row may cut the mention
        assert batch["leaf_span"][row, leaf] == shown
    assert all(1 <= each[TRUE] <= 2 and each[FALSE] <= each[TRUE] for each in anchors.values())


def test_leaves_are_half_true_and_one_in_five_is_asked_for(made: Plan) -> None:
    batches = [made[step] for step in range(1, 41)]
    states = np.concatenate([batch["leaf_state"] for batch in batches])
    true = np.isin(states, (TRUE, HIDDEN)).sum(axis=1)
    hidden = (states == HIDDEN).sum(axis=1)
    assert np.array_equal(hidden > 0, true > 0)
    assert hidden.max() <= 1  # there are at most three true leaves
    shown = (states == TRUE).sum()
    assert 0.8 * shown < (states == FALSE).sum() <= shown  # a hidden leaf has none


@pytest.mark.parametrize("step", STEPS)
def test_a_false_leaf_stands_beside_a_true_one_and_tells_nothing_of_a_hidden_one(
    made: Plan, step: int
) -> None:
    """For each anchor and relation, no more false leaves than true ones are shown."""
    shown: Counter[tuple[int, int, int, int]] = Counter()
    for each in leaves_of(made, step, made[step]):
        key = each.row, each.passage, each.head, each.relation
        shown[key] += {TRUE: 1, FALSE: -1, HIDDEN: 0}[each.state]
    assert min(shown.values()) >= 0


def test_a_fixed_share_of_true_leaves_is_hidden_where_there_are_enough(corpus: Corpus) -> None:
    other = planned(corpus, mask_nodes=0.4, leaves=12, phases=((0, 160),))
    states = np.concatenate([other[step]["leaf_state"] for step in range(1, 41)])
    true = np.isin(states, (TRUE, HIDDEN)).sum(axis=1)
    enough = true >= 4
    hidden = (states == HIDDEN).sum(axis=1)
    assert hidden[enough].sum() / true[enough].sum() == pytest.approx(0.4, abs=0.03)


# Queries


@pytest.mark.parametrize("step", STEPS)
def test_candidates_are_what_they_claim(corpus: Corpus, made: Plan, step: int) -> None:
    truth, batch = truth_of(corpus), made[step]
    by_module = defaultdict(set)
    by_head = defaultdict(set)
    for passage, _, _, relation, head, tail in corpus.facts[
        ~corpus.held_out[corpus.facts[:, PASSAGE]]
    ].tolist():
        by_module[corpus.modules[passage], relation].add(tail)
        by_head[head].add(tail)
    asked = 0
    for row, leaf, passage, head, relation, _, state in leaves_of(made, step, batch):
        if state != HIDDEN:
            continue
        asked += 1
        query = batch["query_leaf"][row].tolist().index(leaf)
        own = ((row % GROUP) * QUERIES + query) * plan.CANDIDATES + np.arange(plan.CANDIDATES)
        used = ~batch["excluded"][row, query, own]
        true, *others = batch["candidates"][row, query].tolist()
        assert used.all()
        assert true in truth[head, relation]
        assert len({true, *others}) == plan.CANDIDATES
        assert not truth[head, relation] & set(others)
        assert corpus.entity_known[others].all()
        assert all(corpus.entity_kinds[each] & corpus.entity_kinds[true] for each in others[:2])
        left = [by_module[corpus.modules[passage], relation], by_head[head]]
        for each in others[2:]:
            near, head_s = (
                pool - truth[head, relation] - set(others[2 : others.index(each)]) for pool in left
            )
            assert each in (near or head_s) or len(left[0]) > 16 or (not near and not head_s)
    assert asked == batch["query_valid"].sum()


def pool_of(batch: Batch, group: int) -> list[tuple[tuple[int, int, int] | None, int | None]]:
    """What the facts of a group are scored against: its candidates, by row, query and place, then the tails
    that its leaves show. None in unused slots."""
    rows = range(group, group + GROUP)
    found: list[tuple[tuple[int, int, int] | None, int | None]] = []
    for row in rows:
        for query in range(QUERIES):
            used = batch["query_valid"][row, query]
            for place, entity in enumerate(batch["candidates"][row, query].tolist()):
                found.append(((row, query, place), entity if used else None))
    for row in rows:
        for tail, state in zip(batch["leaf_tail"][row].tolist(), batch["leaf_state"][row], strict=True):
            found.append((None, tail if state in (TRUE, FALSE) else None))
    return found


@pytest.mark.parametrize("step", STEPS)
def test_what_is_excluded_is_true_or_unused(corpus: Corpus, made: Plan, step: int) -> None:
    truth, batch = truth_of(corpus), made[step]
    leaves = {(each.row, each.leaf): each for each in leaves_of(made, step, batch)}
    for row in range(SIZE):
        pool = pool_of(batch, row // GROUP * GROUP)
        for query in range(QUERIES):
            leaf = leaves.get((row, int(batch["query_leaf"][row, query])))
            valid = leaf is not None and bool(batch["query_valid"][row, query])
            true = truth[leaf.head, leaf.relation] if leaf is not None else set()
            expected = [
                at != (row, query, 0) and (not valid or entity is None or entity in true)
                for at, entity in pool
            ]
            assert batch["excluded"][row, query].tolist() == expected
        for place in range(LEAVES):
            leaf = leaves.get((row, place))
            if leaf is None or leaf.state != TRUE:
                assert batch["leaf_excluded"][row, place].all()
                continue
            true = truth[leaf.head, leaf.relation]
            expected = [entity is None or entity in true for _, entity in pool]
            assert batch["leaf_excluded"][row, place].tolist() == expected


@pytest.mark.parametrize("step", STEPS)
def test_edges_are_the_shown_facts_of_acyclic_relations(corpus: Corpus, made: Plan, step: int) -> None:
    batch = made[step]
    acyclic = {i for i, name in enumerate(corpus.relations) if ontology.ONTOLOGY[name].acyclic}
    expected = [[] for _ in range(SIZE // GROUP)]  # type: list[list[list[int]]]
    for row, _, _, head, relation, tail, state in leaves_of(made, step, batch):
        if state == TRUE and relation in acyclic and head != tail:
            expected[row // GROUP].append([head, tail])
    for edges, facts in zip(batch["edges"].tolist(), expected, strict=True):
        assert edges == facts[: plan.EDGES] + [[-1, -1]] * (plan.EDGES - len(facts))


# Evaluation


def test_held_out_words_are_hidden_alike_and_none_was_trained_on(corpus: Corpus) -> None:
    batches, again = (plan.held_out_words(corpus, 96, LEAVES, size=8) for _ in range(2))
    assert digest(batches) == digest(again)
    assert all(not batch["leaf_state"].any() for batch in batches)
    hidden = sum(int((batch["word_targets"] != IGNORED).sum()) for batch in batches)
    shown = sum(int((batch["segments"] > 0).sum()) for batch in batches)
    assert hidden / shown == pytest.approx(0.15, abs=0.015)
    of_side = np.minimum(np.diff(corpus.starts), 90)[corpus.held_out].sum()
    assert 0.9 * of_side < shown <= of_side


def test_queries_ask_every_fact_once_with_its_own_text(corpus: Corpus) -> None:
    facts = np.flatnonzero(corpus.held_out[corpus.facts[:, PASSAGE]])[::3]
    found = []
    for batch in plan.queries(corpus, facts, 160, LEAVES, size=8):
        length = batch["tokens"].shape[1]
        assert length % 64 == 0 or length == 160
        asked = batch["query_fact"] >= 0
        assert np.array_equal(asked, batch["leaf_state"] == HIDDEN)
        assert not batch["leaf_tail"].any()
        found += batch["query_fact"][asked].tolist()
        for row, leaf in np.argwhere(asked):
            passage, anchor, span, relation, head, _ = corpus.facts[batch["query_fact"][row, leaf]]
            text = corpus.tokens[corpus.starts[passage] : corpus.starts[passage + 1]]
            assert np.array_equal(batch["tokens"][row, : len(text)], text)
            assert batch["leaf_anchor"][row, leaf] == batch["places"][row, length - LEAVES + leaf] == anchor
            assert batch["leaf_span"][row, leaf] == span
            assert batch["leaf_head"][row, leaf] == head
            assert batch["relations"][row, length - LEAVES + leaf] == relation + 1
            assert batch["segments"][row, length - LEAVES + leaf] == 1
    assert sorted(found) == facts.tolist()
    assert not list(plan.queries(corpus, facts[:0], 160, LEAVES))


def test_what_cannot_be_planned_is_refused(corpus: Corpus) -> None:
    with pytest.raises(ValueError, match="a batch of 6 is not a multiple of the group of 4"):
        planned(corpus, global_batch=6)
    with pytest.raises(ValueError, match="length: 6 has no room for text besides 6 leaves"):
        packing.Rows(corpus, 6, 6)
    only = dataclasses.replace(corpus, held_out=np.zeros_like(corpus.held_out))
    with pytest.raises(ValueError, match="no passage is held out"):
        plan.held_out_words(only, 96, LEAVES)
    assert only.facts[:, TAIL].max() < len(only.entities)
