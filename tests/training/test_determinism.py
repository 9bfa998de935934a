"""Determinism that is enforced, and what a checkpoint says of it. Here without a GPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from orchestrator.training import Training, determinism


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without determinism at first, and with all settings as they were at the end."""
    for name in (determinism.CUBLAS, "FLASH_ATTENTION_DETERMINISTIC"):
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    cudnn, cuda = torch.backends.cudnn, torch.backends.cuda
    was = cudnn.benchmark, cudnn.deterministic, cuda.cudnn_sdp_enabled(), torch.get_num_threads()  # type: ignore[no-untyped-call]
    torch.use_deterministic_algorithms(False)
    yield
    torch.use_deterministic_algorithms(False)
    cudnn.benchmark, cudnn.deterministic = was[:2]
    cuda.enable_cudnn_sdp(was[2])
    torch.set_num_threads(was[3])


def said(folder: Path, training: Training | None = None) -> object:
    """What a checkpoint of a model says of its environment; None if it says nothing."""
    made = training or Training(folder)
    saved = made.save(1, {"model": torch.nn.Linear(2, 2)}, required=True)
    assert saved is not None
    path = saved / "environment.json"
    return json.loads(path.read_bytes()) if path.exists() else None


def test_without_being_asked_nothing_is_said(tmp_path: Path) -> None:
    assert not determinism.is_enforced()
    assert said(tmp_path) is None


def test_enforced_an_operation_without_a_deterministic_form_fails(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.deterministic()
    attends = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    assert not attends, "the gradients of this back end are not deterministic"
    with pytest.raises(RuntimeError, match="put_ does not have a deterministic implementation"):
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))
    assert said(tmp_path, training) == {"deterministic": True}


def test_enforced_the_gradient_of_an_index_is_the_same_every_time() -> None:
    """Two threads add to the same rows. Without determinism, all of twenty gradients differed."""
    determinism.enforce()
    torch.set_num_threads(2)
    rows = torch.randint(0, 50, (20_000,), generator=torch.Generator().manual_seed(1))
    upstream = torch.randn(len(rows), 64, generator=torch.Generator().manual_seed(2))

    def gradient() -> torch.Tensor:
        table = torch.zeros(50, 64, requires_grad=True)
        (table[rows] * upstream).sum().backward()  # type: ignore[no-untyped-call]
        assert table.grad is not None
        return table.grad

    first = gradient()
    assert all(torch.equal(first, gradient()) for _ in range(10))


def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a script or a framework does that knows nothing of us."""
    monkeypatch.setenv(determinism.CUBLAS, ":16:8")
    torch.use_deterministic_algorithms(True)


def test_it_counts_whoever_asked_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand(monkeypatch)
    assert said(tmp_path) == {"deterministic": True}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: torch.use_deterministic_algorithms(True, warn_only=True),
        lambda _: setattr(torch.backends.cudnn, "benchmark", True),
        lambda patch: patch.delenv(determinism.CUBLAS),
        lambda patch: patch.setenv(determinism.CUBLAS, ":4096:2:16:8"),
        lambda patch: patch.setitem(sys.modules, "torch_xla", ModuleType("torch_xla")),
    ],
    ids=["only a warning", "cuDNN measures", "no workspace", "torch's own workspace", "on a TPU"],
)
def test_what_spoils_it_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[pytest.MonkeyPatch], None]
) -> None:
    by_hand(monkeypatch)
    spoil(monkeypatch)
    assert said(tmp_path) is None


def test_called_too_late_it_says_when(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(RuntimeError, match=r"already used.*earlier, or set CUBLAS_WORKSPACE_CONFIG=:4096:8"):
        determinism.enforce()
    assert not torch.are_deterministic_algorithms_enabled()
    monkeypatch.setenv(determinism.CUBLAS, ":4096:8")  # set in the job
    determinism.enforce()
    assert determinism.is_enforced()


def test_another_workspace_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(determinism.CUBLAS, ":4096:2")
    with pytest.raises(ValueError, match=r"CUBLAS_WORKSPACE_CONFIG=:4096:2 is not deterministic; use :4096"):
        determinism.enforce()
