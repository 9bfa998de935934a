"""Processes that train together: none outlives the others or waits for them forever."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.training.devices import backend_for
from tests.training.scripts import finish, started, until_printed

PAIR = str(Path(__file__).with_name("pair.py"))
ALONE = str(Path(__file__).with_name("alone.py"))


def test_a_leader_that_fails_says_why_and_ends_the_others(tmp_path: Path) -> None:
    """The failure must not take the 30 minutes that the other process would wait: the agent must learn that
    memory ran out."""
    with started([PAIR], tmp_path) as process:
        output = finish(process)
    assert process.returncode == 1
    assert "RuntimeError: the planted fault" in output.splitlines()[-1]


@pytest.mark.parametrize(("accelerator", "backend"), [("cpu", "cpu"), ("T4x2", None), (None, None)])
def test_an_order_for_a_cpu_gets_no_other_device(accelerator: str | None, backend: str | None) -> None:
    assert backend_for(accelerator) == backend


def test_an_order_for_a_tpu_never_ends_up_on_the_cpu() -> None:
    with pytest.raises(ValueError, match="for TPUv5e-1, but neither torch_tpu nor torch_xla finds a TPU"):
        backend_for("TPUv5e-1")


def test_a_rank_that_saves_alone_says_what_it_waits_for(tmp_path: Path) -> None:
    told = tmp_path / "told"
    with started([ALONE, str(tmp_path / "c"), str(told)], tmp_path) as process:
        until_printed(
            process, "warning: rank 0 waits to save step 1: every rank must call save() and leave()"
        )
        told.touch()
        output = finish(process)
    assert process.returncode == 1
    assert "the planted fault" in output
