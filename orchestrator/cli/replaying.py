"""`replay`: recorded decisions made again, or a recorded time played with another config.

Exit code 1 if a decision differs. Changes nothing.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from orchestrator.cli.call import Call, Exit
from orchestrator.client import grammar
from orchestrator.client.past import MONTH_SECONDS
from orchestrator.client.replaying import Answer, Replay, Step
from orchestrator.clock import utc_text
from orchestrator.core.wording import count_text
from orchestrator.errors import InputError

LISTED_MAX = 50  # runs of which something is said; the JSON has all


def replay(call: Call) -> int:
    """One run, the runs of a time, or that time with another config."""
    options = call.options
    several = options.all or options.since is not None
    if options.run is not None and (several or options.config is not None):
        raise InputError(
            "give one run, or a time with --all or --since; --config plays all runs of a time, because they "
            "share the offers"
        )
    if options.offer and options.config is None:
        raise InputError("--offer says what a platform of the other config has: give it with --config FILE")
    if options.config is not None:
        from orchestrator.cli import supposing

        since = None if options.all else MONTH_SECONDS if options.since is None else _seconds(options.since)
        with _status(call) as say:
            found = call.client.past.suppose(
                options.config, since_seconds=since, offers=options.offer, progress=say
            )
        return supposing.show(call, found)
    if options.run is not None:
        return _one(call, call.client.past.replay(options.run))
    if not several:
        raise InputError("give a run, or a time with --all or --since, such as --since 30d")
    return _several(call, None if options.all else _seconds(options.since))


def _seconds(text: str) -> float:
    try:
        return grammar.seconds(text)
    except InputError:
        raise InputError(f"--since {text!r} is not a time; give a time such as 12h, 30d") from None


# --- One run --------------------------------------------------------------------------------------------


def _one(call: Call, found: Replay) -> int:
    call.out.document(_run_json(found, steps=call.options.steps))
    call.out.say(_summary(found.run, found.counts))
    if call.options.steps:
        call.out.say()
        call.out.table(("EVENTS", "AT", "ANSWER", "WHAT"), [_row(step) for step in found.steps])
    _tell_steps(call, found)
    return Exit.OK if found.same else Exit.FAILED


def _tell_steps(call: Call, found: Replay) -> None:
    """What differs, and what cannot be judged: equal reasons once."""
    for step in found.steps:
        if step.answer is Answer.DIFFERS:
            call.out.say(f"\n{_numbers(step)}, {utc_text(step.at)}: {_kinds(step)}")
            call.out.facts([("differs", text) for text in step.differences])
    reasons = Counter(step.reason for step in found.steps if step.answer is Answer.UNJUDGED)
    if reasons:
        call.out.say()
        call.out.facts(("unjudged", f"{reason} ({times:,})") for reason, times in reasons.items())


def _summary(name: str, counts: Mapping[Answer, int]) -> str:
    same, differs = counts.get(Answer.SAME, 0), counts.get(Answer.DIFFERS, 0)
    given, unjudged = counts.get(Answer.GIVEN, 0), counts.get(Answer.UNJUDGED, 0)
    verdict = f"{differs:,} of them {'differs' if differs == 1 else 'differ'}" if differs else "none differs"
    made = count_text(same + differs, "decision")
    parts = [f"{made} made again, {verdict}" if same + differs else "no decision could be made again"]
    if unjudged:
        parts.append(f"{unjudged:,} cannot be judged")
    if given:
        parts.append(f"{given:,} came from others, such as a user's wish")
    return f"{name}: {'; '.join(parts)}"


def _row(step: Step) -> tuple[str, str, str, str]:
    return _numbers(step), utc_text(step.at), step.answer.value, step.reason or _kinds(step)


def _numbers(step: Step) -> str:
    return f"{step.first:,}" if step.first == step.last else f"{step.first:,}–{step.last:,}"


def _kinds(step: Step) -> str:
    return " + ".join(event.kind.value for event in step.recorded)


def _run_json(found: Replay, *, steps: bool) -> dict[str, object]:
    told = (step for step in found.steps if steps or step.answer in (Answer.DIFFERS, Answer.UNJUDGED))
    return {
        "run": found.run,
        **{answer.value: count for answer, count in found.counts.items()},
        "steps": [{
            "events": [step.first, step.last], "at": step.at, "answer": step.answer, "routed": step.routed,
            "kinds": [event.kind for event in step.recorded], "reason": step.reason or None,
            "differences": step.differences, "recorded": step.recorded, "decided": step.decided,
        } for step in told],
    }  # fmt: skip


# --- Several runs ---------------------------------------------------------------------------------------


def _several(call: Call, since_seconds: float | None) -> int:
    counts: Counter[Answer] = Counter()
    documents: list[dict[str, object]] = []
    listed = runs = different = 0
    with _status(call) as say:
        for found in call.client.past.replays(since_seconds=since_seconds):
            runs += 1
            counts.update(found.counts)
            different += not found.same
            say("replaying", runs)
            if call.out.as_json:
                documents.append(_run_json(found, steps=call.options.steps))
            elif not found.same or found.counts[Answer.UNJUDGED]:
                listed += 1
                if listed <= LISTED_MAX:
                    call.out.say(_summary(found.run, found.counts))
    call.out.document({
        "runs": documents, "runs_that_differ": different,
        **{answer.value: counts[answer] for answer in Answer},
    })  # fmt: skip
    if listed > LISTED_MAX:
        call.out.say(f"… and {listed - LISTED_MAX:,} more runs; --json lists them all")
    call.out.say(_summary(count_text(runs, "run"), counts))
    if different:
        call.out.say(f"`{call.command('replay', 'RUN')}` says what differs in one of them")
    return Exit.FAILED if different else Exit.OK


@contextlib.contextmanager
def _status(call: Call) -> Iterator[Callable[[str, int], None]]:
    """Yields a function that is given what is being done, and for how many runs; on a terminal, it draws."""
    if not call.out.is_terminal:
        yield lambda _what, _count: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield lambda what, count: status.update(f"{what}: {count_text(count, 'run')}")
