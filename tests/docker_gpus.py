"""An engine with pretend GPUs: a stand-in for NVIDIA's hook, behind dockerd's own code for `--gpus`.

dockerd registers its nvidia driver if it finds `nvidia-container-runtime-hook` on its PATH. It lets runc call
the hook for each container that asked for GPUs. Our hook reads the ids that dockerd passes on. It refuses ids
that it does not know with the messages of nvidia-container-cli, and puts an `nvidia-smi` into the container.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docker_engine import MISSING, Engine, installed, load_python_image, running

HOOK = "nvidia-container-runtime-hook"
TESLA_T4 = ("Tesla T4", 15360)
RTX_3050 = ("NVIDIA GeForce RTX 3050 Laptop GPU", 4096)
SMI = """#!/bin/sh
[ "$2" = --format=csv,noheader,nounits ] || exit 6
case "$1" in
--query-gpu=index,uuid,name,memory.total) cat <<'END'
{rows}
END
;;
--query-gpu=uuid,utilization.gpu,memory.used,power.draw,temperature.gpu) [ "$3" = -i ] || exit 6
echo "$4, 11, 2048, 60.00, 50" ;;
*) exit 6 ;;
esac
"""
HOOK_SOURCE = """#!{python}
import json, pathlib, sys
gpus = json.loads(pathlib.Path(__file__).with_name("gpus.json").read_text())
state = json.load(sys.stdin)
config = json.loads((pathlib.Path(state["bundle"]) / "config.json").read_text())
given = dict(each.split("=", 1) for each in config["process"]["env"])["NVIDIA_VISIBLE_DEVICES"]
seen = []
for wanted in [gpu["index"] for gpu in gpus] if given == "all" else given.split(","):
    found = [gpu for gpu in gpus if wanted in (gpu["index"], gpu["uuid"])]
    if not found:
        sys.exit(f"nvidia-container-cli: device error: {{wanted}}: unknown device")
    seen += found
rows = "\\n".join(
    f"{{n}}, {{gpu['uuid']}}, {{gpu['name']}}, {{gpu['memory']}}" for n, gpu in enumerate(seen)
)
program = pathlib.Path(config["root"]["path"]) / "usr/bin/nvidia-smi"
program.write_text({smi!r}.format(rows=rows))
program.chmod(0o755)
"""

Gpus = Sequence[tuple[str, int]]


def write_smi(folder: Path, gpus: Gpus) -> Path:
    """A `nvidia-smi` for this machine's PATH; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = "\n".join(f"{n}, GPU-{n}, {name}, {memory}" for n, (name, memory) in enumerate(gpus))
    (folder / "nvidia-smi").write_text(SMI.format(rows=rows))
    (folder / "nvidia-smi").chmod(0o755)
    return folder


def write_hook(folder: Path, gpus: Gpus) -> None:
    """Writes the hook and its GPUs; it may be rewritten while the engine runs."""
    known = [
        {"index": str(n), "uuid": f"GPU-{n}", "name": name, "memory": memory}
        for n, (name, memory) in enumerate(gpus)
    ]
    (folder / "gpus.json").write_text(json.dumps(known))
    (folder / HOOK).write_text(HOOK_SOURCE.format(python=sys.executable, smi=SMI))
    (folder / HOOK).chmod(0o755)


@contextmanager
def running_with_gpus(*gpus: tuple[str, int]) -> Iterator[Engine]:
    """A fresh daemon with these GPUs, as (name, MiB), and the image of this machine's Python."""
    with tempfile.TemporaryDirectory(prefix="gpus-", dir="/tmp") as folder:
        write_hook(Path(folder), gpus)
        path = os.pathsep.join((folder, os.environ["PATH"]))
        with running("--add-runtime", "nvidia=runc", environ={"PATH": path}) as engine:
            load_python_image(engine)
            yield engine


@pytest.fixture(scope="module")
def two_t4() -> Iterator[Engine]:
    """An engine with two T4, for one test module. Without Docker the tests are skipped; the reason says how
    to install it."""
    if not installed():
        pytest.skip(MISSING)
    with running_with_gpus(TESLA_T4, TESLA_T4) as engine:
        yield engine
