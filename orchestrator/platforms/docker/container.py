"""One session on the engine: a container with a volume and labels, found by its name alone.

The container is filled under a temporary name and then renamed. Docker's names are unique, so a session is
prepared completely or not at all, and only once. Does not decide when. Layout inside: docs/session-folder.md.
"""

from __future__ import annotations

import hashlib
import math
import re
import tarfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import docker
from docker.errors import APIError
from docker.errors import NotFound as DockerNotFound
from docker.types import DeviceRequest, LogConfig, Mount

from orchestrator.core import wire
from orchestrator.core.order import Order
from orchestrator.errors import Rejected
from orchestrator.platforms.docker import archives
from orchestrator.platforms.docker.archives import Entry
from orchestrator.platforms.docker.endings import moment
from orchestrator.platforms.docker.images import Image
from orchestrator.platforms.docker.options import DockerOptions
from orchestrator.session.layout import SESSION
from orchestrator.session.staging import Materials, contents

LABEL = "orchestrator"
ROOT = "/orchestrator"
FOLDER = f"{ROOT}/session"
_GIB = 1024**3
_PROBE = re.compile(r"orchestrator-probe-[0-9a-f]{8}")
_PREPARING = r"\.preparing-[0-9a-f]{8}"
_VOLUME = r"\.([0-9a-f]{8}|stopped)"
_ATTEMPTS = 5
T = TypeVar("T")
_LAST_LINES, _LAST_CHARS = 5, 1000


@dataclass(frozen=True)
class Found:
    """One of our containers in a listing. `state` is docker's word: created, running, paused, exited …"""

    id: str
    name: str
    state: str
    labels: Mapping[str, str]

    @property
    def session(self) -> str:
        return self.labels.get(f"{LABEL}.session", "")

    @property
    def platform(self) -> str:
        return self.labels.get(f"{LABEL}.platform", "")

    @property
    def home(self) -> str:
        """The orchestrator that made it."""
        return self.labels.get(f"{LABEL}.home", "")

    @property
    def order(self) -> str:
        return self.labels.get(f"{LABEL}.order", "")

    @property
    def gpus(self) -> tuple[str, ...]:
        """The ids of the GPUs that it was given."""
        return tuple(each for each in self.labels.get(f"{LABEL}.gpus", "").split(",") if each)

    @property
    def pin(self) -> str | None:
        """The exact image that the job's image resolved to when the container was made."""
        return self.labels.get(f"{LABEL}.pin") or None

    @property
    def prepared(self) -> bool:
        """Whether it has its session's name already. Until then it is being filled."""
        return self.name == self.session

    @property
    def is_named(self) -> bool:
        """Whether its name matches its label, as in all our containers.

        A label alone proves nothing: `docker commit` copies our labels to an image, and somebody else's
        containers inherit them from it.
        """
        if not self.session:
            return _PROBE.fullmatch(self.name) is not None
        return SESSION.fullmatch(self.session) is not None and (
            self.prepared or re.fullmatch(f"{self.session}{_PREPARING}", self.name) is not None
        )

    @property
    def started(self) -> bool:
        return self.state != "created"

    @property
    def alive(self) -> bool:
        """Whether it runs. A container that is being removed does not count (state "removing")."""
        return self.state in ("running", "paused", "restarting")


def listed(client: docker.DockerClient, **labels: str) -> tuple[Found, ...]:
    """Every container with these labels and a name that matches them, in one call."""
    wanted = [f"{LABEL}.{key}={value}" for key, value in labels.items()] or [f"{LABEL}.session"]
    rows = client.api.containers(all=True, filters={"label": wanted})
    found = (
        Found(row["Id"], _name(row["Names"] or ["/"]), str(row["State"]), dict(row["Labels"])) for row in rows
    )
    return tuple(each for each in found if each.is_named)


def _name(names: list[str]) -> str:
    return str(names[0]).lstrip("/")


def fingerprint(order: Order) -> str:
    """A hash that identifies an order, short enough for a label."""
    return hashlib.sha256(wire.encode(order)).hexdigest()


