"""The command line: arguments in, exit code out. It parses and prints; `client` does the rest.

Imports lazily: `--version` loads hardly more than this file, and a listing loads neither the config nor rich.
Each command has its own module, which is imported when the command runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from orchestrator import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """The `orchestrator` command; returns the exit code.

    0: ok; 1: the run failed; 2: the user's input is wrong; 3: a human must act; 4: a platform or store is
    unavailable.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["complete"]:
        from orchestrator.cli.candidates import print_names

        return print_names(arguments[1:])
    from orchestrator.cli import starting

    starting.begun(quiet="--json" in arguments)
    from orchestrator.cli import streams

    streams.prepare()
    if arguments in (["--version"], ["-V"]):
        print(f"orchestrator {__version__}")
        return streams.ended(0)
    from orchestrator.cli.running import run

    return run(arguments)


def main_submit() -> int:
    """The `submit` command: `orchestrator submit`."""
    arguments = sys.argv[1:]
    return main(arguments if arguments in (["--version"], ["-V"]) else ["submit", *arguments])
