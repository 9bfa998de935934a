"""GraphMER: what its graph states, and that a stopped or killed training still ends with the same bits."""

from __future__ import annotations

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from graphmer import flops, graph
from graphmer.loop import be_deterministic

from orchestrator.training import determinism
from orchestrator.training.devices import Device
from tests.jobs import graphmer_samples as samples
from tests.training.scripts import ROOT, fingerprints, finish, started, steps, until

pytestmark = pytest.mark.timeout(1800)  # many starts of torch, on a machine that others use as well
JOB = ROOT / "jobs/graphmer"
PACKAGES = (
    "json",
    "logging",
    "concurrent",
    "urllib",
    "http",
)  # fewer than other tests need: it is read often
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
    folder = samples.copied(tmp_path_factory.mktemp("source"), PACKAGES)
    (folder / "json/tests").mkdir()
    (folder / "json/tests/test_it.py").write_text("def test_secret(): pass\n")
    (folder / "broken.py").write_text("def (:\n")
    return folder


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


# --- The command ----------------------------------------------------------------------------------------

STEPS, EVALUATED = 50, 30  # the curriculum switches at step 40


def command(folder: Path, source: Path, workers: int, micro_batch: int = 8, *more: str) -> list[str]:
    settings = copy.deepcopy(samples.SMALL)
    settings["data"].update(sources=[str(source)], workers=workers)
    settings["evaluation"]["every"] = EVALUATED
    path = folder / f"train-{workers}.yaml"
    path.write_text(yaml.safe_dump(settings))
    given = f"--steps {STEPS} --micro-batch {micro_batch} --precision fp32 --seed 5 --backend cpu"
    return ["-m", "graphmer.train", "--config", str(path), *given.split(), *(more or ("--accumulate", "2"))]


@pytest.fixture(scope="module")
def uninterrupted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The final checkpoint of an uninterrupted training."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    given = {"CHECKPOINT_DIR": folder / "c", "PROGRESS": folder / "progress", "PEAK_FLOPS": "1e11"}
    with started(command(folder, source, 0), JOB, given) as process:
        output = finish(process)
    assert process.returncode == 0, output
    return folder / f"c/step-{STEPS}"


def test_it_learns_and_reports(uninterrupted: Path) -> None:
    metrics = json.loads((uninterrupted / "metrics.json").read_text())
    progress = [json.loads(line) for line in (uninterrupted.parents[1] / "progress").read_text().splitlines()]
    losses = [line["metrics"] for line in progress if "samples_per_second" in line["metrics"]]
    assert [line["step"] for line in progress if "samples_per_second" in line["metrics"]] == [
        *range(1, STEPS + 1)
    ]
    for name, share in (("words", 0.85), ("nodes", 0.95)):
        first, last = (sum(line[name] for line in lines) for lines in (losses[:10], losses[-10:]))
        assert last < share * first, name
    assert metrics["mrr"] > 0
    settings = samples.small()
    for line, length in ((losses[0], 64), (losses[-1], 96)):  # buckets may be shorter than the phase's length
        share = line["mfu"] / line["samples_per_second"] * 1e11
        assert share <= flops.sample(settings, length) * 1.001
    history = [line["step"] for line in progress if "mrr" in line["metrics"]]
    assert history == [EVALUATED, STEPS]


def test_it_is_deterministic_by_force_and_says_so(uninterrupted: Path) -> None:
    assert json.loads((uninterrupted / "environment.json").read_text()) == {"deterministic": True}


UNDETERMINED = """
import torch
from graphmer import model
from graphmer.train import main

plain = model.Encoder.forward

def forward(self, batch, entities):
    torch.zeros(3).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))
    return plain(self, batch, entities)

model.Encoder.forward = forward
main()
"""


def test_an_operation_without_a_deterministic_form_ends_it_with_the_remedy(
    tmp_path: Path, source: Path
) -> None:
    (tmp_path / "changed.py").write_text(UNDETERMINED)
    given = ["changed.py", *command(tmp_path, source, 0)[2:]]
    with started(given, tmp_path, {"CHECKPOINT_DIR": tmp_path / "c"}, JOB) as process:
        output = finish(process)
    assert process.returncode == 1
    assert output.splitlines()[-1] == (
        f"graphmer: put_ does not have a deterministic implementation here. Set `deterministic: false` in "
        f"{tmp_path}/train-0.yaml to train without; a resume is then state-exact, not bitwise"
    )


def test_on_a_tpu_it_promises_nothing() -> None:
    torch.use_deterministic_algorithms(False)
    be_deterministic(Device("xla", torch.device("cpu")))
    assert not determinism.is_enforced()


def reported(progress: Path, lines: int) -> bool:
    return progress.read_bytes().count(b"\n") >= lines


