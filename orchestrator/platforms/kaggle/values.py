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
_ISO_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")
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

    `invalid` lists what Kaggle did not find, such as "dataset ada/x"; the kernel runs without it. `slug` is
    the one that Kaggle gave the kernel, which may not be the requested one; empty if it does not say. 0 for
    an `id` or `version` that is missing.
    """

    version: int
    error: str
    invalid: tuple[str, ...]
    slug: str = ""
    id: int = 0


@dataclass(frozen=True)
class Listed:
    """A kernel or dataset in the account's own list. A kernel's title is what its push asked for, even if its
    slug is another. Its `id` stays the same, also if the user renames it; 0 if it is missing."""

    slug: str
    title: str
    id: int = 0


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
    if push.machine_shape:
        request.machine_shape = push.machine_shape
    request.session_timeout_seconds = push.timeout_seconds
    request.dataset_data_sources = _full(owner, push.datasets)
    request.kernel_data_sources = _full(owner, push.kernels)
    return request


def _full(owner: str, slugs: tuple[str, ...]) -> list[str]:
    return [slug if "/" in slug else f"{owner}/{slug}" for slug in slugs]


def decode_pushed(body: Mapping[str, Any]) -> Pushed:
    invalid = [f"{what} {name}" for key, what in _INVALID.items() for name in body.get(key) or ()]
    return Pushed(
        int(body.get("versionNumber") or 0),
        str(body.get("error") or ""),
        tuple(invalid),
        slug=_slug(str(body.get("ref") or "")),
        id=int(body.get("kernelId") or 0),
    )


def _slug(ref: str) -> str:
    """The last part of a reference, which may be `owner/slug` or a path such as `/code/owner/slug`."""
    return ref.strip("/").rpartition("/")[2]


def decode_quotas(body: Mapping[str, Any]) -> Quotas:
    time = body.get("quotaRefreshTime")
    return Quotas(_unix(time) if time else None, _pool(body.get("gpuQuota")), _pool(body.get("tpuQuota")))


def _pool(given: Mapping[str, Any] | None) -> Pool | None:
    """None if the account has no such quota, or if Kaggle does not say what is allowed."""
    if not given or given.get("totalTimeAllowed") is None:
        return None
    used, reserved, allowed = (_seconds(given.get(f"{key}")) for key in
                               ("timeUsed", "timeReserved", "totalTimeAllowed"))  # fmt: skip
    return Pool(used, reserved, allowed)


def _seconds(duration: Any) -> float:
    """A duration as protocol buffers write it, `"3600s"`; also a number, an object, or ISO 8601."""
    if isinstance(duration, Mapping):
        return float(duration.get("seconds") or 0) + float(duration.get("nanos") or 0) / 1e9
    if isinstance(duration, int | float):
        return float(duration)
    text = str(duration or "0s")
    if match := _DURATION.fullmatch(text):
        return float(match[1])
    match = _ISO_DURATION.fullmatch(text)
    if match is None:
        raise ValueError("not a duration")
    days, hours, minutes, seconds = (float(each or 0) for each in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


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


def decode_listed(body: Mapping[str, Any], key: str, owner: str) -> tuple[Listed, ...]:
    """Those of the owner."""
    found: list[Listed] = []
    for each in body.get(key) or ():
        whose, _, slug = str(each["ref"]).strip("/").rpartition("/")
        if whose.rpartition("/")[2].lower() == owner.lower():
            found.append(Listed(slug, str(each.get("title") or ""), int(each.get("id") or 0)))
    return tuple(found)


def decode_source(body: Mapping[str, Any]) -> str:
    """The text of a kernel's newest version; empty if Kaggle does not give it."""
    return str((body.get("blob") or {}).get("source") or "")


def decode_dataset_state(body: Mapping[str, Any]) -> str:
    return str(body.get("status") or "NOT_YET_PERSISTED").lower()


def decode_sizes(body: Mapping[str, Any]) -> dict[str, int | None]:
    """Name → size in bytes, or None if Kaggle does not say: it leaves out zeros, too."""
    if body.get("errorMessage"):
        raise ValueError("Kaggle cannot list the files")
    files = body.get("datasetFiles") or ()
    return {str(file["name"]): int(file["totalBytes"]) if file.get("totalBytes") else None for file in files}


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
