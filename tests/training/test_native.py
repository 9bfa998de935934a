"""Files in the format of `torch.save`, written later from copies of the tensors."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.training import Training
from orchestrator.training.native import Pickle
from orchestrator.training.unchanging import FOLDER
from orchestrator.training.writer import TEMPORARY


def written(folder: Path, value: Any, change: Any = lambda: None) -> Any:
    """What `torch.load` reads. `change` happens after the copy, before anything is written."""
    training = Training(folder)
    pickle = Pickle(value)
    staged = training.stage(pickle.room)
    assert staged.add(pickle, "deep/file.pt")
    change()
    target = training.save(1, {}, files=staged, required=True)
    assert target is not None
    return torch.load(target / "deep/file.pt", weights_only=False)


def test_a_value_comes_back_as_it_was_when_it_was_copied(tmp_path: Path) -> None:
    tied = torch.randn(3, 5)
    value: dict[str, Any] = {
        "tied": [tied, tied.detach()], "part": torch.arange(100)[10:12], "empty": torch.empty(0, 3),
        "parameter": torch.nn.Parameter(torch.ones(2), requires_grad=False), "scalar": torch.tensor(0.5),
        "last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last), "none": None,
        "half": torch.ones(3, dtype=torch.bfloat16), "double": torch.ones(3, dtype=torch.complex128),
        "transposed": torch.randn(4, 6).t(), "expanded": torch.ones(1).expand(7),
        "true": torch.tensor([True]), "sparse": torch.eye(3).to_sparse(), "plain": [1, ("a", {2.5})],
        "wanted": torch.ones(1, requires_grad=True),
    }  # fmt: skip
    before = {name: each.clone() for name, each in value.items() if isinstance(each, torch.Tensor)}

    def change() -> None:
        tied.zero_()
        value["plain"].append("later")

    first = tied.clone()
    found = written(tmp_path, value, change)
    for name, tensor in before.items():
        same = found[name].to_dense() if name == "sparse" else found[name]
        assert torch.equal(same, tensor.to_dense() if name == "sparse" else tensor), name
        assert found[name].dtype == tensor.dtype, name
    assert torch.equal(found["tied"][0], first)
    assert found["tied"][0].data_ptr() == found["tied"][1].data_ptr()
    assert found["part"].untyped_storage().nbytes() == found["part"].nbytes
    assert found["last"].is_contiguous(memory_format=torch.channels_last)
    assert found["plain"] == [1, ("a", {2.5})]
    assert isinstance(found["parameter"], torch.nn.Parameter)
    assert not found["parameter"].requires_grad
    assert found["wanted"].requires_grad


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A write past this size fails, as on a full disk."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_is_told_as_such_and_leaves_the_checkpoint_before(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    training, pickle = Training(tmp_path), Pickle({"x": torch.ones(1_000_000), "y": torch.ones(9)})
    training.save(1, {"step": 1}, required=True)

    def save(step: int, *, required: bool) -> None:
        staged = training.stage(pickle.room)
        assert staged.add(pickle, "file.pt")
        staged.files["moved.bin"] = tmp_path / f"{TEMPORARY}{step}.bin"
        (tmp_path / f"{TEMPORARY}{step}.bin").write_bytes(b"large")
        training.save(step, {}, files=staged, required=required)

    with files_of_at_most(1_000_000):
        with pytest.raises(OSError, match=r"the checkpoint of step 2 could not be saved: .*File too large"):
            save(2, required=True)
        for step in (3, 4, 5):  # each buffer is free again
            save(step, required=False)
        training.wait()
    assert "the checkpoint of step 5 could not be saved, training goes on" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
    save(6, required=True)
    assert torch.equal(torch.load(tmp_path / "step-6/file.pt")["x"], torch.ones(1_000_000))
    assert (tmp_path / "step-6/moved.bin").read_bytes() == b"large"


def test_what_a_killed_save_left_is_removed_by_the_next_start(tmp_path: Path) -> None:
    (tmp_path / f"{TEMPORARY}8").mkdir()
    (tmp_path / f"{TEMPORARY}8" / "part.pt").write_bytes(b"part")
    (tmp_path / f"{TEMPORARY}8.lightning.ckpt").write_bytes(b"part")
    Training(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_step_that_is_saved_already_gives_its_buffer_back(tmp_path: Path) -> None:
    training, pickle = Training(tmp_path), Pickle(torch.ones(9))
    for _ in range(4):
        staged = training.stage(pickle.room)
        assert staged.add(pickle, "file.pt")
        training.save(1, {}, files=staged)
    training.wait()
    assert torch.equal(torch.load(tmp_path / "step-1/file.pt"), torch.ones(9))


def test_a_checkpoint_that_cannot_be_begun_gives_its_buffer_back(tmp_path: Path) -> None:
    """A file stands where the frozen tensors are written. Two of these would leave no buffer to take."""
    frozen = torch.nn.Linear(2, 2).requires_grad_(requires_grad=False)
    training = Training(tmp_path)
    (tmp_path / FOLDER).write_text("")
    for step in range(1, 5):
        staged = training.stage(64)
        assert staged.pickled("value.pt", torch.ones(8))
        if step < 4:
            assert training.save(step, {"model": frozen}, files=staged) is None
    (tmp_path / FOLDER).unlink()
    target = training.save(4, {"model": frozen}, files=staged, required=True)
    assert target is not None
    assert torch.equal(torch.load(target / "value.pt"), torch.ones(8))


@pytest.mark.parametrize("size", [64, 0])
def test_a_state_with_tensors_is_not_written_from_what_was_staged(tmp_path: Path, size: int) -> None:
    model, training = torch.nn.Linear(2, 2), Training(tmp_path / "checkpoints")
    for step in (1, 2, 3):
        staged = training.stage(size)
        written_already = tmp_path / "written"
        written_already.write_text("")
        staged.files["written"] = written_already
        with pytest.raises(ValueError, match="stage them as well"):
            training.save(step, {"model": model}, files=staged)
    assert not list((tmp_path / "checkpoints").glob("step-*"))
