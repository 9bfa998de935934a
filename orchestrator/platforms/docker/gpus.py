"""The GPUs of an engine: whether containers can have them, how much memory they have, which are free.

GPUs go by the ids that the user configured. Who holds one is read from the labels of containers, those of
other homes included, and from nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import docker
from docker.errors import APIError, ImageNotFound
from requests import RequestException

from orchestrator.core.session import Order
from orchestrator.errors import QuotaExhausted, Transient
from orchestrator.platforms.docker import container as containers
from orchestrator.platforms.docker.container import Found
from orchestrator.platforms.docker.options import DockerOptions

HOW_TO_ADD = (
    "install nvidia-container-toolkit on the engine's machine",
    "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
)
_PROBE = ["nvidia-smi", "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits"]
_PROBE_SECONDS = 30
_MIB = 1024**2


def lack(info: dict[str, Any]) -> str | None:
    """Why containers of this engine get no GPU, or None. `info` is the engine's own."""
    if "nvidia" in (info.get("Runtimes") or {}) or _has_cdi(info):
        return None
    return "the engine has neither the nvidia runtime nor CDI devices of nvidia.com/gpu"


def by_cdi(info: dict[str, Any]) -> bool:
    """Whether GPUs are asked for as CDI devices: only where the engine lacks the nvidia runtime."""
    return "nvidia" not in (info.get("Runtimes") or {}) and _has_cdi(info)


def _has_cdi(info: dict[str, Any]) -> bool:
    """Engines from 28.2 on list the devices; older ones only say where they look for specs."""
    devices = info.get("DiscoveredDevices")
    if devices is not None:
        return any(str(each.get("ID", "")).startswith("nvidia.com/gpu=") for each in devices)
    return bool(info.get("CDISpecDirs"))


# --- Who has which ----------------------------------------------------------------------------------------


def held(found: Iterable[Found]) -> set[str]:
    """The ids that containers hold which run or are about to."""
    return {gpu for each in found if each.alive or not each.started for gpu in each.gpus}


def choose(client: docker.DockerClient, options: DockerOptions, order: Order) -> tuple[str, ...]:
    """The ids a session gets. Raises QuotaExhausted where too few are free."""
    if not options.gpus:
        return ()
    taken = set() if options.share_gpus else held(containers.listed(client))
    free = [each for each in options.gpus if each not in taken]
    if len(free) < order.devices:
        raise QuotaExhausted(
            f"{order.devices} GPU(s) wanted; of {', '.join(options.gpus)} free: {', '.join(free) or 'none'}"
        )
    return tuple(free[: order.devices])


def check_alone(
    client: docker.DockerClient, options: DockerOptions, order: Order, chosen: tuple[str, ...]
) -> None:
    """Raises Transient where another orchestrator has chosen the same GPU in the same moment: of two, the
    one with the larger container id steps back."""
    if not chosen or options.share_gpus:
        return
    everyone = containers.listed(client)
    mine = [each.id for each in everyone if each.session == order.session]
    rivals = [each for each in everyone if each.session != order.session and held([each]) & set(chosen)]
    if any(rival.id < own for rival in rivals for own in mine):
        raise Transient(f"GPU {', '.join(chosen)} was taken in this moment")


# --- How large ----------------------------------------------------------------------------------------------


def memory_gb(client: docker.DockerClient, options: DockerOptions, cdi: bool) -> float | None:
    """The memory of the smallest of the configured GPUs, as nvidia-smi says it in a container; None where no
    image is there to ask in, or it does not answer."""
    image = _image_to_ask_in(client, options)
    if image is None:
        return None
    host = client.api.create_host_config(
        device_requests=[containers.gpu_request(options.gpus, cdi)], network_mode="none"
    )
    probe = client.api.create_container(image, entrypoint=_PROBE, command=[], host_config=host)["Id"]
    try:
        client.api.start(probe)
        client.api.wait(probe, timeout=_PROBE_SECONDS)
        said = client.api.logs(probe, stderr=False).decode(errors="replace")
    except (APIError, RequestException):
        return None
    finally:
        client.api.remove_container(probe, force=True)
    rows = [[cell.strip() for cell in line.split(",")] for line in said.splitlines()]
    sizes = [int(row[2]) for row in rows if len(row) == 3 and row[2].isdecimal()]
    return min(sizes) * _MIB / 1e9 if sizes else None


def _image_to_ask_in(client: docker.DockerClient, options: DockerOptions) -> str | None:
    """Any image will do that is there: the runtime brings nvidia-smi along."""
    if options.image is not None:
        try:
            return str(client.images.get(options.image).id)
        except ImageNotFound:
            pass
    rows = client.api.images(filters={"label": f"{containers.LABEL}.image"})
    return str(rows[0]["Id"]) if rows else None
