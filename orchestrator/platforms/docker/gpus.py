"""The GPUs of an engine: whether containers can use them, which exist, which are free.

GPUs have the ids that the user configured. The labels of containers alone say who holds one, including the
containers of other homes and platforms. So name a GPU the same way (index or UUID) everywhere.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import docker
from docker.errors import APIError, ImageNotFound
from docker.errors import NotFound as DockerNotFound
from requests import RequestException

from orchestrator.core.order import Order
from orchestrator.core.wording import count_text
from orchestrator.errors import QuotaExhausted, Transient
from orchestrator.platforms.docker import builder
from orchestrator.platforms.docker import container as containers
from orchestrator.platforms.docker.connection import NO_GPU
from orchestrator.platforms.docker.container import Found
from orchestrator.platforms.docker.options import DockerOptions

HOW_TO_ADD = (
    "install nvidia-container-toolkit on the engine's machine",
    "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
)
_WAYS_OUT = {
    "unknown device": (
        "set `gpus` of this platform in the config to ids of the engine's machine: `nvidia-smi -L`",
    ),
    "nvidia-container-cli": ("fix the NVIDIA driver on the engine's machine: `nvidia-smi` must work there",),
    "cdi": (
        "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        "set `gpus` of this platform in the config to ids that `nvidia-ctk cdi list` shows",
    ),
}
ALL = ("all",)
_CDI = "nvidia.com/gpu="
_LISTS_DEVICES_SINCE = (28, 2)  # API 1.50: the field is missing if there are none
PROBE = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")
_PROBE_SECONDS = 30
_MIB = 1024**2
_LEAVES_SECONDS = 10.0
_LOOK_SECONDS = 0.1


def lack(info: dict[str, Any]) -> str | None:
    """Why containers of this engine get no GPU, or None if they do. `info` is the engine's own report."""
    if "nvidia" in (info.get("Runtimes") or {}) or _has_cdi(info):
        return None
    return "the engine has neither the nvidia runtime nor CDI devices of nvidia.com/gpu"


def by_cdi(info: dict[str, Any]) -> bool:
    """Whether to request GPUs as CDI devices: only if the engine lacks the nvidia runtime."""
    return "nvidia" not in (info.get("Runtimes") or {}) and _has_cdi(info)


def cdi_ids(info: dict[str, Any]) -> tuple[str, ...]:
    """The ids of the GPUs that the engine lists as CDI devices, without `all`."""
    names = (str(each.get("ID", "")) for each in info.get("DiscoveredDevices") or ())
    ids = (name.removeprefix(_CDI) for name in names if name.startswith(_CDI))
    return tuple(each for each in ids if each not in ALL)


def _has_cdi(info: dict[str, Any]) -> bool:
    """Newer engines list the devices. Older ones only report that they look for some; whether there are
    any shows when a container requests one."""
    if info.get("DiscoveredDevices"):
        return bool(cdi_ids(info))
    numbers = re.match(r"(\d+)\.(\d+)", str(info.get("ServerVersion", "")))
    if numbers and tuple(map(int, numbers.groups())) >= _LISTS_DEVICES_SINCE:
        return False
    return bool(info.get("CDISpecDirs"))


# --- Who has which ----------------------------------------------------------------------------------------


def held(found: Iterable[Found]) -> set[str]:
    """The ids held by containers that run or are about to run."""
    return {gpu for each in found if each.alive or not each.started for gpu in each.gpus}


def choose(client: docker.DockerClient, options: DockerOptions, order: Order) -> tuple[str, ...]:
    """Chooses the ids for a session. Raises QuotaExhausted if too few are free."""
    if not options.gpus:
        return ()
    holders = Counter(gpu for each in containers.listed(client) for gpu in held([each]))
    free = [each for each in dict.fromkeys(options.gpus) if options.share_gpus or each not in holders]
    if options.share_gpus:
        free.sort(key=lambda each: holders[each])
    if len(free) < order.devices:
        needed, named = count_text(order.devices, "GPU"), ", ".join(options.gpus)
        raise QuotaExhausted(f"needs {needed}; free among {named}: {', '.join(free) or 'none'}")
    return tuple(free[: order.devices])


