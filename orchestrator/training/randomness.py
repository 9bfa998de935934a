"""Turns the random generators of this process into plain values, and back.

Covers every generator that a training draws from; numpy's and torch's only if they were imported. Must never
know where the values are kept.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


_XLA = "torch_xla.core.xla_model"


def capture() -> dict[str, object]:
    """The state of each generator, as numbers, text and tuples."""
    found: dict[str, object] = {"python": random.getstate()}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        found["numpy"] = (kind, keys.tolist(), *rest)
    if torch is not None:
        found["torch"] = bytes(torch.get_rng_state().tolist()).hex()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            found["cuda"] = [bytes(state.tolist()).hex() for state in torch.cuda.get_rng_state_all()]
    if _XLA in sys.modules:
        found["xla"] = sys.modules[_XLA].get_rng_state()
    return found


def restore(found: Mapping[str, Any]) -> None:
    """Restores the generators. On other devices, or another number of them, the resume is state-exact."""
    random.setstate(found["python"])
    if "numpy" in found and "numpy" in sys.modules:
        import numpy

        kind, keys, *rest = found["numpy"]
        numpy.random.set_state((kind, numpy.asarray(keys, dtype=numpy.uint32), *rest))
    if "torch" in found:
        import torch

        torch.set_rng_state(_tensor(found["torch"]))
        if torch.cuda.is_available():
            for device, text in enumerate(found.get("cuda", [])[: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(_tensor(text), device)
    if "xla" in found and _XLA in sys.modules:
        sys.modules[_XLA].set_rng_state(found["xla"])


def _tensor(text: str) -> torch.Tensor:
    import torch

    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)
