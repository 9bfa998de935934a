"""The cost of training, computed from the config: FLOPs of a row, and of a step in each phase.

A spec's `flops_per_step` and `phases` come from here: `python -m graphmer.flops CONFIG` prints them, and a
test compares them. It counts matrix products, including those of attention over the whole row. The backward
pass costs twice the forward pass (docs/references/training.md#flops-of-a-step). Recomputed activations are
not counted, because they are not work of the model itself.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from graphmer.config import Config, read
from graphmer.pages import word_slots

_TRAINING = 3  # once forward, and twice that backward


def sample(config: Config, length: int) -> float:
    """Training FLOPs of one row with this many columns."""
    width, feed = config.model.width, config.model.feed
    products = 2 * (4 * width * width + width * feed + feed // 2 * width)
    attention = 4 * length * width
    guesses = word_slots(length - config.data.leaves, config.data.mask_words)
    forward = (
        config.model.layers * length * (products + attention) + 2 * guesses * width * config.data.vocabulary
    )
    return float(_TRAINING * forward)


def phases(config: Config, global_batch: int) -> list[tuple[int, float]]:
    """(finished steps, FLOPs of a step with full rows from then on)."""
    return [(done, global_batch * sample(config, length)) for done, length in config.data.phases]


def main() -> None:
    """Prints a spec's `work.phases` for a config."""
    parser = argparse.ArgumentParser(prog="python -m graphmer.flops", description=main.__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--global-batch", type=int, default=64)
    given = parser.parse_args()
    for done, flops in phases(read(given.config), given.global_batch):
        print(f"{{from: {done}, flops_per_step: {_text(flops)}}}")


def _text(flops: float) -> str:
    power = int(math.log10(flops)) // 3 * 3
    return f"{flops / 10**power:.2f}e{power}"


if __name__ == "__main__":
    main()
