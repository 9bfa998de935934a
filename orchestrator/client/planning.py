"""Plans a job before anything is launched: freezes it, judges every offer, and plans hop by hop.

Decides what must not leave with a job. Writes only into the folder it freezes into; must never record a run.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import installation, spec
from orchestrator.client import fetching_inputs, pulled, pythons, routing
from orchestrator.client.fetching_inputs import Fetching
from orchestrator.client.own_python import Told
from orchestrator.client.routing import JudgedClaim
from orchestrator.client.wiring import Wired
from orchestrator.core import notebook
from orchestrator.core import route as routes
from orchestrator.core.advice import advice
from orchestrator.core.job import DEFAULT, FROZEN_IMAGE, Job, frozen_image
from orchestrator.core.offer import Hop, Offer, Route, UntilKind
from orchestrator.core.order import GIT_COMMIT
from orchestrator.core.route import Verdict
from orchestrator.core.run import RunRecord
from orchestrator.core.save_pattern import SavePattern
from orchestrator.core.wording import unknown
from orchestrator.errors import InputError, SpecError
from orchestrator.fetching.bringing import Fetched
from orchestrator.freeze import bundle, images, inputs, leaving, left_out, requirement_file, requirements
from orchestrator.freeze.leaving import Contents, Part
from orchestrator.home import BUNDLES, IMAGES, Folders
from orchestrator.interpreters import Unusable, ask
from orchestrator.ledger import Ledger
from orchestrator.spec import Parsed

if TYPE_CHECKING:
    from orchestrator.client.client import Client


@dataclass(frozen=True)
class Plan:
    """Where and when a job would run, and what leaves with it. Times in unix seconds.

    `job` has everything it names pinned. `hops` are its sessions one after the other; empty if no offer was
    chosen or the speed is unknown. `leaves` is what leaves this machine. `secrets_not_set` are its secrets
    that this process's environment does not have. `shipping`: the platforms whose sessions get what opens the
    home store. `pythons`: the user's own, on the platforms that use it. `unlocked`: why its requirements
    could not be locked; empty if they are locked, or if there are none. `warnings`: what its author should
    look at, in sentences. `contents`: the source's files, and what of it is left out. `fetched`: its inputs
    from the network.
    """

    job: Job
    route: Route
    hops: tuple[Hop, ...]
    claims: tuple[JudgedClaim, ...]
    leaves: tuple[Part, ...]
    secrets_not_set: tuple[str, ...] = ()
    unlocked: str = ""
    shipping: tuple[str, ...] = ()
    pythons: tuple[Told, ...] = ()
    warnings: tuple[str, ...] = ()
    contents: Contents = field(default_factory=Contents)
    fetched: tuple[Fetched, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """What a submit would do: launch, queue (also until a machine is started), ask a person first, or
        refuse."""
        return routes.verdict(self.route)

    @property
    def opens_at(self) -> float | None:
        """The earliest time at which a rejection ends by itself; None if none does."""
        return routes.opens_at(self.route)

    @property
    def commands(self) -> tuple[str, ...]:
        """What a person could do about the rejections."""
        return routes.commands(self.route)

    @property
    def destinations(self) -> tuple[str, ...]:
        """The platforms that the job may ever be sent to, the chosen one first."""
        route = self.route
        taken = [choice.offer.platform for choice in (route.chosen, *route.others) if choice is not None]
        later = [each.platform for each in route.rejections if each.until.kind is not UntilKind.NEVER]
        return tuple(dict.fromkeys([*taken, *later]))

    @property
    def opens_store(self) -> tuple[str, ...]:
        """The destinations that get what opens the run's home store, its credential included."""
        return tuple(each for each in self.destinations if each in self.shipping)

    @property
    def requirements_locked(self) -> bool | None:
        """Whether all requirements are locked; None if the job has none."""
        given = self.job.all_requirements
        return all(each.lock is not None for each in given.values()) if given else None


@dataclass(frozen=True)
class Frozen:
    """A job with everything it names pinned, what leaves with it, and why its requirements are not locked.
    `contents`: what of the source leaves, and what not. `fetched`: its inputs from the network."""

    job: Job
    leaves: tuple[Part, ...]
    unlocked: str
    contents: Contents = field(default_factory=Contents)
    fetched: tuple[Fetched, ...] = ()


def plan(client: Client, job: str | os.PathLike[str], platforms: tuple[str, ...]) -> Plan:
    """See `Client.plan`."""
    wired = client.wired()
    parsed = parse(wired, job, platforms)
    check_secrets(wired, parsed.job)
    with tempfile.TemporaryDirectory(prefix="orchestrator-") as folder:
        frozen = freeze(parsed, Path(folder), Fetching(wired, brings=False))
    with client.ledgers.existing() as ledger:
        market = routing.market(wired, ledger)
        route = routing.route_in(market, ledger, RunRecord(frozen.job.name, frozen.job, client.clock.now()))
        return planned(wired, frozen, route, ledger, market.offers())


