"""GraphMER: what its graph says, what its batches are, that a killed training ends bit for bit the same."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from graphmer import chains, config, data, graph, loop
from graphmer.model import Encoder

from tests.training.scripts import ROOT, fingerprints, finish, started, steps, until

JOB = ROOT / "jobs/graphmer"
SAMPLE = '''
"""A docstring is no word."""
import os.path
from typing import Any

LIMIT: int = 3

class Box(dict, Generic[T]):
    shape = None

    @property
    def size(self, unit: str = "cm", *rest, scale=LIMIT) -> float:
        self.cache = len(self)
        local = os.path.join(unit)
        try:
            return self.cache
        except (KeyError, re.error):
            raise ValueError("no")
'''
FACTS = {
    ("m", "imports", "os.path"),
    ("m", "imports", "typing.Any"),
    ("m", "assigns", "LIMIT"),
    ("m", "annotated_with", "int"),
    ("m", "contains", "Box"),
    ("m.Box", "inherits_from", "dict"),
    ("m.Box", "inherits_from", "Generic"),
    ("m.Box", "assigns", "shape"),
    ("m.Box", "has_method", "size"),
    ("m.Box.size", "decorated_by", "property"),
    ("m.Box.size", "has_parameter", "unit"),
    ("m.Box.size", "has_parameter", "rest"),
    ("m.Box.size", "has_parameter", "scale"),
    ("m.Box.size.unit", "annotated_with", "str"),
    ("m.Box.size.unit", "defaults_to", "str"),
    ("m.Box.size.scale", "defaults_to", "LIMIT"),
    ("m.Box.size", "returns", "float"),
    ("m.Box.size", "returns", "self.cache"),
    ("m.Box.size", "sets_attribute", "cache"),
    ("m.Box.size", "calls", "len"),
    ("m.Box.size", "calls", "os.path.join"),
    ("m.Box.size", "calls", "ValueError"),
    ("m.Box.size", "catches", "KeyError"),
    ("m.Box.size", "catches", "re.error"),
    ("m.Box.size", "raises", "ValueError"),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few packages of the standard library, with a test suite and a file that does not parse."""
    folder = tmp_path_factory.mktemp("source")
    library = Path(sysconfig.get_paths()["stdlib"])
    for package in ("json", "email", "logging", "concurrent", "xml", "urllib", "http"):
        shutil.copytree(library / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "json/tests").mkdir()
    (folder / "json/tests/test_it.py").write_text("def test_secret(): pass\n")
    (folder / "broken.py").write_text("def (:\n")
    return folder


@pytest.fixture(scope="module")
def corpus(source: Path) -> chains.Corpus:
    return chains.encode(graph.build(source), roots=24, leaves=6, vocabulary=1500, held_out=0.25)


@pytest.fixture(scope="module")
def table(corpus: chains.Corpus) -> data.Table:
    return data.Table(corpus.train, 24, 6)


