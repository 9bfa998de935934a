"""The limits on what a session, platform or store may send, and the functions that apply them.

If a value is outside its limit, only that value is lost, and a note names it. The session and other runs are
not affected. Pure; ships inside the agent, because both sides check. Reads no file: see
`orchestrator.files.reading`.
"""

from __future__ import annotations

import math

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

# --- Numbers ----------------------------------------------------------------------------------------------

STEP_MAX = 2**63 - 1  # what a database column holds
WHOLE_MAX = 2**127  # any whole number in JSON; far smaller than the largest float
RATE_MIN, RATE_MAX = 1e-9, 1e9  # steps per second: one in 30 years; no machine counts faster
SECONDS_MAX = 1e10  # a duration: 300 years
TIME_MAX = 253_402_300_799.0  # unix seconds: the end of the year 9999, the last that a calendar shows

# --- Words ------------------------------------------------------------------------------------------------

WARNINGS_MAX = 20
WARNING_BYTES_MAX = 1 * KIB
STATE_BYTES_MAX = 64
MESSAGE_BYTES_MAX = 4 * KIB
TAIL_BYTES_MAX = 16 * KIB
SPOKEN_BYTES_MAX = 64 * KIB  # of a session's log, as its platform shows it before the outbox comes
METRICS_MAX = 1000
METRIC_NAME_BYTES_MAX = 256

# --- Small files of the outbox ----------------------------------------------------------------------------

INCARNATION_BYTES_MAX = 64
STATUS_BYTES_MAX = 64 * KIB
RESULT_BYTES_MAX = 256 * KIB
ORDER_BYTES_MAX = 64 * MIB  # an environment may be large; we write it, but a script could replace it
METRICS_BYTES_MAX = 1 * MIB
ENVIRONMENT_BYTES_MAX = 64 * KIB
PROGRESS_LINE_BYTES_MAX = 1 * MIB
RELAYED_PROGRESS_BYTES_MAX = 64 * MIB  # the part of a session's reports that the agent copies

# --- Checkpoints ------------------------------------------------------------------------------------------

MANIFEST_BYTES_MAX = 16 * MIB
FILES_MAX = 20_000  # in one checkpoint
PATH_BYTES_MAX = 4 * KIB
PART_BYTES_MAX = 256 * MIB  # one blob; a larger file is stored in parts
CHECKPOINT_BYTES_MAX = 1024 * GIB
OUTPUTS_BYTES_MAX = 20 * GIB  # of a session, which the job names
UNASKED_BYTES_MAX = 1 * GIB  # of a session, kept although the job names none
PARCEL_PART_BYTES = 64 * MIB  # what is lost of a session's inputs on their way if its uplink dies
COLLECT_CHECKPOINTS_MAX = 64
CHECKPOINT_TRIES_MAX = 3  # for a damaged checkpoint: the transport may have damaged it
LAST_TRIES_MAX = 2  # more, once the session has ended
COLLECT_CHECKPOINT_BYTES_MAX = 8 * GIB  # after this a collect starts no further checkpoint
SESSION_CHECKPOINTS_MAX = 10_000
LISTED_MAX = 100_000  # names in one folder
SPARSE_BYTES_MIN = 1 * GIB  # a smaller file or checkpoint may be all holes
SPARSE_SHARE_MAX = 64  # bytes of size per byte on disk

# --- What we write on a disk that others use --------------------------------------------------------------

# Of the bytes and of the inodes of a disk, this much stays free, whoever needs it: a training first of all.
RESERVE_SHARE = 20  # 1 / 20 of the disk
RESERVE_BYTES_MAX = 1 * GIB
RESERVE_FILES_MAX = 10_000
RESERVE_TIMES = 8  # no more than so many times what is written: small files fill no disk

# --- Files that grow --------------------------------------------------------------------------------------

LOG_SEGMENT_BYTES_MAX = 16 * MIB
COLLECT_LOG_BYTES_MAX = 128 * MIB  # twice what an agent keeps of its log
COLLECT_LOG_SEGMENTS_MAX = 1000
SESSION_LOG_BYTES_MAX = 1 * GIB
COLLECT_PROGRESS_BYTES_MAX = 64 * MIB
SESSION_PROGRESS_BYTES_MAX = 1 * GIB

# --- Runs -------------------------------------------------------------------------------------------------

