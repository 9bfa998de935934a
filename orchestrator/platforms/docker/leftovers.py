"""What this home has on an engine: its containers and volumes, by label. Also: the id of this home.

Must never know which session is alive; the ledger does. Does not touch another home's things, nor anything
for which only the name or only the label looks like ours.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError
from docker.errors import NotFound as DockerNotFound

from orchestrator.errors import Transient
from orchestrator.files import make_folder, read_own, write_new
from orchestrator.platforms.docker import container as containers
from orchestrator.platforms.docker.container import LABEL, Found
from orchestrator.platforms.platform import Leftover

CONTAINER, VOLUME = "container", "volume"
_HOME_ID = "home-id"


def known_home(folder: Path) -> str | None:
    """The id of this home, from the platform's own folder; None if nothing was ever prepared."""
    try:
        return read_own(folder / _HOME_ID, 256).decode()
    except FileNotFoundError:
        return None


def home(folder: Path) -> str:
    """The id of this home, created if missing. Concurrent callers get the same id."""
    found = known_home(folder)
    if found is not None:
        return found
    make_folder(folder)
    with suppress(FileExistsError):
        write_new(folder / _HOME_ID, uuid.uuid4().hex.encode())
    return read_own(folder / _HOME_ID, 256).decode()


def found(client: docker.DockerClient, home: str) -> tuple[Leftover, ...]:
    """Everything with this home's label and a matching name. A container's volumes are not listed."""
    mine = containers.listed(client, home=home)
    rows = client.api.volumes(filters={"label": [f"{LABEL}.home={home}"]})["Volumes"] or ()
    used = {
        mount["Name"]
        for row in client.api.containers(all=True, filters={"label": [f"{LABEL}.home={home}"]})
        for mount in row.get("Mounts", ())
        if mount.get("Name")
    }
    volumes = (
        Leftover(
            kind=VOLUME,
            name=row["Name"],
            session=(row["Labels"] or {}).get(f"{LABEL}.session", ""),
            run=(row["Labels"] or {}).get(f"{LABEL}.run", ""),
            state="without a container",
        )
        for row in rows
        if row["Name"] not in used and _is_ours(row, home)
    )
    return (*(_container(each) for each in mine), *volumes)


def _is_ours(volume: Mapping[str, Any], home: str) -> bool:
    labels = volume["Labels"] or {}
    session = labels.get(f"{LABEL}.session", "")
    return labels.get(f"{LABEL}.home") == home and containers.is_volume_of(session, volume["Name"])


def _container(each: Found) -> Leftover:
    run = each.labels.get(f"{LABEL}.run", "")
    return Leftover(CONTAINER, each.name, each.session, run, each.state, alive=each.alive)


def remove(client: docker.DockerClient, home: str, leftover: Leftover) -> None:
    """Removes one if it still exists unchanged. Raises Transient if it is running now."""
    try:
        if leftover.kind == VOLUME:
            if _is_ours(client.api.inspect_volume(leftover.name), home):
                client.api.remove_volume(leftover.name)
            return
        for each in containers.listed(client, home=home):
            if each.name != leftover.name:
                continue
            if each.alive and not leftover.alive:
                raise Transient(f"{each.name} is running now")
            if each.alive:
                client.api.kill(each.id, "SIGKILL")
                client.api.wait(each.id)
            containers.remove(client, each.id)
    except DockerNotFound:
        pass
    except APIError as error:
        if error.status_code != 409:
            raise
        raise Transient(f"{leftover.name} is in use: {error.explanation}") from error