def test_it_reads_the_facts_that_the_code_states(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(SAMPLE)
    triples = graph.build(tmp_path).triples
    assert {(t.head, t.relation, t.tail) for t in triples} == FACTS
    assert {t.relation for t in triples} == set(graph.RELATIONS)
    assert len(triples) == len(FACTS)


def test_the_standard_library_is_cut_to_unique_triples_of_at_least_twelve_relations() -> None:
    triples = graph.build(graph.standard_library(), 30826).triples
    assert len(triples) == len(set(triples)) == 30826
    assert len({triple.relation for triple in triples}) >= 12


def test_the_graph_depends_on_no_hash_seed_and_no_order_of_files(source: Path, tmp_path: Path) -> None:
    for path in sorted((p for p in source.rglob("*") if p.is_file()), reverse=True):
        copy = tmp_path / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    printed = set()
    for folder, seed in ((source, "1"), (tmp_path, "2")):
        done = subprocess.run(
            [sys.executable, "-m", "graphmer.graph", str(folder), "--limit", "3000"],
            cwd=JOB, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        printed.add(done.stdout)
    assert len(printed) == 1
    assert "3,000  triples" in printed.pop()


def test_test_suites_and_broken_files_are_left_out(source: Path) -> None:
    modules = {passage.module for passage in graph.build(source).passages}
    assert "json.decoder" in modules
    assert not {"json.tests.test_it", "broken"} & modules


def test_held_out_modules_give_nothing_to_training(source: Path) -> None:
    whole = graph.build(source)
    split = chains.encode(whole, roots=24, leaves=6, vocabulary=10**6, held_out=0.25)
    facts = sum(len(c.leaves) for c in (*split.train, *split.held_out))
    assert 0 < len(split.held_out) < len(split.train)
    assert not set(split.held_out) & set(split.train)
    assert facts > 0.98 * len(
        whole.triples
    )  # all are packed, but for held-out chains that repeat trained ones
    trained = {word for chain in split.train for word in chain.roots}
    trained |= {tail for chain in split.train for _, _, tail in chain.leaves}
    assert trained == set(range(len(chains.SPECIAL), len(split.vocabulary)))  # it made every word it knows


def test_leaves_hang_from_the_words_they_speak_of(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(SAMPLE)
    passage = next(p for p in graph.build(tmp_path).passages if p.name == "m.Box.size")
    assert list(chains.words_of(passage.text))[:6] == ["def", "size", "(", "self", "unit", "str"]
    split = chains.encode(graph.Graph((passage,)), roots=20, leaves=5, vocabulary=99, held_out=1e-9)
    word = split.vocabulary.__getitem__
    spoken = {
        (word(c.roots[root]), graph.RELATIONS[relation], word(tail))
        for c in split.train
        for root, relation, tail in c.leaves
    }
    assert ("unit", "defaults_to", "str") in spoken
    assert ("size", "raises", "ValueError") in spoken
    assert max(len(c.leaves) for c in split.train) <= 5


def plan(table: data.Table, seed: int = 7, size: int = 8) -> data.Plan:
    return data.Plan(table, seed, size, data.Masks(0.15, 0.3))


def same(one: data.Batch, other: data.Batch) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


def test_a_batch_is_a_function_of_seed_and_step(table: data.Table) -> None:
    one, other = plan(table), plan(table)
    forwards = [one[step] for step in range(1, 20)]
    backwards = [other[step] for step in reversed(range(1, 20))][::-1]
    assert all(map(same, forwards, backwards))
    assert not same(forwards[0], forwards[1])
    assert not same(forwards[0], plan(table, seed=8)[1])


def test_an_epoch_takes_every_chain_once_and_each_epoch_in_another_order() -> None:
    few = data.Table([chains.Chain((9, 9), ((i, 0, 5),)) for i in range(20)], 2, 1)
    every = np.concatenate([plan(few)[step]["places"][:, 2] for step in range(1, 6)])  # 5 × 8 = 2 × 20
    assert sorted(every[:20]) == sorted(every[20:]) == list(range(20))
    assert list(every[:20]) != list(every[20:])


def test_masks_hide_what_is_asked_for_and_ask_for_a_node_of_every_chain(table: data.Table) -> None:
    batch = plan(table, size=256)[3]
    asked = (batch["word_targets"] != data.IGNORED) | (batch["node_targets"] != data.IGNORED)
    assert np.array_equal(batch["words"] == chains.MASK, asked)
    targets = np.maximum(batch["word_targets"], batch["node_targets"])[asked]
    assert targets.min() >= len(chains.SPECIAL)
    leaves = batch["relations"] > 0
    assert not ((batch["node_targets"] != data.IGNORED) & ~leaves).any()
    known = (leaves & (batch["words"] != chains.UNKNOWN)).any(axis=1)
    assert np.array_equal((batch["node_targets"] != data.IGNORED).any(axis=1), known)
    words = (batch["words"] != chains.PAD) & (batch["words"] != chains.UNKNOWN) & ~leaves
    assert 0.10 < asked[words].mean() < 0.20


def test_accumulation_does_not_change_the_mathematics(table: data.Table, corpus: chains.Corpus) -> None:
    batch = {name: torch.from_numpy(rows) for name, rows in plan(table)[1].items()}
    gradients = []
    for micro_batch in (8, 2):
        torch.manual_seed(0)
        model = Encoder(len(corpus.vocabulary), 24, 32, 2, 4)
        keep = torch.optim.SGD(model.parameters(), lr=1.0)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        loop._step(model, keep, batch, loop.Schedule(1, micro_batch, 8 // micro_batch, "fp32", 0))
        gradients.append({name: before[name] - p.detach() for name, p in model.named_parameters()})
    for name, whole in gradients[0].items():
        assert whole.abs().max() > 0, name
        torch.testing.assert_close(gradients[1][name], whole, rtol=1e-4, atol=1e-6)


def test_what_a_config_gets_wrong_is_named(tmp_path: Path) -> None:
    good = yaml.safe_load((JOB / "train_demo.yaml").read_text())
    for change, message in (
        ({"widht": 8}, "unknown widht"),
        ({"heads": 3}, "does not divide by heads"),
        ({"held_out": 1.5}, r"held_out: 1\.5 is not between"),
    ):
        (tmp_path / "c.yaml").write_text(yaml.safe_dump(good | change))
        with pytest.raises(ValueError, match=message):
            config.read(tmp_path / "c.yaml")


STEPS = 120


def command(folder: Path, source: Path, workers: int) -> list[str]:
    settings = yaml.safe_load((JOB / "train_demo.yaml").read_text()) | {
        "source": str(source), "triples": 4000, "roots": 24, "leaves": 6, "vocabulary": 1500,
        "held_out": 0.25, "width": 48, "layers": 2, "heads": 2, "workers": workers,
    }  # fmt: skip
    path = folder / f"train-{workers}.yaml"
    path.write_text(yaml.safe_dump(settings))
    given = f"--steps {STEPS} --micro-batch 8 --accumulate 2 --precision fp32 --seed 5"
    return ["-m", "graphmer.train", "--config", str(path), *given.split()]


@pytest.fixture(scope="module")
def uninterrupted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The final checkpoint of a training that nothing disturbed."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    given = {"CHECKPOINT_DIR": folder / "c", "PROGRESS": folder / "progress"}
    with started(command(folder, source, 0), JOB, given) as process:
        output = finish(process)
    assert process.returncode == 0, output
    return folder / f"c/step-{STEPS}"


def test_it_learns(uninterrupted: Path, corpus: chains.Corpus) -> None:
    metrics = json.loads((uninterrupted / "metrics.json").read_text())
    progress = [json.loads(line) for line in (uninterrupted.parents[1] / "progress").read_text().splitlines()]
    assert [line["step"] for line in progress] == [*range(1, STEPS + 1), STEPS]
    assert progress[0]["metrics"].keys() >= {"loss", "node_accuracy", "samples_per_second"}
    assert metrics["loss"] < 0.8 * progress[0]["metrics"]["loss"]
    assert metrics["held_out_node_accuracy"] > 0
    assert metrics["held_out_node_accuracy_by_frequency"] > 0
    words = Counter(word for chain in corpus.held_out for word in chain.roots)
    assert metrics["held_out_word_accuracy"] > 1.3 * words.most_common(1)[0][1] / words.total()


def reported(progress: Path, lines: int) -> bool:
    return progress.read_bytes().count(b"\n") >= lines


def test_stopped_and_killed_over_other_workers_it_ends_bit_for_bit_the_same(
    tmp_path: Path, source: Path, uninterrupted: Path
) -> None:
    request, start = tmp_path / "request", 0
    given: dict[str, object] = {"SAVE_REQUEST": request}
    for workers, end in enumerate((signal.SIGTERM, signal.SIGKILL, None)):
        checkpoints, progress = tmp_path / f"c{workers}", tmp_path / f"progress{workers}"
        request.write_text("0")
        progress.touch()
        given |= {"CHECKPOINT_DIR": checkpoints, "PROGRESS": progress}
        with started(command(tmp_path, source, workers), JOB, given) as process:
            if end is not None:
                until(partial(reported, progress, 5), process)
            if end is signal.SIGKILL:
                request.write_text("1")
                until(partial(steps, checkpoints), process)
            if end is not None:
                process.send_signal(end)
            output = finish(process)
        assert process.returncode == {signal.SIGTERM: 75, signal.SIGKILL: -9, None: 0}[end], output
        assert f"from step {start}\n" in output
        start = steps(checkpoints)[-1]
        given["RESUME_FROM"] = checkpoints / f"step-{start}"
    assert start == STEPS
    assert fingerprints(checkpoints / f"step-{STEPS}") == fingerprints(uninterrupted)


def test_a_checkpoint_of_another_training_is_refused(
    tmp_path: Path, source: Path, uninterrupted: Path
) -> None:
    given = {"CHECKPOINT_DIR": tmp_path / "c", "RESUME_FROM": uninterrupted}
    with started([*command(tmp_path, source, 0), "--seed", "6"], JOB, given) as process:
        output = finish(process)
    assert process.returncode == 1
    assert output.splitlines()[-1] == "graphmer: the checkpoint is of another training: seed 5 (here 6)"
