"""A submit: freezes a job, routes it, records it as a run, and makes sure that a controller runs.

Decides whether a run may be recorded at all. Must never leave half a run: either the run and its folder both
exist, or neither does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from orchestrator.client import beginning, controlling, deadlines, interrupt, lost, planning, routing
from orchestrator.client.beginning import Beginning
from orchestrator.client.fetching_inputs import Fetching
from orchestrator.client.home import Home
from orchestrator.client.interrupt import Interrupt
from orchestrator.client.planning import Plan
from orchestrator.client.run import Run
from orchestrator.client.wiring import Wired
from orchestrator.core import bounds
from orchestrator.core.event import Submitted
from orchestrator.core.lifecycle import Phase
from orchestrator.core.offer import Route
from orchestrator.core.route import Verdict, commands, verdict
from orchestrator.core.run import RunRecord
from orchestrator.engine import depositing
from orchestrator.errors import AccessDenied, InputError, NoRoute, OrchestratorError
from orchestrator.files import flock, make_folder, open_log, remove_empty
from orchestrator.freeze import inputs, packing
from orchestrator.home import SUBMIT_LOCK
from orchestrator.ledger import Ledger
from orchestrator.spec import Parsed
from orchestrator.stores import encryption

if TYPE_CHECKING:
    from orchestrator.client.client import Client

RANDOM_CHARACTERS = 8
_ALPHABET = string.ascii_lowercase + string.digits


@dataclass(frozen=True)
class Submission:
    """What a submit did. `run` is the new run; if `submitted` is False, the run of this job that was under
    way.

    `plan` is the plan of a new run. `lost` names each platform and store that the config no longer has, with
    the runs that are held until it is back. `warnings`:
    what else the user should know, in sentences. `deadline`: the one that was given, in unix seconds.
    `origin`: the run and step whose checkpoint it begins with, in words; empty if it begins without one.
    """

    run: Run
    submitted: bool
    controller_started: bool
    plan: Plan | None = None
    lost: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    deadline: float | None = None
    origin: str = ""


def submit(
    client: Client, job: str | os.PathLike[str], platforms: tuple[str, ...], *, unless_running: bool,
    deadline: str | float | None = None, start: str | None = None,
) -> Submission:  # fmt: skip
    """See `Client.submit`."""
    client.home.tighten()
    wired = client.wired()
    due = deadlines.due(deadline, client.clock.now(), wired.config.timezone)
    parsed = planning.parse(wired, job, platforms)
    if parsed.job.schedule is not None:
        raise InputError(f"{job} has a schedule: `client.schedules.register` registers it")
    begins = None if start is None else beginning.find(client, start, parsed.job)
    warnings = config_warnings(wired)  # before anything is recorded, because it finds mistakes in the config
    with client.ledgers.made() as ledger:
        with alone(client.home) if unless_running else contextlib.nullcontext():
            run = _running(ledger, parsed.job.name) if unless_running else None
            plan = None
            if run is None:
                run, plan, unshared = _recorded(client, wired, ledger, parsed, due, begins)
                warnings += (*unshared, *plan.warnings)
        started = controlling.ensure(client.home, client.clock, ledger) is None
        missing = {what: tuple(runs) for what, runs in lost.lost(ledger, wired.config).items()}
    origin = "" if plan is None or begins is None else begins.origin
    return Submission(Run(client, run), plan is not None, started, plan, missing, warnings, due, origin)


def config_warnings(wired: Wired) -> tuple[str, ...]:
    """What is wrong with the home store, as far as the config alone shows it."""
    trouble = encryption.key_trouble(wired.store(""))
    return (
        (f"the checkpoints are encrypted in the store {wired.config.home_store!r}, but {trouble}",)
        if trouble
        else ()
    )


@contextlib.contextmanager
def alone(home: Home) -> Iterator[None]:
    """A lock: of several submits with `unless_running` at once, only one may find that nothing runs."""
    make_folder(home.path, 0o700)
    path = home.path / SUBMIT_LOCK
    with os.fdopen(open_log(path), "a") as lock:
        flock(lock.fileno(), fcntl.LOCK_EX, path)
        yield


def _running(ledger: Ledger, name: str) -> str | None:
    active = [phase for phase in Phase if not phase.final]
    return next((found.run for found in ledger.summaries(active) if found.name == name), None)


def _recorded(
    client: Client,
    wired: Wired,
    ledger: Ledger,
    parsed: Parsed,
    deadline: float | None,
    begins: Beginning | None,
) -> tuple[str, Plan, tuple[str, ...]]:
    """Returns the run's name, its plan, and warnings."""
    planning.check_secrets(wired, parsed.job)
    name = f"{parsed.job.name}-{''.join(secrets.choice(_ALPHABET) for _ in range(RANDOM_CHARACTERS))}"
    route = routing.route_of(wired, ledger, RunRecord(name, parsed.job, client.clock.now()))
    check_route(route)
    for secret in parsed.job.secrets:
        wired.secret(secret)
    frozen = planning.freeze(parsed, wired.folders.home, Fetching(wired))
    plan = planning.planned(wired, frozen, route, ledger)
    store, now = wired.config.home_store, client.clock.now()
    warnings = share(wired, RunRecord(name, frozen.job, now, store=store)) if ledger.is_shared else ()
    origin = "" if begins is None else begins.origin
    with beginning.copied(wired, begins, name) as start:
        event = Submitted(name, frozen.job, now, store=store, deadline=deadline, start=start, origin=origin)
        _record(wired, ledger, event)
    return name, plan, warnings


