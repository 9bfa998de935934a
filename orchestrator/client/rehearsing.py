"""`rehearse`: freezes a job as a submit does, and rehearses it on a platform of this machine.

Decides where: on a process or Docker platform, with nothing of the user's home but the config. Leaves nothing
behind, and starts no controller.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.agent import archive
from orchestrator.client import planning
from orchestrator.client.fetching_inputs import Fetching
from orchestrator.clock import Clock
from orchestrator.config import PlatformConfig
from orchestrator.core.fit import Fit, fit_on
from orchestrator.core.job import Job, frozen_image
from orchestrator.core.offer import Choice, Estimate, Offer
from orchestrator.core.own_accelerators import Own
from orchestrator.errors import InputError, OrchestratorError
from orchestrator.files import draft_folder, is_locked, remove_tree
from orchestrator.freeze import inputs
from orchestrator.home import PLATFORMS, Folders
from orchestrator.platforms import catalog
from orchestrator.platforms.platform import Cleaning, Equipped, Platform
from orchestrator.rehearsal import course, legs
from orchestrator.rehearsal.judging import Rehearsed
from orchestrator.session.staging import Materials
from orchestrator.spec import Parsed

if TYPE_CHECKING:
    from orchestrator.client.client import Client
    from orchestrator.client.wiring import Wired

_FOLDER = "orchestrator-rehearsal-"  # how the folder of each begins
_TYPES = ("process", "docker")  # others cost quota
_OURS = {"session_seconds": None, "uplink": False, "fetch": False, "poll_seconds": 0.2}


def rehearse(
    client: Client,
    job: str | os.PathLike[str],
    *,
    platform: str | None,
    steps: int | None,
    patience: float,
    say: Callable[[str], None],
) -> Rehearsed:
    """See `Jobs.rehearse`."""
    wired = client.wired()
    parsed = planning.parse(wired, job, ())
    given = _platform(wired, platform)
    if steps is not None and not 0 < steps <= parsed.job.work.total:
        raise InputError(f"--steps {steps}: the job has {parsed.job.work.total:,} steps")
    if not patience > 0:
        raise InputError(f"--patience {patience:g}: it must be more than 0 seconds")
    planning.check_secrets(wired, parsed.job)
    values = {name: wired.secret(name) for name in parsed.job.secrets}
    _clear(wired, client.clock)
    with _own_folder() as folder:
        folders = Folders(folder)
        frozen = planning.freeze(_with_witness(parsed), folders.home, Fetching(wired))
        archive.build(folders.agent)
        image = frozen_image(frozen.job.image)
        materials = Materials(
            bundle=folders.bundle(frozen.job.bundle),
            agent=folders.agent,
            inputs=inputs.stage(frozen.job.inputs, folders.inputs),
            image=None if image is None else folders.image(image),
            secrets=values,
            say=say,
        )
        built = _built(given, folders, client.clock, client.wired().config.accelerators)
        ground = legs.Ground(
            built,
            frozen.job,
            _choice(frozen.job, built),
            materials,
            folders.home / "legs",
            client.clock,
            patience,
            say,
            f"rehearsal-{secrets.token_hex(4)}",
        )
        return course.rehearse(ground, frozen.job, steps)


@contextmanager
def _own_folder() -> Iterator[Path]:
    """Removed at the end, whatever happens."""
    with draft_folder(Path(tempfile.gettempdir()), 0o700, _FOLDER) as folder:
        try:
            yield folder
        finally:
            with legs.undisturbed():
                remove_tree(folder)


def _clear(wired: Wired, clock: Clock) -> None:
    """Ends what rehearsals that were killed left running, and removes their folders. What cannot be ended now
    is left to the next rehearsal."""
    for path in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        with suppress(OrchestratorError, OSError):
            if not _is_ours(path) or is_locked(path):
                continue
            folders = Folders(path)
            for name in sorted(each.name for each in path.glob(f"{PLATFORMS}/*")):
                platform = _built(_platform(wired, name), folders, clock, wired.config.accelerators)
                found = platform.leftovers() if isinstance(platform, Cleaning) else ()
                for session in {each.session for each in found if each.session}:
                    legs.end(platform, session, clock)
            remove_tree(path)


def _is_ours(path: Path) -> bool:
    """Whether it is a folder of this user: others may write to the folder that it is in."""
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _built(given: PlatformConfig, folders: Folders, clock: Clock, own: Own) -> Platform:
    options, place = {**given.options, **_OURS}, folders.platform(given.name)
    made = catalog.build(given.name, given.type, options, folder=place, clock=clock)
    if isinstance(made, Equipped):
        made.equip(own)
    return made


def _platform(wired: Wired, name: str | None) -> PlatformConfig:
    """The platform of this name or type in the config. Without a name, the first process platform, or a plain
    one if there is none."""
    local = [each for each in wired.config.platforms if each.type in _TYPES]
    if name is None:
        found = next((each for each in local if each.type == _TYPES[0]), None)
        return found or PlatformConfig("here", "process")
    found = next((each for each in local if name in (each.name, each.type)), None)
    if found is None and name in _TYPES:
        return PlatformConfig(name, name)
    if found is None:
        there = ", ".join(dict.fromkeys([*(each.name for each in local), *_TYPES]))
        raise InputError(f"a rehearsal cannot run on {name!r}, only on this machine: {there}")
    return found


def _with_witness(parsed: Parsed) -> Parsed:
    """The job without rules and limits that are for real runs, and with our witness in its source."""
    route = replace(parsed.job.route, platforms=(), rules=())
    return replace(parsed, job=replace(parsed.job, route=route), extra=dict(legs.additions()))


def _choice(job: Job, platform: Platform) -> Choice:
    """How the job runs there. Raises InputError with the reason if it cannot."""
    reasons = []
    for offer in platform.survey():
        fit = fit_on(job, offer, {})
        if isinstance(fit, Fit):
            return _chosen(offer, fit)
        reasons.append(f"{offer.platform}/{offer.accelerator}: {fit}")
    told = "; ".join(reasons) or f"{platform.name} offers nothing"
    raise InputError(f"the job cannot be rehearsed there: {told}")


def _chosen(offer: Offer, fit: Fit) -> Choice:
    nothing = Estimate(0.0, 0.0, 0.0, 0.0, 1, 0.0, 0.0, 0.0, "a rehearsal")
    return Choice(offer, fit.micro_batch, fit.accumulate, fit.row.devices, nothing)
