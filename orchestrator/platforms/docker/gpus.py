"""The GPUs of an engine: whether containers can have them, which there are, which are free.

GPUs go by the ids that the user configured. Who holds one is read from the labels of containers, those of
other homes and platforms included, and from nothing else: name a GPU the same way (index or UUID) everywhere.
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
        "set `gpus` of this platform in the config to ids that the engine's machine has: `nvidia-smi -L`",
    ),
    "nvidia-container-cli": ("mend the NVIDIA driver on the engine's machine: `nvidia-smi` must work there",),
    "cdi": (
        "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        "set `gpus` of this platform in the config to ids that `nvidia-ctk cdi list` shows",
    ),
}
ALL = ("all",)
_CDI = "nvidia.com/gpu="
_LISTS_DEVICES_SINCE = (28, 2)  # API 1.50: an engine that finds none leaves the field out
PROBE = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")
_PROBE_SECONDS = 30
_MIB = 1024**2
_LEAVES_SECONDS = 10.0
_LOOK_SECONDS = 0.1


def lack(info: dict[str, Any]) -> str | None:
    """Why containers of this engine get no GPU, or None. `info` is the engine's own."""
    if "nvidia" in (info.get("Runtimes") or {}) or _has_cdi(info):
        return None
    return "the engine has neither the nvidia runtime nor CDI devices of nvidia.com/gpu"


def by_cdi(info: dict[str, Any]) -> bool:
    """Whether GPUs are asked for as CDI devices: only where the engine lacks the nvidia runtime."""
    return "nvidia" not in (info.get("Runtimes") or {}) and _has_cdi(info)


def cdi_ids(info: dict[str, Any]) -> tuple[str, ...]:
    """The ids of the GPUs that the engine lists as CDI devices, `all` left out."""
    names = (str(each.get("ID", "")) for each in info.get("DiscoveredDevices") or ())
    ids = (name.removeprefix(_CDI) for name in names if name.startswith(_CDI))
    return tuple(each for each in ids if each not in ALL)


def _has_cdi(info: dict[str, Any]) -> bool:
    """Newer engines list the devices; of older ones it is only known that they look for some, which a
    container that asks for one then shows."""
    if info.get("DiscoveredDevices"):
        return bool(cdi_ids(info))
    numbers = re.match(r"(\d+)\.(\d+)", str(info.get("ServerVersion", "")))
    if numbers and tuple(map(int, numbers.groups())) >= _LISTS_DEVICES_SINCE:
        return False
    return bool(info.get("CDISpecDirs"))


# --- Who has which ----------------------------------------------------------------------------------------


def held(found: Iterable[Found]) -> set[str]:
    """The ids that containers hold which run or are about to."""
    return {gpu for each in found if each.alive or not each.started for gpu in each.gpus}


def choose(client: docker.DockerClient, options: DockerOptions, order: Order) -> tuple[str, ...]:
    """The ids a session gets. Raises QuotaExhausted where too few are free."""
    if not options.gpus:
        return ()
    holders = Counter(gpu for each in containers.listed(client) for gpu in held([each]))
    free = [each for each in dict.fromkeys(options.gpus) if options.share_gpus or each not in holders]
    if options.share_gpus:
        free.sort(key=lambda each: holders[each])
    if len(free) < order.devices:
        raise QuotaExhausted(
            f"{order.devices} GPU(s) wanted; of {', '.join(options.gpus)} free: {', '.join(free) or 'none'}"
        )
    return tuple(free[: order.devices])


def check_alone(
    client: docker.DockerClient, options: DockerOptions, order: Order, chosen: tuple[str, ...]
) -> None:
    """Returns once no other container is in sight that has a GPU of this session's.

    Whoever was there first may have looked before there was anybody to see, so nobody keeps a GPU beside
    another: of several that chose the same in one moment the smallest container id waits for the others to
    leave, and leaves too if one stays. Raises Transient having removed the session's container.
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
    raise Transient(f"GPU {', '.join(chosen)} was taken by {rivals[0].session} in this moment")


# --- Which there are --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gpu:
    """One GPU as nvidia-smi knows it; a config may name it by `index` (as a container sees it) or `uuid`."""

    index: str
    uuid: str
    name: str
    memory_gb: float


@dataclass(frozen=True)
class Probe:
    """What a container with GPUs said of them: `found`, or in words why the engine gave none. Both are empty
    where no image is there to ask in, or nothing answered."""

    found: tuple[Gpu, ...] = ()
    refusal: str | None = None

    @property
    def memory_gb(self) -> float | None:
        """Of the smallest."""
        return min((each.memory_gb for each in self.found), default=None)


def probe(
    client: docker.DockerClient, options: DockerOptions, ids: tuple[str, ...], *, cdi: bool, home: str = ""
) -> Probe:
    """Asks nvidia-smi in a moment's container that has these GPUs, labelled as of `home`."""
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
    """What matters of a failed start; None where it says nothing of GPUs."""
    if not any(sign in text.lower() for sign in NO_GPU):
        return None
    own_words = re.search(r"nvidia-container-cli: .*", text)
    return (own_words.group() if own_words else text).strip().removesuffix(": unknown")


def way_out(refusal: str) -> tuple[str, ...]:
    """What a human does about a refusal."""
    low = refusal.lower()
    return next((ways for sign, ways in _WAYS_OUT.items() if sign in low), HOW_TO_ADD)


def read(said: str) -> Iterable[Gpu]:
    """What PROBE printed."""
    for line in said.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 4 and cells[3].isdecimal():
            yield Gpu(cells[0], cells[1], cells[2], int(cells[3]) * _MIB / 1e9)


def _image_to_ask_in(client: docker.DockerClient, options: DockerOptions) -> str | None:
    """Any image will do that is there: the runtime brings nvidia-smi along."""
    if options.image is not None:
        try:
            return str(client.images.get(options.image).id)
        except ImageNotFound:
            pass
    rows = client.api.images(filters={"label": builder.LABEL}) or client.api.images()
    largest = max(rows, key=lambda row: int(row["Size"]), default=None)  # no shell of a few bytes
    return str(largest["Id"]) if largest is not None else None
