"""Completion scripts for shells: the commands and options from our parser, by shtab; the names by asking us.

Decides which argument takes which names or files, and where a shell looks for its scripts. `orchestrator` and
`submit` have a script each. Must never read a ledger or a config: that is `candidates`, while a person types.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import shtab

from orchestrator.cli import arguments

PROGRAM, SHORT = "orchestrator", "submit"
# By the word in the help, for positional arguments and options; a dest where the word alone does not say it.
_KINDS = {
    "RUN": "runs",
    "RUN[@STEP]": "runs",
    "SCHEDULE": "schedules",
    "PLATFORM": "platforms",
    "STORE": "stores",
    "WORD": "topics",
}
_BY_DEST = {"platform": "platforms", "store": "stores", "names": "places"}
_JOBS = shtab.glob("*.yaml", "*.yml")
_SCRIPTS = shtab.glob("*.py", "*.ipynb")
_FILES: dict[str, object] = {"JOB": _JOBS, "SCRIPT": _SCRIPTS, "FILE": shtab.FILE, "DIR": shtab.DIRECTORY}

# Each asks the program whose line is completed, also if it is not in the PATH, about the home on that line.
_BASH = """
_orchestrator_names() {
  local program="${COMP_WORDS[0]/#\\~/$HOME}" home=() i
  [[ "$program" == *submit ]] && program="${program%submit}orchestrator"
  for ((i = 1; i < COMP_CWORD - 1; i++)); do
    [[ "${COMP_WORDS[i]}" == --home ]] && home=(--home "${COMP_WORDS[i+1]}")
  done
  compgen -W "$("$program" complete "$1" "${home[@]}" 2>/dev/null)" -- "$2"
}
"""
_ZSH = """
_orchestrator_names() {
  local -a found home typed
  local i
  typed=(${(z)LBUFFER})  # $words lacks the options that _arguments has parsed
  for ((i = 2; i < $#typed; i++)); do
    case $typed[i] in
      --home) home=(--home $typed[i+1]) ;;
      --home=*) home=(--home ${typed[i]#--home=}) ;;
    esac
  done
  found=(${(f)"$(orchestrator complete $1 $home 2>/dev/null)"})
  compadd -a found
}
"""
_FISH = """
function _orchestrator_names
  set -l words (commandline -opc)
  set -l program (string replace -r '^~' $HOME -- (string replace -r 'submit$' orchestrator -- $words[1]))
  set -l home
  for i in (seq 2 (count $words))
    switch $words[$i]
      case --home
        set home --home $words[(math $i + 1)]
      case '--home=*'
        set home --home (string replace -- --home= '' $words[$i])
    end
  end
  $program complete $argv[1] $home 2>/dev/null
end
"""


def scripts(shell: str) -> dict[str, str]:
    """Program → its script, for `orchestrator` and for `submit`."""
    whole = arguments.parser(PROGRAM)
    _mark(whole)
    [short] = [each for name, each in _commands(whole) if name == SHORT]
    short.prog = SHORT
    made = {SHORT: shtab.complete(short, shell)}
    short.prog = f"{PROGRAM} {SHORT}"
    return {PROGRAM: shtab.complete(whole, shell), **made}


def _mark(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            continue
        if (found := _completes(action)) is not None:
            action.complete = found  # type: ignore[attr-defined]
    for name, each in _commands(parser):
        _mark(each)
        if name == "schedule":
            _mark_schedules(each)


def _mark_schedules(parser: argparse.ArgumentParser) -> None:
    for _, part in _commands(parser):
        for action in part._actions:
            if action.dest == "name":
                action.complete = _asking("schedules")  # type: ignore[attr-defined]


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _completes(action: argparse.Action) -> object:
    word = action.metavar if isinstance(action.metavar, str) else ""
    if action.choices is not None:
        return None
    if word in _FILES:
        return _FILES[word]
    kind = _KINDS.get(word) or (_BY_DEST.get(action.dest) if word == "NAME" else None)
    return _asking(kind) if kind else None


def _asking(kind: str) -> dict[str, Any]:
    name = f"_orchestrator_{kind}"
    return {
        "bash": name,
        "zsh": name,
        "fish": f"(_orchestrator_names {kind})",
        "tcsh": f"`{PROGRAM} complete {kind}`",
        "preamble": {
            "bash": f'{_BASH}{name}() {{ _orchestrator_names {kind} "$1"; }}\n',
            "zsh": f"{_ZSH}{name}() {{ _orchestrator_names {kind} }}\n",
            "fish": _FISH,
        },
    }
