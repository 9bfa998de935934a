"""`init`'s question: is there a Docker engine here, which GPUs does it give, and what would its config be.

Asks where a docker command typed here would ask, and at a rootless engine's usual place. Writes nothing.
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
ASK_NVIDIA = gpus.PROBE


@dataclass(frozen=True)
class FoundEngine:
    """An engine that answers. `options` are how the config reaches it; `lack` is why it gives no GPU, with
    `mend`, a command or sentence a line; `gpus` those that it gives, where anybody could name them."""

    options: Mapping[str, object]
    place: str
    version: str
    here: bool
    memory_gb: float
    gpus: tuple[Gpu, ...] = ()
    lack: str | None = None
    mend: tuple[str, ...] = ()


def is_expected() -> bool:
    """Whether anything here speaks of an engine: settings of docker's, or a socket."""
    return bool(way_in()) or _SOCKET.exists() or any(map(os.environ.get, ("DOCKER_HOST", "DOCKER_CONTEXT")))


def seen_here(said: str) -> tuple[Gpu, ...]:
    """This machine's GPUs, of what ASK_NVIDIA prints here."""
    return tuple(gpus.read(said))


def find(known: tuple[Gpu, ...] = ()) -> FoundEngine:
    """The engine, of whose machine, if it is this one, the GPUs `known` are known already.

    Raises Transient, AccessDenied or InputError where none answers.
    """
    reached = way_in()
    options = DockerOptions.model_validate({**reached, "timeout_seconds": _ANSWER_SECONDS})
    connection = Connection("docker", options)
    client = connection.client("survey")
    with connection.told("survey"):
        info: dict[str, Any] = client.info()
        here = info.get("Name") == os.uname().nodename
        lack = gpus.lack(info)
        mend: tuple[str, ...] = gpus.HOW_TO_ADD
        seen = known if here else ()
        if lack is None:
            probe = gpus.probe(client, options, gpus.ALL, cdi=gpus.by_cdi(info))
            seen = probe.found or seen
            if probe.refusal is not None:
                lack, mend = probe.refusal, gpus.way_out(probe.refusal)
    return FoundEngine(
        options=reached,
        place=connection.place,
        version=str(info.get("ServerVersion")),
        here=here,
        memory_gb=float(info.get("MemTotal") or 0) / _GIB,
        gpus=seen if lack is None else (),
        lack=lack,
        mend=() if lack is None else mend,
    )


def way_in() -> dict[str, object]:
    """What the config must say so that a controller with another environment reaches the same engine."""
    if host := os.environ.get("DOCKER_HOST"):
        files = contexts.chosen(None).certificates
        if files is None:
            return {"host": host}
        if not files.verify:  # the config cannot say that the server may be anybody
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
    """Names and options of platforms on this engine: one for each kind of GPU, and one more where several of
    a kind are one accelerator; where there is no GPU that the catalogue knows, one of its CPU. The first is
    `docker`.

    Platforms that name the same GPUs never use one at the same time: who holds it is seen on the engine.
    """
    kinds: dict[str, list[str]] = {}
    for gpu in engine.gpus:
        kind = accelerator_of(gpu.name)
        if kind is not None and catalogue[kind].retired is None:
            kinds.setdefault(kind, []).append(gpu.index)
    found = dict(kinds)
    for kind, ids in kinds.items():
        together = (several(kind, count) for count in range(len(ids), 1, -1))
        found |= {name: ids for name in together if name is not None}
    if not found:
        return {"docker": {**engine.options, "accelerator": CPU, "memory_gb": max(1, int(memory_gb))}}
    return {
        f"docker-{name.lower()}" if number else "docker": {
            **deepcopy(dict(engine.options)),  # one value in two places is an anchor in YAML
            "accelerator": name,
            "gpus": list(ids),
        }
        for number, (name, ids) in enumerate(found.items())
    }


def strange(engine: FoundEngine) -> tuple[str, ...]:
    """The names of its GPUs that the catalogue does not know, or that no torch runs on any more."""
    kinds = {gpu.name: accelerator_of(gpu.name) for gpu in engine.gpus}
    return tuple(name for name, kind in kinds.items() if kind is None or catalogue[kind].retired is not None)
