"""Declares every command once. The parser, the help and the completion derive from it.

Their options are in options.py, here `o`. Imports little besides argparse. A command names the function that
carries it out; the function's module is imported when the command runs.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from orchestrator import __version__
from orchestrator.cli import options as o
from orchestrator.core.wording import did_you_mean
from orchestrator.errors import InputError


@dataclass(frozen=True)
class Command:
    """`runs` is module:function in this package. At most one of the `one_of` options may be given. A command
    with `parts` has those instead of options, and `what` says which was given."""

    name: str
    summary: str
    runs: str
    options: tuple[o.Option, ...] = ()
    one_of: tuple[o.Option, ...] = ()
    parts: tuple[Command, ...] = ()


COMMANDS = (
    Command("init", "look at this machine and write the config, or add a store to it", "setting_up:init",
            (o.NEW_STORE, o.FORCE, *o.STORE_OPTIONS)),
    Command("doctor", "check what works, what is missing, and how to fix it", "doctoring:doctor",
            (o.NAMES, o.CLEAN, o.DISCARD, o.LIVE, o.LONG, o.MEASURE, o.YES)),
    Command(
        "submit",
        "freeze a job and its source, and run it, or register its schedule",
        "submitting:submit",
        (o.JOB, o.FOLLOW, o.DRY_RUN, o.UNLESS_RUNNING, o.NOW, o.PLATFORM, o.DEADLINE, o.START, o.OUTPUT),
    ),
    Command("new", "write a first job file for a script or notebook", "drafting:new",
            (o.SCRIPT, o.DRAFT, o.REPLACE)),
    Command("examples", "list small examples, or copy one into a folder", "examples:examples",
            (o.EXAMPLE, o.EXAMPLE_INTO)),
    Command("rehearse", "train a few steps here, stop, kill and resume them, and compare",
            "rehearsing:rehearse", (o.JOB, *o.REHEARSAL)),
    Command("plan", "show when every run is expected to run and to end, or where a job would run",
            "outlooking:plan", (o.ANY_JOB, o.PLATFORM, o.DEADLINE, o.ON)),
    Command("ps", "list the runs", "listing:ps", (o.ALL, o.IN_STORE, o.LIMIT, o.AFTER, o.WATCH, o.WIDE)),
    Command("list", "the same as `ps`", "listing:ps", (o.ALL, o.IN_STORE, o.LIMIT, o.AFTER, o.WATCH, o.WIDE)),
    Command("status", "the same as `ps`, or as `show RUN`", "listing:status",
            (o.OF_RUN, o.ALL, o.IN_STORE, o.LIMIT, o.AFTER, o.WATCH, o.WIDE)),
    Command("show", "show everything about one run", "showing:show", (o.RUN, o.FOLLOW)),
    Command("why", "explain why a run is where it is: its story and its route", "showing:why", (o.RUN,)),
    Command("logs", "show a run's output as one stream of all its sessions, or the controller's log",
            "logs:logs", (o.OF_RUN, o.FOLLOW, o.TAIL), (o.RAW, o.CONTROLLER)),
    Command("curves", "draw a run's metrics over all its sessions, or write them to a file", "curves:curves",
            (o.RUN, *o.CURVES)),
    Command("cancel", "end a run and keep its checkpoints", "wishing:cancel", (o.RUN, o.DISCARD)),
    Command("hold", "save, end the session, and wait for `release`", "wishing:hold", (o.RUN, o.DISCARD)),
    Command("release", "continue a held run", "wishing:release", (o.RUN, o.DISCARD)),
    Command("retry", "continue a failed or held run, with its job or its code fixed", "retrying:retry",
            (o.RUN, o.FIXED, o.SOURCE, o.FOLLOW)),
    Command("checkpoints", "list a run's checkpoints", "pulling:checkpoints", (o.RUN, o.STORE), (o.VERIFY,)),
    Command("pull", "copy a checkpoint, or the outputs, into a folder and verify it", "pulling:pull",
            (o.RUN, o.OUTPUT, o.STORE, o.SESSION), (o.STEP, o.BEST, o.LATEST, o.OUTPUTS)),
    Command("adopt", "record the runs of a store in this ledger, if their own ledger is lost",
            "adopting:adopt", (o.FROM, o.RUNS, o.DRY_RUN, o.INPUT, o.TAKE_OVER)),
    Command("copy", "copy a run to another store, which becomes its home store", "adopting:copy",
            (o.RUN, o.TO, o.DELETE_SOURCE)),
    Command("schedule", "list, pause, fire or remove schedules", "scheduling:schedule", parts=(
        Command("list", "list the schedules", "scheduling:schedule"),
        Command("show", "show a schedule, its last and its next fires", "scheduling:schedule", (o.SCHEDULE,)),
        Command("next", "list the next fires", "scheduling:schedule", (o.ANY_SCHEDULE, o.COUNT)),
        Command("pause", "fire no more until `resume`", "scheduling:schedule", (o.SCHEDULE,)),
        Command("resume", "fire again", "scheduling:schedule", (o.SCHEDULE,)),
        Command("run", "fire now", "scheduling:schedule", (o.SCHEDULE,)),
        Command("rm", "remove a schedule; its runs stay", "scheduling:schedule", (o.SCHEDULE,)),
    )),
    Command("quota", "show what is left of each quota and what used the rest", "quota:quota", (o.NAME,)),
    Command("prune", "remove what is no longer needed; asks first", "pruning:prune",
            (o.DRY_RUN, o.YES, o.OLDER_THAN, o.KEEP, o.CHECKPOINTS, o.HISTORY, o.UNKNOWN)),
    Command("rm", "remove runs that are over, with their checkpoints; asks first", "removing:rm",
            (o.THESE_RUNS, o.KEEP_CHECKPOINTS, o.DRY_RUN, o.YES)),
    Command("backup", "write the state into one file, while everything goes on", "backing_up:backup",
            (o.BACKUP_TO, o.IN_HOME)),
    Command("restore", "bring a backup into an empty home; asks first", "backing_up:restore",
            (o.BACKUP, o.DRY_RUN, o.YES)),
    Command("colab", "log in to Google Colab, or write a notebook for it", "colab:colab", parts=(
        Command("login", "log in to the platform's account", "colab:colab", (o.ACCOUNT,)),
        Command("notebook", "write the notebook to open", "colab:colab", o.NOTEBOOK),
    )),
    Command("notify", "test notifications, and list those not delivered", "notifying:notify", parts=(
        Command("test", "send a message now, and say what becomes of it", "notifying:notify", (o.NOTIFIED,)),
        Command("list", "list what waits to be sent or was given up", "notifying:notify", (o.SENT_TOO,)),
        Command("retry", "try again what was given up", "notifying:notify", (o.IDS, o.EVERY_DEAD)),
    )),
    Command("service", "run the controller as a service of this machine", "service:service",
            parts=(
        Command("install", "write the unit, enable it and start it", "service:service",
                (o.STANDBY, o.PRINT), (o.SYSTEM, o.LAUNCHD)),
        Command("uninstall", "stop it and remove the unit; sessions continue", "service:service"),
        Command("status", "show whether it is installed, runs and survives a reboot", "service:service"),
    )),
    Command("replay", "make recorded decisions again, or with another config", "replaying:replay", o.REPLAY,
            o.REPLAYED),
    Command("up", "run the controller", "controlling:up", (), (o.DETACH, o.UNTIL_IDLE, o.STANDBY)),
    Command("down", "stop the controller; sessions continue", "controlling:down"),
    Command("health", "succeed while the controller ticks or a standby waits; for probes", "health:health"),
    Command("schema", "print the JSON Schema of jobs, for editors", "editors:schema"),
    Command("help", "show the commands, how one is used, or a page of the documentation",
            "helping:help_of", (o.WORDS, o.PAGE)),
    Command("completion", "print a completion script for your shell", "editors:completion",
            (o.SHELL, o.INSTALL)),
    Command("uninstall", "list what stays behind without this program; remove some of it if you agree",
            "uninstalling:uninstall", (o.DRY_RUN, o.YES, o.PURGE)),
)  # fmt: skip

# What other programs call these.
MEANT = {
    "ls": "'ps'", "top": "'ps --watch'", "watch": "'ps --watch'", "jobs": "'ps'", "runs": "'ps'",
    "queue": "'ps'", "info": "'show'", "describe": "'show'", "tail": "'logs'", "run": "'submit'",
    "start": "'submit' or 'up'", "stop": "'hold', 'cancel' or 'down'", "kill": "'cancel'",
    "delete": "'rm'", "remove": "'rm'", "clean": "'prune'", "pause": "'hold'",
    "resume": "'release' or 'retry'", "restart": "'retry'", "download": "'pull'", "explain": "'why'",
    "check": "'doctor'",
}  # fmt: skip


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
    _add(made, o.EVERYWHERE)
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
    _add(made, o.EVERYWHERE)
    if command.parts:
        parts = made.add_subparsers(dest="what", metavar="WHAT", required=True, parser_class=Parser)
        for part in command.parts:
            _declare(parts, part)


def _add(target: argparse._ActionsContainer, options: Sequence[o.Option]) -> None:
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
        hint = f"did you mean {MEANT[word]}? " if word in MEANT else did_you_mean(word, names)
        raise InputError(f"unknown command {word!r}; {hint}see `orchestrator --help`")
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
    return [flag for option in (*options, *o.EVERYWHERE) for flag in option.flags if flag.startswith("-")] + [
        "--help"
    ]
