"""`submit` in words, and what `plan` says of a job: where it would run, and why not elsewhere."""

from __future__ import annotations

from pathlib import Path

from orchestrator.cli import fetching, following, health, hints, pulling, pythons, routing
from orchestrator.cli import leaving as shown
from orchestrator.cli.call import Call, Exit, os_error_text
from orchestrator.client import Plan, Run, Submission, Verdict
from orchestrator.client.attendance import attendance
from orchestrator.client.lost import sentence
from orchestrator.core.checkpoint import newest
from orchestrator.core.job import DEFAULT, Job
from orchestrator.core.openings import openings
from orchestrator.core.run import RunRecord
from orchestrator.core.wording import date, help_page, number_text
from orchestrator.errors import BackendError, InputError, OrchestratorError

_OLD_SECRETS = (
    "taken from the running controller's environment; if you changed them, `orchestrator down` first"
)


def submit(call: Call, beside: following.Beside | None = None) -> int:
    """Freezes, routes and records a job, and makes sure that a controller runs; --follow shows the run.
    `beside` as in `following.follow`."""
    given, scheduled = call.options, call.client.schedules.declared(call.options.job)
    if given.now and not scheduled:
        raise InputError(f"{given.job} has no schedule: without --now it is submitted at once, too")
    if given.output is not None and not given.follow:
        raise InputError(
            "-o says where --follow puts the checkpoint of the finished run: add --follow, or leave out -o "
            f"and run `{call.command('pull', 'RUN', '-o', given.output)}` once it is done"
        )
    if scheduled:
        from orchestrator.cli import scheduling

        if given.start is not None:
            raise InputError(f"{given.job} has a schedule, whose runs begin by themselves: leave out --from")
        scheduling.check(given)
    if given.dry_run:
        from orchestrator.cli import outlooking
        from orchestrator.client import beginning

        if given.start is not None:
            begins = beginning.planned(call.client, given.start, given.job)
            call.out.remark(f"it would begin {begins.origin}")
        return outlooking.plan(call)
    if given.output is not None:
        _check_output(given.output)
    if scheduled:
        with fetching.shown(call):
            return scheduling.submit(call)
    with fetching.shown(call):
        done = call.client.submit(
            given.job,
            platforms=given.platform,
            unless_running=given.unless_running,
            deadline=given.deadline,
            start=given.start,
        )
    if done.plan is not None:
        call.out.done = f"{done.run.name} was submitted"
        _tell_submitted(call, done, done.plan)
    else:
        run, started = done.run.name, done.controller_started
        call.out.record({"run": run, "submitted": False, "controller_started": started})
        call.out.say(f"{run} is under way: nothing was submitted")
    for what, runs in done.lost.items():
        call.out.remark(sentence(what, runs))
    for warning in done.warnings:
        call.out.remark(warning)
    return followed(call, done.run, beside) if given.follow else Exit.OK


def _check_output(output: str) -> None:
    """Before the run is submitted: it may take days, and only then would -o turn out to be wrong."""
    from orchestrator.client.pulling import check_target

    try:
        check_target(Path(output))
    except InputError as error:
        raise InputError(f"-o: {error}") from error


def followed(call: Call, run: Run, beside: following.Beside | None = None) -> int:
    """Shows the run until it is over, and copies its newest checkpoint to -o or into the home. `beside` as
    in `following.follow`."""
    output = call.options.output

    def lay_out(record: RunRecord) -> Path:
        best = newest(record.accepted)
        assert best is not None
        target = output or str(call.home.folders.result(run.name, best.ref.step))
        try:
            return pulling.bring(call, run, target).folder
        except (InputError, OSError) as error:
            if output is None:
                raise
            raise _not_laid_out(call, run, error) from error

    return following.follow(call, run, lay_out, beside)


def _not_laid_out(call: Call, run: Run, error: InputError | OSError) -> OrchestratorError:
    again = call.command("pull", run.name, "-o", "DIR")
    kind, why = (
        (InputError, str(error)) if isinstance(error, InputError) else (BackendError, os_error_text(error))
    )
    return kind(f"{run.name} is done, but its checkpoint was not copied to -o: {why}. `{again}` copies it")


def _tell_submitted(call: Call, done: Submission, plan: Plan) -> None:
    out, run, job, route, started = call.out, done.run.name, plan.job, plan.route, done.controller_started
    tell_unlocked(call, plan)
    document = {
        "run": run,
        "submitted": True,
        "requirements_locked": plan.requirements_locked,
        "pythons": plan.pythons,
        "verdict": plan.verdict,
        "opens_at": plan.opens_at,
        "deadline": done.deadline,
        "begins": done.origin or None,
        "route": routing.route_json(route),
        "leaves": shown.document(plan),
        "controller_started": started,
    }
    (out.record if call.options.follow else out.document)(document)
    out.say(out.paint(run, "bold"))
    out.facts([
        ("job", _size_text(job)),
        ("begins", done.origin),
        *_route_facts(plan),
        *pythons.facts(plan.pythons),
        ("deadline", "" if done.deadline is None else date(done.deadline)),
        ("controller", _controller_text(call, started=started)),
        ("then", _next_text(plan)),
        ("secrets", "" if started or not job.secrets else _OLD_SECRETS),
    ])  # fmt: skip
    shown.show(out, plan)
    if not call.options.follow:
        hints.next_commands(call, run, ("show", "-f"), ("why",), ("logs", "-f"), ("cancel",))


