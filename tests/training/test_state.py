"""What the files of a checkpoint hold, and that all of it can be restored."""

from __future__ import annotations

import json
import os
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from orchestrator.training import Frozen, Training, layout, randomness, state
from tests.training.scripts import fingerprints


def saved(folder: Path, parts: dict[str, object], step: int = 5) -> Path:
    """The folder of a checkpoint that was saved with `required`."""
    written = Training(folder).save(step, parts, required=True)
    assert written is not None
    return written


def parameters(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def test_the_same_state_is_the_same_bytes_and_tied_weights_are_stored_once(tmp_path: Path) -> None:
    tied = torch.nn.Linear(16, 16, bias=False)
    model = torch.nn.ModuleDict({"a": tied, "b": tied, "c": torch.nn.Linear(16, 16)})
    plain = {"rate": 0.1, 3: (1, None, "x"), "$tuple": [float("inf")]}
    view = torch.arange(6).view(2, 3).T
    parts = {"model": model, "plain": plain, "view": view}
    one, two = saved(tmp_path / "one", parts), saved(tmp_path / "two", parts)
    assert fingerprints(one) == fingerprints(two)
    assert (one / "model-00001-of-00001.safetensors").stat().st_size < 3 * 16 * 16 * 4
    expected, drawn = parameters(model), (random.random(), torch.rand(3))
    with torch.no_grad():
        tied.weight.zero_()
    resumed = Training(tmp_path / "next", resume_from=one)
    assert resumed.saved("plain") == plain
    rest = resumed.resume({"model": model})
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())
    assert torch.equal(rest.pop("view"), view)
    assert rest == {"plain": plain}
    assert random.random() == drawn[0]
    assert torch.equal(torch.rand(3), drawn[1])


def test_what_cannot_be_saved_or_loaded_is_named(tmp_path: Path) -> None:
    training = Training(tmp_path / "c")
    with pytest.raises(TypeError, match=r"extra\.deep\.1: cannot save a object"):
        training.save(1, {"extra": {"deep": [1, object()]}})
    with pytest.raises(TypeError, match=r"x\.0: cannot save a torch\.sparse_coo tensor"):
        training.save(1, {"x": [torch.eye(2).to_sparse()]})
    for name in ("a/b", "a-frozen"):
        with pytest.raises(ValueError, match=f"component name '{name}'"):
            training.save(1, {name: 1})
    for name in ("../x", "state.json", "x-00001-of-00001.safetensors"):
        with pytest.raises(ValueError, match="you cannot add a file named"):
            training.save(1, {"x": torch.ones(2)}, files={name: b""})
    with pytest.raises(ValueError, match=r"is not a checkpoint of orchestrator\.training"):
        Training(tmp_path / "c", resume_from=tmp_path / "nothing")
    resumed = Training(tmp_path / "d", resume_from=saved(tmp_path / "c", {"model": torch.nn.Linear(1, 1)}))
    with pytest.raises(ValueError, match="holds model; it has no optimizer"):
        resumed.resume({"optimizer": torch.nn.Linear(1, 1)})
    with pytest.raises(ValueError, match="it has no optimizer"):
        resumed.saved("optimizer")


def test_a_shard_that_is_missing_or_cut_is_named(tmp_path: Path) -> None:
    saved = Training(tmp_path).save(1, {"x": torch.ones(9)}, required=True)
    assert saved is not None
    shard = saved / "x-00001-of-00001.safetensors"
    os.truncate(shard, shard.stat().st_size - 1)
    with pytest.raises(ValueError, match=f"{shard.name} is missing or damaged"):
        Training(tmp_path, resume_from=saved).resume({})
    shard.unlink()
    with pytest.raises(ValueError, match=f"{shard.name} is missing or damaged"):
        Training(tmp_path, resume_from=saved).resume({})