def check_alone(
    client: docker.DockerClient, options: DockerOptions, order: Order, chosen: tuple[str, ...]
) -> None:
    """Returns once no other container holds a GPU of this session.

    Two sessions may choose the same GPU at the same moment, each before it can see the other. Then the
    container with the smallest id waits for the others to leave, and leaves too if one stays; the others
    leave at once. To leave is to remove the session's container and raise Transient.
    """
    if not chosen or options.share_gpus:
        return
    patience = int(_LEAVES_SECONDS / _LOOK_SECONDS)
    while True:
        everyone = containers.listed(client)
        mine = [each for each in everyone if each.session == order.session]
        rivals = [each for each in everyone if each.session != order.session and held([each]) & set(chosen)]
        if not rivals:
            return
        patience -= 1
        if patience < 0 or any(rival.id < own.id for rival in rivals for own in mine):
            break
        threading.Event().wait(_LOOK_SECONDS)
    for own in mine:
        if not own.started:
            containers.remove(client, own.id)
    raise Transient(f"GPU {', '.join(chosen)} was taken by {rivals[0].session} at the same moment")


# --- Which there are --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gpu:
    """One GPU as nvidia-smi reports it. A config names it by `index` (as containers see it) or `uuid`."""

    index: str
    uuid: str
    name: str
    memory_gb: float


@dataclass(frozen=True)
class Probe:
    """The GPUs that a container reports: `found`, or the engine's `refusal` to provide any.

    Both are empty if the engine has no image for the probe, or nothing answered.
    """

    found: tuple[Gpu, ...] = ()
    refusal: str | None = None

    @property
    def memory_gb(self) -> float | None:
        """Memory of the smallest GPU."""
        return min((each.memory_gb for each in self.found), default=None)


def probe(
    client: docker.DockerClient, options: DockerOptions, ids: tuple[str, ...], *, cdi: bool, home: str = ""
) -> Probe:
    """Runs nvidia-smi in a short-lived container with these GPUs, labelled with `home`."""
    image = _image_to_ask_in(client, options)
    if image is None:
        return Probe()
    host = client.api.create_host_config(
        device_requests=[containers.gpu_request(ids, cdi)],
        network_mode="none",
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
    )
    made = client.api.create_container(
        image,
        name=f"orchestrator-probe-{uuid.uuid4().hex[:8]}",
        entrypoint=list(PROBE),
        command=[],
        labels={f"{containers.LABEL}.home": home},
        host_config=host,
        healthcheck={"test": ["NONE"]},
    )["Id"]
    try:
        client.api.start(made)
        client.api.wait(made, timeout=_PROBE_SECONDS)
        said = client.api.logs(made, stderr=False).decode(errors="replace")
    except APIError as error:
        return Probe(refusal=_refusal(str(error.explanation or error)))
    except RequestException:
        return Probe()
    finally:
        try:
            client.api.remove_container(made, force=True)
        except DockerNotFound:  # somebody cleaned up
            pass
    return Probe(tuple(read(said)))


def _refusal(text: str) -> str | None:
    """The useful part of a failed start's message; None if it is not about GPUs."""
    if not any(sign in text.lower() for sign in NO_GPU):
        return None
    own_words = re.search(r"nvidia-container-cli: .*", text)
    return (own_words.group() if own_words else text).strip().removesuffix(": unknown")


def way_out(refusal: str) -> tuple[str, ...]:
    """What a human can do about a refusal."""
    low = refusal.lower()
    return next((ways for sign, ways in _WAYS_OUT.items() if sign in low), HOW_TO_ADD)


def read(said: str) -> Iterable[Gpu]:
    """Parses the output of PROBE."""
    for line in said.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 4 and cells[3].isdecimal():
            yield Gpu(cells[0], cells[1], cells[2], int(cells[3]) * _MIB / 1e9)


def _image_to_ask_in(client: docker.DockerClient, options: DockerOptions) -> str | None:
    """Any image on the engine will do: the runtime adds nvidia-smi."""
    if options.image is not None:
        try:
            return str(client.images.get(options.image).id)
        except ImageNotFound:
            pass
    rows = client.api.images(filters={"label": builder.LABEL}) or client.api.images()
    largest = max(rows, key=lambda row: int(row["Size"]), default=None)  # the largest is not an empty stub
    return str(largest["Id"]) if largest is not None else None
