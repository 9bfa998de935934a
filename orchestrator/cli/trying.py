"""`doctor --live`: says what a trial makes and costs, asks, shows its progress, and then what it found."""

from __future__ import annotations

import sys
from pathlib import Path

from orchestrator.cli.call import EXITS, Call, Exit
from orchestrator.cli.output import clock_text
from orchestrator.client import trying
from orchestrator.client.trying import Live, Tried, Verdict
from orchestrator.errors import InputError


def try_live(call: Call) -> int:
    """Raises InputError without a terminal, unless there is --yes."""
    live = trying.prepared(call.home, call.clock, call.options.names, long=call.options.long)
    if not call.options.yes and not _can_ask(call):
        long = ["--long"] if call.options.long else []
        again = call.command("doctor", live.name, "--live", *long, "--yes")
        raise InputError(f"--live starts sessions of its own on your account; to agree: `{again}`")
    call.out.facts(live.trial.intent())
    call.out.flush()  # the progress goes to another stream
    if not call.options.yes and not _consents():
        call.out.say("Nothing was made.")
        return Exit.OK
    began = call.clock.monotonic()

    def say(text: str) -> None:
        call.out.remark(f"{clock_text(call.clock.monotonic() - began):>6}  {text}")

    tried, path = live.run(say)
    _tell(call, live, tried, path)
    return _code(tried)


def _can_ask(call: Call) -> bool:
    return call.out.is_terminal and sys.stdin.isatty()


def _consents() -> bool:
    try:
        answer = input("\nBegin? [y/N] ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")


def _tell(call: Call, live: Live, tried: Tried, path: Path) -> None:
    out = call.out
    out.document({
        "platform": live.name,
        "run": tried.run,
        "report": str(path),
        "checks": tried.checks,
        "facts": dict(tried.facts),
        "left": tried.left,
        "trouble": tried.trouble,
        "interrupted": tried.interrupted,
    })  # fmt: skip
    out.say()
    rows = [(each.id, each.verdict, f"{each.text.removesuffix('.')}: {each.seen}") for each in tried.checks]
    out.table(("ID", "OUTCOME", "ASSUMPTION: WHAT WAS SEEN"), rows)
    out.say()
    clean = call.command("doctor", live.name, "--clean")
    out.facts([
        ("ended early", tried.trouble),
        ("ended early", "it was interrupted" if tried.interrupted else ""),
        ("left", f"{', '.join(tried.left)}: remove it with `{clean}`" if tried.left else ""),
        ("found", trying.counted(tried)),
        ("report", f"{path}\nIt holds no credentials and no account name: please attach it to an issue."),
    ])  # fmt: skip


def _code(tried: Tried) -> int:
    if tried.interrupted:
        return Exit.INTERRUPTED
    if any(each.verdict is Verdict.FAILS for each in tried.checks):
        return Exit.FAILED
    return Exit.UNAVAILABLE if tried.left and not tried.trouble else EXITS[tried.remedy]
