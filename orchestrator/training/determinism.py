"""Makes torch deterministic, and tells whether it is.

On a GPU, some of torch's operations add numbers in the order in which threads happen to come. A resume can
give the same bits only without them (docs/references/training.md#determinism). Must never know checkpoints.
"""

from __future__ import annotations

import os
import sys

CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
_WORKSPACES = (":4096:8", ":16:8")  # what torch accepts as deterministic; it reads others as an error
_UNKNOWN = ("torch_tpu", "torch_xla")  # torch's switch does not reach their kernels


def enforce() -> None:
    """From here on, each operation of torch gives the same bits for the same input, or raises RuntimeError.

    Attention uses only back ends whose gradients are deterministic. Call it before the first use of the GPU:
    cuBLAS chooses its memory then, and never again. Raises RuntimeError if it comes too late, and ValueError
    if the environment asks for another such memory.
    """
    import torch

    if CUBLAS not in os.environ and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise RuntimeError(
            f"it is too late to be deterministic: the GPU was already used. Call it earlier, or set "
            f"{CUBLAS}={_WORKSPACES[0]} in the job's env"
        )
    given = os.environ.setdefault(CUBLAS, _WORKSPACES[0])
    if given not in _WORKSPACES:
        raise ValueError(f"{CUBLAS}={given} is not deterministic; use {' or '.join(_WORKSPACES)}")
    os.environ["FLASH_ATTENTION_DETERMINISTIC"] = "1"  # Transformers passes it on to the package flash-attn
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.enable_cudnn_sdp(False)
    if torch.version.hip:
        torch.backends.cuda.enable_mem_efficient_sdp(False)


def is_enforced() -> bool:
    """Whether that holds now, whoever asked for it: this module, the script or a framework.

    False on a TPU, and where torch only warns. It cannot see kernels that do not come from torch.
    """
    torch = sys.modules.get("torch")
    return (
        torch is not None
        and torch.are_deterministic_algorithms_enabled()
        and not torch.is_deterministic_algorithms_warn_only_enabled()
        and not torch.backends.cudnn.benchmark
        and os.environ.get(CUBLAS) in _WORKSPACES
        and not (torch.version.hip and torch.backends.cuda.mem_efficient_sdp_enabled())
        and not any(name in sys.modules for name in _UNKNOWN)
    )