# --- Making one -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """Everything needed to make a container. `gpus` are ids."""

    order: Order
    image: Image
    options: DockerOptions
    home: str
    gpus: tuple[str, ...] = ()
    cdi: bool = False

    @property
    def labels(self) -> dict[str, str]:
        given = {
            "session": self.order.session, "run": self.order.run, "platform": self.order.platform,
            "home": self.home, "order": fingerprint(self.order), "gpus": ",".join(self.gpus),
            "pin": self.image.pin or "",
        }  # fmt: skip
        return {f"{LABEL}.{key}": value for key, value in given.items()}


def create(client: docker.DockerClient, plan: Plan, materials: Materials) -> None:
    """Makes and fills the session's container, unless another controller has just done so.

    Raises Rejected if a container that is not ours has its name.
    """
    mark = uuid.uuid4().hex[:8]
    order = plan.order
    entries = list(_entries(order, materials))  # first, because this can be refused
    volume, passing = f"{order.session}.{mark}", f"{order.session}.preparing-{mark}"
    client.api.create_volume(volume, labels=plan.labels)
    container = ""
    try:
        container = _container(client, plan, passing, volume)
        client.api.put_archive(container, ROOT, archives.pack(entries, plan.options.uid, plan.options.gid))
        client.api.rename(container, order.session)
    except BaseException as error:
        _remove(client, container, volume)
        if isinstance(error, APIError) and error.status_code == 409 and container:
            if any(found.prepared for found in listed(client, session=order.session)):
                return
            raise Rejected(
                f"the engine has a container {order.session} that is not ours: rename or remove it"
            ) from error
        raise


def _container(client: docker.DockerClient, plan: Plan, name: str, volume: str) -> str:
    options, order = plan.options, plan.order
    memory = None if options.memory_gb is None else int(options.memory_gb * _GIB)
    host = client.api.create_host_config(
        mounts=[Mount(ROOT, volume)],
        init=True,  # reaps the training's orphans, and forwards signals
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        mem_limit=memory,
        memswap_limit=memory,
        nano_cpus=None if options.cpus is None else int(options.cpus * 1e9),
        pids_limit=options.pids,
        shm_size=int(options.shm_gb * _GIB),
        network_mode=options.network if order.internet else "none",
        # Limits what the agent itself prints. The training's output goes to the session's log.
        log_config=LogConfig(type="json-file", config={"max-size": "10m", "max-file": "2"}),
        storage_opt=None if options.image_disk_gb is None else {"size": f"{options.image_disk_gb:g}G"},
        device_requests=[gpu_request(plan.gpus, plan.cdi)] if plan.gpus else None,
    )
    made = client.api.create_container(
        plan.image.reference,
        entrypoint=[
            options.python,
            f"{FOLDER}/agent.pyz",
            FOLDER,
            "--settings",
            options.agent_settings(order),
        ],
        command=[],
        name=name,
        user=options.user,
        working_dir=ROOT,
        environment={"HOME": f"{ROOT}/home", "USER": "orchestrator", "PYTHONDONTWRITEBYTECODE": "1"},
        labels=plan.labels,
        host_config=host,
        healthcheck={"test": ["NONE"]},
        stop_signal="SIGTERM",
        stop_timeout=math.ceil(options.grace_seconds),  # for `docker stop` and an engine that shuts down
    )
    return str(made["Id"])


def gpu_request(ids: tuple[str, ...], cdi: bool) -> DeviceRequest:
    """A request for these GPUs, through the nvidia runtime or as CDI devices."""
    if cdi:
        return DeviceRequest(driver="cdi", device_ids=[f"nvidia.com/gpu={each}" for each in ids])
    return DeviceRequest(driver="nvidia", device_ids=list(ids), capabilities=[["gpu"]])


def _entries(order: Order, materials: Materials) -> Iterator[Entry]:
    """The session folder before the start, and a home folder for programs that want one."""
    yield Entry("home", None)
    yield Entry("session", None)
    made = set()
    for given in contents(order, materials):
        for above in reversed(PurePosixPath(given.name).parents[:-1]):
            if above not in made:
                made.add(above)
                yield Entry(f"session/{above}", None)
        name = f"session/{given.name}"
        if isinstance(given.content, bytes) or not given.content.is_dir():
            yield Entry(name, given.content)
        else:
            yield from archives.tree(given.content, name, read_only=given.read_only)


# --- Reading and asking -----------------------------------------------------------------------------------