def _controller_text(call: Call, *, started: bool) -> str:
    if started:
        return "started in the background, exits when no work is left"
    return health.absence_text(call, attendance(call.client)) or "running"


def _next_text(plan: Plan) -> str:
    """What happens without anybody's help. A person may be the one who is waited for."""
    if plan.route.chosen is not None:
        offer = plan.route.chosen.offer
        return (
            f"the controller starts it on {offer.platform}/{offer.accelerator}; you can close this terminal"
        )
    if plan.verdict is Verdict.START:
        return "once a machine is there, the controller starts it; you can close this terminal"
    return "the controller starts it as soon as it can; you can close this terminal"


def tell_unlocked(call: Call, plan: Plan) -> None:
    if plan.unlocked:
        call.out.remark(
            f"requirements not locked: {plan.unlocked}\nEach session installs the newest versions, so "
            "a hop may bring other versions. To lock them: "
            f"{help_page('training-contract', 'requirements')}"
        )


def _size_text(job: Job) -> str:
    return f"{number_text(job.work.total)} {job.work.unit}, global batch {job.work.global_batch}"


def _route_facts(plan: Plan) -> list[tuple[str, str]]:
    route, job = plan.route, plan.job
    if route.chosen is not None:
        return [
            ("route", routing.choice_text(route.chosen, job)),
            ("rate", routing.rate_text(route.chosen, job)),
        ]
    at = plan.opens_at
    waits = {
        Verdict.SLOT: "queued: waits for a free slot",
        Verdict.START: "queued: waits for you to start a machine",
    }.get(plan.verdict, "queued: waits for quota or capacity" if at is None else f"queued until {date(at)}")
    worth, others = openings(route.rejections)
    return [
        ("route", waits),
        *(("", f"{o}: {reason}") for o, _, reason in routing.rejection_rows(worth)),
        ("", others),
        *(("to start it", command) for command in routing.starts(route)),
    ]


# --- plan, --dry-run --------------------------------------------------------------------------------------


def plan_json(found: Plan) -> dict[str, object]:
    """What a job's plan says, for programs."""
    job = found.job
    claims = {each.accelerator: routing.claim_text(each) for each in found.claims}
    return {
        "job": job.name, "verdict": found.verdict, "opens_at": found.opens_at,
        "route": routing.route_json(found.route), "hops": found.hops, "commands": found.commands,
        "claims": claims, "requirements_locked": found.requirements_locked,
        "requirements": job.all_requirements, "pythons": found.pythons,
        "leaves": shown.document(found), "warnings": found.warnings,
    }  # fmt: skip


def show_plan(call: Call, found: Plan) -> None:
    """Prints the estimate, the rules in force and every rejection."""
    job, route, out = found.job, found.route, call.out
    tell_unlocked(call, found)
    for warning in found.warnings:
        out.remark(warning)
    out.say(f"{out.paint(job.name, 'bold')}: {_size_text(job)}")
    out.say()
    chosen = [] if route.chosen is None else [
        ("route", routing.choice_text(route.chosen, job)),
        ("rate", routing.rate_text(route.chosen, job)),
        *routing.losses_fact(route.chosen, job),
    ]  # fmt: skip
    out.facts([
        *_recurrence_facts(job),
        *(chosen or _no_route_facts(found)),
        *(("possible", routing.choice_text(choice, job)) for choice in route.others),
        *(("claim", f"{each.accelerator}: {routing.claim_text(each)}") for each in found.claims),
        *pythons.facts(found.pythons),
        *(("requirements", text) for text in _requirements_texts(job)),
        *(("in force", rule) for rule in route.rules),
        *(("to start it", command) for command in routing.starts(route)),
        *(("to fix it", command) for command in found.commands if found.verdict is not Verdict.START),
    ])  # fmt: skip
    routing.show_rejections(out, route.rejections)


def _recurrence_facts(job: Job) -> list[tuple[str, str]]:
    if job.schedule is None:
        return []
    from orchestrator.cli import scheduling

    return scheduling.recurrence_facts(job.schedule)


def _requirements_texts(job: Job) -> list[str]:
    """What sessions install, by the kind of accelerator where that differs."""
    return [
        f"{'' if len(job.all_requirements) == 1 and kind == DEFAULT else f'{kind}: '}{each.file}, "
        f"{'not locked' if each.lock is None else 'locked'}"
        for kind, each in job.all_requirements.items()
    ]


def _no_route_facts(plan: Plan) -> list[tuple[str, str]]:
    at = plan.opens_at
    return [("route", {
        Verdict.NEVER: "none: no configured platform can ever run this job",
        Verdict.HUMAN: "none: a human must act first",
        Verdict.SLOT: "it would be queued until one of our sessions ends",
        Verdict.START: "it would be queued until you start a machine",
        Verdict.TIME: f"it would be queued until {date(at)}" if at is not None else "it would be queued",
    }.get(plan.verdict, ""))]  # fmt: skip
