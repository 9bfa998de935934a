"""State that is spread over ranks (FSDP2): saved by all, resumed by any number, never left by half."""

from __future__ import annotations

import hashlib
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.training import EXIT_SAVED, Training
from tests.training.scripts import finish, go_on, started, steps, until, until_printed

pytestmark = pytest.mark.timeout(1800)  # many starts of torch, on a machine that others use as well
SHARDS, REFUSED = (str(Path(__file__).with_name(f"{name}.py")) for name in ("shards", "refused"))
TOTAL = 6


def plain() -> torch.nn.Sequential:
    return torch.nn.Sequential(
        torch.nn.Linear(6, 9), torch.nn.Dropout(0.3), torch.nn.BatchNorm1d(9), torch.nn.Linear(9, 1)
    )


def run(
    folder: Path, *events: str, ranks: int = 2, resume_from: Path | None = None, ending: str = ""
) -> list[tuple[int | None, str]]:
    """Each rank's exit code and output. `ending` is the signal that ends it once it waits at a step."""
    given: dict[str, object] = {"CHECKPOINT_DIR": folder}
    given |= {} if resume_from is None else {"RESUME_FROM": resume_from}
    words = [str(ranks), f"{folder}.meeting", str(TOTAL), *events]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(started([SHARDS, str(rank), *words], folder.parent, given))
            for rank in range(ranks)
        ]
        if ending:
            waits = next(event.removeprefix("step:") for event in events if event.startswith("step:"))
            until_printed(processes[0], f"step {waits}")
            last = int(waits) - int(waits) % 2
            until(lambda: not last or last in steps(folder), processes[0])
        if ending == "kill":
            for process in processes:
                process.kill()
        elif ending == "term":
            processes[0].send_signal(signal.SIGTERM)
            go_on(processes[0])
        outputs = [finish(process) for process in processes]
        return [(process.returncode, out) for process, out in zip(processes, outputs, strict=True)]


def kept(folder: Path) -> dict[str, Any]:
    """All tensors of a checkpoint, each as one."""
    training = Training(folder.with_name("unused"), resume_from=folder)
    return {name: training.saved(name) for name in ("model", "optimizer")}


def files(folder: Path) -> dict[str, str]:
    """Name → sha256 of its files, also in folders of it."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def assert_same(one: Any, two: Any) -> None:
    torch.testing.assert_close(one, two, rtol=0, atol=0, check_dtype=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of an uninterrupted run of two ranks."""
    folder = tmp_path_factory.mktemp("whole") / "c"
    ended = run(folder)
    assert [code for code, _ in ended] == [0, 0], ended
    assert steps(folder) == [2, 4, 6]
    return folder


@pytest.mark.parametrize(("ending", "waits", "left"), [("kill", 5, [2, 4]), ("term", 3, [2, 3])])
def test_two_ranks_resume_bit_for_bit(
    tmp_path: Path, whole: Path, ending: str, waits: int, left: list[int]
) -> None:
    ended = run(tmp_path / "c", f"step:{waits}", ending=ending)
    assert [code for code, _ in ended] == [EXIT_SAVED if ending == "term" else -signal.SIGKILL] * 2, ended
    assert steps(tmp_path / "c") == left
    resumed = run(tmp_path / "d", resume_from=tmp_path / f"c/step-{left[-1]}")
    assert [code for code, _ in resumed] == [0, 0], resumed
    assert files(tmp_path / "d/step-6") == files(whole / "step-6")
    assert (
        len([*(whole / "step-6/sharded").iterdir()]) == 3
    )  # what torch says of them, and a part of each rank


def test_another_number_of_ranks_has_the_same_weights(tmp_path: Path, whole: Path) -> None:
    """Two ranks, then one, then a plain model without torch.distributed, then two again."""
    expected = kept(whole / "step-6")
    ended = run(tmp_path / "one", ranks=1, resume_from=whole / "step-6")
    assert [code for code, _ in ended] == [0], ended
    assert_same(kept(tmp_path / "one/step-6"), expected)
    model = plain()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    training = Training(tmp_path / "plain", resume_from=tmp_path / "one/step-6")
    scheduler = training.resume({"model": model, "optimizer": optimizer})["scheduler"]
    assert_same(dict(model.state_dict()), expected["model"])
    assert_same(optimizer.state_dict()["state"], expected["optimizer"]["state"])
    saved = training.save(6, {"model": model, "optimizer": optimizer, "scheduler": scheduler}, required=True)
    assert saved is not None
    assert not (saved / "sharded").exists()
    ended = run(tmp_path / "two", resume_from=saved)
    assert [code for code, _ in ended] == [0, 0], ended
    assert (tmp_path / "two/step-6/sharded").is_dir()
    assert_same(kept(tmp_path / "two/step-6"), expected)


def test_a_rank_that_cannot_write_leaves_no_half_of_a_checkpoint(tmp_path: Path) -> None:
    ended = run(tmp_path / "c", "full:3")
    fault = "rank 1 could not write its part: [Errno 27] File too large"
    warning = f"warning: the checkpoint of step 4 could not be saved, training goes on: {fault}"
    assert [warning in output for _, output in ended] == [True, False], ended
    for code, output in ended:
        assert code == 1
        assert output.splitlines()[-1].endswith(f"the checkpoint of step 6 could not be saved: {fault}")
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["step-2"]


def test_ranks_with_other_tensors_are_told_so(tmp_path: Path) -> None:
    for code, output in run(tmp_path / "c", "late:3"):
        assert code == 1
        assert "rank 1 has other sharded tensors than rank 0; they must have the same" in output
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["step-2"]


@pytest.mark.parametrize("file", [".metadata", "__1_0.distcp"])
def test_a_part_that_is_cut_or_missing_is_named(tmp_path: Path, whole: Path, file: str) -> None:
    torn = tmp_path / "step-4"
    (torn / "sharded").mkdir(parents=True)
    for path in (whole / "step-4").rglob("*"):
        if path.is_file() and path.name != file:
            (torn / path.relative_to(whole / "step-4")).write_bytes(path.read_bytes())
    training = Training(tmp_path / "c", resume_from=torn)
    with pytest.raises(ValueError, match=r"sharded does not fit or is damaged: .*No such file"):
        training.resume({"model": plain()})
    (torn / "sharded" / file).write_bytes((whole / "step-4/sharded" / file).read_bytes()[:100])
    with pytest.raises(ValueError, match="sharded does not fit or is damaged"):
        training.resume({"model": plain()})


def test_what_cannot_be_saved_is_told_by_place_and_kind(tmp_path: Path) -> None:
    with started([REFUSED], tmp_path) as process:
        output = finish(process)
    own = "Quantized, a kind of tensor of its own"
    assert [line for line in output.splitlines() if "Warning" not in line and not line.startswith("  ")] == [
        f"model.weight: cannot save a __main__.{own}; save plain tensors",
        f"optimizer.state.0.moment: cannot save a __main__.{own}; save plain tensors",
        "sums.0: cannot save a DTensor of partial sums; redistribute it first",
        f"packed: cannot save a DTensor of __main__.{own}",
        "old: cannot save a FullyShardedDataParallel; use fully_shard (FSDP2) instead",
        "late: cannot save a DTensor after torch.distributed has ended; save before destroy_process_group",
        "[]",
    ]
