"""GraphMER's evaluation: ranks against brute force, which facts are queries, baselines, and the report."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from graphmer import baselines, config, evaluation, graph, ontology, report
from graphmer.corpus import HEAD, PASSAGE, RELATION, TAIL, Corpus
from graphmer.evaluation import Stopped, Summary
from graphmer.model import Encoder

from orchestrator.training import Training

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Some packages of the standard library, with a third of their modules held out."""
    folder = tmp_path_factory.mktemp("source")
    library = Path(sysconfig.get_paths()["stdlib"])
    for package in ("json", "logging", "concurrent", "urllib", "http"):
        shutil.copytree(library / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return Corpus.build(graph.build(folder), vocabulary=600, passage_tokens=54, held_out=0.3)


def tiny(relations: list[str], facts: list[tuple[int, int, int, int]], kinds: list[int]) -> Corpus:
    """Facts (passage, relation, head, tail) over len(kinds) entities. Passage 1 is held out,
    passage 0 is not."""
    size = len(kinds)
    rows = np.array([(p, 0, 1, r, h, t) for p, r, h, t in facts], dtype=np.int32)
    trained = rows[rows[:, PASSAGE] == 0]
    return Corpus(
        vocabulary=16,
        tokenizer="",
        relations=tuple(relations),
        entities=tuple(f"e{i}" for i in range(size)),
        entity_tokens=np.arange(size * 12, dtype=np.int32).reshape(size, 12) % 13 + 3,
        entity_kinds=np.array(kinds, dtype=np.int64),
        entity_known=np.isin(np.arange(size), trained[:, [HEAD, TAIL]]),
        tokens=np.full(8, 3, dtype=np.int32),
        words=np.arange(8, dtype=np.int32) % 4,
        identifiers=np.ones(8, dtype=np.bool_),
        starts=np.array([0, 4, 8]),
        held_out=np.array([False, True]),
        modules=np.array([0, 1], dtype=np.int32),
        facts=rows,
    )


def by_brute_force(scores: list[float], truth: int, others: set[int]) -> float:
    """The mean of the truth's best and worst place among the unfiltered, over all orders of equal scores."""
    if math.isnan(scores[truth]):
        return len(scores) - len(others - {truth})
    rivals = [score for i, score in enumerate(scores) if i != truth and i not in others]
    best = 1 + sum(score > scores[truth] for score in rivals)
    worst = 1 + sum(score >= scores[truth] for score in rivals)
    return (best + worst) / 2


@pytest.mark.parametrize("seed", range(5))
def test_ranks_are_those_of_brute_force(seed: int) -> None:
    draws = np.random.default_rng(seed)
    scores = draws.integers(0, 6, (40, 12)).astype(np.float64)  # many ties
    scores[draws.random(scores.shape) < 0.1] = np.nan
    scores[draws.random(scores.shape) < 0.05] = np.inf
    scores[draws.random(scores.shape) < 0.05] = -np.inf
    truth = draws.integers(0, 12, 40)
    others = [np.flatnonzero(draws.random(12) < 0.3) for _ in range(40)]
    others[0] = np.empty(0, dtype=np.int64)
    found = evaluation.ranks(torch.from_numpy(scores), torch.from_numpy(truth), others)
    expected = [
        by_brute_force(row, t, set(o.tolist()))
        for row, t, o in zip(scores.tolist(), truth.tolist(), others, strict=True)
    ]
    np.testing.assert_array_equal(found, expected)


def test_a_constant_model_is_no_good_one_and_a_broken_one_is_the_worst() -> None:
    none = [np.empty(0, dtype=np.int64)] * 3
    truth = torch.tensor([0, 4, 8])
    assert evaluation.ranks(torch.zeros(3, 9), truth, none).tolist() == [5, 5, 5]
    assert evaluation.ranks(torch.full((3, 9), torch.nan), truth, none).tolist() == [9, 9, 9]


def test_a_summary_counts_ranks_up_to_one_and_ten() -> None:
    assert Summary.of(np.array([1.0, 2.0, 10.0, 20.0])) == Summary((1 + 0.5 + 0.1 + 0.05) / 4, 0.25, 0.75, 4)
    assert Summary.of(np.empty(0)).count == 0
    assert math.isnan(Summary.of(np.empty(0)).mrr)


def test_what_training_states_too_or_never_saw_is_not_asked_and_nothing_twice() -> None:
    train = [(0, 0, 0, 1), (0, 0, 2, 1), (0, 1, 0, 3)]
    held = [(1, 0, 0, 1), (1, 0, 0, 3), (1, 0, 0, 3), (1, 0, 4, 1), (1, 0, 0, 5), (1, 1, 2, 3)]
    corpus = tiny(["calls", "returns"], train + held, [1] * 6)
    asked = evaluation.held_out_facts(corpus)
    assert asked.tolist() == [4, 6, 8]  # each new, once, and with a known tail
    assert evaluation.known_heads(corpus, asked).tolist() == [True, False, True]


def test_a_sample_is_fair_to_the_numbering_and_follows_the_seed(corpus: Corpus) -> None:
    every = evaluation.held_out_facts(corpus)
    assert len(every) > 300
    some = evaluation.held_out_facts(corpus, 100)
    assert len(some) == 100
    assert set(some) < set(every)
    assert set(some) != set(evaluation.held_out_facts(corpus, 100, seed=1))
    backwards = replace(corpus, facts=np.ascontiguousarray(corpus.facts[::-1]))
    names = [
        {tuple(c.facts[n, RELATION:]) for n in evaluation.held_out_facts(c, 100)} for c in (corpus, backwards)
    ]
    assert names[0] == names[1]


def test_other_true_tails_stand_in_nobodys_way() -> None:
    corpus = tiny(["calls"], [(0, 0, 0, 1), (0, 0, 2, 3), (1, 0, 0, 2), (1, 0, 0, 3)], [1] * 4)
    facts = evaluation.held_out_facts(corpus)
    assert facts.tolist() == [2, 3]
    scores = torch.tensor([[0.5, 4.0, 1.0, 3.0]])  # 1 is true in training, 3 in a held-out passage
    found = evaluation.rank(corpus, facts[:1], lambda _: scores)
    assert found.ranks.tolist() == [1.0]
    assert found.predicted.tolist() == [1]


def test_predictions_that_break_the_ontology_are_found() -> None:
    of = {name: 1 << i for i, name in enumerate(ontology.KINDS)}
    kinds = [of["class"], of["class"], of["class"], of["function"], of["value"], 0]
    train = [(0, 0, 0, 1), (0, 0, 1, 2), (0, 1, 0, 3), (0, 2, 3, 4), (0, 3, 5, 0)]
    asked = [(1, 0, 2, 1), (1, 1, 2, 3), (1, 3, 2, 0)]
    corpus = tiny(["inherits_from", "has_method", "returns", "likes"], train + asked, kinds)
    numbers = {"inherits_from": 5, "has_method": 6, "likes": 7}

    def broken(relation: str, tail: int) -> bool:
        share = evaluation.ontology_violations(corpus, np.array([numbers[relation]]), np.array([tail]))
        assert share in (0.0, 100.0)
        return share == 100.0

    assert broken("inherits_from", 1)  # 1 inherits from 2: not both ways
    assert broken("inherits_from", 0)  # 0 → 1 → 2 → 0: a cycle
    assert broken("inherits_from", 2)  # the shortest cycle
    assert broken("inherits_from", 3)  # a function is not a class
    assert not broken("inherits_from", 5)  # its kind is unknown
    assert broken("has_method", 4)
    assert not broken("has_method", 3)
    assert not broken("likes", 4)  # no rule
    both = evaluation.ontology_violations(corpus, np.array([6, 6]), np.array([3, 4]))
    assert both == 50.0


def test_frequency_orders_by_the_relation_and_then_by_all() -> None:
    train = [(0, 0, 0, 1), (0, 0, 2, 1), (0, 0, 2, 3), (0, 1, 0, 4), (0, 1, 1, 4), (0, 1, 2, 5)]
    corpus = tiny(["calls", "returns"], train, [1] * 6)
    scores = baselines.Frequency(corpus).scores(np.array([0]), np.array([0]))[0].tolist()
    assert scores[1] > scores[3] > scores[4] > scores[5] > scores[0] == scores[2]


@pytest.mark.parametrize("settings", [baselines.TRANSE, baselines.COMPLEX], ids=lambda s: s.model)
def test_embeddings_learn_a_rule_that_frequency_cannot_know(settings: baselines.Settings) -> None:
    """The heads of a group call the same tails. The last tail of each head is held out."""
    facts = []
    for head in range(24):
        group = head % 4
        for i in range(5):
            facts.append((int(i == head // 4), 0, head, 24 + 5 * group + i))
    corpus = tiny(["calls"], facts, [1] * 44)
    asked = evaluation.held_out_facts(corpus)
    rows = corpus.facts[asked].astype(np.int64)
    small = replace(settings, dimension=16, batch=8)
    learnt = baselines.train(corpus, small, seed=3, epochs=150)

    def mrr(model: baselines.Frequency | baselines.Embeddings) -> float:
        score = lambda block: model.scores(rows[block, HEAD], rows[block, RELATION])  # noqa: E731
        return Summary.of(evaluation.rank(corpus, asked, score).ranks).mrr

    assert mrr(learnt) > 0.9 > 0.5 > mrr(baselines.Frequency(corpus))
    again = baselines.train(corpus, small, seed=3, epochs=150)
    assert torch.equal(again.entities, learnt.entities)


def test_epochs_are_chosen_on_training_modules_alone(corpus: Corpus) -> None:
    """The content of held-out facts changes neither their number nor a weight."""
    settings = replace(baselines.TRANSE, dimension=8, epochs=6)
    told: list[str] = []
    learnt = baselines.train(corpus, settings, seed=1, progress=told.append)
    scores = [float(line.split("MRR ")[1].split()[0]) for line in told if "set aside" in line]
    assert learnt.settings.epochs == 1 + scores.index(max(scores))
    lies = corpus.facts.copy()
    apart = corpus.held_out[lies[:, PASSAGE]]
    lies[apart, TAIL] = lies[apart, TAIL][::-1]
    again = baselines.train(replace(corpus, facts=lies), settings, seed=1)
    assert again.settings == learnt.settings
    assert torch.equal(again.entities, learnt.entities)


def test_a_head_that_is_unknown_gets_frequencys_order(corpus: Corpus) -> None:
    asked = evaluation.held_out_facts(corpus)
    rows = corpus.facts[asked[~evaluation.known_heads(corpus, asked)]].astype(np.int64)
    model = baselines.train(corpus, replace(baselines.TRANSE, dimension=8), seed=0, epochs=1)
    frequency = baselines.Frequency(corpus)
    assert len(rows) > 10
    found = (m.scores(rows[:, HEAD], rows[:, RELATION]) for m in (model, frequency))
    assert torch.equal(*found)


def test_each_trained_fact_comes_once_an_epoch(corpus: Corpus) -> None:
    facts = baselines._Facts(corpus)
    random_numbers = torch.Generator().manual_seed(1)
    seen = [
        (int(batch.heads[row]), int(batch.relations[row]), int(tail))
        for batch in facts.batches(64, random_numbers, torch.device("cpu"))
        for row, tail in zip(batch.rows, batch.tails, strict=True)
    ]
    assert sorted(seen) == [tuple(fact) for fact in facts.triples.tolist()]


@pytest.fixture(scope="module")
def encoder(corpus: Corpus) -> Encoder:
    torch.manual_seed(5)
    sizes = config.Model(width=32, layers=1, heads=2, feed=64)
    return Encoder(sizes, corpus.vocabulary, len(corpus.relations))


def entities_of(corpus: Corpus) -> torch.Tensor:
    return torch.from_numpy(corpus.entity_tokens.astype(np.int64))


def test_an_encoder_is_asked_with_and_without_text_and_nothing_of_it_changes(
    corpus: Corpus, encoder: Encoder
) -> None:
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # type: ignore[index]
    encoder.train()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    facts = evaluation.held_out_facts(corpus, 200)
    found = evaluation.evaluate_encoder(encoder, corpus, entities_of(corpus), facts)
    assert encoder.training
    assert all(parameter.grad is None for parameter in encoder.parameters())
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]  # type: ignore[index]
    assert torch.equal(torch.get_rng_state(), states[2])
    for ranking in (found.graph, found.text):
        assert ranking.ranks.shape == (200,)
        assert (ranking.ranks >= 1).all()
        assert (ranking.ranks <= corpus.entity_known.sum()).all()
    assert not np.array_equal(found.graph.ranks, found.text.ranks)
    assert 0 < found.word_loss < 3 * math.log(corpus.vocabulary)
    assert all(math.isfinite(value) for value in found.metrics().values())


def test_a_fact_is_ranked_by_its_own_hidden_leaf(corpus: Corpus, encoder: Encoder) -> None:
    """Queried alone, each fact gets the same rank as together with facts of other passages."""
    facts = evaluation.held_out_facts(corpus, 8)
    passages = corpus.facts[facts, PASSAGE]
    facts = facts[np.unique(passages, return_index=True)[1]]  # leaves of one passage see each other
    asked = text_ranks(encoder, corpus, facts)
    alone = [text_ranks(encoder, corpus, facts[i : i + 1])[0] for i in range(len(facts))]
    np.testing.assert_allclose(asked, alone, atol=1.0)  # sums of another shape may swap close scores


def text_ranks(encoder: Encoder, corpus: Corpus, facts: evaluation.Integers) -> list[float]:
    found = evaluation.evaluate_encoder(encoder, corpus, entities_of(corpus), np.sort(facts))
    return [float(rank) for rank in found.text.ranks]


def test_an_encoder_that_gives_nan_ranks_last(corpus: Corpus, encoder: Encoder) -> None:
    torch.manual_seed(0)
    broken = Encoder(encoder.sizes, corpus.vocabulary, len(corpus.relations))
    with torch.no_grad():
        broken.norm.weight.fill_(torch.nan)
    facts = evaluation.held_out_facts(corpus, 20)
    found = evaluation.evaluate_encoder(broken, corpus, entities_of(corpus), facts)
    columns = int(corpus.entity_known.sum())
    true = evaluation.Candidates(corpus).true(corpus.facts[facts].astype(np.int64))
    assert found.text.ranks.tolist() == [columns - len(others) + 1 for others in true]
    assert Summary.of(found.graph.ranks).mrr > Summary.of(found.text.ranks).mrr


def test_a_sample_reads_fewer_rows_and_is_the_same_every_time(corpus: Corpus, encoder: Encoder) -> None:
    read = []

    class Counting(Encoder):
        def guess(self, hidden: torch.Tensor) -> torch.Tensor:
            read.append(len(hidden))
            return super().guess(hidden)

    counting = Counting(encoder.sizes, corpus.vocabulary, len(corpus.relations))
    counting.load_state_dict(encoder.state_dict())
    facts = evaluation.held_out_facts(corpus, 50)
    whole = evaluation.evaluate_encoder(counting, corpus, entities_of(corpus), facts)
    all_rows = len(read)
    some, again = (evaluation.evaluate(counting, corpus, entities_of(corpus), limit=50) for _ in range(2))
    assert 0 < (len(read) - all_rows) / 2 < all_rows
    assert some == again
    assert some["mrr"] == whole.metrics()["mrr"]


def test_whoever_is_asked_to_stop_stops_and_leaves_the_encoder_as_it_was(
    corpus: Corpus, encoder: Encoder
) -> None:
    encoder.train()
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return calls > 3

    with pytest.raises(Stopped):
        evaluation.evaluate(encoder, corpus, entities_of(corpus), stop=stop)
    assert encoder.training
    assert calls == 4
    calls = 0
    with pytest.raises(Stopped):
        baselines.train(corpus, replace(baselines.COMPLEX, batch=64), seed=0, stop=stop)
    assert calls == 4


HISTORY = [
    {"step": step, "loss": 8 - step / 50, "words": 6 - step / 80, "nodes": 3.0} for step in range(50, 301, 50)
] + [
    {"step": step, "mrr": step / 2000, "text_mrr": step / 1500, "held_out_word_loss": 6 - step / 90}
    for step in (100, 200, 300)
]


def test_the_report_tells_each_row_by_what_it_sees(corpus: Corpus, encoder: Encoder) -> None:
    lines: list[str] = []
    measured = report.measure(encoder, corpus, limit=150, epochs=1, progress=lines.append)
    files = report.files(measured, HISTORY, {"steps": 300, "seed": 7})
    found = json.loads(files["report.json"])
    assert found["corpus"]["fingerprint"] == corpus.fingerprint()
    assert found["about"] == {"steps": 300, "seed": 7}
    assert found["history"] == HISTORY
    assert found["settings"]["TransE"]["epochs"] == 1
    rows = ["frequency", "TransE", "ComplEx", report.GRAPH, report.TEXT]
    for name, count in ((report.ALL, 150), (report.KNOWN, known_among(corpus, 150))):
        table = found["tables"][name]
        assert set(table) == set(rows)
        assert {row["count"] for row in table.values()} == {count}
        assert all(0 < row["mrr"] <= 1 for row in table.values())
    text = files["report.md"].decode()
    places = [text.index(f"| {name} |") for name in rows]
    assert places == sorted(places)
    assert f"| {found['tables'][report.KNOWN]['TransE']['mrr']:.4f} |" in text
    assert "source that states the fact" in text
    assert any(line.startswith("ComplEx: epoch 1/1") for line in lines)
    assert image_size(files["curves.png"]) > (800, 300)


def known_among(corpus: Corpus, limit: int) -> int:
    return int(evaluation.known_heads(corpus, evaluation.held_out_facts(corpus, limit)).sum())


def image_size(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def test_the_same_seed_gives_the_same_report(corpus: Corpus, encoder: Encoder) -> None:
    one, other = (report.measure(encoder, corpus, seed=2, limit=60, epochs=1) for _ in range(2))
    assert one == other


def test_curves_of_a_training_that_was_never_evaluated_can_be_drawn() -> None:
    assert image_size(report.curves([])) > (800, 300)
    assert image_size(report.curves([{"step": 1, "loss": math.nan}, {"step": 2, "loss": 2.0}])) > (800, 300)


@pytest.fixture
def checkpoint(corpus: Corpus, encoder: Encoder, tmp_path: Path) -> Path:
    settings = config.Config(model=encoder.sizes)
    state = {
        "identity": {"seed": 7, "steps": 300},
        "corpus": corpus,
        "model": encoder,
        "history": {"rows": HISTORY, "best": 0.1},
        "config": settings.plain(),
    }
    folder = Training(tmp_path / "checkpoints").save(300, state, required=True)
    assert folder is not None
    return folder


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "graphmer.report", *map(str, arguments)]


def environment() -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "jobs/graphmer")])
    return os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


def test_the_command_reports_a_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        command(checkpoint, "-o", tmp_path / "out", "--quick"),
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert report.GRAPH in done.stdout
    assert "TransE: epoch 2/2" in done.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "curves.png",
        "report.json",
        "report.md",
    ]
    assert json.loads((tmp_path / "out/report.json").read_text())["about"]["seed"] == 7


def test_the_command_tells_what_is_no_checkpoint(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path, "-o", tmp_path / "out"), env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 1
    assert f"graphmer.report: {tmp_path} is not a checkpoint" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_ctrl_c_ends_the_command_without_a_trace(checkpoint: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(checkpoint, "-o", tmp_path / "out"), env=environment(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    process.stderr.readline()  # the first line of progress
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=240)
    assert process.returncode == 130
    assert "interrupted, nothing was written" in rest
    assert "Traceback" not in rest
    assert not (tmp_path / "out").exists()
