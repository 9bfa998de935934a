"""What a pattern of saves matches, and which pattern is guessed from names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.save_pattern import Saved, SavePattern, guess

STEPS = SavePattern.parse("checkpoints/ckpt_{step}.pt")


@pytest.mark.parametrize(
    ("pattern", "path", "saved"),
    [
        ("checkpoints/ckpt_{step}.pt", "checkpoints/ckpt_300.pt", Saved(300, None)),
        ("checkpoints/ckpt_{step}.pt", "checkpoints/ckpt_0007.pt", Saved(7, None)),
        ("checkpoints/ckpt_{step}.pt", "checkpoints/ckpt_300.pt.tmp", None),
        ("checkpoints/ckpt_{step}.pt", "checkpoints/ckpt_-3.pt", None),
        ("checkpoints/ckpt_{step}.pt", "ckpt_300.pt", None),
        ("checkpoints/ckpt_{step}.pt", "a/checkpoints/ckpt_300.pt", None),
        ("out/checkpoint-{step}", "out/checkpoint-500", Saved(500, None)),
        ("out/checkpoint-{step}/", "out/checkpoint-500", Saved(500, None)),
        ("out/checkpoint-{step}", "out/checkpoint-500/optimizer.pt", None),
        ("v_*/epoch={epoch}-step={step}.ckpt", "v_3/epoch=2-step=900.ckpt", Saved(900, 2)),
        ("v_*/epoch={epoch}-step={step}.ckpt", "v_3/x/epoch=2-step=900.ckpt", None),
        ("{step}/model_{step}.pt", "40/model_40.pt", Saved(40, None)),
        ("{step}/model_{step}.pt", "40/model_41.pt", None),
        ("m.{epoch}.*.pt", "m.3.0.271.pt", Saved(None, 3)),
        ("last.pt", "last.pt", Saved(None, None)),
        ("{step}.pt", f"{10**18}.pt", None),  # it must stay below 2**63
    ],
)
def test_a_path_is_saved_by_the_pattern_or_not(pattern: str, path: str, saved: Saved | None) -> None:
    assert SavePattern.parse(pattern).match(path) == saved


@pytest.mark.parametrize(
    "text",
    ["", "/abs/{step}.pt", "../{step}.pt", "a//b", "./a", "a\\{step}", "a\0", "**/{step}.pt", "{loss}.pt",
     "{step:02d}.pt", "{", "a}b", "{}", "/".join("a" * 17)],
)  # fmt: skip
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"path|step|supported"):
        SavePattern.parse(text)


def test_a_folder_covers_what_lies_in_it_and_is_the_root_of_its_files() -> None:
    folder = SavePattern.parse("out/checkpoint-{step}")
    assert folder.covers("out/checkpoint-5/a/b.bin")
    assert not folder.covers("out/other/b.bin")
    assert folder.root(["out/checkpoint-5/a", "out/checkpoint-5/b/c"]) == "out/checkpoint-5"
    assert folder.root(["out/checkpoint-5/a", "out/checkpoint-6/a"]) is None
    assert folder.root([]) is None
    assert STEPS.root(["checkpoints/ckpt_3.pt"]) == "checkpoints/ckpt_3.pt"


@pytest.mark.parametrize(
    ("written", "pattern"),
    [
        (["checkpoints/ckpt_3.pt"], "checkpoints/ckpt_{step}.pt"),
        (["out/checkpoint-500/model.safetensors", "out/checkpoint-500/"], "out/checkpoint-{step}"),
        (["runs/epoch_4.pth"], "runs/epoch_{epoch}.pth"),
        (["lightning_logs/version_0/checkpoints/epoch=1-step=20.ckpt"],
         "lightning_logs/version_*/checkpoints/epoch={epoch}-step={step}.ckpt"),
        (["runs/2026-11-26_08-03/model_10.pt"], "runs/*/model_{step}.pt"),
        (["model.pt"], "model.pt"),
        (["state.pkl"], "state.pkl"),
        (["houses.pkl", "cache.npz"], None),
        (["step-100"], "step-{step}"),
        (["model_3_0.271.pt"], "model_{step}_*.pt"),
        (["plots/loss.png", "results.csv", "train.log", ".pt"], None),
        (["model{3}.pt"], None),
    ],
)  # fmt: skip
def test_a_pattern_is_guessed_from_what_was_written(written: list[str], pattern: str | None) -> None:
    assert guess(written) == pattern


@given(st.text(alphabet="ab_-.0129=/", min_size=1, max_size=30))
def test_a_guess_is_a_pattern_that_matches_what_it_was_made_of(path: str) -> None:
    found = guess([path])
    if found is None:
        return
    try:
        pattern = SavePattern.parse(found)
    except ValueError:
        assert any(part in ("", ".", "..") for part in path.rstrip("/").split("/")) or path.count("/") > 15
        return
    assert pattern.match(path.rstrip("/")) is not None
