"""`doctor --measure`: the rows of this machine's devices, and the lines for the config."""

from __future__ import annotations

from orchestrator.cli.call import Call, Exit
from orchestrator.client.measuring import Device, measure


def measure_here(call: Call) -> int:
    """Prints what was measured. Raises InputError without torch."""
    call.out.remark("measuring; this takes up to a minute for each device")
    found = measure(call.client, tuple(call.options.names))
    call.out.document({
        "python": found.python, "torch": found.torch, "lack": found.lack or None,
        "devices": [
            {"device": each.title, "catalogue": each.known, "name": each.row.name,
             "memory_gb": each.row.memory_gb, "arch": each.row.arch,
             "teraflops": {kind.value: figure for kind, figure in each.row.teraflops},
             "yaml": each.yaml}
            for each in found.devices
        ],
    })  # fmt: skip
    call.out.facts([("python", f"{found.python}, torch {found.torch}"), ("no gpu", found.lack)])
    call.out.table(
        ("DEVICE", "MEMORY", "TFLOP/S", "CATALOGUE"),
        [
            (each.title, f"{each.row.memory_gb:g} GB", _figures(each), each.known or "–")
            for each in found.devices
        ],
    )
    for each in found.devices:
        call.out.say()
        if each.known is not None:
            call.out.say(f"{each.title} needs no row: its accelerator is {each.known}. Its own row would be:")
        else:
            call.out.say(f"For {each.title}, add to {call.home.folders.config}:")
        call.out.say()
        for line in each.yaml.splitlines():
            call.out.say(line)
    return Exit.OK


def _figures(device: Device) -> str:
    return ", ".join(f"{kind.value} {figure:.3g}" for kind, figure in device.row.teraflops)
