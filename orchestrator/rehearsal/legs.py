"""Runs the legs of a rehearsal: real sessions of a real platform, one after the other.

Knows how a leg is started, waited for and read. Decides neither how many there are nor what they mean.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.clock import Clock
from orchestrator.core.assign import assign
from orchestrator.core.checkpoint import Accepted, CheckpointRef, Manifest, decode
from orchestrator.core.job import Job, Keep
from orchestrator.core.offer import Choice
from orchestrator.core.order import EndAt, Order, Outcome, Result
from orchestrator.core.run import RunRecord
from orchestrator.core.session import Sighting, StopReply
from orchestrator.errors import OrchestratorError, Transient
from orchestrator.files import make_folder
from orchestrator.platforms.platform import Cleaning, Platform, Sight
from orchestrator.rehearsal import witness
from orchestrator.rehearsal.comparing import Seen, opened, trace
from orchestrator.session import saying
from orchestrator.session.layout import CHECKPOINTS, MANIFEST, blob_path
from orchestrator.session.outbox import collect
from orchestrator.session.staging import Materials
from orchestrator.stores import checkpoints as stored

FOLDER = ".orchestrator/rehearsal"  # in the bundle
SITE = f"{FOLDER}/sitecustomize.py"
TRACE = f"{FOLDER}/trace.jsonl"
_KEPT = 1000
_INTERVAL_SECONDS = 1.0  # between requests; of what a script saves by itself, every save is taken
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Leg:
    """What one session left. `seconds` it took. `late`: it was stopped because nothing happened for too long.
    `into`: the folder with its checkpoints, in outbox layout. `opened`: the witness saw that what it was to
    resume was read."""

    name: str
    session: str
    into: Path
    result: Result | None
    manifests: tuple[Manifest, ...]
    trace: tuple[Seen, ...]
    warnings: tuple[str, ...]
    seconds: float
    late: bool = False
    opened: bool = False

    @property
    def completed(self) -> bool:
        """Whether it trained to its last step."""
        return not self.late and self.result is not None and self.result.outcome is Outcome.COMPLETED

    @property
    def newest(self) -> Manifest | None:
        return max(self.manifests, key=lambda each: each.ref.step, default=None)

    @property
    def steps(self) -> frozenset[int]:
        return frozenset(each.ref.step for each in self.manifests)

    @property
    def how(self) -> str:
        """How it ended, in words."""
        if self.late:
            return "it did nothing for too long, and was stopped"
        return "it left no result" if self.result is None else self.result.message

    def laid_out(self, step: int, target: Path) -> Path:
        """The checkpoint of a step as the training wrote it, in the new folder `target`."""
        [manifest] = [each for each in self.manifests if each.ref.step == step]
        stored.restore(self.into, [manifest], target)
        return target


@dataclass
class Ground:
    """Where the legs run. `materials` are the same for all but what they resume. `patience` is how many
    seconds a leg may take without a new checkpoint. `say` takes a line of progress."""

    platform: Platform
    job: Job
    choice: Choice
    materials: Materials
    folder: Path
    clock: Clock
    patience: float
    say: Callable[[str], None]
    run: str
    legs: list[Leg] = field(default_factory=list)

    def leg(self, name: str, total: int, end_at: EndAt | None = None, after: Leg | None = None) -> Leg:
        """Runs one leg to its end. Whatever happens, nothing of it runs on."""
        order = self._order(total, end_at, after)
        began = self.clock.monotonic()
        materials = replace(self.materials, resume=None if after is None else after.into)
        try:
            self.platform.prepare(order, materials)
            self.platform.launch(order)
            late = not self._wait(order.session, began)
            leg = self._read(name, order, late, self.clock.monotonic() - began)
        finally:
            end(self.platform, order.session, self.clock)
        self.legs.append(leg)
        return leg

    def _order(self, total: int, end_at: EndAt | None, after: Leg | None) -> Order:
        resume = () if after is None or after.newest is None else (_accepted(after.newest),)
        job = replace(self.job, work=replace(self.job.work, total=total))
        record = RunRecord(self.run, job, self.clock.now(), generation=len(self.legs), accepted=resume)
        order = assign(record, self.choice)
        paths = dict(order.env).get("PYTHONPATH", "")
        env = {**dict(order.env), witness.TRACE: TRACE, "PYTHONPATH": f"{FOLDER}:{paths}".rstrip(":")}
        return replace(
            order,
            end_at=end_at,
            env=tuple(sorted(env.items())),
            keep=Keep(last=_KEPT),
            interval_seconds=0.0 if job.checkpoint.watch else _INTERVAL_SECONDS,
            outputs=(TRACE,),
        )

    def _wait(self, session: str, began: float) -> bool:
        """Until it has ended. False if it was stopped, because no checkpoint came for too long."""
        never, moved_at, newest, asked = threading.Event(), began, "", False
        while True:
            sight = self.platform.observe([session]).get(session)
            if sight is not None and sight.sighting in (Sighting.ENDED, Sighting.ABSENT):
                return not asked
            now = self.clock.monotonic()
            checkpoint = _checkpoint(sight)
            if checkpoint != newest:
                newest, moved_at = checkpoint, now
            if now - moved_at > self.patience and not asked:
                self.platform.stop(session)
                asked = True
            self.clock.wait(never, _POLL_SECONDS)

    def _read(self, name: str, order: Order, late: bool, seconds: float) -> Leg:
        into = self.folder / order.session
        make_folder(into)
        outbox = self.platform.open(order.session)
        said = saying.said(outbox)
        while (found := collect(outbox, into, last=True)).more:
            pass
        if found.lack is not None:
            raise found.lack
        manifests = _manifests(into)
        kept = [each for each in manifests if each.ref.outputs]
        warnings = () if said.status is None else said.status.warnings
        checkpoints = tuple(each for each in manifests if not each.ref.outputs)
        noted = _noted(into, kept)
        return Leg(
            name, order.session, into, said.result, checkpoints, trace(noted), warnings, seconds, late,
            opened(noted),
        )  # fmt: skip


def end(platform: Platform, session: str, clock: Clock) -> None:
    """Also after Ctrl-C: a session must not outlive its rehearsal. What still runs is killed at once, because
    nobody waits for what it would save."""
    with undisturbed():
        if platform.stop(session) is not StopReply.ENDED:
            _kill(platform, session)
        never = threading.Event()
        while True:
            sight = platform.observe([session]).get(session)
            if sight is None or sight.sighting in (Sighting.ENDED, Sighting.ABSENT):
                break
            clock.wait(never, _POLL_SECONDS)
        platform.discard(session)


def _kill(platform: Platform, session: str) -> None:
    if not isinstance(platform, Cleaning):
        return
    for leftover in platform.leftovers():
        if leftover.session == session and leftover.alive:
            with suppress(Transient):  # it is dying
                platform.remove(leftover)


@contextmanager
def undisturbed() -> Iterator[None]:
    """A second Ctrl-C waits until the block has tidied up."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _checkpoint(sight: Sight | None) -> str:
    if sight is None or sight.outbox is None:
        return ""
    try:
        status = saying.said(sight.outbox).status
    except OrchestratorError:
        return ""
    return "" if status is None else str(status.checkpoint)


def _accepted(manifest: Manifest) -> Accepted:
    return Accepted(manifest.ref, manifest.size, {}, manifest.created_at, manifest.sha256)


def _manifests(into: Path) -> list[Manifest]:
    """Oldest first."""
    found = []
    for path in sorted((into / CHECKPOINTS).glob(f"*/{MANIFEST}")):
        if CheckpointRef.parse(path.parent.name) is not None:
            found.append(decode(path.parent.name, path.read_bytes()))
    return found


def _noted(into: Path, kept: list[Manifest]) -> str:
    """What the witness wrote."""
    for manifest in kept:
        for entry in manifest.files:
            if entry.path == TRACE:
                data = b"".join((into / blob_path(part.sha256)).read_bytes() for part in entry.parts)
                return data.decode(errors="replace")
    return ""


def additions() -> Mapping[str, bytes]:
    """What a rehearsal adds to the job's source: path → content."""
    return {SITE: Path(witness.__file__).read_bytes()}
