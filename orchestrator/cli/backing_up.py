"""`backup` and `restore` in words."""

from __future__ import annotations

import sys
from collections.abc import Callable

from orchestrator.cli.call import Call, Exit
from orchestrator.client import Restored
from orchestrator.client.backing_up import EarlierBackUp
from orchestrator.clock import utc_text
from orchestrator.core.wording import count_text, date, number_text, size_text
from orchestrator.errors import InputError


def backup(call: Call) -> int:
    """Writes a backup and says what is not in it."""
    done = call.client.backups.write(
        call.options.target, checkpoints=call.options.checkpoints, progress=_progress(call)
    )
    call.out.document({**vars(done), "path": str(done.path)})
    for note in done.notes:
        call.out.remark(note)
    call.out.say(
        f"{done.path}: {size_text(done.size)}, {count_text(done.runs, 'run')}, verified. It has "
        "your sources, so keep it private, and no secret: secrets and logins (credentials/) need a backup of "
        "their own"
    )
    if done.replaced is not None:
        call.out.say(_replaced(done.replaced))
    return Exit.OK


def _replaced(before: EarlierBackUp) -> str:
    if before.at is None or before.runs is None:
        return f"replaced a damaged backup ({size_text(before.size)})"
    size, runs, files = size_text(before.size), count_text(before.runs, "run"), before.files or 0
    return f"replaced the backup of {date(before.at)}: {size}, {runs}, {count_text(files, 'file')}"


def restore(call: Call) -> int:
    """Shows what a backup has, asks, and restores it. Without a terminal and --yes it only shows."""
    options = call.options
    found = call.client.backups.restore(options.backup, dry_run=True, progress=_progress(call))
    if found.refused and not options.dry_run:
        raise InputError(found.refused)
    for note in found.notes:  # before the question: it may be answered with another backup
        call.out.remark(note)
    if options.dry_run or not (options.yes or _consents(call, found)):
        call.out.document({"restored": False, **vars(found), "home": str(found.home)})
        call.out.say(
            f"{_what(found)}: nothing was restored" + ("" if options.dry_run else "; --yes restores it")
        )
        if found.refused:
            call.out.say(f"Without --dry-run it would be refused: {found.refused}")
        return Exit.OK
    done = call.client.backups.restore(options.backup, progress=_progress(call))
    call.out.document({"restored": True, **vars(done), "home": str(done.home)})
    for note in done.notes:
        if note not in found.notes:
            call.out.remark(note)
    if done.revived:
        call.out.table(
            ("RUN", "PHASE", "STEP", "NOTES"),
            [(each.run, each.phase.value, _step(each.step), "; ".join(each.notes)) for each in done.revived],
            right=frozenset({2}),
        )
    call.out.say(
        f"{_what(done)}: restored into {done.home}. Check it with `{call.command('doctor')}`; then "
        f"`{call.command('up', '--detach')}` goes on, and `{call.command('doctor', '--clean')}` finds what "
        "sessions left that were started after the backup"
    )
    return Exit.OK


def _progress(call: Call) -> Callable[[str], None] | None:
    return (lambda what: call.out.remark(f"{what} …")) if call.out.is_terminal else None


def _step(step: int | None) -> str:
    return "–" if step is None else number_text(step)


def _what(found: Restored) -> str:
    return f"{count_text(found.runs, 'run')} as of {utc_text(found.at)}"


def _consents(call: Call, found: Restored) -> bool:
    if not (call.out.is_terminal and sys.stdin.isatty()):
        return False
    call.out.say(
        "The home that the backup is of must never run again: its controller would lose these runs, or "
        "both would train them."
    )
    try:
        answer = input(f"Restore {_what(found)} into {found.home}? [y/N] ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")
