"""Kaggle's requests and answers as frozen values. The wire format is defined only here.

Pure. The SDK's decoder loses or misreads some values, such as durations, times without a zone and unknown
states (docs/references/kaggle.md#messages); these are decoded here. A decoder raises KeyError, TypeError or
ValueError for input that it cannot read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

_DURATION = re.compile(r"(-?\d+(?:\.\d+)?)s")
_INVALID = {
    "invalidDatasetSources": "dataset",
    "invalidKernelSources": "kernel",
    "invalidCompetitionSources": "competition",
    "invalidModelSources": "model",
    "invalidTags": "tag",
}


@dataclass(frozen=True)
class Pool:
    """Accelerator seconds in the quota's window. Running sessions reserve what they have not used yet."""

    used: float
    reserved: float
    allowed: float

    @property
    def left(self) -> float:
        return max(0.0, self.allowed - self.used - self.reserved)


@dataclass(frozen=True)
class Quotas:
    """`refresh_at` is in unix seconds. A pool is None if the account has none."""

    refresh_at: float | None
    gpu: Pool | None
    tpu: Pool | None


@dataclass(frozen=True)
class Status:
    """`state` is the server's word in capitals: QUEUED, RUNNING, … and whatever it may add later."""

    state: str
    message: str


@dataclass(frozen=True)
class Push:
    """A kernel to run. It mounts `datasets` and `kernels`: our own slugs, or `owner/slug`."""

    slug: str
    text: str = field(repr=False)
    machine_shape: str
    gpu: bool
    tpu: bool
    timeout_seconds: int
    internet: bool
    datasets: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pushed:
    """It runs as requested only if `error` and `invalid` are empty (docs/references/kaggle.md#push).

    `invalid` lists what Kaggle did not find, such as "dataset ada/x"; the kernel runs without it.
    """

    version: int
    error: str
    invalid: tuple[str, ...]


@dataclass(frozen=True)
class OutputFile:
    """`name` is the server's and may be unsafe; `url` is signed."""

    name: str
    url: str = field(repr=False)


@dataclass(frozen=True)
class Output:
    """`log` is a JSON array of {stream_name, time, data}, empty while the kernel runs."""

    files: tuple[OutputFile, ...]
    log: str = field(repr=False)


@dataclass(frozen=True)
class Upload:
    """A started upload: the token of the blob, and the signed URL to upload it to."""

    token: str = field(repr=False)
    url: str = field(repr=False)


def encode_push(request: Any, owner: str, push: Push) -> Any:
    """Sets every field (docs/references/kaggle.md#push). Always private. Kaggle makes the slug from the
    title."""
    request.slug, request.new_title = f"{owner}/{push.slug}", push.slug
    request.text, request.language, request.kernel_type = push.text, "python", "script"
    request.is_private = True
    request.enable_gpu, request.enable_tpu = push.gpu, push.tpu
    request.enable_internet = push.internet
    request.machine_shape = push.machine_shape
    request.session_timeout_seconds = push.timeout_seconds
    request.dataset_data_sources = _full(owner, push.datasets)
    request.kernel_data_sources = _full(owner, push.kernels)
    return request


def _full(owner: str, slugs: tuple[str, ...]) -> list[str]:
    return [slug if "/" in slug else f"{owner}/{slug}" for slug in slugs]


def decode_pushed(body: Mapping[str, Any]) -> Pushed:
    invalid = [f"{what} {name}" for key, what in _INVALID.items() for name in body.get(key) or ()]
    return Pushed(int(body.get("versionNumber") or 0), str(body.get("error") or ""), tuple(invalid))


def decode_quotas(body: Mapping[str, Any]) -> Quotas:
    time = body.get("quotaRefreshTime")
    return Quotas(_unix(time) if time else None, _pool(body.get("gpuQuota")), _pool(body.get("tpuQuota")))


def _pool(given: Mapping[str, Any] | None) -> Pool | None:
    if given is None:
        return None
    used, reserved, allowed = (_seconds(given.get(f"{key}")) for key in
                               ("timeUsed", "timeReserved", "totalTimeAllowed"))  # fmt: skip
    return Pool(used, reserved, allowed)


def _seconds(duration: str | None) -> float:
    match = _DURATION.fullmatch(duration or "0s")
    if match is None:
        raise ValueError("not a duration")
    return float(match[1])


def _unix(time: str) -> float:
    read = datetime.fromisoformat(time)
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()


def decode_status(body: Mapping[str, Any]) -> Status:
    """A missing state is the first one, QUEUED, as always in protocol buffers."""
    state = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(body.get("status") or "QUEUED")).upper()
    return Status(state, str(body.get("failureMessage") or ""))


def decode_output(body: Mapping[str, Any]) -> Output:
    files = (OutputFile(str(file["fileName"]), str(file["url"])) for file in body.get("files") or ())
    return Output(tuple(files), str(body.get("log") or ""))


def decode_refs(body: Mapping[str, Any], key: str) -> tuple[str, ...]:
    return tuple(str(each["ref"]).strip("/") for each in body.get(key) or ())


def decode_dataset_state(body: Mapping[str, Any]) -> str:
    return str(body.get("status") or "NOT_YET_PERSISTED").lower()


def decode_sizes(body: Mapping[str, Any]) -> dict[str, int]:
    if body.get("errorMessage"):
        raise ValueError("Kaggle cannot list the files")
    return {str(file["name"]): int(file.get("totalBytes") or 0) for file in body.get("datasetFiles") or ()}


def decode_refusal(body: Mapping[str, Any]) -> str:
    """Why the dataset was not created; empty if it was."""
    if body.get("error"):
        return str(body["error"])
    status = str(body.get("status") or "")
    return "" if status.lower() == "ok" else f"it answers {status!r}"


def decode_upload(body: Mapping[str, Any]) -> Upload:
    return Upload(str(body["token"]), str(body["createUrl"]))


def decode_username(body: Mapping[str, Any]) -> str:
    return str(body["username"]) if body.get("active") else ""