def planned(
    wired: Wired, frozen: Frozen, route: Route, ledger: Ledger | None, offers: tuple[Offer, ...] = ()
) -> Plan:
    """The plan of a frozen job with this route. `offers`: all, for a job with a schedule."""
    job, measurements, now = frozen.job, routing.measured(ledger, frozen.job), wired.clock.now()
    known = route.chosen is None or routing.rate_is_known(route.chosen, job)
    return Plan(
        job,
        route,
        routes.plan(job, route, now=now, measurements=measurements) if known else (),
        tuple(routing.claims(job, measurements)),
        frozen.leaves,
        tuple(name for name in job.secrets if name not in os.environ),
        frozen.unlocked,
        wired.shipping,
        pythons.told(wired, job),
        (
            *(each.warning for each in frozen.fetched if each.warning),
            *left_out.named(job.command, frozen.contents.left_out),
            *_no_kernel(job, route),
            *_warnings(job, offers, now),
        ),
        frozen.contents,
        frozen.fetched,
    )


def _no_kernel(job: Job, route: Route) -> Iterator[str]:
    """Whether a notebook would run with this Python, which cannot. Other machines are not known."""
    if route.chosen is None or notebook.of_command(job.command, shell=job.shell) is None:
        return
    traits = route.chosen.offer.traits
    if not traits.own_python or job.requirements is not None:
        return
    path = sys.executable if job.python is None else job.python.path
    with suppress(Unusable):
        if not ask(path, ("ipykernel",)).packages:
            lacks = "a notebook needs ipykernel, which this Python does not have"
            own = path == sys.executable
            how = (
                installation.found().adding_package("ipykernel")
                if own
                else f"{path} -m pip install ipykernel"
            )
            yield f"{lacks}: {how}"


def _warnings(job: Job, offers: tuple[Offer, ...], now: float) -> tuple[str, ...]:
    told = advice(job)
    if job.schedule is None:
        return told
    from orchestrator import cron
    from orchestrator.core.pointless import FIRES, pointless

    fires = tuple(islice(cron.planned_after(job.schedule, job.name, now), FIRES))
    return (*told, *pointless(job, fires, offers))


def parse(wired: Wired, job: str | os.PathLike[str], platforms: tuple[str, ...]) -> Parsed:
    """The job in the file, limited to these platforms if any are named, with the Python that it gets on this
    machine. Raises SpecError or InputError."""
    return pythons.frozen(wired, _limited(wired, spec.load(Path(job), wired.config.accelerators), platforms))


def _limited(wired: Wired, parsed: Parsed, platforms: tuple[str, ...]) -> Parsed:
    wanted = tuple(dict.fromkeys(platforms))
    known = [each.name for each in wired.config.platforms]
    for name in wanted:
        if name not in known:
            raise InputError(unknown(f"platform {name!r}", name, known))
    if wanted:
        route = replace(parsed.job.route, platforms=wanted)
        return replace(parsed, job=replace(parsed.job, route=route))
    unknown_names = [name for name in parsed.job.route.platforms if name not in known]
    if unknown_names and len(unknown_names) == len(parsed.job.route.platforms):
        told = unknown(f"platform {unknown_names[0]!r}", unknown_names[0], known)
        advice = f"{told}; write one of your config, or add it there"
        raise SpecError((parsed.mistake(("route", "platforms"), advice),))
    return parsed


def check_secrets(wired: Wired, job: Job) -> None:
    """Raises InputError that names every secret which the config does not allow, and the address."""
    refused = [told for name in job.secrets if (told := wired.config.secret_refusal(name, job.secrets))]
    if job.notify is not None and (told := wired.config.address_refusal(job.notify.url)):
        refused.append(told)
    if refused:
        raise InputError("\n".join(refused))


