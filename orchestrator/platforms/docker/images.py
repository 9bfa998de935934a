"""Which image a session runs: built from the job's frozen folders, or by name; pinned either way.

Decides which variant of an image an accelerator needs. Never removes one.
"""

from __future__ import annotations

from dataclasses import dataclass

import docker

from orchestrator.core.accelerators import catalogue
from orchestrator.core.job import frozen_image
from orchestrator.core.session import Order
from orchestrator.errors import Rejected
from orchestrator.platforms.docker import builder
from orchestrator.platforms.docker.options import DockerOptions
from orchestrator.platforms.platform import Materials


@dataclass(frozen=True)
class Image:
    """`reference` is an id or a name with a digest. `pin` is what the run keeps to, None where it knows."""

    reference: str
    pin: str | None = None


def resolve(client: docker.DockerClient, options: DockerOptions, order: Order, materials: Materials) -> Image:
    """The image of this session, built or pulled if the engine lacks it, which may take long."""
    if frozen_image(order.image) is not None:
        if materials.image is None or not materials.image.is_file():
            raise Rejected("the frozen folders of the job's image are gone: submit the job again")
        arguments = {"VARIANT": variant(order.accelerator), **options.build_args}
        network = None if options.build_network == "default" else options.build_network
        return Image(builder.build(client, materials.image, arguments, materials.say, network=network))
    name = order.image or options.image
    if name is None:
        raise Rejected("the job names no `image`, and neither does the platform in the config")
    pinned = builder.pull(client, name, materials.say)
    return Image(pinned, pin=pinned if order.image is not None and pinned != order.image else None)


def variant(accelerator: str) -> str:
    """The value of VARIANT that images are built with for an accelerator: `cpu`, `cuda` or `tpu`."""
    arch = catalogue[accelerator].arch if accelerator in catalogue else "cpu"
    return "cuda" if arch.startswith("sm_") else arch.partition("-")[0]
