"""`new` in words."""

from __future__ import annotations

from pathlib import Path

from orchestrator.cli.call import Call, Exit


def new(call: Call) -> int:
    """Writes a job file for a script or notebook, and says what an exact resume still needs."""
    given, out = call.options, call.out
    target = None if given.output is None else Path(given.output)
    done = call.client.jobs.draft(Path(given.script), target, force=given.force)
    out.document({
        "job": str(done.path), "framework": done.script.framework, "saves": done.script.saves.checkpoints,
        "missing": done.missing,
    })  # fmt: skip
    out.say(f"{done.path}: written for {given.script} ({done.script.framework.value})")
    out.facts([*(("missing", each) for each in done.missing)])
    out.say()
    out.facts([
        ("next", f"check {done.path}, above all what is marked GUESSED"),
        ("", f"{call.command('rehearse', str(done.path))}   whether it resumes exactly, here in a minute"),
        ("", call.command("submit", str(done.path))),
    ])  # fmt: skip
    return Exit.OK