def share(wired: Wired, record: RunRecord) -> tuple[str, ...]:
    """Puts into its home store what the run's sessions need, before a controller of another machine may want
    to start one. Returns warnings. `record` may stand for the runs to come of a schedule."""
    job, into = record.job, wired.folders.inputs
    try:
        if sum(packing.size(inputs.located(each)) for each in job.inputs) <= bounds.INPUTS_BYTES_MAX:
            inputs.stage(job.inputs, into)
        return depositing.materials(wired.store(record.store), record, wired.folders)
    except (OrchestratorError, OSError) as error:
        return (
            f"what the job consists of could not be put into the store {record.store}, so only a controller "
            f"with this home can start it: {error}",
        )


def _record(wired: Wired, ledger: Ledger, event: Submitted) -> None:
    """Records the run. Ctrl-C takes effect just before the commit, or after it."""
    # From here on the folder shows that a run lives in this home, whichever ledger has it.
    folder = wired.folders.run(event.run)
    try:
        with interrupt.noticed() as away:
            make_folder(folder)
            ledger.submit(event, check=partial(_go_on, away))
        _go_on(away)
    except BaseException as error:  # also Ctrl-C: an empty folder would look like a run of another ledger
        with contextlib.suppress(OSError, OrchestratorError):
            if isinstance(error, OrchestratorError) or not _is_recorded(ledger, event.run):
                remove_empty(folder)
        raise


def _go_on(away: Interrupt) -> None:
    """Raises KeyboardInterrupt if Ctrl-C was pressed. Python's own could get lost in a callback."""
    if away.seen:
        raise KeyboardInterrupt


def _is_recorded(ledger: Ledger, run: str) -> bool:
    """Whether it is in the ledger, because a Ctrl-C during the commit takes effect after it."""
    return any(ledger.records([run]))


def check_route(route: Route) -> None:
    """Raises NoRoute if no offer can ever take the job, AccessDenied if a human must act first."""
    answer = verdict(route)
    told = [
        f"  {each.platform}/{each.accelerator}: {each.reason}"
        + (f" [{routing.until_text(each.until)}]" if answer is not Verdict.NEVER else "")
        for each in route.rejections
    ]
    if answer is Verdict.NEVER:
        raise NoRoute("\n".join(["not submitted: no configured platform can ever run this job", *told]))
    if answer is Verdict.HUMAN:
        helpful = [f"  to fix it: {command}" for command in commands(route)]
        raise AccessDenied("\n".join(["not submitted: a human must act first", *told, *helpful]))
