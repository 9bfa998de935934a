"""What a user may set about one Docker engine."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from orchestrator.platforms.session_options import SessionOptions


class Tls(BaseModel):
    """The client's side of mutual TLS, like docker's own `--tlscacert`, `--tlscert`, `--tlskey`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ca: Path
    cert: Path
    key: Path


class DockerOptions(SessionOptions):
    """Sessions as containers of one engine: at `host`, or of the docker `context`. If both are unset,
    DOCKER_HOST and then the current context apply.

    `accelerator` is what the containers get: `cpu`, or the name of the GPU whose ids are `gpus` (in the form
    that `--gpus device=` takes). A session takes as many GPUs as the accelerator has devices, and shares them
    with no other session unless `share_gpus` is set. `slots` counts CPU sessions; with GPUs it follows from
    them. `memory_gb`, `cpus`, `shm_gb` and `pids` limit a container. `image_disk_gb` limits what it may write
    on top of its image, if the engine's storage driver can do that (unset: no limit). `image` is for jobs
    that name none. A job gets the network `network` if it asks for the internet, otherwise none. A session is
    killed `grace_seconds` after it was asked to stop, or when it runs longer than `session_seconds` plus
    `slack_seconds`.
    """

    host: str | None = None
    context: str | None = None
    tls: Tls | None = None
    gpus: tuple[str, ...] = ()
    share_gpus: bool = False
    cpus: float | None = Field(default=None, gt=0)
    shm_gb: float = Field(default=1.0, gt=0)
    image_disk_gb: float | None = Field(default=None, gt=0)
    pids: int = Field(default=4096, ge=64)
    user: str = Field(default="1000:1000", pattern=r"^[0-9]+:[0-9]+$")
    network: str = Field(default="bridge", min_length=1)
    image: str | None = Field(default=None, min_length=1)
    build_args: dict[str, str] = Field(default_factory=dict)
    build_network: Literal["default", "host", "none"] = "default"
    python: str = Field(default="python3", min_length=1)
    visibility_seconds: float = Field(default=10.0, gt=0)
    poll_seconds: float = Field(default=2.0, gt=0)
    setup_seconds: float = Field(default=10.0, ge=0)
    timeout_seconds: float = Field(default=60.0, gt=0)

    @model_validator(mode="after")
    def _one_way_in(self) -> Self:
        if self.context is not None and self.host is not None:
            raise ValueError("`host` and `context` both name an engine: give one of them")
        if self.tls is not None and (self.host is None or not self.host.startswith("tcp://")):
            raise ValueError("`tls` goes with a `host` of tcp://")
        if self.gpus and self.accelerator == "cpu":
            raise ValueError("`gpus` goes with the `accelerator` that they are, e.g. RTX3050")
        return self

    @property
    def uid(self) -> int:
        return int(self.user.partition(":")[0])

    @property
    def gid(self) -> int:
        return int(self.user.partition(":")[2])