COUNT_MAX = 2**31 - 1  # steps of a job, or samples of a batch
MICRO_BATCH_MAX = 65_536
GENERATION_MAX = 10**8  # a checkpoint's name has room for ten times as many
ADOPTIONS_MAX = 9998  # the key of a deposit has four digits for one more

# --- Stores -----------------------------------------------------------------------------------------------

REGISTER_BYTES_MAX = 128 * KIB  # a status, and who wrote it when
MACHINE_CHARACTERS_MAX = 100  # the name of a machine that has adopted a run
INPUTS_MAX = 1000  # that are fetched for one run
DEPOSIT_BYTES_MAX = 16 * MIB  # a job, and a line for each of its checkpoints
INPUTS_BYTES_MAX = 64 * MIB  # of one run in a store; larger ones are named by path and sha256 only
MATERIAL_BYTES_MAX = 256 * MIB  # an archive of source, or of what an image is built from; twice what we write


def step(value: int | None) -> int | None:
    """The step, or None if it is outside its limits."""
    return value if value is not None and 0 <= value <= STEP_MAX else None


def rate(value: float | None) -> float | None:
    """Steps per second, or None if it is outside its limits."""
    return value if value is not None and RATE_MIN <= value <= RATE_MAX else None


def seconds(value: float | None) -> float | None:
    """The duration, or None if it is outside its limits."""
    return value if value is not None and 0.0 <= value <= SECONDS_MAX else None


def moment(value: float | None) -> float | None:
    """The time in unix seconds, or None if no calendar shows it."""
    return value if value is not None and 0.0 <= value <= TIME_MAX else None


def finite(value: float | None) -> float | None:
    """The number, or None for a NaN or an infinity."""
    return value if value is not None and math.isfinite(value) else None


def text(value: str, bytes_max: int) -> str:
    """The text as UTF-8 and databases can hold it: without NUL and lone surrogates, cut to `bytes_max`."""
    data = value.replace("\0", "\ufffd").encode("utf-8", "replace")
    if len(data) <= bytes_max:
        return data.decode()
    return data[: bytes_max - 3].decode("utf-8", "ignore") + "…"