def test_a_fork_saves_frozen_tensors_of_its_own(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 3)
    model.weight.requires_grad_(False)
    training = Training(tmp_path)
    training.save(1, {"model": model}, required=True)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            model.weight.data.fill_(2.0)
            training.save(2, {"model": model}, required=True)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    model.weight.data.fill_(3.0)
    training.save(3, {"model": model}, required=True)
    for step in (2, 3):
        saved = Training(tmp_path / "other", resume_from=tmp_path / f"step-{step}").saved("model")
        assert saved["weight"].unique().tolist() == [step]


def test_the_first_session_has_nothing_saved(tmp_path: Path) -> None:
    training = Training(tmp_path)
    assert training.saved("model") is None
    assert training.resume({"model": torch.nn.Linear(1, 1)}) == {}


@pytest.mark.parametrize("background", [True, False])
def test_the_safetensors_library_reads_every_kind_of_tensor(tmp_path: Path, background: bool) -> None:
    kinds = [getattr(torch, name) for name in layout.DTYPES]
    tensors = {str(kind): torch.arange(1, 6).to(kind) for kind in kinds}
    tensors |= {
        "odd": torch.arange(24.0).view(4, 6).T[1:],
        "empty": torch.zeros(0, 3),
        "one": torch.tensor(7),
    }
    tensors |= {"conjugate": torch.complex(torch.ones(2), torch.ones(2)).conj()}
    training = Training(tmp_path / "c", background=background)
    training.save(1, {"x": tensors}, files={"report.json": b"{}"})
    training.wait()
    read = load_file(tmp_path / "c/step-1/x-00001-of-00001.safetensors")
    assert read.keys() == {f"x.{name}" for name in tensors}
    for name, value in tensors.items():
        assert read[f"x.{name}"].tolist() == value.tolist()
    found = Training(tmp_path / "d", resume_from=tmp_path / "c/step-1").saved("x")
    assert [(n, v.dtype, v.shape) for n, v in found.items()] == [
        (n, v.dtype, v.shape) for n, v in sorted(tensors.items())
    ]
    assert (tmp_path / "c/step-1/report.json").read_bytes() == b"{}"


def test_shards_are_of_bounded_size_and_larger_tensors_are_split_by_rows(tmp_path: Path) -> None:
    tensors = {"wide": torch.arange(1000.0).view(10, 100), "small": torch.ones(7), "flags": torch.ones(3) > 0}
    captured = state.capture({"x": tensors}, shard_bytes=1000)
    shards = layout.plan("x", captured.trained["x"], shard_bytes=1000)
    names = [shard.file for shard in shards]
    assert names == [f"x-{n:05d}-of-{len(shards):05d}.safetensors" for n in range(1, len(shards) + 1)]
    assert len(shards) == 5
    assert all(shard.size <= 1000 for shard in shards)
    for shard in shards:
        shard.write(tmp_path / shard.file)
    layout.write_file(tmp_path / "state.json", [captured.document(1, {"x": names}, [randomness.capture()])])
    found = state.component(tmp_path, "x")
    assert all(torch.equal(found[name], value) for name, value in tensors.items())


def test_a_tensor_of_more_than_a_shard_comes_back(tmp_path: Path) -> None:
    large = torch.arange(70_000_000, dtype=torch.int32).view(-1, 1000)
    folder = saved(tmp_path / "c", {"x": {"large": large}})
    assert sorted(path.name for path in folder.glob("x-*")) == [
        f"x-0000{n}-of-00002.safetensors" for n in (1, 2)
    ]
    found = Training(tmp_path / "d", resume_from=folder).saved("x")
    assert torch.equal(found["large"], large)


def test_two_tensors_of_one_place_are_both_kept(tmp_path: Path) -> None:
    folder = saved(tmp_path / "c", {"x": {"a.b": torch.ones(2), "a": {"b": torch.zeros(2)}}})
    found = Training(tmp_path / "d", resume_from=folder).saved("x")
    assert found["a.b"].tolist() == [1, 1]
    assert found["a"]["b"].tolist() == [0, 0]


