"""The settings of the local Kaggle: its account and limits, its warts, and the faults that it can show.

Has no behaviour: each field says what it switches, and where that is recorded. Figures without a record are
marked as assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


@dataclass(frozen=True)
class Settings:
    """One account and its limits (docs/references/kaggle.md#limits, docs/references/kaggle.md#quota).

    Times are in real seconds, so tests choose small ones."""

    username: str = "ada"
    key: str = "0123456789abcdef0123456789abcdef"
    token: str = ""  # if set, `Bearer` with it is accepted, besides Basic (username, key)
    wall_seconds: float = 43_200  # CPU and GPU sessions, 12 h
    tpu_wall_seconds: float = 32_400  # 9 h
    gpu_quota_seconds: float = 108_000  # 30 h per window
    tpu_quota_seconds: float = 72_000  # 20 h per window
    window_seconds: float = 604_800  # the quota's window, from the server's start
    reserve_seconds: float | None = None  # what a running session reserves; None: its wall
    gpu_slots: int = 2
    tpu_slots: int = 1  # assumed
    cpu_slots: int = 5
    queue_seconds: float = 0.0  # QUEUED for this long after a push
    publish_seconds: float = 0.0  # from the end of the script until the outputs are there
    ready_seconds: float = 0.0  # a new version of a dataset is `blobs_received` for this long
    visible_seconds: float = 0.0  # status answers 404 for this long after the first push of a kernel
    retry_after_seconds: float = 1.0  # in the header of a 429
    text_bytes_max: int = 1_000_000  # a larger script is a 400: docs/references/kaggle.md#push


@dataclass
class Warts:
    """One switch per wart. They can change while the server runs. The defaults are the usual behaviour."""

    # A missing kernel or dataset is 403, not 404: docs/references/kaggle.md#missing-or-denied
    missing_is_403: bool = True
    # Enum values in lower camel case: docs/references/kaggle.md#messages
    camel_case_status: bool = False
    # QUEUED is left out of the reply, and decodes as QUEUED: docs/references/kaggle.md#status
    queued_is_omitted: bool = True
    # A status that this client does not know, such as "PREEMPTED". Empty: none.
    # docs/references/kaggle.md#status
    unknown_status: str = ""
    # Errors of the kernel service are nested under "error": docs/references/kaggle.md#errors
    nested_errors: bool = False
    # A newer version in X-Kaggle-ApiVersion. Empty: no header. docs/references/kaggle.md#errors
    api_version: str = ""
    # A running session's stream breaks off after this many events. 0: never. docs/references/kaggle.md#log
    stream_events_max: int = 0
    # After the end the log stays empty for this long: docs/references/kaggle.md#log
    log_lag_seconds: float = 0.0
    # After the end no outputs are listed for this long (assumed): docs/references/kaggle.md#output
    output_lag_seconds: float = 0.0
    # At most this many output files are listed. 0: all. docs/references/kaggle.md#output
    output_files_max: int = 0
    # The output lists this name too, such as "../../evil". Empty: none. docs/references/kaggle.md#output
    hostile_output_name: str = ""
    # How a session at its wall or timeout ends: docs/references/kaggle.md#how-sessions-end
    wall_end: Literal["CANCEL_ACKNOWLEDGED", "ERROR"] = "CANCEL_ACKNOWLEDGED"
    # The outputs of a session that hit its wall are lost: docs/references/kaggle.md#how-sessions-end
    wall_loses_outputs: bool = False
    # RUNNING past the wall: sessions do not end there by themselves.
    # docs/references/kaggle.md#how-sessions-end
    wall_is_not_enforced: bool = False
    # A session that ends stays RUNNING forever, and its outputs never appear:
    # docs/references/kaggle.md#how-sessions-end
    stays_running: bool = False
    # A session whose quota runs out is ended (assumed), and its outputs are kept or lost:
    # docs/references/kaggle.md#how-sessions-end
    quota_end: Literal["CANCEL_ACKNOWLEDGED", "ERROR"] = "CANCEL_ACKNOWLEDGED"
    quota_loses_outputs: bool = False
    # The outputs of a script that failed are lost: docs/references/kaggle.md#how-sessions-end
    error_loses_outputs: bool = False
    # The files of a machine that failed survive: docs/references/kaggle.md#how-sessions-end
    death_keeps_outputs: bool = False
    # Cancelling by session id works; otherwise refused: docs/references/kaggle.md#cancelling-and-deleting
    cancel_works: bool = False
    # The status of that refusal. Assumed; for an id that is none of a session it may be another.
    cancel_refusal: int = 403
    # A cancelled session has no outputs: docs/references/kaggle.md#how-sessions-end
    cancel_loses_outputs: bool = False
    # Whether a session's timeout shrinks what it reserves is unknown: docs/references/kaggle.md#quota
    timeout_shrinks_reservation: bool = False
    # Every GPU kernel gets this GPU, such as "Tesla P100-PCIE-16GB". "none": no GPU.
    # docs/references/kaggle.md#accelerators
    substitute_gpu: str = ""
    # Pushing with a TPU gives an image without a TPU: docs/references/kaggle.md#accelerators
    tpu_is_missing: bool = False
    # Archives in a dataset are unpacked into a folder of their name, next to it, or not at all. "content":
    # into a folder, also those without an archive's suffix. docs/references/kaggle.md#datasets
    archives: Literal["folder", "flat", "kept", "content"] = "folder"
    # Inputs are at /kaggle/input/<slug>, as in the past: docs/references/kaggle.md#inputs
    old_input_layout: bool = False
    # A kernel sees the version of a dataset before the newest (stale mount): docs/references/kaggle.md#inputs
    stale_mount: bool = False
    # The first status of a dataset after its creation is a 403: docs/references/kaggle.md#datasets
    first_dataset_status_is_403: bool = False
    # A new version while the one before is still processed is a 403: docs/references/kaggle.md#datasets
    busy_dataset_is_403: bool = True
    # Processing of datasets ends in this status, such as "FAILED": docs/references/kaggle.md#datasets
    dataset_end: str = "READY"
    # After the end the list of outputs grows, name by name, for this long: docs/references/kaggle.md#output
    output_grows_seconds: float = 0.0
    # After the end the signed URLs of outputs are 404 for this long: docs/references/kaggle.md#output
    url_lag_seconds: float = 0.0
    # A signed URL of an output expires after this long and is then a 400. 0: never.
    # docs/references/kaggle.md#output
    url_seconds: float = 0.0
    # A page of a list has at most this many items, whatever is asked for. 0: as many as asked for (assumed)
    page_items_max: int = 0
    # While its outputs are saved, an ended session is RUNNING: docs/references/kaggle.md#how-sessions-end
    saves_while_running: bool = False
    # The status of every session is this state, or a "403" or "404". Empty: the true one (assumed).
    status_glitch: str = ""
    # A new kernel's slug gets this ending: docs/references/kaggle.md#push
    slug_ending: str = ""
    # A push takes effect this much later than its answer (assumed)
    push_lag_seconds: float = 0.0
    # A session beyond the slots is refused, or waits as QUEUED (assumed)
    beyond_slots: Literal["refused", "queued"] = "refused"
    # A dataset that is ready lists no files for this long: docs/references/kaggle.md#datasets
    files_lag_seconds: float = 0.0
    # Its files are listed without sizes: docs/references/kaggle.md#datasets
    sizes_are_omitted: bool = False
    # A push does not find a dataset for this long after it is ready (assumed)
    attach_lag_seconds: float = 0.0
    # The inputs are mounted this much later than the script starts (assumed)
    mount_lag_seconds: float = 0.0
    # Inputs are links to folders elsewhere: docs/references/kaggle.md#inputs
    inputs_are_links: bool = False
    # The name of a deleted kernel or dataset cannot be used again: docs/references/kaggle.md#datasets
    deleted_stay_reserved: bool = False
    # Kernels and datasets cannot have the same name: docs/references/kaggle.md#datasets
    names_are_shared: bool = False
    # What was deleted is still listed and shown for this long (assumed)
    delete_lag_seconds: float = 0.0
    # How the quota's durations are written (assumed, except "seconds"). "missing": only what is used
    quota_shape: Literal["seconds", "iso", "object", "number", "missing"] = "seconds"
    # The server's clock is this much ahead of ours (assumed)
    clock_ahead_seconds: float = 0.0
    # Credentials that were revoked are a 403, not a 401: docs/references/kaggle.md#missing-or-denied
    revoked_is_403: bool = False
    # The stream of a running session's log never ends and repeats its last line (assumed)
    log_is_endless: bool = False
    # Its events are not sent in chunks: docs/references/kaggle.md#log
    log_is_unchunked: bool = False
    # The data of its events has no line ends (assumed)
    log_has_no_newlines: bool = False
    # An outage answers 503, or there is no server.
    outage: Literal["unavailable", "refused"] = "unavailable"


class Fault(StrEnum):
    """What `fail` does to a call. The call takes effect only with CUT and LOST_REPLY."""

    TIMEOUT = "timeout"  # the client gets no answer: docs/references/kaggle.md#timeouts-and-retries
    RATE_LIMIT = "rate limit"  # 429 with Retry-After
    SERVER_ERROR = "server error"  # 500
    UNAVAILABLE = "unavailable"  # 503; for an upload, half has arrived, and the client must resume it
    NESTED = "nested"  # 403 with the error nested: docs/references/kaggle.md#errors
    HTML = "html"  # 200 with a page of HTML: docs/references/kaggle.md#errors
    CUT = "cut"  # half of the body, then the connection closes; for an upload, half arrives
    LOST_REPLY = "lost reply"  # takes effect, then the connection closes without an answer


class Refusal(Exception):
    """An answer other than 200, with `status` and `message`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
