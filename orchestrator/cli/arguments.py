"""Declares every command and option once. The parser, the help and the completion derive from it.

Imports little besides argparse. A command names the function that carries it out; the function's module is
imported when the command runs.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from orchestrator import __version__
from orchestrator.core.wording import did_you_mean
from orchestrator.errors import InputError

SHELLS = ("bash", "zsh", "tcsh")


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
ALL = _flag("-a", "--all", help="also list runs that are over")
LIMIT = _option("--limit", metavar="N", type=int, help="at most N runs (default: a screen of them; 0: all)")
AFTER = _option("--after", metavar="RUN", help="only runs submitted before this one: the next page")
DISCARD = _flag("--discard", help="do it even if work of a session is lost")
STEP = _option("--step", type=int, metavar="N", help="the checkpoint at this step")
BEST = _flag("--best", help="the best checkpoint, by the job's checkpoint.keep.best")
OUTPUTS = _flag("--outputs", help="the files that its sessions left for you, instead of a checkpoint")
SESSION = _option("--session", metavar="N", type=int, help="with --outputs: only those of this session")
LATEST = _flag("--latest", help="the newest intact checkpoint (the default)")
STORE = _option("--store", metavar="NAME", help="look in this store instead of the ledger")
IN_STORE = _option("--store", metavar="NAME", help="list the runs in this store, whoever started them")
FROM = _option("store", metavar="STORE", help="a store of the config")
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
TAIL = _option("--tail", metavar="N", type=int, help="with --controller: only the newest N entries")
DETACH = _flag("--detach", help="run in the background; exit when nothing is left to do")
UNTIL_IDLE = _flag("--until-idle", help="exit when nothing is left to do or to wait for")
STANDBY = _flag("--standby", help="wait while another controller runs, and take over when it is lost")
NAMES = _option("names", metavar="NAME", nargs="*", help="only these platforms and stores")
NAME = _option("name", metavar="PLATFORM", nargs="?", help="only this platform")
CLEAN = _flag("--clean", help="only list what sessions left behind and offer to remove it")
LIVE = _flag(
    "--live", help="run a few small sessions on Kaggle or Colab, to check what we assume about it; asks first"
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
HISTORY = _flag("--history", help="also remove the events of these runs; `why` then knows no more of them")
UNKNOWN = _flag("--unknown", help="also remove what belongs to runs that this ledger does not know")
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


@dataclass(frozen=True)
class Command:
    """`runs` is module:function in this package. At most one of the `one_of` options may be given. A command
    with `parts` has those instead of options, and `what` says which was given."""

    name: str
    summary: str
    runs: str
    options: tuple[Option, ...] = ()
    one_of: tuple[Option, ...] = ()
    parts: tuple[Command, ...] = ()


COMMANDS = (
    Command("init", "look at this machine and write the config, or add a store to it", "setting_up:init",
            (NEW_STORE, FORCE, *STORE_OPTIONS)),
    Command("doctor", "check what works, what is missing, and how to fix it", "doctoring:doctor",
            (NAMES, CLEAN, DISCARD, LIVE, LONG, YES)),
    Command(
        "submit",
        "freeze a job and its source, and run it, or register its schedule",
        "submitting:submit",
        (JOB, FOLLOW, DRY_RUN, UNLESS_RUNNING, NOW, PLATFORM, DEADLINE, START, OUTPUT),
    ),
    Command("new", "write a first job file for a script or notebook", "drafting:new",
            (SCRIPT, DRAFT, REPLACE)),
    Command("rehearse", "train a few steps here, stop, kill and resume them, and compare",
            "rehearsing:rehearse", (JOB, *REHEARSAL)),
    Command("plan", "show when every run is expected to run and to end, or where a job would run",
            "outlooking:plan", (ANY_JOB, PLATFORM, DEADLINE)),
    Command("ps", "list the runs", "listing:ps", (ALL, IN_STORE, LIMIT, AFTER)),
    Command("show", "show everything about one run", "showing:show", (RUN, FOLLOW)),
    Command("why", "explain why a run is where it is: its story and its route", "showing:why", (RUN,)),
    Command("logs", "show a run's output as one stream of all its sessions, or the controller's log",
            "logs:logs", (OF_RUN, FOLLOW, TAIL), (RAW, CONTROLLER)),
    Command("cancel", "end a run and keep its checkpoints", "wishing:cancel", (RUN, DISCARD)),
    Command("hold", "save, end the session, and wait for `release`", "wishing:hold", (RUN, DISCARD)),
    Command("release", "continue a held run", "wishing:release", (RUN, DISCARD)),
    Command("retry", "continue a failed or held run, with its job or its code fixed", "retrying:retry",
            (RUN, FIXED, SOURCE, FOLLOW)),
    Command("checkpoints", "list a run's checkpoints", "pulling:checkpoints", (RUN, STORE), (VERIFY,)),
    Command("pull", "copy a checkpoint, or the outputs, into a folder and verify it", "pulling:pull",
            (RUN, OUTPUT, STORE, SESSION), (STEP, BEST, LATEST, OUTPUTS)),
    Command("adopt", "record the runs of a store in this ledger, if their own ledger is lost",
            "adopting:adopt", (FROM, RUNS, DRY_RUN, INPUT)),
    Command("copy", "copy a run to another store, which becomes its home store", "adopting:copy",
            (RUN, TO, DELETE_SOURCE)),
    Command("schedule", "list, pause, fire or remove schedules", "scheduling:schedule", parts=(
        Command("list", "list the schedules", "scheduling:schedule"),
        Command("show", "show a schedule, its last and its next fires", "scheduling:schedule", (SCHEDULE,)),
        Command("next", "list the next fires", "scheduling:schedule", (ANY_SCHEDULE, COUNT)),
        Command("pause", "fire no more until `resume`", "scheduling:schedule", (SCHEDULE,)),
        Command("resume", "fire again", "scheduling:schedule", (SCHEDULE,)),
        Command("run", "fire now", "scheduling:schedule", (SCHEDULE,)),
        Command("rm", "remove a schedule; its runs stay", "scheduling:schedule", (SCHEDULE,)),
    )),
    Command("quota", "show what is left of each quota and what used the rest", "quota:quota", (NAME,)),
    Command("prune", "remove what is no longer needed; asks first", "pruning:prune",
            (DRY_RUN, YES, OLDER_THAN, KEEP, CHECKPOINTS, HISTORY, UNKNOWN)),
    Command("backup", "write the state into one file, while everything goes on", "backing_up:backup",
            (BACKUP_TO, IN_HOME)),
    Command("restore", "bring a backup into an empty home; asks first", "backing_up:restore",
            (BACKUP, DRY_RUN, YES)),
    Command("colab", "log in to Google Colab, or write a notebook for it", "colab:colab", parts=(
        Command("login", "log in to the platform's account", "colab:colab", (ACCOUNT,)),
        Command("notebook", "write the notebook to open", "colab:colab", NOTEBOOK),
    )),
    Command("notify", "test notifications, and list those not delivered", "notifying:notify", parts=(
        Command("test", "send a message now, and say what becomes of it", "notifying:notify", (NOTIFIED,)),
        Command("list", "list what waits to be sent, and what was given up", "notifying:notify", (SENT_TOO,)),
        Command("retry", "try again what was given up", "notifying:notify", (IDS, EVERY_DEAD)),
    )),
    Command("service", "run the controller as a service of this machine", "service:service",
            parts=(
        Command("install", "write the unit, enable it and start it", "service:service",
                (STANDBY, PRINT, SYSTEM)),
        Command("uninstall", "stop it and remove the unit; sessions continue", "service:service"),
        Command("status", "show whether it is installed, runs and survives a reboot", "service:service"),
    )),
    Command("replay", "make recorded decisions again, or with another config", "replaying:replay", REPLAY,
            REPLAYED),
    Command("up", "run the controller", "controlling:up", (), (DETACH, UNTIL_IDLE, STANDBY)),
    Command("down", "stop the controller; sessions continue", "controlling:down"),
    Command("health", "succeed while the controller ticks or a standby waits; for probes", "health:health"),
    Command("schema", "print the JSON Schema of jobs, for editors", "editors:schema"),
    Command("completion", "print a completion script for your shell", "editors:completion", (SHELL,)),
)  # fmt: skip


class Parser(argparse.ArgumentParser):
    """Raises InputError instead of exiting."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._negative_number_matcher = re.compile(r"-\.?\d")  # as in Python 3.14: `-1d` is a value

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see `{self.prog} --help`")


