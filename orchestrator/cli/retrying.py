"""`retry` in words."""

from __future__ import annotations

from orchestrator.cli import following
from orchestrator.cli.call import Call, Exit
from orchestrator.core.wording import number_text


def retry(call: Call) -> int:
    """Lets a run that failed or is held go on, with its job as it is or fixed."""
    run, given = call.client.run(call.options.run), call.options
    done = run.retry(given.job, source=given.source)
    call.out.done = f"{run.name} was retried"
    document = {"run": run.name, "changes": done.changes, "step": done.step,
                "controller_started": done.controller_started}  # fmt: skip
    (call.out.record if given.follow else call.out.document)(document)
    where = f"from step {number_text(done.step)}" if done.step else "from the beginning"
    changed = f"with a changed {', '.join(done.changes)}" if done.changes else "with the job as it is"
    call.out.say(f"{run.name} continues {where}, {changed}")
    for warning in done.warnings:
        call.out.remark(warning)
    return following.follow(call, run) if given.follow else Exit.OK
