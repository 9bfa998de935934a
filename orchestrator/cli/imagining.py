"""`plan JOB --on ACCELERATOR`: what it would take elsewhere, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.cli.call import Call
from orchestrator.cli.output import Output
from orchestrator.cli.routing import rate_text
from orchestrator.client.imagining import Imagined
from orchestrator.core.job import Job
from orchestrator.core.wording import span
from orchestrator.errors import InputError


def of(call: Call) -> tuple[Imagined, ...]:
    """The estimates that were asked for. Raises InputError without a job."""
    wanted: list[str] = getattr(call.options, "on", [])  # `submit --dry-run` plans, too
    if not wanted:
        return ()
    if call.options.job is None:
        again = call.command("plan", "JOB", "--on", wanted[0])
        raise InputError(f"--on {wanted[0]} needs a job: `{again}`")
    return call.client.outlook.on(call.options.job, wanted)


def show(out: Output, job: Job, found: Sequence[Imagined]) -> None:
    if not found:
        return
    out.say()
    headers = ("IF YOU HAD", "DONE IN", "SESSIONS", "ASSUMED")
    out.table(headers, [_row(each) for each in found], right=frozenset({2}))
    out.say()
    out.facts(
        [(each.accelerator, rate_text(each.choice, job) if each.choice else each.reason) for each in found]
    )


def _row(each: Imagined) -> tuple[str, str, str, str]:
    if each.choice is None:
        return each.accelerator, "never", "–", each.assumed
    figures = each.choice.estimate
    if not each.known:
        return each.accelerator, "unknown", "–", each.assumed
    low, high = (span(end - figures.start) for end in (figures.finish_low, figures.finish_high))
    took = f"{span(figures.finish - figures.start)} ({low} to {high})"
    return each.accelerator, took, f"{figures.sessions:,}", each.assumed


def document(found: Sequence[Imagined]) -> Mapping[str, object]:
    """The part of the JSON; nothing if nothing was asked for."""
    if not found:
        return {}
    return {"imagined": [
        {"accelerator": each.accelerator, "assumed": each.assumed, "known": each.known,
         "reason": each.reason or None, "estimate": each.choice.estimate if each.choice else None}
        for each in found
    ]}  # fmt: skip
