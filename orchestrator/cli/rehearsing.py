"""`rehearse` in words."""

from __future__ import annotations

import signal

from orchestrator.cli.call import Call, Exit
from orchestrator.cli.output import clock_text
from orchestrator.client import Exactness, Leg, Rehearsed
from orchestrator.core.wording import number_text

_MEANINGS = {
    Exactness.BITWISE: "the resumed training gives the same checkpoint, to the last bit",
    Exactness.STATE_EXACT: "every state comes back; only last bits of the results differ",
    Exactness.NOT_EXACT: "the resumed training is another one than the uninterrupted",
    Exactness.UNKNOWN: "it cannot be told whether it resumes exactly",
    Exactness.NOT_RESUMABLE: "there is no checkpoint to resume from",
}
_COLOURS = {Exactness.BITWISE: "green", Exactness.STATE_EXACT: "green", Exactness.UNKNOWN: "yellow"}
_STEPS_SHOWN = 6


def rehearse(call: Call) -> int:
    """Exit code 0 if the job resumes exactly, else 1."""
    given, out = call.options, call.out
    for each in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(each) is signal.SIG_DFL:
            signal.signal(each, signal.default_int_handler)  # like Ctrl-C, so that nothing is left behind
    done = call.client.jobs.rehearse(
        given.job, platform=given.platform, steps=given.steps, patience=given.patience, say=out.remark
    )
    out.document({
        "grade": done.grade, "exact": done.exact, "compared_at": done.steps,
        "findings": [{"what": each.what, "text": each.text, "advice": each.advice} for each in done.findings],
        "legs": [_leg_json(each) for each in done.legs],
    })  # fmt: skip
    _show(call, done)
    return Exit.OK if done.exact else Exit.FAILED


def _leg_json(leg: Leg) -> dict[str, object]:
    return {
        "name": leg.name, "seconds": leg.seconds, "checkpoints": sorted(leg.steps), "how": leg.how,
        "steps_watched": len(leg.trace),
    }  # fmt: skip


def _show(call: Call, done: Rehearsed) -> None:
    out = call.out
    rows = []
    for leg in done.legs:
        steps = ", ".join(number_text(step) for step in sorted(leg.steps)[-_STEPS_SHOWN:]) or "–"
        rows.append((leg.name, clock_text(leg.seconds), steps, leg.how))
    out.table(("TRAINING", "TOOK", "CHECKPOINTS", "HOW IT ENDED"), rows)
    out.say()
    grade = out.paint(done.grade.value, _COLOURS.get(done.grade, "red"))
    out.facts([
        ("resume", f"{grade}: {_MEANINGS[done.grade]}"),
        ("compared", "" if done.steps is None else f"at step {number_text(done.steps)}"),
        *((each.what, f"{each.text}{f'; {each.advice}' if each.advice else ''}") for each in done.findings),
    ])  # fmt: skip
