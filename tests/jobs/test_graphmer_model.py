"""GraphMER's encoder and losses: what attends to what, each loss against brute force, and the cost."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
import yaml
from graphmer import config, flops
from graphmer.corpus import Corpus
from graphmer.loop import Scaler, Schedule, Trainer, signs_of_life
from graphmer.model import Encoder
from graphmer.pages import FALSE, HIDDEN, IGNORED, NO_LEAF, TRUE
from torch.utils.flop_counter import FlopCounterMode

from orchestrator.training import Training
from orchestrator.training.devices import find
from tests.jobs import graphmer_samples as samples
from tests.jobs.graphmer_samples import Subject
from tests.training.scripts import ROOT

JOB = ROOT / "jobs/graphmer"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return samples.corpus(samples.copied(tmp_path_factory.mktemp("source")))


@pytest.fixture
def subject(corpus: Corpus) -> Subject:
    return Subject(corpus)


# --- The encoder ----------------------------------------------------------------------------------------


def test_the_reference_model_has_80_3_million_parameters() -> None:
    settings = config.read(JOB / "train_gpu.yaml")
    encoder = Encoder(settings.model, settings.data.vocabulary, 14)
    parameters = sum(p.numel() for p in encoder.parameters())
    assert round(parameters / 1e6, 1) == 80.3
    spec = yaml.safe_load((ROOT / "jobs/graphmer_50k.yaml").read_text())
    assert float(spec["work"]["parameters"]) == pytest.approx(parameters, rel=1e-3)
    assert encoder.guess(torch.zeros(1, 768)).shape == (1, 12_288)  # tied: no second matrix


def test_passages_of_a_row_do_not_see_each_other_nor_padding(subject: Subject) -> None:
    before = subject.hidden()
    tokens = subject.batch["tokens"].clone()
    segments = subject.batch["segments"]
    row = int(torch.nonzero((segments == 2).any(1))[0])
    own, others = segments[row] == 1, segments[row] != 1
    tokens[row, others & (tokens[row] > 0)] = 7
    after = subject.hidden(tokens=tokens)
    assert torch.equal(after[row, own], before[row, own])
    assert not torch.equal(after[row, others], before[row, others])
    assert torch.isfinite(after).all()


def test_order_matters(subject: Subject) -> None:
    """Two words at the same distance, left and right: a token between them can tell which is which."""
    tokens = subject.batch["tokens"]
    roots = torch.nonzero(
        (subject.batch["segments"][0] == 1) & (subject.batch["relations"][0] == 0)
    ).flatten()
    middle, reach = len(roots) // 2, min(4, len(roots) // 2 - 1)
    ends = roots[middle - reach], roots[middle + reach]
    found = []
    for words in ((11, 12), (12, 11)):
        changed = tokens.clone()
        changed[0, ends[0]], changed[0, ends[1]] = words
        found.append(subject.hidden(tokens=changed)[0, roots[middle]])
    one, other = found
    assert not torch.allclose(one, other)


def test_a_masked_leaf_tells_nothing_of_its_tail_and_others_do(subject: Subject) -> None:
    state, tails = subject.batch["leaf_state"], subject.batch["leaf_tail"]
    before = subject.hidden()
    masked = torch.where(state == HIDDEN, (tails + 5) % len(subject.entities), tails)
    assert not torch.equal(masked, tails)
    assert torch.equal(subject.hidden(leaf_tail=masked), before)
    shown = torch.where(state == TRUE, (tails + 5) % len(subject.entities), tails)
    after = subject.hidden(leaf_tail=shown)
    row, leaf = torch.nonzero(state == TRUE)[0].tolist()
    anchor = subject.batch["leaf_anchor"][row, leaf]
    assert not torch.allclose(after[row, anchor], before[row, anchor])


def test_what_hangs_nowhere_has_no_effect(subject: Subject) -> None:
    absent = subject.batch["leaf_state"] == NO_LEAF
    assert absent.any()
    tails = torch.where(absent, 3, subject.batch["leaf_tail"])
    assert torch.equal(subject.hidden(leaf_tail=tails), subject.hidden())


def test_an_entity_is_composed_from_its_tokens_and_a_relation_turns_it(subject: Subject) -> None:
    encoder, entities = subject.encoder, subject.entities
    ids = torch.arange(6)
    assert encoder.entity(ids.view(2, 3), entities).shape == (2, 3, 48)
    one, other = (encoder.query(ids, torch.full((6,), r), entities) for r in (0, 1))
    assert not torch.allclose(one, other)
    scores = one @ encoder.entity(ids, entities).T
    assert not torch.allclose(scores, scores.T)  # so that antisymmetry can be learnt


def gradients(subject: Subject) -> dict[str, torch.Tensor]:
    subject.encoder.zero_grad()
    sums = subject.loss.sums(subject.encoder, subject.hidden(), subject.batch)
    subject.loss.total(sums, subject.loss.counts(subject.batch)).backward()  # type: ignore[no-untyped-call]
    return {name: p.grad.clone() for name, p in subject.encoder.named_parameters() if p.grad is not None}


def test_activations_computed_anew_give_the_same_gradients_and_every_parameter_has_one(
    subject: Subject,
) -> None:
    kept = gradients(subject)
    subject.encoder.sizes = config.Model(**vars(subject.encoder.sizes) | {"checkpoint_activations": True})
    anew = gradients(subject)
    assert kept.keys() == dict(subject.encoder.named_parameters()).keys()
    assert all(torch.equal(anew[name], kept[name]) for name in kept)
    assert all(grad.abs().max() > 0 for grad in kept.values())


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_half_precision_is_near(subject: Subject, kind: torch.dtype) -> None:
    full = subject.hidden()
    with torch.autocast("cpu", kind):
        half = subject.hidden()
        sums = subject.loss.sums(subject.encoder, half, subject.batch)
    assert all(torch.isfinite(value) for value in sums.values())
    torch.testing.assert_close(half.float(), full, rtol=0.1, atol=0.1)


# --- The losses by brute force --------------------------------------------------------------------------


def told(subject: Subject) -> dict[str, float]:
    sums = subject.loss.sums(subject.encoder, subject.hidden(), subject.batch)
    return {name: value.item() for name, value in sums.items()}


def test_masked_words_are_a_cross_entropy(subject: Subject) -> None:
    batch, hidden, words = subject.batch, subject.hidden(), 0.0
    for row in range(16):
        for place, target in zip(batch["word_places"][row], batch["word_targets"][row], strict=True):
            if target != IGNORED:
                words -= subject.encoder.guess(hidden[row, place]).log_softmax(-1)[target].item()
    assert told(subject)["words"] == pytest.approx(words, rel=1e-4)
    assert subject.loss.counts(batch)["words"] == (batch["word_targets"] != IGNORED).sum()


def test_facts_are_told_from_the_pool_of_their_group_with_the_text_and_without(subject: Subject) -> None:
    encoder, batch, hidden = subject.encoder, subject.batch, subject.hidden()
    nodes = graph = 0.0
    leaves = batch["leaf_state"].shape[1]
    for row, leaf in torch.nonzero((batch["leaf_state"] == HIDDEN) | (batch["leaf_state"] == TRUE)).tolist():
        group = slice(row // 8 * 8, row // 8 * 8 + 8)
        pool = torch.cat([batch["candidates"][group].flatten(), batch["leaf_tail"][group].flatten()])
        head, relation = batch["leaf_head"][row, leaf], batch["relations"][row, leaf - leaves] - 1
        alone = encoder.query(head, relation, subject.entities)
        if batch["leaf_state"][row, leaf] == HIDDEN:
            slot = int(torch.nonzero((batch["query_leaf"][row] == leaf) & batch["query_valid"][row])[0])
            own = int(batch["candidates"][row, slot, 0])
            others = pool[~batch["excluded"][row, slot]].tolist()
            others.remove(own)  # one of the copies is its own
            assert own not in others
        else:
            own = int(batch["leaf_tail"][row, leaf])
            others = pool[~batch["leaf_excluded"][row, leaf]].tolist()
            assert own not in others
        tails = encoder.entity(torch.tensor([own, *others]), subject.entities)
        graph -= (tails @ alone).log_softmax(-1)[0].item()
        if batch["leaf_state"][row, leaf] == HIDDEN:
            nodes -= (tails @ hidden[row, leaf - leaves]).log_softmax(-1)[0].item()
    found, counts = told(subject), subject.loss.counts(batch)
    assert [found["nodes"], found["graph"]] == pytest.approx([nodes, graph], rel=1e-4)
    assert counts["nodes"] == (batch["leaf_state"] == HIDDEN).sum()
    assert counts["graph"] == counts["nodes"] + (batch["leaf_state"] == TRUE).sum()


def chance(subject: Subject, head: int, relation: int, tail: int) -> float:
    encoder, ids = subject.encoder, torch.tensor
    query = encoder.query(ids(head), ids(relation), subject.entities)
    score = query @ encoder.entity(ids(tail), subject.entities) + encoder.graph_bias.weight[relation + 1, 0]
    return score.sigmoid().item()


def test_antisymmetry_punishes_what_holds_both_ways(corpus: Corpus, subject: Subject) -> None:
    torch.nn.init.normal_(subject.encoder.rotations.weight)
    batch, one_way = subject.batch, ("contains", "has_method", "inherits_from", "has_parameter")
    expected, count = 0.0, 0
    for row, leaf in torch.nonzero(batch["leaf_state"] == TRUE).tolist():
        relation = int(batch["relations"][row, leaf - batch["leaf_state"].shape[1]]) - 1
        head, tail = int(batch["leaf_head"][row, leaf]), int(batch["leaf_tail"][row, leaf])
        if corpus.relations[relation] in one_way and head != tail:
            both = chance(subject, head, relation, tail) + chance(subject, tail, relation, head)
            expected, count = expected + max(0.0, both - 1.0), count + 1
    assert count > 0
    assert told(subject)["antisymmetry"] == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert subject.loss.counts(batch)["antisymmetry"] == count


def test_acyclicity_is_the_trace_of_the_matrix_exponential(corpus: Corpus, subject: Subject) -> None:
    torch.nn.init.normal_(subject.encoder.rotations.weight)
    relations = [corpus.relations.index(name) for name in ("contains", "inherits_from")]
    expected, groups = 0.0, 0
    for ends in subject.batch["edges"]:
        nodes = sorted({int(end) for end in ends.flatten() if end >= 0})
        groups += bool(nodes)
        for relation in relations if nodes else []:
            edges = torch.tensor([[chance(subject, i, relation, j) for j in nodes] for i in nodes])
            expected += (torch.matrix_exp(edges * edges).trace().item() - len(nodes)) / len(nodes)
    assert groups > 0
    # The series is cut after eight edges. The rest is small for matrices of this size.
    assert told(subject)["acyclicity"] == pytest.approx(expected, rel=0.02)
    assert subject.loss.counts(subject.batch)["acyclicity"] == groups


def test_sure_edges_do_not_overflow_in_16_bits(subject: Subject) -> None:
    """After an infinite loss, every further step would be skipped."""
    torch.nn.init.constant_(subject.encoder.graph_bias.weight, 20.0)
    whole = told(subject)["acyclicity"]
    with torch.autocast("cpu", torch.float16):
        assert told(subject)["acyclicity"] == pytest.approx(whole, rel=0.01)


def test_mentions_are_held_against_the_entities_of_their_group(subject: Subject) -> None:
    batch, hidden, expected, count = subject.batch, subject.hidden(), 0.0, 0
    for first in (0, 8):
        found = []
        for row in range(first, first + 8):
            anchors = set()
            for leaf in torch.nonzero(batch["leaf_state"][row]).flatten().tolist():
                anchor, span = int(batch["leaf_anchor"][row, leaf]), int(batch["leaf_span"][row, leaf])
                if anchor not in anchors:
                    anchors.add(anchor)
                    found.append(
                        (hidden[row, anchor : anchor + span].sum(0), int(batch["leaf_head"][row, leaf]))
                    )
        for i, (state, own) in enumerate(found):
            others = [head for j, (_, head) in enumerate(found) if j == i or head != own]
            place = [j for j, (_, head) in enumerate(found) if j == i or head != own].index(i)
            vectors = subject.encoder.entity(torch.tensor(others), subject.entities)
            likeness = torch.cosine_similarity(vectors, state.unsqueeze(0)) / 0.07
            expected, count = expected - likeness.log_softmax(-1)[place].item(), count + 1
    assert told(subject)["contrastive"] == pytest.approx(expected, rel=1e-3)
    assert subject.loss.counts(batch)["contrastive"] == count


def test_negative_leaves_are_told_from_facts(subject: Subject) -> None:
    torch.manual_seed(1)
    judged = (subject.batch["leaf_state"] == TRUE) | (subject.batch["leaf_state"] == FALSE)
    assert subject.loss.counts(subject.batch)["truth"] == 2 * judged.sum()
    optimizer = torch.optim.AdamW(subject.encoder.parameters(), 3e-3)
    first = told(subject)["truth"]
    for _ in range(40):
        optimizer.zero_grad()
        subject.loss.sums(subject.encoder, subject.hidden(), subject.batch)["truth"].backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert told(subject)["truth"] < 0.3 * first


# --- The step -------------------------------------------------------------------------------------------


def trained(corpus: Corpus, micro_batch: int, precision: str = "fp32", steps: int = 12) -> Trainer:
    torch.manual_seed(0)
    trainer = Trainer(
        samples.small(), Schedule(100, micro_batch, 16 // micro_batch, precision, 7), corpus, find("cpu")
    )
    for step in range(1, steps + 1):
        trainer.step(step, samples.batch(corpus, step))
    return trainer


def distance(one: Trainer, other: Trainer) -> float:
    """The largest difference of a weight, relative to the largest weight of its tensor."""
    pairs = zip(one.encoder.parameters(), other.encoder.parameters(), strict=True)
    return max(((a - b).abs().max() / b.abs().max().clamp(min=1e-3)).item() for a, b in pairs)


def test_micro_batches_change_the_last_bits_only(corpus: Corpus) -> None:
    """State-exact: 12 steps with micro-batches of 16 or 8 rows end within 1 part in 100 of each other. (AdamW
    divides small gradients by their own size, so noise in their last bits moves single weights.) The first
    step's gradients agree within 1 part in 100,000."""
    assert distance(trained(corpus, 16), trained(corpus, 16)) == 0.0
    assert 0.0 < distance(trained(corpus, 8), trained(corpus, 16)) < 1e-2
    found = []
    for micro_batch in (16, 8):
        torch.manual_seed(0)
        schedule = Schedule(100, micro_batch, 16 // micro_batch, "fp32", 7)
        trainer = Trainer(samples.small(), schedule, corpus, find("cpu"))
        trainer.optimizer = torch.optim.SGD(trainer.encoder.parameters(), lr=1.0)  # type: ignore[assignment]
        before = copy.deepcopy(trainer.encoder.state_dict())
        trainer.step(1, samples.batch(corpus))
        after = trainer.encoder.state_dict()
        found.append({name: before[name] - after[name] for name in before})
    for name, whole in found[0].items():
        torch.testing.assert_close(
            found[1][name], whole, rtol=1e-4, atol=1e-5 * float(whole.abs().max()) + 1e-8
        )


def test_a_step_that_fp16_skips_counts_and_its_scale_travels_through_other_precisions(corpus: Corpus) -> None:
    trainer = trained(corpus, 16, "fp16", steps=2)
    scale = trainer.scaler.state_dict()
    assert scale["scale"] > 0
    elsewhere = Scaler(find("cpu"), "bf16")
    elsewhere.load_state_dict(scale)
    assert elsewhere.state_dict() == scale
    back = Scaler(find("cpu"), "fp16")
    back.load_state_dict(elsewhere.state_dict())
    assert back.state_dict() == scale
    trainer.scaler.load_state_dict(scale | {"scale": 1e38})  # overflows
    before = copy.deepcopy(trainer.encoder.state_dict())
    trainer.step(3, samples.batch(corpus, 3))
    assert all(torch.equal(value, before[name]) for name, value in trainer.encoder.state_dict().items())
    assert trainer.scaler.state_dict()["scale"] == pytest.approx(5e37)


def test_a_long_evaluation_gives_signs_of_life(tmp_path: Path) -> None:
    """Only by reports: once a step was reported, nothing else counts as a sign of life for the agent."""
    training = Training(tmp_path / "c", progress=tmp_path / "progress")
    stop = signs_of_life(training, 7, every=0.0)
    assert [stop(), stop()] == [False, False]
    assert not signs_of_life(training, 8, every=3600.0)()
    reports = [json.loads(line) for line in (tmp_path / "progress").read_text().splitlines()]
    assert [(each["step"], each["metrics"]) for each in reports] == [(7, {})] * 2


def test_the_learning_rate_warms_up_and_follows_a_cosine(corpus: Corpus) -> None:
    trainer = trained(corpus, 16, steps=0)
    rates = [trainer._rate(step) for step in (1, 5, 10, 55, 100)]
    assert rates == pytest.approx([0.1, 0.5, 1.0, 0.5, 0.0])
    settings = config.read(JOB / "train_gpu.yaml").optimizer
    assert (settings.betas, settings.epsilon, settings.weight_decay) == ((0.9, 0.98), 1e-8, 0.01)
    assert (settings.learning_rate, settings.warmup, settings.clip) == (3e-4, 1500, 1.0)
    decayed, kept = trainer.optimizer.param_groups
    assert decayed["weight_decay"] == 0.01
    assert kept["weight_decay"] == 0.0
    assert all(p.ndim == 1 for p in kept["params"])


# --- Its cost -------------------------------------------------------------------------------------------


def test_the_spec_says_what_the_config_costs() -> None:
    work = yaml.safe_load((ROOT / "jobs/graphmer_50k.yaml").read_text())["work"]
    for name in ("train_gpu.yaml", "train_kaggle.yaml", "train_tpu.yaml"):
        settings = config.read(JOB / name)
        assert settings.objectives.group == work["group"]
        computed = flops.phases(settings, work["global_batch"])
        assert [phase["from"] for phase in work["phases"]] == [done for done, _ in computed]
        given = [float(phase["flops_per_step"]) for phase in work["phases"]]
        assert given == pytest.approx([cost for _, cost in computed], rel=1e-3)
        assert float(work["flops_per_step"]) == given[-1]
        # A move to another platform may change configs.
        assert settings.decisive() == config.read(JOB / "train_gpu.yaml").decisive()


def test_the_computed_flops_are_those_that_are_done(subject: Subject) -> None:
    """Compares with torch's own count, which includes more: composing entities, and the smaller losses."""
    settings = samples.small()
    wide = config.from_plain(samples.SMALL | {"model": {"width": 384, "layers": 4, "heads": 6, "feed": 1536}})
    subject.encoder = Encoder(
        wide.model, settings.data.vocabulary, subject.encoder.relations.num_embeddings - 1
    )
    with FlopCounterMode(display=False) as counter:
        gradients(subject)
    rows, length = subject.batch["tokens"].shape
    done = counter.get_total_flops() / rows
    assert 0.80 < flops.sample(wide, length) / done <= 1.0


# --- The config -----------------------------------------------------------------------------------------


def test_what_a_config_gets_wrong_is_named(tmp_path: Path) -> None:
    for text, message in (
        ("model: {widht: 8}", "unknown model.widht; known are width"),
        ("model: {heads: 5}", r"model.width: 768 is not a multiple of 2 × model.heads \(5\)"),
        (
            "data: {held_out: 1.5}\nmodel: {feed: 3}",
            r"data.held_out: 1.5 is not between 0 and 1; model.feed: 3",
        ),
        ("data: {curriculum: {5: 64}}", "the first phase must begin at 0"),
        ("data: {curriculum: {0: 60}}", "multiples of 8"),
        ("data: {workers: two}", "data.workers: 'two' is not a valid value"),
        ("[1]", "expected keys and values"),
        (
            "model: [8]\ndata: {worker: 1, facts: many, held_out: 2}\noptimizer: {warmup: -1}",
            "model: exp.*; unknown data.worker; .*; data.facts: .*; data.held_out: .*; optimizer.warmup: ",
        ),
    ):
        (tmp_path / "c.yaml").write_text(text)
        with pytest.raises(ValueError, match=message):
            config.read(tmp_path / "c.yaml")


def test_a_config_travels_as_a_plain_document() -> None:
    for path in sorted(JOB.glob("train_*.yaml")):
        settings = config.read(path)
        assert config.from_plain(settings.plain()) == settings
        assert settings.data.length(1) == settings.data.phases[0][1]
    assert [settings.data.length(step) for step in (15_000, 15_001)] == [512, 768]