def parser(prog: str = "orchestrator") -> Parser:
    """The parser of all commands."""
    made = Parser(
        prog=prog,
        description="Finishes long training runs on machines whose sessions run out.",
        allow_abbrev=False,
    )
    made.add_argument("-V", "--version", action="version", version=f"orchestrator {__version__}")
    _add(made, EVERYWHERE)
    commands = made.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=Parser)
    for command in COMMANDS:
        _declare(commands, command)
    return made


def _declare(commands: argparse._SubParsersAction[Parser], command: Command) -> None:
    made = commands.add_parser(
        command.name, help=command.summary, description=command.summary, allow_abbrev=False
    )
    _add(made, command.options)
    if command.one_of:
        _add(made.add_mutually_exclusive_group(), command.one_of)
    _add(made, EVERYWHERE)
    if command.parts:
        parts = made.add_subparsers(dest="what", metavar="WHAT", required=True, parser_class=Parser)
        for part in command.parts:
            _declare(parts, part)


def _add(target: argparse._ActionsContainer, options: Sequence[Option]) -> None:
    for option in options:
        target.add_argument(*option.flags, **option.settings)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options given, and `command`: None if no command was given.

    Raises InputError for an unknown word, with the nearest known one.
    """
    made = parser()
    word = _command_word(arguments)
    names = [command.name for command in COMMANDS]
    if word is not None and word not in names:
        raise InputError(f"unknown command {word!r}; {did_you_mean(word, names)}see `orchestrator --help`")
    options, unknown = made.parse_known_args(arguments)
    if unknown:
        what = "option" if unknown[0].startswith("-") else "argument"
        hint = did_you_mean(unknown[0].split("=")[0], _flags(word))
        help_of = f"orchestrator {word} --help" if word else "orchestrator --help"
        raise InputError(f"unknown {what} {unknown[0]!r}; {hint}see `{help_of}`")
    return options


def _command_word(arguments: Sequence[str]) -> str | None:
    """The first word that is neither an option nor the value of one."""
    words = iter(arguments)
    for word in words:
        if word == "--home":
            next(words, None)
        elif not word.startswith("-"):
            return word
    return None


def _flags(name: str | None) -> list[str]:
    own = [c for command in COMMANDS if command.name == name for c in (command, *command.parts)]
    options = [option for command in own for option in (*command.options, *command.one_of)]
    return [flag for option in (*options, *EVERYWHERE) for flag in option.flags if flag.startswith("-")] + [
        "--help"
    ]
