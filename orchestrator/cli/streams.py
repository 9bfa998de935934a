"""The standard streams, so that no trouble with them stops a command.

A stream that the caller closed becomes /dev/null. What cannot be written, for example because the disk is
full, is dropped: the command does its work, and `ended` says so. A closed pipe still raises BrokenPipeError.
Imports little, because it runs before anything else. Must never know a command.
"""

from __future__ import annotations

import io
import os
import select
import sys

from orchestrator.cli import charset


class OutputLost(Exception):
    """Standard output cannot be written, and the command does nothing else than write it."""


class _Writer(io.FileIO):
    """A standard stream's file. Keeps the first error and tries again with the next write."""

    error: OSError | None = None

    def write(self, data: object, /) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except BrokenPipeError:
            raise
        except OSError as error:
            self.error = self.error or error
            return memoryview(data).nbytes  # type: ignore[arg-type]


def prepare() -> None:
    """Call it once, before anything is written."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:  # in this order each takes the descriptor that was closed: the lowest free one
            null = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115, PTH123 - stays open; pathlib loads slowly
            os.set_inheritable(null.fileno(), True)
            setattr(sys, name, null)
        elif mode == "w":
            setattr(sys, name, _guarded(stream))


def _guarded(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    stream.flush()
    encoding, errors = charset.chosen(stream.encoding, terminal=stream.isatty())
    return io.TextIOWrapper(
        io.BufferedWriter(_Writer(stream.fileno(), "w", closefd=False)),
        encoding=encoding,
        errors=errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def lost() -> OSError | None:
    """Why some of standard output could not be written; None if all that was flushed was written."""
    file = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return file.error if isinstance(file, _Writer) else None


def check() -> None:
    """For views, which would show nothing. Raises OutputLost if standard output cannot be written, and
    BrokenPipeError if its reader has gone: a view with nothing new to write hears of that only here."""
    if (error := lost()) is not None:
        raise OutputLost from error
    looking = select.poll()
    try:
        looking.register(sys.stdout.fileno(), 0)
    except OSError:  # a stream in memory: a program called us, and no reader can go
        return
    if any(event & select.POLLERR for _, event in looking.poll(0)):
        raise BrokenPipeError


def ended(code: int, done: str = "") -> int:
    """Writes what is left and returns the exit code. If output was lost, says so on standard error, and also
    what was `done`, so that nobody repeats it."""
    sys.stdout.flush()
    if lost() is None:
        return code
    how = "the command itself was carried out" if code == 0 else f"the command itself ended with {int(code)}"
    return tell_loss(code, f"{how}: {done}" if done else how)


def tell_loss(code: int, what: str) -> int:
    """Says on standard error that output was lost; returns the exit code."""
    from orchestrator.cli.call import Exit

    error = lost()
    assert error is not None
    sys.stderr.write(f"orchestrator: standard output cannot be written: {error.strerror}; {what}\n")
    sys.stderr.flush()
    return code or Exit.UNAVAILABLE
