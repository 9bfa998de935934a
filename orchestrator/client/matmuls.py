"""A program for the user's own Python: measures products of matrices with torch, and prints one line of JSON.

Imports nothing of ours, because that Python may not have it. Any Python from 3.9 on.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any

CPU_SIZE, GPU_SIZE = 1024, 8192
SECONDS = 1.0
GIGA = 1e9


def teraflops(torch: Any, device: str, kind: Any, size: int) -> float | None:
    """The best of some products; None if the device cannot do it."""
    try:
        one = torch.randn(size, size, device=device).to(kind)
        two = torch.randn(size, size, device=device).to(kind)
        one @ two
        wait(torch, device)
        best, end = float("inf"), time.monotonic() + SECONDS
        while time.monotonic() < end:
            began = time.monotonic()
            one @ two
            wait(torch, device)
            best = min(best, time.monotonic() - began)
    except Exception:  # noqa: BLE001 - whatever torch raises for what it cannot do
        return None
    return round(2 * size**3 / best / 1e12, 3)


def wait(torch: Any, device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def measured(torch: Any, device: str, size: int) -> dict[str, float]:
    kinds = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
    if not device.startswith("cuda"):
        del kinds["fp16"]
    found = {name: teraflops(torch, device, kind, size) for name, kind in kinds.items()}
    # Slower than fp32 means that it is emulated.
    least = found.get("fp32") or 0.0
    return {name: value for name, value in found.items() if value and (name == "fp32" or value > least)}


def devices(torch: Any) -> Iterator[dict[str, Any]]:
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            row = torch.cuda.get_device_properties(number)
            device = f"cuda:{number}"
            yield {
                "name": row.name,
                "memory_gb": round(row.total_memory / GIGA, 1),
                "arch": f"sm_{row.major}{row.minor}",
                "teraflops": measured(torch, device, GPU_SIZE),
            }
        return
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIGA
    yield {
        "name": f"cpu {os.cpu_count() or 1} cores",
        "memory_gb": round(memory, 1),
        "arch": "cpu",
        "teraflops": measured(torch, "cpu", CPU_SIZE),
    }


def main() -> None:
    try:
        import torch
    except Exception as error:  # noqa: BLE001 - a broken torch is as good as none
        print(json.dumps({"without": f"{type(error).__name__}: {error}"}))
        return
    lack = ""
    if not torch.cuda.is_available():
        built = torch.version.cuda
        lack = "torch sees no GPU" + ("" if built else ": it is a build without CUDA")
    print(json.dumps({"torch": torch.__version__, "lack": lack, "devices": list(devices(torch))}))


if __name__ == "__main__":
    main()
