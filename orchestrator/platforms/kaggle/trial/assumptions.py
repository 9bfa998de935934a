"""What we assume about Kaggle without having tried it. docs/kaggle.md lists the same; a test compares them.

Values only. An id is never used again for something else, because people quote it in issues.
"""

from __future__ import annotations

from orchestrator.platforms.trials.assumption import Assumption, Checked

QUOTA = Assumption(
    "A1",
    "The quota can be read, and has the recorded form.",
    "Other forms are understood too. A pool without a total is not offered.",
)
CLOCK = Assumption(
    "A2",
    "Kaggle's clock and this machine's differ by less than a minute.",
    "A wait for the quota's renewal ends too early or too late. Nothing is lost.",
)
READY = Assumption(
    "A3",
    "An uploaded dataset is `ready` within `ready_seconds`.",
    "No session starts; the upload is tried again, then other platforms.",
)
LISTED = Assumption(
    "A4",
    "A dataset lists all of its files as soon as it is `ready`.",
    "The list is read again for `listed_seconds`; then the upload is tried again.",
)
SIZES = Assumption(
    "A5",
    "It lists them with their sizes.",
    "Their names are believed. The session checks every byte anyway.",
)
UNCHANGED = Assumption(
    "A6",
    "Kaggle does not change or unpack a file that looks like no archive.",
    "No session runs: `Kaggle changed what was uploaded`, or `was changed on the way`.",
)
ATTACHED = Assumption(
    "A7",
    "A push finds a private dataset of its own account as soon as that is `ready`.",
    "The kernel is deleted at once and pushed again after a pause, under another name.",
)
SLUG = Assumption(
    "A8",
    "A kernel gets the name that its push asks for.",
    "The kernel is followed under its other name, and `why` says so.",
)
VERSION = Assumption(
    "A9",
    "The first push of a name is version 1.",
    "`why` says that an older version may run beside it.",
)
VISIBLE = Assumption(
    "A10",
    "A pushed kernel is visible within `visibility_seconds`.",
    "It is waited for `absence_seconds`; then it counts as lost, and the next session starts.",
)
WORDS = Assumption(
    "A11",
    "The status has only the recorded words, in the recorded order.",
    "An unknown word counts as running; after the session limit the run is held.",
)
READABLE = Assumption(
    "A12",
    "The status of a kernel can be read as long as the kernel exists.",
    "The account's list decides: nothing is given up while it has the kernel.",
)
NO_SHAPE = Assumption(
    "A13",
    "A push that names no machine shape gets a machine without a GPU or TPU (`cpu`).",
    "`cpu` sessions would spend a quota: take `cpu` out of `accelerators`.",
)
MOUNTED = Assumption(
    "A14",
    "The inputs are mounted when the script starts.",
    "The session waits `mount_seconds` for them; then it is lost at once.",
)
LOG = Assumption(
    "A15",
    "The log of a running kernel can be read as a stream.",
    "No progress is shown, and no session is cancelled. Nothing else changes.",
)
LINES = Assumption(
    "A16",
    "The log's lines end with line ends.",
    "Our lines are found by their beginnings.",
)
SESSION_ID = Assumption(
    "A17",
    "A kernel knows the id of its session (`KAGGLE_CONTAINER_NAME`).",
    "A session cannot be cancelled. With `--discard`, its kernel is deleted and its output lost.",
)
ENDS = Assumption(
    "A18",
    "A kernel whose script has ended is shown as ended within `publish_seconds`.",
    "Its output is waited for; after two hours the run is held.",
)
PUBLISHED = Assumption(
    "A19",
    "All files of an ended session are listed within `publish_seconds`.",
    "The run is held, and goes on by itself when they appear.",
)
DOWNLOADS = Assumption(
    "A20",
    "A listed file can be downloaded at once, and has the bytes that the session wrote.",
    "It is downloaded again; a corrupt checkpoint is not used.",
)
KEPT_LOG = Assumption(
    "A21",
    "The log is kept with the output.",
    "How a session without a result ended is known from its status alone.",
)
HANDED = Assumption(
    "A22",
    "A kernel can mount the output of the one before, with its folders.",
    "Such a session is lost at once; the next one gets the checkpoint as an upload.",
)
CANCELLED = Assumption(
    "A23",
    "A session that is cancelled keeps its output, if Kaggle allows to cancel it.",
    "The run is held; `release --discard` continues from the checkpoint before.",
)
TIMEOUT = Assumption(
    "A24",
    "A session ends at the `timeout` of its push.",
    "A wedged session spends quota until you delete its kernel; the run is held.",
)
KEPT_AT_TIMEOUT = Assumption(
    "A25",
    "A session that its time-out ended keeps its output.",
    "The run is held. Only a session that cannot leave by itself gets there.",
)
DELETED = Assumption(
    "A26",
    "What is deleted is gone from the account's lists at once, also a running kernel.",
    "It is looked for, and deleted again, until it is gone.",
)
WALLS = Assumption(
    "A27",
    "A session that leaves at its own wall ends as `COMPLETE`, and the next one continues exactly there.",
    "The work of a session is lost, or the run is held.",
    Checked.LONG,
)
LONG_LOG = Assumption(
    "A28",
    "The log of a session of ten minutes can be read until its end.",
    "Progress stops at some time. Nothing else changes.",
    Checked.LONG,
)
LARGE = Assumption(
    "A29",
    "Output of more than 64 MiB is published whole, and can be mounted.",
    "The run is held, or the checkpoint is uploaded instead.",
    Checked.LONG,
)
UNTRIED = tuple(
    Assumption(id, text, otherwise, Checked.NEVER)
    for id, text, otherwise in (
        (
            "A30",
            "Output of 20 GB is published within two hours.",
            "The run is held, and goes on by itself when the output appears.",
        ),
        (
            "A31",
            "Deleting a kernel also ends its cost.",
            "A deleted session spends quota until its time-out.",
        ),
        (
            "A32",
            "A session reserves hours of the quota whatever its time-out is.",
            "If the time-out shortens the reservation, Kaggle refuses less often than expected.",
        ),
        (
            "A33",
            "Refusals have the words that were reported.",
            "Unknown ones are tried again after minutes, ever more rarely; after hours the run is held.",
        ),
        (
            "A34",
            "2 GPU, 1 TPU and 5 CPU sessions may run at once.",
            "Kaggle refuses, and the run asks again; set `gpu_slots`, `tpu_slots`, `cpu_slots`.",
        ),
        (
            "A35",
            "`NvidiaTeslaT4` is a machine with two T4, and a script for a TPU gets an image for one.",
            "The agent notices before it starts: no capacity, and other offers.",
        ),
        (
            "A36",
            "A session whose quota runs out keeps its output.",
            "The run is held; `release --discard` continues from the checkpoint before.",
        ),
        (
            "A37",
            "A script that fails keeps its output.",
            "As above. A training that fails is no such case: the agent ends the script well.",
        ),
        (
            "A38",
            "A kernel with the internet reaches the home store, and the package index of its uplink.",
            "It ships nothing, says so, and is treated as one without an uplink.",
        ),
        (
            "A39",
            "The dataset with what opens the store can be deleted while the output of an ended session is "
            "still saved.",
            "What was not shipped may be lost: minutes of work.",
        ),
    )
)
CHECKED = (
    QUOTA, CLOCK, READY, LISTED, SIZES, UNCHANGED, ATTACHED, SLUG, VERSION, VISIBLE, WORDS, READABLE,
    NO_SHAPE, MOUNTED, LOG, LINES, SESSION_ID, ENDS, PUBLISHED, DOWNLOADS, KEPT_LOG, HANDED, CANCELLED,
    TIMEOUT, KEPT_AT_TIMEOUT, DELETED, WALLS, LONG_LOG, LARGE,
)  # fmt: skip
ALL = (*CHECKED, *UNTRIED)