def freeze(parsed: Parsed, into: Path, fetching: Fetching) -> Frozen:
    """Pins everything that the job names, and puts archives of its source and image into the home `into`, and
    what was fetched for it.

    It may take minutes, so call it after all cheaper checks. Raises InputError for files that must not leave
    this machine.
    """
    parsed, unlocked = _locked(parsed)
    with parsed.at("inputs"):
        given = leaving.check_inputs(parsed.job.inputs, parsed.input_allow)
        # First, because it may take long, and `prune` spares only young archives.
        pinned, fetched = fetching.pinned(parsed)
        if fetched and fetching.brings:  # the home's own copy: the cache may lose it
            inputs.stage(pinned, Folders(into).inputs)
    with parsed.at("source"):
        made = bundle.frozen(
            parsed.source,
            into / BUNDLES,
            allow=parsed.source_allow,
            also=parsed.also,
            pulled=pulled.known(fetching.wired.folders),
        )
    _check_local_paths(parsed, Folders(into).bundle(made.sha256))
    if told := old_checkpoints(parsed.job, Folders(into).bundle(made.sha256)):
        raise SpecError((parsed.mistake(("checkpoint", "watch"), told),))
    image = parsed.job.image
    if parsed.image is not None:
        with parsed.at("image"):
            frozen = images.freeze(
                parsed.image,
                into / IMAGES,
                requirements=parsed.requirements.get(DEFAULT),
                allow=parsed.source_allow,
            )
        image = f"{FROZEN_IMAGE}{frozen}"
    job = replace(parsed.job, bundle=made.sha256, image=image, inputs=pinned)
    if parsed.source is not None:
        job = with_commit(job, parsed.source)
    contents = leaving.contents(Folders(into).bundle(made.sha256), made.left_out)
    leaves = (*_archived(parsed, job, into), *given, *fetching_inputs.parts(fetched))
    return Frozen(job, leaves, unlocked, contents, fetched)


def with_commit(job: Job, source: Path) -> Job:
    """The job with the commit of its source in its environment, because `.git` stays here."""
    env = dict(job.env)
    env.pop(GIT_COMMIT, None)
    if commit := bundle.commit(source):
        env[GIT_COMMIT] = commit
    return replace(job, env=tuple(sorted(env.items())))


def old_checkpoints(job: Job, archive: Path) -> str:
    """What is wrong with a source that holds what looks like checkpoints of the run; empty if nothing is.
    Every session begins with the source, so a script that takes its newest file would take one of these."""
    watch = job.checkpoint.watch
    pattern = None if watch is None else SavePattern.parse(watch)
    if pattern is None or pattern.in_checkpoints or not pattern.numbered:
        return ""
    found = [name for name in leaving.names_in(archive) if pattern.covers(name)]
    if not found:
        return ""
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return (
        f"given {watch!r}, which matches {found[0]}{more} in the source, so every session would begin "
        "with old checkpoints; put them into .gitignore, and to begin with one, give it as an input"
    )


def _locked(parsed: Parsed) -> tuple[Parsed, str]:
    """The job with locked requirements, and for those that could not be locked the reason."""
    given = parsed.job.all_requirements
    folders = (Path(parsed.file).absolute().parent, *([] if parsed.source is None else [parsed.source]))
    # Only what builds an image knows what lies there.
    places = None if parsed.job.image is not None or parsed.source is None else (parsed.source,)
    for kind, file in parsed.requirements.items():  # all, before anything contacts the addresses in one
        with parsed.at("requirements"):
            requirement_file.check(file, folders, places)
            if given[kind].file not in parsed.source_allow:
                leaving.check_requirements(file)
    locks: dict[str, bytes] = {}
    reasons: list[str] = []
    for kind, file in parsed.requirements.items():
        try:
            lock = requirements.lock(file, {**os.environ, **dict(parsed.job.env)}, _oldest(parsed.job))
        except requirements.NotLocked as error:
            reasons.append(str(error) if kind == DEFAULT else f"for {kind}: {error}")
            continue
        if lock is not None:
            locks[kind] = lock.encode()
    return parsed.locked(locks), "\n".join(reasons)


def _check_local_paths(parsed: Parsed, archive: Path) -> None:
    """Refuses requirements that name what is not in the source. Those of a job with an image may be for its
    Dockerfile alone."""
    if parsed.image is not None or parsed.job.image is not None or not parsed.requirements:
        return
    names = frozenset(leaving.names_in(archive))
    with parsed.at("requirements"):
        if told := [each for file in parsed.requirements.values() for each in requirements.lost(file, names)]:
            raise InputError("\n".join(dict.fromkeys(told)))


def _oldest(job: Job) -> str:
    """The oldest Python that a lock must fit: the agent's, or the user's own if that is older."""
    if job.python is None or not job.python.version:
        return requirements.PYTHON
    own = ".".join(job.python.version.split(".")[:2])
    return min(own, requirements.PYTHON, key=lambda each: tuple(map(int, each.split("."))))


def _archived(parsed: Parsed, job: Job, into: Path) -> Iterator[Part]:
    folders = Folders(into)
    lists = [each.file for each in job.all_requirements.values()]
    yield from leaving.bundled(folders.bundle(job.bundle), str(parsed.source or ""), lists)
    image = frozen_image(job.image)
    if image is not None:
        yield leaving.imaged(folders.image(image), str(parsed.image))
