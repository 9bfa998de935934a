"""`schema` and `completion`: the JSON Schema of jobs for editors, and completion scripts for shells."""

from __future__ import annotations

import argparse
import json

from orchestrator.cli import arguments
from orchestrator.cli.call import Call, Exit
from orchestrator.errors import InputError


def schema(call: Call) -> int:
    """Prints the JSON Schema that accepts every job `submit` accepts."""
    print(json.dumps(call.client.job_schema(), indent=2))
    return Exit.OK


def completion(call: Call) -> int:
    """Prints a completion script. The shell evaluates it, or loads it from a file."""
    import shtab

    made = arguments.parser()
    _complete_files(made, shtab.FILE, shtab.DIRECTORY)
    try:
        script = shtab.complete(made, call.options.shell)
    except NotImplementedError as error:
        raise InputError(f"no completion for {call.options.shell}: {error}") from error
    call.out.document({"shell": call.options.shell, "script": script})
    if not call.out.as_json:
        print(script)
    return Exit.OK


def _complete_files(made: argparse.ArgumentParser, file: object, folder: object) -> None:
    for action in made._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                _complete_files(each, file, folder)
        elif action.metavar in ("JOB", "DIR"):
            action.complete = file if action.metavar == "JOB" else folder  # type: ignore[attr-defined]
