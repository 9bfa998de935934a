"""What we assume about Colab without having tried it. docs/colab.md lists the same; a test compares them."""

from __future__ import annotations

from orchestrator.platforms.trials.assumption import Assumption, Checked

UNITS = Assumption(
    "C1",
    "Colab says what the account has: units, their rate, the accelerators that it may use, and, without "
    "units, what the free tier has left.",
    "An accelerator that it may not use is asked for, refused, and not asked for again for an hour.",
)
LISTED = Assumption(
    "C2",
    "A new machine is listed within `visibility_seconds`.",
    "Its notebook shows it meanwhile. If that fails too, the session counts as lost.",
)
EXACT = Assumption(
    "C3",
    "The list says which accelerator a machine has, and it is the one that was asked for.",
    "The machine is given back, and the run goes elsewhere: no capacity.",
)
COST = Assumption(
    "C4",
    "A machine without an accelerator uses at most 0.1 units an hour, from its start on.",
    "The first session may outlive the units; afterwards the measured rate is used.",
)
FOUND = Assumption(
    "C5",
    "Colab says which machine a notebook has, and that starts none.",
    "A machine that is neither listed nor on record is not found. It uses units until Colab ends it.",
)
SAME = Assumption(
    "C6",
    "A notebook that is given a machine twice gets the same one.",
    "A launch that is repeated after a crash may start a second machine, which trains for nobody.",
)
FOLDER = Assumption(
    "C7",
    "Uploads to `content/` land in `/content`, where cells run, and files of cells can be downloaded there.",
    "No session starts: its files are not there.",
)
BUSY = Assumption(
    "C8",
    "Files can be read and written while a cell runs.",
    "No progress is shown. Checkpoints and the request to stop go through the home store.",
)
DETACHED = Assumption(
    "C9",
    "A cell goes on when its client is gone.",
    "No session can be started from a command line; use the notebook.",
)
QUEUED = Assumption(
    "C10",
    "A second cell waits until the first one has ended.",
    "It finds that the session has started, and leaves.",
)
PYTHON = Assumption(
    "C11",
    "A machine has Python 3.11 or newer, and torch.",
    "Without such a Python no session starts; without torch, the job must install what it needs.",
)
STAYS = Assumption(
    "C12",
    "A session starts, trains, saves and leaves when it is asked to, and its checkpoint can be downloaded.",
    "What was not shipped to the home store is lost: minutes of work.",
)
GIVES_BACK = Assumption(
    "C13",
    "A machine can give itself back (`google.colab.runtime.unassign`).",
    "If there is no controller, a machine uses units until Colab finds it idle.",
)
STOPPED = Assumption(
    "C14",
    "A machine that was given back is not listed any more a minute later.",
    "It counts as running until it is gone, and its slot is not used meanwhile.",
)
LARGE = Assumption(
    "C15",
    "A file of 256 MiB can be uploaded.",
    "A session that needs more than Colab takes does not start: the run goes elsewhere.",
    Checked.LONG,
)
ALIVE = Assumption(
    "C16",
    "A machine whose kernel is busy stays for 30 minutes without a client.",
    "Sessions are lost, and continue from what was shipped. The interval between checkpoints adapts.",
    Checked.LONG,
)
REACHES = Assumption(
    "C17",
    "A session reaches the home store, and the package index of its uplink.",
    "It ships nothing and is lost after `uplink_silence_seconds`.",
)
UNTRIED = tuple(
    Assumption(id, text, otherwise, Checked.NEVER)
    for id, text, otherwise in (
        (
            "C18",
            "Each list of machines has fresh tokens, so a session can be read for longer than an hour.",
            "No progress is shown after an hour. Checkpoints and stops go through the home store.",
        ),
        (
            "C19",
            "A machine whose kernel is busy stays for 12 hours.",
            "As for C16.",
        ),
        (
            "C20",
            "Colab refuses a machine with the recorded answers.",
            "Unknown ones are tried again later, and the run goes elsewhere meanwhile.",
        ),
        (
            "C21",
            "A machine with a GPU or TPU has the drivers and the libraries for it.",
            "The agent notices before it starts: no capacity, and other offers.",
        ),
        (
            "C22",
            "Machines are ended when the units are used up, and not before.",
            "The session is lost, and continues elsewhere from what was shipped.",
        ),
    )
)
CHECKED = (
    UNITS, LISTED, EXACT, COST, FOUND, SAME, FOLDER, BUSY, DETACHED, QUEUED, PYTHON, STAYS, GIVES_BACK,
    STOPPED, LARGE, ALIVE, REACHES,
)  # fmt: skip
ALL = (*CHECKED, *UNTRIED)
