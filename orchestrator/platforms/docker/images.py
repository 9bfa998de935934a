"""Which image a session runs: built from the job's frozen folders, or given by name. Both are pinned.

Decides which variant of an image an accelerator needs, and which built images no job needs any more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import docker
from docker.errors import APIError
from docker.errors import NotFound as DockerNotFound

from orchestrator.core.accelerators import Accelerator
from orchestrator.core.job import frozen_image
from orchestrator.core.order import Order
from orchestrator.core.own_accelerators import NO_OWN, Own, row_named, row_of
from orchestrator.errors import Rejected, Transient
from orchestrator.platforms.docker import builder
from orchestrator.platforms.docker.options import DockerOptions
from orchestrator.platforms.platform import Leftover
from orchestrator.session.staging import Materials

IMAGE = "image"
_BUILT = re.compile(r"orchestrator/[a-z0-9-]+:[A-Za-z0-9_.-]+-[0-9a-f]{12}")


@dataclass(frozen=True)
class Image:
    """`reference` is an id or a name with a digest. `pin` is what the run must record, None if it has it."""

    reference: str
    pin: str | None = None


def resolve(
    client: docker.DockerClient, options: DockerOptions, order: Order, materials: Materials, home: str = ""
) -> Image:
    """The image of this session. Builds or pulls it if the engine lacks it, which may take long."""
    if frozen_image(order.image) is not None:
        if materials.image is None or not materials.image.is_file():
            raise Rejected("the frozen folders of the job's image are gone: submit the job again")
        arguments = _arguments(options, row_of(order))
        network = None if options.build_network == "default" else options.build_network
        built = builder.build(client, materials.image, arguments, materials.say, network=network, home=home)
        return Image(built)
    name = order.image or options.image
    if name is None:
        raise Rejected("the job names no `image`, and neither does the platform in the config")
    pinned = builder.pull(client, name, materials.say)
    return Image(pinned, pin=pinned if order.image is not None and pinned != order.image else None)


def _arguments(options: DockerOptions, row: Accelerator | None) -> dict[str, str]:
    return {"VARIANT": variant(row), **options.build_args}


def unneeded(
    client: docker.DockerClient,
    options: DockerOptions,
    home: str,
    needed: Iterable[Path],
    own: Own = NO_OWN,
) -> tuple[Leftover, ...]:
    """Images built for this home (by label and name) that none of the `needed` archives needs.

    Empty if the tags of one of the archives are unknown.
    """
    wanted: set[str] = set()
    for archive in needed:
        tags = builder.tags(client, archive, _arguments(options, row_named(options.accelerator, own)))
        if tags is None:
            return ()
        wanted |= tags
    rows = client.api.images(filters={"label": [builder.LABEL, f"{builder.HOME_LABEL}={home}"]})
    built = sorted({tag for row in rows for tag in row["RepoTags"] or () if _BUILT.fullmatch(tag)})
    return tuple(Leftover(IMAGE, tag, "", "", "built") for tag in built if tag not in wanted)


def remove(client: docker.DockerClient, home: str, tag: str) -> None:
    """Removes an image of this home, and the layers that no other image needs.

    No error if it is already gone. Raises Transient if a container uses it.
    """
    try:
        labels = client.images.get(tag).labels
        if _BUILT.fullmatch(tag) and labels.get(builder.HOME_LABEL) == home:
            client.api.remove_image(tag)
    except DockerNotFound:
        pass
    except APIError as error:
        if error.status_code != 409:
            raise
        raise Transient(f"{tag} is in use: {error.explanation}") from error


def variant(row: Accelerator | None) -> str:
    """The value of VARIANT that images are built with for an accelerator: `cpu`, `cuda` or `tpu`."""
    arch = "cpu" if row is None else row.arch
    return "cuda" if arch.startswith("sm_") else arch.partition("-")[0]