def model_with_frozen_part() -> Any:
    model = torch.nn.ModuleDict({"still": torch.nn.Linear(300, 300), "moving": torch.nn.Linear(3, 3)})
    model["still"].requires_grad_(False)
    return model


def test_frozen_tensors_are_written_once_and_again_only_when_they_change(tmp_path: Path) -> None:
    model, corpus = model_with_frozen_part(), torch.nn.Embedding(10, 3)
    parts = {"model": model, "corpus": Frozen(corpus)}
    training = Training(tmp_path / "c")
    for step in (1, 2):
        with torch.no_grad():
            model["moving"].weight += 1
        training.save(step, parts)
    training.wait()
    first, second = tmp_path / "c/step-1", tmp_path / "c/step-2"
    for file in ("model-frozen-00001-of-00001.safetensors", "corpus-frozen-00001-of-00001.safetensors"):
        assert (first / file).samefile(second / file)
    assert set(load_file(second / "model-00001-of-00001.safetensors")) == {
        "model.moving.weight", "model.moving.bias"
    }  # fmt: skip
    before = fingerprints(first)
    with torch.no_grad():
        model["still"].weight[[0, 1]] = model["still"].weight[[1, 0]]
    training.save(3, parts)
    training.wait()
    assert fingerprints(first) == before
    still = "model-frozen-00001-of-00001.safetensors"
    assert not (tmp_path / "c/step-3" / still).samefile(first / still)
    assert len(list((tmp_path / "c/.frozen").iterdir())) == 2
    for step in (2, 3):
        found = model_with_frozen_part()
        known = Frozen(torch.nn.Embedding(10, 3))
        resumed = Training(tmp_path / "d", resume_from=tmp_path / f"c/step-{step}")
        resumed.resume({"model": found, "corpus": known})
        assert torch.equal(known.state_dict()["weight"], corpus.weight)
        same = torch.equal(found["still"].weight, model["still"].weight)
        assert same == (step == 3)


def test_a_weight_tied_to_a_trained_one_is_no_frozen_one(tmp_path: Path) -> None:
    model = model_with_frozen_part()
    alias = torch.nn.Parameter(model["moving"].weight.data, requires_grad=False)
    model["moving"].register_parameter("alias", alias)
    folder = saved(tmp_path / "c", {"model": model})
    still = load_file(folder / "model-frozen-00001-of-00001.safetensors")
    assert set(still) == {"model.still.weight", "model.still.bias"}
    found = Training(tmp_path / "d", resume_from=folder).saved("model")
    assert torch.equal(found["moving.alias"], model["moving"].weight)


def test_where_links_are_impossible_frozen_files_are_copied(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        training = Training(tmp_path / "c")
        (tmp_path / "c/.frozen").symlink_to(elsewhere)
        if Path(elsewhere).stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("one file system only")
        for step in (1, 2):
            training.save(step, {"model": model_with_frozen_part()}, required=True)
        assert (tmp_path / "c/step-2/model-frozen-00001-of-00001.safetensors").stat().st_nlink == 1


def test_a_parameter_without_gradients_has_no_optimizer_state(tmp_path: Path) -> None:
    def training_of() -> tuple[Any, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model = torch.nn.ModuleDict({"dead": torch.nn.Linear(2, 2), "live": torch.nn.Linear(2, 2)})
        return model, torch.optim.AdamW(model.parameters(), 0.1)

    def step(model: Any, optimizer: torch.optim.Optimizer) -> None:
        model["live"](torch.ones(2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    model, optimizer = training_of()
    step(model, optimizer)
    folder = saved(tmp_path / "c", {"model": model, "optimizer": optimizer})
    assert len(json.loads((folder / "state.json").read_text())["state"]["optimizer"]["state"]["$dict"]) == 2
    again, its_optimizer = training_of()
    Training(tmp_path / "d", resume_from=folder).resume({"model": again, "optimizer": its_optimizer})
    for one in ((model, optimizer), (again, its_optimizer)):
        step(*one)
    expected = parameters(model)
    assert all(torch.equal(value, expected[name]) for name, value in again.state_dict().items())