def size_text(size: float) -> str:
    """`64 kB`, `1 GB`: how notes write a limit."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.0f} TB"


# --- The table of docs/bounds.md: what, the limit, what happens outside it ---------------------------------

_NUMBER = "that value is left out, and a note says so"
_UNREAD = "it is not read, and a note says so; the rest of the session is used"
_CORRUPT = "that checkpoint is left out with its reason; older and newer ones are used"
_DEPOSIT = "what a store says of that run is not believed"
TABLE: tuple[tuple[str, str, str], ...] = (
    ("a step", "0 to 2⁶³ − 1", _NUMBER),
    ("steps per second", f"{RATE_MIN:g} to {RATE_MAX:g}", _NUMBER),
    ("a duration", f"0 to {SECONDS_MAX:g} s", _NUMBER),
    ("a time", "1970 to 9999", _NUMBER),
    ("any whole number in JSON", "128 bits", "the document is not valid, as with a wrong type"),
    ("JSON nesting", "Python's recursion limit, about 1,000", "the document is not valid"),
    ("warnings in a status", f"{WARNINGS_MAX}, each of {size_text(WARNING_BYTES_MAX)}",
     "the newest are kept; longer ones are cut"),
    ("the agent's state, in words", size_text(STATE_BYTES_MAX), "cut"),
    ("a result's message", size_text(MESSAGE_BYTES_MAX), "cut"),
    ("a result's tail of the log", size_text(TAIL_BYTES_MAX), "cut"),
    ("the log that a platform shows before the outbox comes", size_text(SPOKEN_BYTES_MAX), "cut"),
    ("metrics of a checkpoint", f"{METRICS_MAX:,}, each name of {size_text(METRIC_NAME_BYTES_MAX)}",
     "the agent leaves out the rest; a manifest with more is corrupt"),
    ("metrics.json", size_text(METRICS_BYTES_MAX), "the checkpoint has no metrics"),
    ("environment.json", size_text(ENVIRONMENT_BYTES_MAX), "the checkpoint is not called deterministic"),
    ("incarnation", size_text(INCARNATION_BYTES_MAX), _UNREAD),
    ("status.json", size_text(STATUS_BYTES_MAX), _UNREAD),
    ("result.json", size_text(RESULT_BYTES_MAX), _UNREAD),
    ("order.json", size_text(ORDER_BYTES_MAX), "the session is shown with the reason"),
    ("a line of progress.jsonl", size_text(PROGRESS_LINE_BYTES_MAX), "ignored, with a warning"),
    ("what the agent copies of progress.jsonl", size_text(RELAYED_PROGRESS_BYTES_MAX),
     "the rest stays in the session; its steps still count"),
    ("a manifest", size_text(MANIFEST_BYTES_MAX), _CORRUPT),
    ("files of a checkpoint", f"{FILES_MAX:,}, each path of {size_text(PATH_BYTES_MAX)}", _CORRUPT),
    ("bytes of a checkpoint", size_text(CHECKPOINT_BYTES_MAX), _CORRUPT),
    ("a blob: a file of a checkpoint, or a part of one", size_text(PART_BYTES_MAX), _CORRUPT),
    ("outputs of a session", f"{size_text(OUTPUTS_BYTES_MAX)} and {FILES_MAX:,} files; "
     f"{size_text(UNASKED_BYTES_MAX)} if the job names none",
     "the smallest files are kept, and a note names the largest of the others"),
    ("new checkpoints in one collect",
     f"{COLLECT_CHECKPOINTS_MAX}; no further one is started after {size_text(COLLECT_CHECKPOINT_BYTES_MAX)}",
     "the next collect starts at once and brings the rest"),
    ("attempts to fetch a damaged checkpoint",
     f"{CHECKPOINT_TRIES_MAX} while the session runs, {LAST_TRIES_MAX} more at its end", _CORRUPT),
    ("checkpoints of a session", f"{SESSION_CHECKPOINTS_MAX:,}",
     "each collect brings only the newest, and a note says so"),
    ("checkpoints of a run that another machine lists", f"{SESSION_CHECKPOINTS_MAX:,}",
     "the newest are listed"),
    ("names in one folder of an outbox", f"{LISTED_MAX:,}",
     "the rest is ignored, and a note says so"),
    ("holes in a checkpoint or in progress.jsonl",
     f"from {size_text(SPARSE_BYTES_MIN)} on: at least 1 byte on disk per {SPARSE_SHARE_MAX} bytes of size",
     "not read, and a note says so"),
    ("what we write on a disk", "what is free, less 1/" f"{RESERVE_SHARE} of the disk (at most "
     f"{size_text(RESERVE_BYTES_MAX)}, {RESERVE_FILES_MAX:,} files, and {RESERVE_TIMES} times its own size)",
     "it is not begun, and a note names its size and the disk ([a full disk](home.md#a-full-disk))"),
    ("a log segment", size_text(LOG_SEGMENT_BYTES_MAX), "the rest stays where it is, and a note says so"),
    ("log in one collect",
     f"{size_text(COLLECT_LOG_BYTES_MAX)}, {COLLECT_LOG_SEGMENTS_MAX:,} segments",
     "the rest comes next time"),
    ("log of a session", size_text(SESSION_LOG_BYTES_MAX),
     "the first eighth and the newest part are kept here, and a note says so"),
    ("progress.jsonl in one collect", size_text(COLLECT_PROGRESS_BYTES_MAX),
     "the rest comes next time; from a container, a larger file comes at the session's end"),
    ("progress.jsonl of a session", size_text(SESSION_PROGRESS_BYTES_MAX),
     "the rest stays where it is, and a note says so"),
    ("steps and batches of a job", f"1 to {COUNT_MAX:,}; a micro-batch to {MICRO_BATCH_MAX:,}", _DEPOSIT),
    ("a run's generation", f"0 to {GENERATION_MAX:,}",
     f"{_DEPOSIT}; a fence outside counts as none, and is overwritten"),
    ("adoptions of a run", f"0 to {ADOPTIONS_MAX:,}", "likewise"),
    ("inputs of a run in a store", f"{INPUTS_MAX:,}", _DEPOSIT),
    ("the name of a machine in a store", f"{MACHINE_CHARACTERS_MAX} characters", _DEPOSIT),
    ("a register of a store", size_text(REGISTER_BYTES_MAX), "it is neither written nor read"),
    ("what a store says of a run", size_text(DEPOSIT_BYTES_MAX), "it is neither written nor read"),
    ("the inputs of a run in a store", size_text(INPUTS_BYTES_MAX), "neither stored nor read"),
    ("an archive of a run in a store", size_text(MATERIAL_BYTES_MAX), "not read; its run is adopted without"),
)  # fmt: skip
