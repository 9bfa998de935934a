"""`help`: what `--help` says, by another name. Asks nothing."""

from __future__ import annotations

import contextlib

from orchestrator.cli import arguments
from orchestrator.cli.call import Call, Exit


def help_of(call: Call) -> int:
    """Shows all commands, or how one is used. Raises InputError for an unknown one, with the nearest."""
    with contextlib.suppress(SystemExit):
        arguments.parse([*call.options.words, "--help"])
    return Exit.OK
