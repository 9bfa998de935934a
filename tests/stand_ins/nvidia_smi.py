"""Programs that answer as nvidia-smi does, for machines that have none.

The form of the answers is that of driver 580.159 on an H100: `0, GPU-…, NVIDIA H100 80GB HBM3, 81559, Disabled`
and `GPU-…, 0, 0, 70.44, 35`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HANGS = "echo $$ >>{folder}/hanging; exec sleep 1000"
GARBAGE = "head -c 300000 /dev/urandom"
NO_DRIVER = 'echo "NVIDIA-SMI has failed because it couldn\'t communicate with the NVIDIA driver."; exit 9'


@dataclass(frozen=True)
class FakeGpu:
    name: str = "NVIDIA GeForce RTX 4090"
    mib: int = 24564
    mig: str = "[N/A]"
    percent: str = "12"


def uuid(number: int) -> str:
    return f"GPU-{number:08x}-aaaa-bbbb-cccc-000000000000"


def install(folder: Path, gpus: Sequence[FakeGpu], *, knows_mig: bool = True, body: str = "") -> Path:
    """Puts a program `nvidia-smi` into the folder `bin` and returns that. With `body` it does only that."""
    place = folder / "bin"
    place.mkdir(exist_ok=True)
    rows = {
        "index,uuid,name,memory.total": [f"{n}, {uuid(n)}, {g.name}, {g.mib}" for n, g in enumerate(gpus)],
        "index,uuid,name,memory.total,mig.mode.current": [
            f"{n}, {uuid(n)}, {g.name}, {g.mib}, {g.mig}" for n, g in enumerate(gpus)
        ],
        "uuid,utilization.gpu,memory.used,power.draw,temperature.gpu": [
            f"{uuid(n)}, {g.percent}, 1024, 215.50, 61" for n, g in enumerate(gpus)
        ],
        "name": [g.name for g in gpus],
    }
    if not knows_mig:
        del rows["index,uuid,name,memory.total,mig.mode.current"]
    cases = "".join(
        f"  --query-gpu={fields}) cat <<'END'\n{chr(10).join(lines)}\nEND\n  ;;\n"
        for fields, lines in rows.items()
    )
    wrong = '  *) echo "Field \\"mig.mode.current\\" is not a valid field to query."; exit 2;;\n'
    nothing = "echo 'No devices were found'; exit 0\n" if not gpus else ""
    text = f"#!/bin/sh\necho asked >>{folder}/asked\n"
    text += body.format(folder=folder) + "\n" if body else f'{nothing}case "$1" in\n{cases}{wrong}esac\n'
    tool = place / "nvidia-smi"
    draft = place / ".draft"
    draft.write_text(text)
    draft.chmod(0o755)
    draft.rename(tool)
    return place
