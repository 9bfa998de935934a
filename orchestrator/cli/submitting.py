"""`submit` and `plan`: a job's file, frozen, routed, recorded; or only said where it would run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import string
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from orchestrator import spec
from orchestrator.cli import controlling, following, hints, interrupt, pulling, routing
from orchestrator.cli import leaving as shown
from orchestrator.cli.call import Call, Exit
from orchestrator.cli.interrupt import Interrupt
from orchestrator.cli.output import Output
from orchestrator.client import lost
from orchestrator.client.wiring import Wired
from orchestrator.core.checkpoint import newest
from orchestrator.core.estimate import Hop
from orchestrator.core.event import Submitted
from orchestrator.core.job import FROZEN_IMAGE, Job, frozen_image
from orchestrator.core.lifecycle import Phase
from orchestrator.core.offer import Route, UntilKind
from orchestrator.core.route import Verdict, commands, opens_at, verdict
from orchestrator.core.route import plan as hops_of
from orchestrator.core.run import RunRecord
from orchestrator.core.wording import date, span, unknown
from orchestrator.engine.perform import Folders
from orchestrator.errors import AccessDenied, InputError, NoRoute, OrchestratorError
from orchestrator.files import open_log
from orchestrator.freeze import bundle, images, inputs, leaving, requirements
from orchestrator.freeze.leaving import Part
from orchestrator.ledger import Ledger
from orchestrator.spec import Parsed

RANDOM_CHARACTERS = 8
_ALPHABET = string.ascii_lowercase + string.digits
HOPS_SHOWN = 20
_OLD_SECRETS = "as the controller's environment has them; `orchestrator down` first if they are newer"


def submit(call: Call) -> int:
    """Freezes, routes, records, makes sure that a controller runs, and shows what happens if asked to."""
    if call.options.dry_run:
        return plan(call)
    wired = call.wired()
    parsed = _parsed(call, wired)
    with _alone(call), call.home.ledger() as ledger:
        running = _running(ledger, parsed.job.name) if call.options.unless_running else None
        recorded = _recorded(call, wired, ledger, parsed) if running is None else None
    with call.home.ledger() as ledger:
        started = controlling.ensure(call.home, call.clock, ledger) is None
        if recorded is not None:
            _tell_submitted(call, *recorded, started=started)
            running = recorded[0].run
        else:
            call.out.record({"run": running, "submitted": False, "controller_started": started})
            call.out.say(f"{running} is under way: nothing was submitted")
        assert running is not None
        for what, runs in lost.lost(ledger, wired.config).items():
            call.out.remark(lost.sentence(what, runs))
        return _followed(call, wired, ledger, running) if call.options.follow else Exit.OK


def _followed(call: Call, wired: Wired, ledger: Ledger, run: str) -> int:
    def lay_out(record: RunRecord) -> Path:
        best = newest(record.accepted)
        assert best is not None
        given = call.options.output
        target = Path(given) if given else call.home.result(run, best.ref.step)
        return pulling.bring(call, wired.store(record.store), record, None, target).folder

    return following.follow(call, ledger, run, lay_out)


def _parsed(call: Call, wired: Wired) -> Parsed:
    parsed = spec.load(Path(call.options.job))
    wanted = tuple(dict.fromkeys(call.options.platform))
    known = [each.name for each in wired.config.platforms]
    for name in wanted:
        if name not in known:
            raise InputError(f"--platform: {unknown(f'platform {name!r}', name, known)}")
    if wanted:
        route = replace(parsed.job.route, platforms=wanted)
        parsed = replace(parsed, job=replace(parsed.job, route=route))
    return parsed


def _locked(call: Call, parsed: Parsed) -> Parsed:
    """With the versions of its requirements settled; where that fails, as they are, and said so. May take
    minutes: call it once everything cheaper was asked."""
    if parsed.requirements is None:
        return parsed
    if parsed.job.requirements not in parsed.source_allow:
        leaving.check_requirements(parsed.requirements)  # before its addresses are asked for anything
    try:
        lock = requirements.lock(parsed.requirements, {**os.environ, **dict(parsed.job.env)})
    except requirements.NotLocked as error:
        call.out.remark(
            f"requirements not locked: {error}\nEach session installs the newest then: a hop may bring other "
            'versions. To lock them: docs/training-contract.md, "Requirements".'
        )
        return parsed
    return parsed if lock is None else parsed.locked(lock.encode())


@contextlib.contextmanager
def _alone(call: Call) -> Iterator[None]:
    """Of several `--unless-running` at the same time only one may find that nothing runs."""
    if not call.options.unless_running:
        yield
        return
    call.home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(open_log(call.home.path / "submit.lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _running(ledger: Ledger, name: str) -> str | None:
    active = [phase for phase in Phase if not phase.final]
    return next((found.run for found in ledger.summaries(active) if found.name == name), None)


def _recorded(
    call: Call, wired: Wired, ledger: Ledger, parsed: Parsed
) -> tuple[RunRecord, Route, tuple[Part, ...]]:
    _check_secrets(wired, parsed.job)
    name = f"{parsed.job.name}-{''.join(secrets.choice(_ALPHABET) for _ in range(RANDOM_CHARACTERS))}"
    route = routing.route_of(wired, ledger, RunRecord(name, parsed.job, wired.clock.now()))
    _check_route(route)
    for secret in parsed.job.secrets:
        wired.secret(secret)
    frozen, parts = _frozen(_locked(call, parsed), wired.folders.home)
    event = Submitted(name, frozen, wired.clock.now(), store=wired.config.home_store)
    # From here on whoever looks at this home sees that a run lives in it, whichever ledger has it.
    folder = wired.folders.run(name)
    try:
        with interrupt.noticed() as away:
            folder.mkdir(parents=True)
            record = ledger.submit(event, check=partial(_go_on, away))
        _go_on(away)
        return record, route, parts
    except BaseException as error:  # Ctrl-C, too: an empty folder would pass for a run of another ledger
        with contextlib.suppress(OSError, OrchestratorError):
            if isinstance(error, OrchestratorError) or not _is_recorded(ledger, name):
                folder.rmdir()
        raise


def _go_on(away: Interrupt) -> None:
    """Raises KeyboardInterrupt once Ctrl-C was pressed: raised by itself, a callback would swallow it."""
    if away.seen:
        raise KeyboardInterrupt


def _is_recorded(ledger: Ledger, run: str) -> bool:
    """Whether it is in the ledger: a Ctrl-C during the commit is heard after it."""
    return any(ledger.records([run]))


def _check_secrets(wired: Wired, job: Job) -> None:
    """Raises InputError naming every secret that the config gives to no job."""
    refused = [told for name in job.secrets if (told := wired.config.secret_refusal(name, job.secrets))]
    if refused:
        raise InputError("\n".join(refused))


def _frozen(parsed: Parsed, into: Path) -> tuple[Job, tuple[Part, ...]]:
    """The job with everything it names pinned, archives of its source and image in the home `into`; and what
    of it leaves. Raises InputError where any of it may not."""
    given = leaving.check_inputs(parsed.job.inputs, parsed.input_allow)
    pinned = inputs.pin(parsed.job.inputs)  # first: it may take long, and `prune` spares young archives only
    sha256 = bundle.freeze(parsed.source, into / "bundles", allow=parsed.source_allow, also=parsed.also)
    image = parsed.job.image
    if parsed.image is not None:
        frozen = images.freeze(
            parsed.image, into / "images", requirements=parsed.requirements, allow=parsed.source_allow
        )
        image = f"{FROZEN_IMAGE}{frozen}"
    job = replace(parsed.job, bundle=sha256, image=image, inputs=pinned)
    return job, (*_archived(parsed, job, into), *given)


def _archived(parsed: Parsed, job: Job, into: Path) -> Iterator[Part]:
    folders = Folders(into)
    yield from leaving.bundled(folders.bundle(job.bundle), str(parsed.source or ""), job.requirements)
    image = frozen_image(job.image)
    if image is not None:
        yield leaving.imaged(folders.image(image), str(parsed.image))


def _check_route(route: Route) -> None:
    """Raises NoRoute where nothing will ever take the job, AccessDenied where a human must act first."""
    answer = verdict(route)
    told = [
        f"  {offer}: {reason} [{until}]" for offer, until, reason in routing.rejection_rows(route.rejections)
    ]
    if answer is Verdict.NEVER:
        raise NoRoute("\n".join(["no run: no offer will ever take this job", *told]))
    if answer is Verdict.HUMAN:
        helpful = [f"  this would help: {command}" for command in commands(route)]
        raise AccessDenied("\n".join(["not submitted: a human must act first", *told, *helpful]))


def _tell_submitted(
    call: Call, record: RunRecord, route: Route, parts: tuple[Part, ...], *, started: bool
) -> None:
    out, run, job = call.out, record.run, record.job
    document = {
        "run": run,
        "submitted": True,
        "requirements_locked": _is_locked(job),
        "verdict": verdict(route),
        "opens_at": opens_at(route),
        "route": routing.route_json(route),
        "leaves": shown.document(job, parts, route),
        "controller_started": started,
    }
    (out.record if call.options.follow else out.document)(document)
    out.say(out.paint(run, "bold"))
    out.facts([
        ("job", _size_text(job)),
        *_route_facts(route, job),
        ("controller", "started in the background, for as long as there is work" if started else "runs"),
        ("secrets", "" if started or not job.secrets else _OLD_SECRETS),
    ])  # fmt: skip
    shown.show(out, job, parts, route)
    if not call.options.follow:
        hints.next_commands(call, run, ("show", "-f"), ("why",), ("logs", "-f"), ("cancel",))


def _is_locked(job: Job) -> bool | None:
    return None if job.requirements is None else job.requirements_lock is not None


def _size_text(job: Job) -> str:
    return f"{job.work.total:,} {job.work.unit}, global batch {job.work.global_batch}"


def _route_facts(route: Route, job: Job) -> list[tuple[str, str]]:
    if route.chosen is not None:
        return [
            ("route", routing.choice_text(route.chosen, job)),
            ("rate", routing.rate_text(route.chosen, job)),
        ]
    at = opens_at(route)
    waits = "queued: waits for a free slot" if at is None else f"queued until {date(at)}"
    if any(r.until.kind is UntilKind.SLOT for r in route.rejections):
        waits = "queued: waits for a free slot"
    return [
        ("route", waits),
        *(("", f"{o}: {reason}") for o, _, reason in routing.rejection_rows(route.rejections)),
    ]


# --- plan, --dry-run --------------------------------------------------------------------------------------


def plan(call: Call) -> int:
    """The estimate, the hops, every rejection and the rules that spoke. Launches and writes nothing."""
    wired = call.wired()
    parsed = _parsed(call, wired)
    _check_secrets(wired, parsed.job)
    with tempfile.TemporaryDirectory(prefix="orchestrator-") as folder:
        job, parts = _frozen(_locked(call, parsed), Path(folder))
    ledger = call.home.existing_ledger()
    with contextlib.closing(ledger) if ledger is not None else contextlib.nullcontext():
        route = routing.route_of(wired, ledger, RunRecord(job.name, job, wired.clock.now()))
        measurements = routing.measured(ledger, job)
    measured = route.chosen is None or routing.rate_is_known(route.chosen, job)
    hops = hops_of(job, route, now=wired.clock.now(), measurements=measurements) if measured else ()
    answer = verdict(route)
    call.out.document({
        "job": job.name, "verdict": answer, "opens_at": opens_at(route), "route": routing.route_json(route),
        "hops": hops, "commands": commands(route), "claims": dict(routing.claims(job, measurements)),
        "requirements_locked": _is_locked(job),
        "leaves": shown.document(job, parts, route),
    })  # fmt: skip
    out = call.out
    out.say(f"{out.paint(job.name, 'bold')}: {_size_text(job)}")
    out.say()
    chosen = [] if route.chosen is None else [
        ("route", routing.choice_text(route.chosen, job)),
        ("rate", routing.rate_text(route.chosen, job)),
    ]  # fmt: skip
    out.facts([
        *(chosen or _no_route_facts(route, answer)),
        *(("possible", routing.choice_text(choice, job)) for choice in route.others),
        *(("claim", f"{name}: {text}") for name, text in routing.claims(job, measurements)),
        *(("in force", rule) for rule in route.rules),
        *(("would help", command) for command in commands(route)),
    ])  # fmt: skip
    _show_hops(out, hops)
    routing.show_rejections(out, route.rejections)
    shown.show(out, job, parts, route)
    out.say()
    out.say(out.paint("Nothing was launched.", "dim"))
    return {Verdict.NEVER: Exit.INPUT, Verdict.HUMAN: Exit.HUMAN}.get(answer, Exit.OK)


def _no_route_facts(route: Route, answer: Verdict) -> list[tuple[str, str]]:
    at = opens_at(route)
    return [("route", {
        Verdict.NEVER: "none: no offer will ever take this job",
        Verdict.HUMAN: "none: a human must act first",
        Verdict.SLOT: "it would be queued until a session of ours ends",
        Verdict.TIME: f"it would be queued until {date(at)}" if at is not None else "it would be queued",
    }.get(answer, ""))]  # fmt: skip


def _show_hops(out: Output, hops: tuple[Hop, ...]) -> None:
    rows = [
        (
            str(number), f"{hop.platform}/{hop.accelerator}", date(hop.start), span(hop.end - hop.start),
            f"{hop.from_step:,}", f"{hop.to_step:,}", span(hop.quota_seconds) if hop.quota_seconds else "–",
            hop.why_it_ends,
        )
        for number, hop in enumerate(hops, start=1)
    ]  # fmt: skip
    if not rows:
        return
    out.say()
    left_out = len(rows) - HOPS_SHOWN
    if left_out > 1:
        middle = ("…", f"{left_out} more alike", "", "", "", "", "", "")
        rows = [*rows[: HOPS_SHOWN - 1], middle, rows[-1]]
    headers = ("HOP", "WHERE", "STARTS", "TAKES", "FROM STEP", "TO STEP", "QUOTA", "ENDS BY")
    out.table(headers, rows, right=frozenset({0, 4, 5}))
