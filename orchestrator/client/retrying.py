"""`retry`: a run that failed or is held goes on from its newest checkpoint, with its job fixed.

Decides which fixes are the same run: those that do not change the mathematics. The job is frozen anew, as by
a submit. Must never touch a run that has a session.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.client import controlling, planning, routing, submitting
from orchestrator.client.fetching_inputs import Fetching
from orchestrator.client.wiring import Wired
from orchestrator.core.checkpoint import newest
from orchestrator.core.edits import clash, job_differences
from orchestrator.core.event import Amended, Wished
from orchestrator.core.job import Job
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.core.run import RunRecord
from orchestrator.errors import InputError, LedgerConflict, Transient
from orchestrator.freeze import bundle
from orchestrator.home import BUNDLES
from orchestrator.spec import commands

if TYPE_CHECKING:
    from orchestrator.client.client import Client

_OWN = ".orchestrator/"  # in a bundle: files from outside the source
_RESTS = frozenset({Phase.FAILED, Phase.HELD})


@dataclass(frozen=True)
class Retried:
    """`changes`: the keys of the job that were changed. `step`: where the run goes on."""

    run: str
    changes: tuple[str, ...]
    step: int
    controller_started: bool = False
    warnings: tuple[str, ...] = ()


def retry(
    client: Client, run: str, job: str | os.PathLike[str] | None, source: str | os.PathLike[str] | None
) -> Retried:
    """See `Run.retry`."""
    if job is not None and source is not None:
        raise InputError("give the job's file or a source folder, not both: the file names its source")
    wired = client.wired()
    with client.ledgers.runs() as ledger:
        record = ledger.record(run)
        if record.phase not in _RESTS:
            raise InputError(_not_at_rest(record))
        fixed = record.job
        if job is not None:
            fixed = _from_file(wired, record, job)
        elif source is not None:
            fixed = _with_source(wired, record, Path(source))
        if why := clash(record, fixed):
            raise InputError(
                f"{run} cannot continue with this job, because its steps would differ: {why}; submit it "
                "as a new run instead"
            )
        changes = job_differences(record.job, fixed)
        after = replace(record, job=fixed, phase=Phase.QUEUED, cooldowns=(), session=None)
        submitting.check_route(routing.route_of(wired, ledger, after))
        warnings = submitting.share(wired, after) if ledger.is_shared and changes else ()
        warnings = (*warnings, *_about_watch(record, fixed))
        try:
            if changes:
                ledger.append(record, [Amended(client.clock.now(), fixed, changes)], due_at=None)
            ledger.wish(run, Wished(client.clock.now(), Wish.RELEASE))
        except LedgerConflict as error:
            raise Transient(f"{run} changed meanwhile: try again") from error
        started = controlling.ensure(client.home, client.clock, ledger) is None
    best = newest(record.accepted)
    return Retried(run, changes, 0 if best is None else best.ref.step, started, warnings)


def _about_watch(record: RunRecord, fixed: Job) -> tuple[str, ...]:
    """The checkpoint keeps the path under which the script saved it."""
    before, best = record.job.checkpoint.watch, newest(record.accepted)
    if best is None or before is None or before == fixed.checkpoint.watch:
        return ()
    return (
        f"the checkpoint of step {best.ref.step:,} was saved as {before}, which checkpoint.watch no longer "
        "matches: it is not put back there, and {resume} is a folder that holds it at that path",
    )


def _not_at_rest(record: RunRecord) -> str:
    told = f"{record.run} is {record.standing.value}: only a run that failed or is held can be retried"
    if not record.phase.final:
        return f"{told}; `orchestrator hold {record.run}` holds it"
    if record.accepted:
        return f"{told}; `orchestrator submit JOB --from {record.run}` begins a new run with its checkpoint"
    return f"{told}; submit the job again"


def _from_file(wired: Wired, record: RunRecord, job: str | os.PathLike[str]) -> Job:
    """The job of this file, frozen. What a schedule or a store gave the run stays."""
    parsed = planning.parse(wired, job, ())
    if parsed.job.name != record.job.name:
        raise InputError(
            f"{job} declares the job {parsed.job.name!r}, but {record.run} is of {record.job.name!r}"
        )
    planning.check_secrets(wired, parsed.job)
    for secret in parsed.job.secrets:
        wired.secret(secret)
    frozen = planning.freeze(parsed, wired.folders.home, Fetching(wired))
    return replace(frozen.job, schedule=record.job.schedule)


def _with_source(wired: Wired, record: RunRecord, source: Path) -> Job:
    """The same job with the code of this folder."""
    job = record.job
    if not source.is_dir():
        raise InputError(f"--source {source} is not a folder; give the folder of the code")
    if missing := commands.missing_script(None if job.shell else list(job.command), source):
        raise InputError(missing)
    before = wired.folders.bundle(job.bundle)
    if not before.is_file():
        raise InputError(
            f"this home does not have the source that {record.run} was submitted with: give the job's file "
            "instead of --source"
        )
    sha256 = bundle.freeze(
        source, wired.folders.home / BUNDLES, also=_files(before, lambda name: name.startswith(_OWN))
    )
    lists = {each.file for each in job.all_requirements.values() if not each.file.startswith(_OWN)}
    now = _files(wired.folders.bundle(sha256), lists.__contains__)
    if now != _files(before, lists.__contains__):
        raise InputError(
            f"the requirements have changed ({', '.join(sorted(lists))}), and must be locked again: give the "
            "job's file instead of --source"
        )
    if told := planning.old_checkpoints(job, wired.folders.bundle(sha256)):
        raise InputError(f"the job's checkpoint.watch: {told}")
    return planning.with_commit(replace(job, bundle=sha256), source)


def _files(archive: Path, wanted: Callable[[str], bool]) -> dict[str, Path | bytes]:
    """The content of some files of a bundle, by their paths in it."""
    found: dict[str, Path | bytes] = {}
    with tarfile.open(archive) as files:
        for member in files:
            name = member.name.removeprefix("./")
            if member.isreg() and wanted(name):
                content = files.extractfile(member)
                assert content is not None
                found[name] = content.read()
    return found
