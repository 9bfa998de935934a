"""Asks a person on a terminal. Questions go to standard error, so that --json prints only JSON.

Decides whether anyone is there to answer. Must never print or keep what was typed without echo.
"""

from __future__ import annotations

import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.cli.terminal import plain
from orchestrator.errors import InputError

LINE_CHARACTERS_MAX = 4096


def is_possible() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def tell(text: str) -> None:
    """A line for the person, also with --json."""
    _prompt(f"{text}\n")


def ask(text: str, default: str = "") -> str:
    """The answer; an empty one means the default, and without a default the question is asked again. A text
    that ends with the valid answers, such as `[y/N]`, names the default itself."""
    ending = " " if text.endswith("]") else f" [{default}]: " if default else ": "
    while True:
        _prompt(f"{text}{ending}")
        answer = _line().strip() or default
        if answer:
            return answer


def ask_secret(text: str) -> str:
    """Like `ask`, without echo."""
    with _silent(sys.stdin.fileno()):
        while True:
            _prompt(f"{text} (not shown): ")
            answer = _line().strip()
            _prompt("\n")
            if answer:
                return answer


def _prompt(text: str) -> None:
    sys.stderr.write(plain(text))
    sys.stderr.flush()


def _line() -> str:
    line = sys.stdin.readline(LINE_CHARACTERS_MAX)
    if not line:
        raise InputError("the input ended before every question was answered: nothing was changed")
    return line


@contextmanager
def _silent(fd: int) -> Iterator[None]:
    before = termios.tcgetattr(fd)
    silent = termios.tcgetattr(fd)
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(fd, termios.TCSAFLUSH, silent)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSAFLUSH, before)
