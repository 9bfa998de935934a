"""What differs between two checkpoints. Nothing that is in them is ever run."""

from __future__ import annotations

import io
import json
import os
import pickle
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.rehearsal.contents import Difference, differences, torn, without


@dataclass
class Settings:
    """Pickled into checkpoints as people do."""

    rate: float
    made_at: float


class Trap:
    """Writes a file when it is loaded the usual way."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    folders = tmp_path / "one", tmp_path / "other"
    for folder in folders:
        folder.mkdir()
    return folders


def saved(pair: tuple[Path, Path], name: str, one: Any, other: Any, **options: Any) -> list[str]:
    """What differs once torch.save has written both."""
    import torch

    for folder, value in zip(pair, (one, other), strict=True):
        torch.save(value, folder / name, **options)
    return sorted(map(str, differences(*pair)))


def test_values_are_compared_not_bytes(pair: tuple[Path, Path]) -> None:
    import torch

    weights = torch.arange(6.0).reshape(2, 3)
    other = {"b": [1, (2.5, "x")], "a": weights.t().contiguous().t()}
    assert saved(pair, "ckpt.pt", {"a": weights, "b": [1, (2.5, "x")]}, other) == []
    other["b"] = [1, (2.75, "x")]
    assert saved(pair, "ckpt.pt", {"a": weights, "b": [1, (2.5, "x")]}, other) == [
        "ckpt.pt: b[1][0] (by up to 0.25)"
    ]
    assert saved(pair, "ckpt.pt", {"a": weights}, {"a": weights + 0.5, "c": 1}) == [
        "ckpt.pt: a (by up to 0.5)", "ckpt.pt: c",
    ]  # fmt: skip
    assert saved(pair, "ckpt.pt", {"a": -0.0}, {"a": 0.0}) == ["ckpt.pt: a (by up to 0)"], "to the last bit"
    assert saved(pair, "ckpt.pt", {"a": weights}, {"a": weights.double()}) == ["ckpt.pt: a"]


def test_objects_of_the_job_are_compared_by_their_attributes(pair: tuple[Path, Path]) -> None:
    one, other = ({"settings": Settings(0.1, now), "step": 5} for now in (1.0, 2.0))
    assert saved(pair, "5.pt", one, other) == ["5.pt: settings.made_at (by up to 1)"]
    assert saved(pair, "5.pt", one, one) == []
    for folder, value in zip(pair, (one, other), strict=True):
        (folder / "5.pkl").write_bytes(pickle.dumps(value))
    assert "5.pkl: settings.made_at (by up to 1)" in map(str, differences(*pair))


def test_nothing_is_run(pair: tuple[Path, Path], tmp_path: Path) -> None:
    one, other = ({"trap": Trap(tmp_path / name)} for name in ("ran-1", "ran-2"))
    assert saved(pair, "ckpt.pt", one, other) == ["ckpt.pt: trap[0][0]"]
    for folder, value in zip(pair, (one, other), strict=True):
        (folder / "ckpt.pkl").write_bytes(pickle.dumps(value))
    assert len(differences(*pair)) == 2
    assert not list(tmp_path.glob("ran-*"))


def test_what_is_not_wholly_read_is_compared_by_its_bytes(pair: tuple[Path, Path]) -> None:
    """The old format of torch.save is several pickles, of which the first are always the same."""
    import torch

    one, other = torch.zeros(3), torch.ones(3)
    assert saved(pair, "old.pt", one, one, _use_new_zipfile_serialization=False) == []
    assert saved(pair, "old.pt", one, other, _use_new_zipfile_serialization=False) == ["old.pt"]


def test_archives_are_compared_by_their_files(pair: tuple[Path, Path]) -> None:
    for folder, year, value in zip(pair, (2024, 2025), (b"1", b"2"), strict=True):
        with zipfile.ZipFile(folder / "state.npz", "w") as archive:
            archive.writestr(zipfile.ZipInfo("same.npy", (year, 1, 1, 0, 0, 0)), b"0")
            archive.writestr(zipfile.ZipInfo("other.npy", (year, 1, 1, 0, 0, 0)), value)
    assert list(map(str, differences(*pair))) == ["state.npz: other.npy"]


def test_files_with_random_names_are_paired(pair: tuple[Path, Path]) -> None:
    for folder, name in zip(pair, ("7f3a", "0b21"), strict=True):
        (folder / f"meta-{name}.json").write_text(json.dumps({"step": 5}))
        (folder / f"weights-{name}.bin").write_bytes(b"weights")
    assert differences(*pair) == []
    (pair[1] / "weights-0b21.bin").write_bytes(b"WEIGHTS")
    assert list(map(str, differences(*pair))) == ["weights-7f3a.bin"]
    (pair[1] / "more.bin").write_bytes(b"x")
    assert "more.bin is only in one of them" in map(str, differences(*pair))


def test_only_single_values_may_vary(pair: tuple[Path, Path]) -> None:
    for folder, now in zip(pair, (time.time(), 5.0), strict=True):
        (folder / "10.json").write_text(json.dumps({"at": now, "rates": [now], "more": [1] * int(now < 6)}))
    varying = differences(*pair)
    assert {each.kind for each in varying} == {"#.json: at", "#.json: rates[0]", "#.json: more"}
    later = [
        Difference("20.json: at", 3.0, is_state=False),
        Difference("20.json: more"),
        Difference("20.json: x"),
    ]
    assert without(later, varying) == later[1:]
    log = Difference("checkpoint-40/trainer_state.json: log_history[4].loss", 0.1, is_state=False)
    other = Difference("checkpoint-40/trainer_state.json: best_metric", 0.1, is_state=False)
    assert without([log, other], []) == [other]


def test_incomplete_files_are_found(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("state", b"x" * 100)
    (tmp_path / "whole.pt").write_bytes(buffer.getvalue())
    (tmp_path / "half.pt").write_bytes(buffer.getvalue()[:100])
    (tmp_path / "empty.safetensors").write_bytes(b"")
    (tmp_path / "other.txt").write_bytes(b"x")
    assert sorted(torn(tmp_path)) == ["empty.safetensors", "half.pt"]
