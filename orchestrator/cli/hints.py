"""The commands to try next, as this user would type them."""

from __future__ import annotations

import shutil

from orchestrator.cli.call import Call
from orchestrator.core.run import RunRecord

_MEANINGS = {
    "show": "everything about it",
    "why": "its story, and why it runs there",
    "logs": "its output",
    "cancel": "end it",
    "pull": "copy its newest checkpoint",
    "pull --outputs": "copy the files that it left",
    "checkpoints": "its checkpoints",
    "retry": "continue it once it is fixed",
    "release": "continue it",
    "release --discard": "continue it without its session's output",
}


def for_held(record: RunRecord) -> tuple[tuple[str, ...], ...]:
    """What a person can do about a held run."""
    if record.missing:
        return (("cancel", "--discard"),)
    if record.awaits:
        return ("release", "--discard"), ("cancel", "--discard")
    return ("release",), ("cancel",)


def next_commands(call: Call, run: str, *given: tuple[str, ...]) -> None:
    """Prints them. Each of `given` is a command and the words after the run's name."""
    lines = [
        (call.command(name, run, *more), _MEANINGS.get(" ".join((name, *more[:1])), _MEANINGS[name]))
        for name, *more in given
    ]
    width = max(len(command) for command, _ in lines)
    widest = max(len(meaning) for _, meaning in lines)
    if call.out.has_width and len("next  ") + width + 3 + widest > shutil.get_terminal_size().columns:
        lines = [(command, "") for command, _ in lines]  # a command that wraps cannot be copied
    call.out.say()
    call.out.facts(
        (
            ("next", f"{command.ljust(width)}   {call.out.paint(meaning, 'dim')}".rstrip())
            for command, meaning in lines
        ),
        whole=True,
    )
