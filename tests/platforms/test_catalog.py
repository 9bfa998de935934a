"""The catalogue: options are checked, and all mistakes are reported at once, each with valid values."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.clock import SystemClock
from orchestrator.errors import InputError
from orchestrator.platforms.catalog import TYPES, build
from orchestrator.platforms.colab.options import WORDS
from orchestrator.platforms.notebook.options import ACCELERATORS

ASK_A_SERVER = {"colab", "docker", "kaggle", "notebook"}


@pytest.mark.parametrize("kind", sorted(TYPES))
def test_every_type_is_built_without_options(kind: str, tmp_path: Path) -> None:
    platform = build("mine", kind, {}, folder=tmp_path, clock=SystemClock())
    assert platform.name == "mine"
    if kind not in ASK_A_SERVER:
        assert platform.survey()[0].platform == "mine"


def test_options_that_do_not_go_together_are_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"\(kaggle\): wall_margin_seconds is not shorter than a session: set a smaller one$"
    ):
        build("k", "kaggle", {"wall_margin_seconds": 50000}, folder=tmp_path, clock=SystemClock())


def test_options_reach_the_offer(tmp_path: Path) -> None:
    options = {"accelerator": "RTX3050", "memory_gb": 4, "session_seconds": 60, "slots": 2}
    [offer] = build("box", "process", options, folder=tmp_path, clock=SystemClock()).survey()
    assert (offer.accelerator, offer.memory_gb, offer.slots) == ("RTX3050", 4.0, 2)
    assert offer.traits.session_seconds == 60.0
    assert offer.disk_gb is not None
    assert offer.disk_gb > 0


def test_the_host_says_how_much_memory_it_has(tmp_path: Path) -> None:
    [offer] = build("box", "process", {}, folder=tmp_path, clock=SystemClock()).survey()
    assert offer.memory_gb is not None
    assert offer.memory_gb > 0.1


def test_nested_options_of_a_simulated_platform(tmp_path: Path) -> None:
    options = {
        "offers": [{"accelerator": "T4", "slots": 3}],
        "quota": {"allowed_seconds": 9, "window_seconds": 90},
    }
    [offer] = build("sim", "simulated", options, folder=tmp_path, clock=SystemClock()).survey()
    assert (offer.accelerator, offer.slots) == ("T4", 3)
    assert offer.quota is not None
    assert offer.quota.left_seconds == 9


def test_every_mistake_is_named_at_once(tmp_path: Path) -> None:
    options = {"acelerator": "cpu", "slots": 0, "session_seconds": "soon"}
    with pytest.raises(InputError) as caught:
        build("mine", "process", options, folder=tmp_path, clock=SystemClock())
    first, *others = str(caught.value).splitlines()
    assert "'acelerator'; did you mean 'accelerator'?" in first
    assert "session_seconds" in first
    assert "'mine'" in first
    assert [line for line in others if "slots" in line and "0" in line]
    assert [line for line in others if "session_seconds" in line and "'soon'" in line]


def test_a_notebook_is_for_an_accelerator_that_colab_has(tmp_path: Path) -> None:
    assert set(ACCELERATORS) == set(WORDS)
    with pytest.raises(InputError) as caught:
        build("book", "notebook", {"accelerator": "P100"}, folder=tmp_path, clock=SystemClock())
    assert str(caught.value) == (
        "platform 'book' (notebook): option 'accelerator': unknown accelerator; did you mean 'H100'? "
        "valid: T4, L4, A100, H100, RTXPRO6000, TPUv5e-1, TPUv6e-1, cpu (given: 'P100')"
    )


def test_an_unknown_type_gets_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown type 'proces'; did you mean 'process'"):
        build("mine", "proces", {}, folder=tmp_path, clock=SystemClock())