def read(client: docker.DockerClient, container: str, path: str, size_max: int) -> bytes | None:
    """A small file of the session folder; None if it is missing.

    Raises ValueError if it is too large or not a regular file.
    """
    return _taken(client, container, path, lambda stream: archives.only_file(stream, size_max))


def bring(
    client: docker.DockerClient,
    container: str,
    path: str,
    into: Path,
    size_max: int,
    *,
    total_max: int | None = None,
    wanted: Callable[[str], bool] = lambda _: True,
) -> bool:
    """Copies the `wanted` files of a folder in the session folder; none if the folder is missing.

    False if `archives.unpack` had to leave some out.
    """

    def take(stream: Iterable[bytes]) -> bool:
        return archives.unpack(stream, into, size_max, total_max=total_max, wanted=wanted)

    return _taken(client, container, path, take) is not False


def bring_file(
    client: docker.DockerClient, container: str, path: str, target: Path, size_max: int
) -> bool | None:
    """Copies a file of the session folder to `target`.

    None if it is missing; False if it is too large or not a regular file.
    """
    return _taken(client, container, path, lambda stream: archives.unpack_file(stream, target, size_max))


def _taken(
    client: docker.DockerClient, container: str, path: str, take: Callable[[Iterable[bytes]], T]
) -> T | None:
    """Passes the archive of a path to `take` and returns the result; None if the path is missing.

    An archive breaks off if a shorter file replaces one while the engine packs it. Then we try again.
    """
    for attempt in range(_ATTEMPTS):
        try:
            stream, _ = client.api.get_archive(container, f"{FOLDER}/{path}")
            return take(stream)
        except DockerNotFound:
            return None
        except tarfile.ReadError:
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def put(client: docker.DockerClient, container: str, options: DockerOptions, entry: Entry) -> None:
    """Copies a file into the session folder."""
    client.api.put_archive(container, FOLDER, archives.pack([entry], options.uid, options.gid))


def last_words(client: docker.DockerClient, container: str) -> str:
    """The last lines that the agent itself printed. An agent that works prints nothing."""
    try:
        said = client.api.logs(container, tail=_LAST_LINES)
    except APIError:  # a log driver that cannot be read
        return ""
    return str(said.decode(errors="replace")).strip()[-_LAST_CHARS:]


class EngineClock:
    """The engine's own time, read at most once."""

    def __init__(self, client: docker.DockerClient) -> None:
        self._client = client

    @cached_property
    def now(self) -> datetime:
        return moment(self._client.info()["SystemTime"])


# --- Removing ---------------------------------------------------------------------------------------------


def remove(client: docker.DockerClient, container: str) -> None:
    """Removes a container that does not run, with its volume and those that its image made.

    No error if it is already gone. Raises APIError (409) if it runs.
    """
    try:
        inspected: dict[str, Any] = client.api.inspect_container(container)
        client.api.remove_container(container, v=True)
    except DockerNotFound:
        return
    session = str((inspected["Config"].get("Labels") or {}).get(f"{LABEL}.session", ""))
    for mount in inspected["Mounts"]:
        if mount.get("Destination") == ROOT and is_volume_of(session, mount.get("Name", "")):
            _remove(client, "", mount["Name"])


def _remove(client: docker.DockerClient, container: str, volume: str) -> None:
    if container:
        try:
            client.api.remove_container(container, v=True, force=True)
        except DockerNotFound:
            pass
    try:
        client.api.remove_volume(volume)
    except DockerNotFound:
        pass


def is_volume_of(session: str, name: str) -> bool:
    """Whether this is the name of a volume that we make for the session."""
    return SESSION.fullmatch(session) is not None and re.fullmatch(f"{session}{_VOLUME}", name) is not None


def remove_volumes(client: docker.DockerClient, *, keep: str = "", **labels: str) -> None:
    """Removes the volumes with these labels that no container uses, except `keep`."""
    wanted = [f"{LABEL}.{key}={value}" for key, value in labels.items()]
    for row in client.api.volumes(filters={"label": wanted})["Volumes"] or ():
        session = (row["Labels"] or {}).get(f"{LABEL}.session", "")
        if row["Name"] != keep and is_volume_of(session, row["Name"]):
            _remove(client, "", row["Name"])
