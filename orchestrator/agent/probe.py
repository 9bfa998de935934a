"""Checks that this machine has the accelerator of the order: platforms may substitute another one silently.

Reads what the driver and the kernel report. Loads no framework, which would take memory and seconds. Decides
nothing about the session, and must never know a platform.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from orchestrator.core.accelerators import Accelerator
from orchestrator.core.gpu_names import may_be
from orchestrator.core.job import Kind
from orchestrator.core.order import Order
from orchestrator.core.own_accelerators import row_of
from orchestrator.nvidia import Asker

_QUERY = ("--query-gpu=name", "--format=csv,noheader")
_TOOLS = "/opt/bin:/usr/local/nvidia/bin"  # where images keep the driver's tools outside their PATH
_PATIENCE = 120.0  # seconds: an idle driver initialises every GPU at the first query
GIVEN = "ORCHESTRATOR_GPUS"  # the UUIDs of the session's GPUs, if its platform names them; empty: none
_GOOGLE = "0x1ae0"
_TPUS = {
    "0x0027": "tpu-v3",
    "0x005e": "tpu-v4",
    "0x0062": "tpu-v5p",
    "0x0063": "tpu-v5e",
    "0x006f": "tpu-v6e",
}
_TPU_TYPE = re.compile(r"(v\d+[ep]?)(?:litepod)?-\d+")


class Substituted(Exception):
    """The machine does not have the accelerator of the order; the message names both."""


def assigned(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables that show the command the GPUs that its platform gave this session, and no other. They win
    over the job's own. Empty where the platform gives none by name."""
    given = variables.get(GIVEN)
    return {} if given is None else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": given}


def check(order: Order, variables: Mapping[str, str], root: Path = Path("/")) -> dict[str, str]:
    """Raises Substituted unless this machine has at least `order.devices` devices of the order's accelerator.

    Returns extra variables for the command's environment: where the machine has more GPUs than ordered, they
    show the command only the ordered ones. GPUs are counted by nvidia-smi, which is found and run with
    `variables`. `root` is the folder that holds /sys and /dev. May take seconds. Kaggle may give another
    machine without an error (docs/references/kaggle.md#accelerators).
    """
    row = row_of(order)
    if row is None:
        raise Substituted(f"this agent does not know the accelerator {order.accelerator}")
    if row.kind is Kind.GPU:
        return _check_gpus(order, row, variables)
    if row.kind is Kind.TPU:
        _check_tpus(order, row, variables, root)
    return {}


def _check_gpus(order: Order, row: Accelerator, variables: Mapping[str, str]) -> dict[str, str]:
    if given := variables.get(GIVEN):
        _check_given(order, row, given.split(","), variables)
        return {}
    names, trouble = _gpus(variables)
    fitting = [number for number, name in enumerate(names) if may_be(name, row)]
    if len(fitting) < order.devices:
        raise _substituted(order, _counted(names) or f"no GPU{trouble}")
    if len(names) == order.devices:
        return {}
    seen = ",".join(map(str, fitting[: order.devices]))
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": seen}  # nvidia-smi's order


def _check_given(order: Order, row: Accelerator, given: list[str], variables: Mapping[str, str]) -> None:
    """The session's own GPUs: since its platform chose them, one may have failed, or been put in MIG mode."""
    found = Asker(variables, _PATIENCE).gpus()
    mine = [each for each in found.gpus if each.uuid in given]
    if sum(may_be(each.name, row) and not each.mig for each in mine) < order.devices:
        names = [f"{each.name} in MIG mode" if each.mig else each.name for each in mine]
        trouble = f" ({found.trouble})" if found.trouble else ""
        raise _substituted(order, f"{_counted(names) or 'no GPU'}{trouble} of those given to this session")


def _gpus(variables: Mapping[str, str]) -> tuple[list[str], str]:
    """The driver's names of the GPUs, in its order. If there are none, also the reason where it is known."""
    tool = shutil.which("nvidia-smi", path=f"{variables.get('PATH', os.defpath)}:{_TOOLS}")
    if tool is None:
        return [], " (nvidia-smi not found)"
    try:
        answer = subprocess.run(
            [tool, *_QUERY],
            capture_output=True,
            text=True,
            errors="replace",
            env=variables,
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [], f" (nvidia-smi did not answer within {_PATIENCE:.0f} s)"
    except OSError as error:
        return [], f" (nvidia-smi: {error.strerror})"
    lines = [line.strip() for line in answer.stdout.splitlines() if line.strip()]
    if answer.returncode:  # nvidia-smi writes its errors to stdout
        words = " ".join([*lines, *answer.stderr.split()])
        return [], f" (nvidia-smi: {words[:200] or f'exit code {answer.returncode}'})"
    return ([], f" (nvidia-smi: {lines[0]})") if lines[:1] == ["No devices were found"] else (lines, "")


def _check_tpus(order: Order, row: Accelerator, variables: Mapping[str, str], root: Path) -> None:
    """Recognises a TPU host by its documented signs. Nobody has run this on a real TPU host yet.

    The generation and the number of chips come from the PCI ids that JAX's hardware_utils and torch_xla's tpu
    module look for. Each chip has a device node: /dev/vfio/<n> from v5e on, /dev/accel<n> before that
    (Google's tpu-info). Both are counted, since Kaggle's maintainers mention /dev/accel* on v5e-8 (KC#1197).
    The nodes are required: in the wrong kind of image they are missing even if the host has chips. A sandbox
    may show no chip in /sys. Then TPU_ACCELERATOR_TYPE, which a TPU VM sets, names the generation, and the
    nodes are counted.
    """
    chips = _tpu_chips(root)
    nodes = [*(root / "dev").glob("accel[0-9]*"), *(root / "dev" / "vfio").glob("[0-9]*")]
    named = _TPU_TYPE.fullmatch(variables.get("TPU_ACCELERATOR_TYPE", ""))
    if not chips and nodes and named:
        generation = "v5e" if named[0].startswith("v5litepod") else named[1]
        chips = [f"tpu-{generation}"] * len(nodes)
    if min(chips.count(_pci_arch(row)), len(nodes)) < order.devices:
        without = " without a device node" if chips and not nodes else ""
        raise _substituted(order, f"{_counted(chips) or 'no TPU'}{without}")


def _pci_arch(row: Accelerator) -> str:
    return "tpu-v3" if row.arch == "tpu-v2" else row.arch  # v2 and v3 share one PCI id


def _tpu_chips(root: Path) -> list[str]:
    found = []
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        try:
            maker, model = ((device / name).read_text().strip() for name in ("vendor", "device"))
        except OSError:
            continue
        if maker == _GOOGLE and model in _TPUS:
            found.append(_TPUS[model])
    return found


def _counted(names: list[str]) -> str:
    return ", ".join(name if n == 1 else f"{n} × {name}" for name, n in Counter(names).items())


def _substituted(order: Order, there: str) -> Substituted:
    return Substituted(
        f"this machine has {there}, but the order is for {order.accelerator}: substituted by the platform"
    )
