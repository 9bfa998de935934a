"""For `init`: is there a Docker engine here, which GPUs does it provide, and what would its config be?

Asks the engine that a docker command would use here, or a rootless engine at its usual socket.
Writes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.core.accelerators import catalogue
from orchestrator.core.gpu_names import accelerator_of, several
from orchestrator.platforms.docker import contexts, gpus
from orchestrator.platforms.docker.connection import Connection
from orchestrator.platforms.docker.gpus import Gpu
from orchestrator.platforms.docker.options import DockerOptions
from orchestrator.platforms.docker.surveying import CPU

_ANSWER_SECONDS = 10.0
_SOCKET = Path("/var/run/docker.sock")
_GIB = 1024**3


@dataclass(frozen=True)
class FoundEngine:
    """An engine that answers.

    `options` are the config's options to reach it. `lack` says why it provides no GPU; `advice` says how to
    change that, one command or sentence per line. `gpus` are the GPUs that it provides, as far as known.
    """

    options: Mapping[str, object]
    place: str
    version: str
    here: bool
    memory_gb: float
    gpus: tuple[Gpu, ...] = ()
    lack: str | None = None
    advice: tuple[str, ...] = ()


def is_expected() -> bool:
    """Whether docker's settings or a socket suggest that there is an engine."""
    return bool(way_in()) or _SOCKET.exists() or any(map(os.environ.get, ("DOCKER_HOST", "DOCKER_CONTEXT")))


def find(known: tuple[Gpu, ...] = ()) -> FoundEngine:
    """The engine. `known` are this machine's GPUs, used if the engine runs here and cannot be probed.

    Raises Transient, AccessDenied or InputError if no engine answers.
    """
    reached = way_in()
    options = DockerOptions.model_validate({**reached, "timeout_seconds": _ANSWER_SECONDS})
    connection = Connection("docker", options)
    client = connection.client("survey")
    with connection.told("survey"):
        info: dict[str, Any] = client.info()
        here = info.get("Name") == os.uname().nodename
        lack = gpus.lack(info)
        advice: tuple[str, ...] = gpus.HOW_TO_ADD
        seen = known if here else ()
        if lack is None:
            probe = gpus.probe(client, options, gpus.ALL, cdi=gpus.by_cdi(info))
            seen = probe.found or seen
            if probe.refusal is not None:
                lack, advice = probe.refusal, gpus.way_out(probe.refusal)
    return FoundEngine(
        options=reached,
        place=connection.place,
        version=str(info.get("ServerVersion")),
        here=here,
        memory_gb=float(info.get("MemTotal") or 0) / _GIB,
        gpus=seen if lack is None else (),
        lack=lack,
        advice=() if lack is None else advice,
    )


def way_in() -> dict[str, object]:
    """The config options with which a controller in another environment reaches the same engine."""
    if host := os.environ.get("DOCKER_HOST"):
        files = contexts.chosen(None).certificates
        if files is None:
            return {"host": host}
        if not files.verify:  # the config has no option for an unverified server
            return {}
        tls = {"ca": str(files.ca), "cert": str(files.cert), "key": str(files.key)}
        return {"host": host, "tls": tls}
    name = contexts.named()
    if name != contexts.DEFAULT:
        return {"context": name}
    rootless = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nonexistent") / "docker.sock"
    return {"host": f"unix://{rootless}"} if rootless.exists() and not _SOCKET.exists() else {}


# --- What the config would say ----------------------------------------------------------------------------


def entries(engine: FoundEngine, memory_gb: float) -> dict[str, dict[str, object]]:
    """Names and options of platforms on this engine.

    There is one for each kind of GPU, and one more for all of that kind together, if there are several. If
    the catalogue knows none of the GPUs, there is one for the CPU. The first is called `docker`. Platforms
    that name the same GPU never use it at the same time: the engine shows who holds it.
    """
    kinds: dict[str, list[str]] = {}
    for gpu in engine.gpus:
        kind = accelerator_of(gpu.name, gpu.memory_gb)
        if kind is not None and catalogue[kind].retired is None:
            kinds.setdefault(kind, []).append(gpu.index)
    found = dict(kinds)
    for kind, ids in kinds.items():
        together = several(kind, len(ids))
        if together is not None:
            found[together] = ids
    if not found:
        return {"docker": {**engine.options, "accelerator": CPU, "memory_gb": max(1, int(memory_gb))}}
    return {
        f"docker-{name.lower()}" if number else "docker": {
            **deepcopy(dict(engine.options)),  # YAML would write a shared value as an anchor
            "accelerator": name,
            "gpus": list(ids),
        }
        for number, (name, ids) in enumerate(found.items())
    }


def strange(engine: FoundEngine) -> tuple[str, ...]:
    """The names of its GPUs that are not in the catalogue, or that torch no longer supports."""
    kinds = {gpu.name: accelerator_of(gpu.name, gpu.memory_gb) for gpu in engine.gpus}
    return tuple(name for name, kind in kinds.items() if kind is None or catalogue[kind].retired is not None)
