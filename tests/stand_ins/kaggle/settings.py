"""What the local Kaggle is made of: its account and limits, its warts, and the faults it can be told to show.

Knows no behaviour: each field says what it switches and which line of facts/kaggle.md recorded it. A figure
that nobody recorded is marked as assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


@dataclass(frozen=True)
class Settings:
    """One account and its limits (facts/kaggle.md §5). Times are real seconds: tests choose small ones."""

    username: str = "ada"
    key: str = "0123456789abcdef0123456789abcdef"
    token: str = ""  # where set, `Bearer` with it is accepted beside Basic (username, key): §2
    wall_seconds: float = 43_200  # CPU and GPU sessions, 12 h
    tpu_wall_seconds: float = 32_400  # 9 h
    gpu_quota_seconds: float = 108_000  # 30 h a window
    tpu_quota_seconds: float = 72_000  # 20 h a window
    window_seconds: float = 604_800  # the quota's window, from the server's start
    reserve_seconds: float | None = None  # what a running session reserves; None: its wall
    gpu_slots: int = 2
    tpu_slots: int = 1  # assumed
    cpu_slots: int = 5
    queue_seconds: float = 0.0  # QUEUED for so long after a push
    publish_seconds: float = 0.0  # from the end of the script until the outputs are there
    ready_seconds: float = 0.0  # a new version of a dataset is `blobs_received` for so long
    visible_seconds: float = 0.0  # after the first push of a kernel, status answers 404 for so long
    retry_after_seconds: float = 1.0  # in the header of a 429
    text_bytes_max: int = 1_000_000  # a larger script is a 400 (§3)


@dataclass
class Warts:
    """One switch a wart, changeable while the server runs. The defaults are what is recorded as usual."""

    # §3, §2: a kernel or dataset that is not there is 403, not 404.
    missing_is_403: bool = True
    # §1: enum values in lower camel case, which the client's decoder takes too.
    camel_case_status: bool = False
    # §3: QUEUED is left out of the reply, and decodes as QUEUED.
    queued_is_omitted: bool = True
    # §3: a status that this client does not know (KeyError), e.g. "PREEMPTED". Empty: none.
    unknown_status: str = ""
    # §1: errors of the kernel service nested under "error", whose message the client loses.
    nested_errors: bool = False
    # §1: a newer version in X-Kaggle-ApiVersion, about which the client prints a warning. Empty: no header.
    api_version: str = ""
    # §3: a running session's stream breaks off after so many events; a reconnect replays. 0: never.
    stream_events_max: int = 0
    # §5: after the end the log stays empty for so long (§6.10).
    log_lag_seconds: float = 0.0
    # §5 "kept" is not at once: after the end no outputs are listed for so long (assumed).
    output_lag_seconds: float = 0.0
    # §5: no more than so many output files are listed (500 once). 0: all.
    output_files_max: int = 0
    # §3: the output lists this name too, beside the real ones, e.g. "../../evil". Empty: none.
    hostile_output_name: str = ""
    # §5 "What survives": how a session at its wall or timeout ends.
    wall_end: Literal["CANCEL_ACKNOWLEDGED", "ERROR"] = "CANCEL_ACKNOWLEDGED"
    # §5: "none listed in one": the outputs of a session that hit its wall are lost.
    wall_loses_outputs: bool = False
    # §5: RUNNING past the wall: sessions never end at it by themselves (unsloth).
    wall_is_not_enforced: bool = False
    # §6.7: a session that ends stays RUNNING for ever, and its outputs never come.
    stays_running: bool = False
    # §5: a session whose quota ends in mid-session is ended, its outputs kept or lost. The status is assumed.
    quota_end: Literal["CANCEL_ACKNOWLEDGED", "ERROR"] = "CANCEL_ACKNOWLEDGED"
    quota_loses_outputs: bool = False
    # §5: "usually kept": the outputs of a script that failed are lost.
    error_loses_outputs: bool = False
    # §5: what a machine that died had written survives (assumed lost).
    death_keeps_outputs: bool = False
    # §3: cancelling by session id works; otherwise 403 `kernelSessions.cancel`.
    cancel_works: bool = False
    # §5: "one run had nothing": a cancelled session has no outputs.
    cancel_loses_outputs: bool = False
    # §5: whether a session's timeout shrinks what it reserves is unknown.
    timeout_shrinks_reservation: bool = False
    # §5: every GPU kernel gets this GPU, not what it asked for: "Tesla P100-PCIE-16GB"; "none": no GPU.
    substitute_gpu: str = ""
    # §5: a TPU by push yields an image without a TPU (KC#1197).
    tpu_is_missing: bool = False
    # §4 (user report): archives in a dataset are unpacked: into a folder of their name, beside it, or not.
    archives: Literal["folder", "flat", "kept"] = "folder"
    # §5 hand-off: inputs at /kaggle/input/<slug>, as it once was.
    old_input_layout: bool = False
    # §5 hand-off: a kernel sees the version of a dataset before the newest (stale mount).
    stale_mount: bool = False
    # §4: the first status of a dataset after its creation is a 403.
    first_dataset_status_is_403: bool = False
    # §4: a new version while the one before is still processed is a 403 (kagglehub#182).
    busy_dataset_is_403: bool = True
    # §4: processing of datasets ends in this status, e.g. "FAILED".
    dataset_end: str = "READY"
    # an outage answers 503, or nobody listens (§6.4).
    outage: Literal["unavailable", "refused"] = "unavailable"


class Fault(StrEnum):
    """What `fail` makes of a call. Only CUT and LOST_REPLY let it take effect."""

    TIMEOUT = "timeout"  # no answer for as long as the client waits (§1: no timeout on any RPC)
    RATE_LIMIT = "rate limit"  # 429 with Retry-After
    SERVER_ERROR = "server error"  # 500
    UNAVAILABLE = "unavailable"  # 503; of an upload, half of which has arrived, it asks for resumption (§4)
    NESTED = "nested"  # 403 with the error nested, whose message the client loses (§1)
    HTML = "html"  # 200 with a page of HTML, at which the client's decoder fails (§1)
    CUT = "cut"  # half of the body, then the connection closes; of an upload, half arrives
    LOST_REPLY = "lost reply"  # takes effect, then the connection closes without an answer


class Refusal(Exception):
    """An answer other than 200: `status` and the words in `message`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
