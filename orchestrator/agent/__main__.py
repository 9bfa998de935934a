"""`python agent.pyz FOLDER` runs one session. This module only decides which of the two programs to run."""

from __future__ import annotations

import sys

USAGE = "usage: python agent.pyz FOLDER [--settings JSON]\n"


def main(arguments: list[str]) -> int:
    """Exit codes: 0 the result was written, 1 the result could not be written, 2 wrong usage, 4 another
    process has the session."""
    match arguments:
        case ["--exec", parent, memory, *command] if command:  # runs at every start, so it imports little
            from orchestrator.agent import stage

            return stage.run(int(parent), None if memory == "-" else int(memory), command)
        case [folder] | [folder, "--settings", _] if not folder.startswith("-"):
            return _live(folder, arguments[2] if len(arguments) == 3 else "{}")
    sys.stderr.write(USAGE)
    return 2


def _live(folder: str, text: str) -> int:
    from pathlib import Path

    from orchestrator.agent import session
    from orchestrator.agent.folder import Folder
    from orchestrator.agent.settings import Settings
    from orchestrator.core import wire
    from orchestrator.files import guard

    try:
        settings = wire.decode(Settings, text.encode())
    except ValueError as error:
        sys.stderr.write(f"{USAGE}{error}\n")
        return 2
    given = Path(folder).absolute()
    root = guard(given.parent) / given.name  # another session may have put a link in its place by now
    guard(root, resolved=True)
    return session.live(Folder(root, guard(Path(settings.outbox)) if settings.outbox else None), settings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