def test_stopped_and_killed_over_other_workers_it_ends_bit_for_bit_the_same(
    tmp_path: Path, source: Path, uninterrupted: Path
) -> None:
    """Crosses the curriculum's switch at step 40. The source is gone after the first session, as on another
    machine, because the corpus travels in the checkpoint."""
    mine = tmp_path / "source"
    shutil.copytree(source, mine)
    request, start = tmp_path / "request", 0
    given: dict[str, object] = {"SAVE_REQUEST": request}
    for workers, end in enumerate((signal.SIGTERM, signal.SIGKILL, None)):
        checkpoints, progress = tmp_path / f"c{workers}", tmp_path / f"progress{workers}"
        request.write_text("0")
        progress.touch()
        given |= {"CHECKPOINT_DIR": checkpoints, "PROGRESS": progress}
        with started(command(tmp_path, mine, workers), JOB, given) as process:
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
        if start == 0:
            assert steps(checkpoints)[-1] < 40
            shutil.rmtree(mine)
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
    assert output.splitlines()[-1] == "graphmer: the checkpoint belongs to another training: seed 5 (here 6)"


def test_what_is_no_checkpoint_is_told_in_a_line(tmp_path: Path, source: Path, uninterrupted: Path) -> None:
    shutil.copytree(uninterrupted, tmp_path / "step-9")
    (tmp_path / "step-9/state.json").write_text('{"step": 9, "cut')
    given = {"CHECKPOINT_DIR": tmp_path / "c", "RESUME_FROM": tmp_path / "step-9"}
    with started(command(tmp_path, source, 0), JOB, given) as process:
        output = finish(process)
    assert process.returncode == 1
    assert output.startswith(f"graphmer: {tmp_path}/step-9 is not a checkpoint of orchestrator.training: ")


def test_a_file_where_checkpoints_should_go_is_told_in_a_line(tmp_path: Path, source: Path) -> None:
    (tmp_path / "c").touch()
    with started(command(tmp_path, source, 0), JOB, {"CHECKPOINT_DIR": tmp_path / "c"}) as process:
        output = finish(process)
    assert process.returncode == 1
    assert output == f"graphmer: {tmp_path}/c: File exists\n"


@pytest.mark.parametrize(
    ("config", "size", "told"),
    [
        ("none.yaml", "8", "graphmer: none.yaml: No such file or directory"),
        ("cut.yaml", "8", "graphmer: cut.yaml: while parsing a flow sequence"),
        ("bare.yaml", "8", "graphmer: none.jsonl: No such file or directory"),
        ("inputs.yaml", "8", "/inputs/none.jsonl: No such file or directory"),
        ("bare.yaml", "0", "argument --micro-batch: 0 is not positive"),
    ],
)
def test_what_is_missing_or_no_number_of_samples_is_named(
    config: str, size: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "cut.yaml").write_text("data: [a")
    (tmp_path / "bare.yaml").write_text("data: {triples: none.jsonl, sources: [.]}")
    (tmp_path / "inputs.yaml").write_text("data: {triples: $ORCHESTRATOR_INPUTS/none.jsonl, sources: [.]}")
    asked = ["-m", "graphmer.train", "--config", config, "--steps", "9", "--micro-batch", size]
    with started(asked, tmp_path, {"INPUTS": tmp_path / "inputs"}, JOB) as process:
        output = finish(process)
    assert process.returncode in (1, 2)
    assert told in output
    assert "Traceback" not in output


@pytest.mark.soak
def test_two_devices_train_as_one_does_and_leave_together(
    tmp_path: Path, source: Path, uninterrupted: Path
) -> None:
    """Two processes over gloo are stopped once. Only the leader is signalled."""
    progress, start = tmp_path / "progress", 0
    given: dict[str, object] = {"PROGRESS": progress}
    ends: list[Path] = []
    for name, stops in (("whole", (False,)), ("stopped", (True, False))):
        given.pop("RESUME_FROM", None)
        for turn, stop in enumerate(stops):
            checkpoints = tmp_path / f"{name}-{turn}"
            progress.write_text("")
            given |= {"CHECKPOINT_DIR": checkpoints}
            with started(command(tmp_path, source, 0, 8, "--devices", "2"), JOB, given) as process:
                if stop:
                    until(partial(reported, progress, 5), process)
                    process.send_signal(signal.SIGTERM)
                output = finish(process)
            assert process.returncode == (75 if stop else 0), output
            start = steps(checkpoints)[-1]
            given["RESUME_FROM"] = checkpoints / f"step-{start}"
        ends.append(checkpoints / f"step-{STEPS}")
    assert fingerprints(ends[0]) == fingerprints(ends[1])
    # The same mathematics, with sums in another order.
    one, both = (json.loads((folder / "metrics.json").read_text()) for folder in (uninterrupted, ends[0]))
    assert both["words"] == pytest.approx(one["words"], rel=0.02)
    assert both["nodes"] == pytest.approx(one["nodes"], rel=0.1)


def test_a_device_that_fails_ends_the_training(tmp_path: Path, source: Path) -> None:
    progress = tmp_path / "progress"
    progress.touch()
    given = {"CHECKPOINT_DIR": tmp_path / "c", "PROGRESS": progress}
    with started(command(tmp_path, source, 0, 8, "--devices", "2"), JOB, given) as process:
        until(partial(reported, progress, 3), process)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        workers = [
            pid for pid in map(int, children) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        assert len(workers) == 1
        os.kill(workers[0], signal.SIGKILL)
        output = finish(process)
    assert process.returncode == 1
    assert "rank 1 ended with SIGKILL" in output
