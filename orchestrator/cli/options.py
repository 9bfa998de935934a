"""Every option and argument of the commands, declared once. `arguments.py` says which command has which."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

SHELLS = ("bash", "zsh", "fish", "tcsh")


@dataclass(frozen=True)
class Option:
    """One argparse argument: `flags` are its names (a bare name is a positional), `settings` its keywords."""

    flags: tuple[str, ...]
    settings: dict[str, Any]


def _option(*flags: str, **settings: Any) -> Option:
    return Option(flags, settings)


def _flag(*flags: str, help: str) -> Option:
    return Option(flags, {"action": "store_true", "help": help})


JSON = _option("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON, also for errors")
HOME = _option(
    "--home", metavar="DIR", default=argparse.SUPPRESS,
    help="state folder (default: $ORCHESTRATOR_HOME, else ~/.local/share/orchestrator)",
)  # fmt: skip
EVERYWHERE = (JSON, HOME)

JOB = _option("job", metavar="JOB", help="the job's YAML file")
ANY_JOB = _option("job", metavar="JOB", nargs="?", help="also a run of this job, as if it were submitted now")
DEADLINE = _option(
    "--deadline", metavar="TIME",
    help="when it should be done, such as 'Fri 09:00', '2026-11-27 09:00' or +36h",
)  # fmt: skip
RUN = _option("run", metavar="RUN", help="the run: its name, a unique prefix of it, or its job's name")
FOLLOW = _flag("-f", "--follow", help="keep showing what happens; Ctrl-C ends the view, never the run")
DRY_RUN = _flag("--dry-run", help="show what would happen, but change nothing")
UNLESS_RUNNING = _flag("--unless-running", help="start no run if one of this job is under way")
PLATFORM = _option(
    "--platform", metavar="NAME", action="append", default=[], help="use only this platform (may be repeated)"
)
OUTPUT = _option("-o", "--output", metavar="DIR", help="folder to create for what is copied")
EXAMPLE = _option("name", metavar="EXAMPLE", nargs="?", help="the example to copy (default: list them)")
EXAMPLE_INTO = _option("-o", "--output", metavar="DIR", help="folder to copy it into (default: its name)")
ALL = _flag("-a", "--all", help="also list runs that are over")
WIDE = _flag("--wide", help="also show how busy the GPUs of each run are")
LIMIT = _option("--limit", metavar="N", type=int, help="at most N runs (default: a screen of them; 0: all)")
AFTER = _option("--after", metavar="RUN", help="only runs submitted before this one: the next page")
WATCH = _flag("-w", "--watch", help="keep showing the list; Ctrl-C ends the view, never a run")
WORDS = _option(
    "words", metavar="WORD", nargs="*",
    help="a command, and the part of it; a page, and a heading of it; or `topics`, which lists the pages",
)  # fmt: skip
PAGE = _flag("--page", help="the page, also if a command has the same name")
DISCARD = _flag("--discard", help="do it even if work of a session is lost")
STEP = _option("--step", type=int, metavar="N", help="the checkpoint at this step")
BEST = _flag("--best", help="the best checkpoint, by the job's checkpoint.keep.best")
OUTPUTS = _flag("--outputs", help="the files that its sessions left for you, instead of a checkpoint")
SESSION = _option("--session", metavar="N", type=int, help="with --outputs: only those of this session")
LATEST = _flag("--latest", help="the newest intact checkpoint (the default)")
STORE = _option("--store", metavar="NAME", help="look in this store instead of the ledger")
IN_STORE = _option("--store", metavar="NAME", help="list the runs in this store, whoever started them")
FROM = _option("store", metavar="STORE", nargs="?", default="", help="a store of the config")
TAKE_OVER = _flag(
    "--take-over", help="go on here, in place of another copy of this home (default: all stores)"
)
RUNS = _option("runs", metavar="RUN", nargs="*", help="only these runs, by their full names")
INPUT = _option(
    "--input", metavar="NAME=PATH", action="append", default=[],
    help="an input that the store lacks, by its name and its path here (may be repeated)",
)  # fmt: skip
TO = _option("--to", metavar="STORE", required=True, help="the store of the config to copy to")
DELETE_SOURCE = _flag("--delete-source", help="then remove the copy in the old store")
VERIFY = _flag(
    "--verify", help="read every byte in the home store; exit code 4 if a checkpoint is not intact"
)
FORCE = _flag("--force", help="replace an existing config; the old one is kept beside it")
STORES = ("s3", "hf", "drive")
NEW_STORE = _option(
    "store", metavar="STORE", nargs="?", choices=STORES,
    help="add a store for checkpoints instead: s3, hf (a Hugging Face bucket) or drive (Google Drive)",
)  # fmt: skip
STORE_OPTIONS = (
    _option("--name", metavar="NAME", help="the store's name in the config (default: s3, hf or drive)"),
    _option("--bucket", metavar="BUCKET", help="s3: the bucket; hf: NAMESPACE/NAME"),
    _option("--preset", metavar="SERVICE", help="s3: aws, r2, b2, minio or seaweedfs"),
    _option("--endpoint", metavar="URL", help="s3: the address of another service"),
    _option("--region", metavar="REGION", help="s3: the bucket's region"),
    _option("--account", metavar="ID", help="s3: the account id, for r2"),
    _option("--prefix", metavar="FOLDER", help="s3 and hf: a folder in the bucket"),
    _option("--client-secrets", metavar="FILE", help="drive: the JSON file of your OAuth client"),
    _option("--service-account", metavar="FILE", help="drive: the key of a service account instead"),
    _option("--shared-drive", metavar="ID", help="drive: the shared drive to make the folder in"),
    _option("--folder", metavar="TITLE", help="drive: the folder to make (default: orchestrator)"),
    _option("--timeout", metavar="SECONDS", type=float, help="drive: how long to wait (default: 300)"),
    _flag("--stdin", help="read the two keys, or for drive the address, from standard input, by line"),
)  # fmt: skip
RAW = _flag(
    "--raw",
    help="only the training's own output, without a headline for each session; terminal commands are "
    "still removed on a terminal",
)
OF_RUN = _option("run", metavar="RUN", nargs="?", help=RUN.settings["help"])
CONTROLLER = _flag("--controller", help="show the controller's own log instead")
TAIL = _option("--tail", metavar="N", type=int, help="only the newest N lines, or entries of the controller")
DETACH = _flag("--detach", help="run in the background; exit when nothing is left to do")
UNTIL_IDLE = _flag("--until-idle", help="exit when nothing is left to do or to wait for")
STANDBY = _flag("--standby", help="wait while another controller runs, and take over when it is lost")
NAMES = _option("names", metavar="NAME", nargs="*", help="only these platforms and stores")
NAME = _option("name", metavar="PLATFORM", nargs="?", help="only this platform")
CLEAN = _flag("--clean", help="only list what sessions left behind and offer to remove it")
LIVE = _flag(
    "--live", help="run a few small sessions on Kaggle or Colab, to check what we assume about it; asks first"
)
MEASURE = _flag(
    "--measure", help="measure this machine's devices with torch, and print the config's row for each"
)
LONG = _flag("--long", help="with --live: also what takes 30 to 40 minutes more")
YES = _flag("--yes", help="do not ask for confirmation")
OLDER_THAN = _option(
    "--older-than", metavar="AGE", default="30d",
    help="remove logs and sessions of runs that ended at least this long ago, such as 12h (default: 30d)",
)  # fmt: skip
KEEP = _option(
    "--keep", metavar="N", type=int, default=0, help="keep everything of each job's newest N finished runs"
)
CHECKPOINTS = _flag(
    "--checkpoints", help="also remove checkpoints of finished runs, except each run's newest and best"
)
THESE_RUNS = _option("runs", metavar="RUN", nargs="+", help="a run: its name or a unique prefix of it")
KEEP_CHECKPOINTS = _flag("--keep-checkpoints", help="leave the run's checkpoints and outputs in their store")
HISTORY = _flag("--history", help="also remove the events of these runs; `why` then knows no more of them")
UNKNOWN = _flag(
    "--unknown", help="also remove what belongs to runs, and checkpoints, that this ledger does not know"
)
BACKUP_TO = _option("target", metavar="FILE", help="the file to write, or a folder to put it in")
IN_HOME = _flag("--checkpoints", help="include the checkpoints of stores that lie in the home")
BACKUP = _option("backup", metavar="FILE", help="a file that `backup` wrote")
ACCOUNT = _option("name", metavar="PLATFORM", help="a platform of the config")
NOTEBOOK = (
    ACCOUNT,
    _option("-o", "--output", metavar="FILE", help="the notebook to write (default: PLATFORM.ipynb)"),
    _option("--secret-file", metavar="FILE", help="write the Secret into this file, instead of showing it"),
    _flag("--new-secret", help="draw new keys for the notebook: older Secrets get no session any more"),
)
START = _option(
    "--from", metavar="RUN[@STEP]", dest="start",
    help="begin with a checkpoint of another run: its newest, or the one at this step",
)  # fmt: skip
FIXED = _option("job", metavar="JOB", nargs="?", help="the job's fixed YAML file (default: the job as it is)")
SOURCE = _option("--source", metavar="DIR", help="only use the code in this folder from now on")
SCRIPT = _option("script", metavar="SCRIPT", help="a Python script or a notebook")
DRAFT = _option("-o", "--output", metavar="FILE", help="the job file to write (default: beside the script)")
REPLACE = _flag("--force", help="replace an existing file")
CURVES = (
    _option("--metric", metavar="NAME", action="append", default=[],
            help="only this metric (may be repeated)"),
    _option("-o", "--output", metavar="FILE", help="write FILE.png, FILE.svg or FILE.csv instead"),
    REPLACE,
    _flag("--log", help="a logarithmic scale"),
    _option("--width", metavar="N", type=int, help="how many columns (default: by the terminal, 60 to 120)"),
)  # fmt: skip
REHEARSAL = (
    _option("--platform", metavar="NAME", help="where: process (the default), docker, or one of the config"),
    _option("--steps", metavar="N", type=int, help="how many steps (default: as many as take some seconds)"),
    _option("--patience", metavar="SECONDS", type=float, default=120.0,
            help="stop a training that brings no new checkpoint for so long (default: 120)"),
)  # fmt: skip
NOW = _flag("--now", help="of a job with a schedule: register it and fire it once at once")
SCHEDULE = _option("name", metavar="NAME", help="the schedule: its job's name")
ANY_SCHEDULE = _option("name", metavar="NAME", nargs="?", help="only this schedule")
COUNT = _option("--count", metavar="N", type=int, default=10, help="how many fires (default: 10)")
NOTIFIED = _option(
    "target", metavar="TARGET", nargs="?",
    help="a target of the config, or a job's own env:NAME (default: every target of the config)",
)  # fmt: skip
SENT_TOO = _flag("-a", "--all", help="also list what was sent in the last 14 days")
IDS = _option("ids", metavar="ID", nargs="*", help="the beginning of an id, as `notify list` shows it")
EVERY_DEAD = _option("--all", action="store_true", dest="every", help="everything that was given up")
PRINT = _flag("--print", help="only print the unit")
ON = _option(
    "--on", metavar="ACCELERATOR", action="append", default=[],
    help="of a JOB: also what it would take on this accelerator, if you had it (may be repeated)",
)  # fmt: skip
LAUNCHD = _flag("--launchd", help="print a LaunchAgent for a Mac, on any machine")
SYSTEM = _flag("--system", help="print a unit of the whole machine, which root installs")
RECORDED_RUN = _option(
    "run", metavar="RUN", nargs="?", help="the run: its name, a unique prefix of it, or its job's name"
)
REPLAY = (
    RECORDED_RUN,
    _flag("--steps", help="list every entry of the journal, not only those that differ"),
    _option("--config", metavar="FILE", help="show instead what would have happened with this config"),
    _option("--offer", metavar="NAME=ACCELERATOR[:SLOTS]", action="append", default=[],
            help="with --config: what a platform has that was not in use yet (may be repeated)"),
)  # fmt: skip
REPLAYED = (
    _flag("--all", help="all runs, of any time"),
    _option("--since", metavar="AGE",
            help="all runs that were under way since then, such as 30d (the default with --config)"),
)  # fmt: skip
SHELL = _option("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
INSTALL = _flag("--install", help="write it where the shell looks for it, instead of printing it")
PURGE = _flag("--purge", help="also remove the home, with every run and checkpoint in it; asks for its name")
