"""Sessions without processes: puppets that write real files into real session folders, driven by a seed.

The platform around them is the real process platform; only the start of an agent is replaced. An honest
puppet trains as an agent would. A hostile one lies, floods, and replaces its files with odd things.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from orchestrator.clock import Clock
from orchestrator.core import wire
from orchestrator.core.checkpoint import CheckpointRef, FileEntry, Manifest, Part
from orchestrator.core.order import AgentStatus, Order, Outcome, Result
from orchestrator.platforms.process import ProcessPlatform
from orchestrator.platforms.process_options import ProcessOptions
from orchestrator.session.folder import SessionFolder
from tests import hostile
from tests.odd_files import (
    Shape,
    a_folder,
    a_link_to_a_device,
    a_link_to_itself,
    a_pipe,
    a_socket,
    not_to_be_read,
)

STEPS_PER_SECOND = 2.0
CHECKPOINT_STEPS = 25
TINY_CHECKPOINTS = 4000
SPARSE_BYTES = 1 << 40
STATUS_BYTES = 14 << 20


class Puppet:
    """One session's agent and script. Holds the session's lock while it lives."""

    def __init__(self, session: SessionFolder, order: Order, lock: int, clock: Clock, draw: Random) -> None:
        self.root = session.root
        self.outbox = session.outbox
        self.order = order
        self.draw = draw
        self.incarnation = hostile.incarnation(draw)
        self.alive = True
        self._lock = os.dup(lock)
        self._clock = clock
        self._began = clock.elapsed()
        self._saved = order.resume_step
        self._beats = 0
        for name in ("log", "blobs", "checkpoints"):
            (self.outbox / name).mkdir(parents=True, exist_ok=True)
        (self.outbox / "incarnation").write_text(self.incarnation)

    def leave(self) -> None:
        """The puppet is gone, and its lock is free."""
        if self.alive:
            self.alive = False
            os.close(self._lock)

    def act(self) -> None:
        """Acts out the time up to now."""
        if not self.alive:
            return
        if (self.root / "killed").exists():
            self.leave()
            return
        self._train()

    @property
    def step(self) -> int:
        done = int((self._clock.elapsed() - self._began) * STEPS_PER_SECOND)
        return min(self.order.steps_total, self.order.resume_step + done)

    def _train(self) -> None:
        self._beats += 1
        step, total = self.step, self.order.steps_total
        stopped = (self.root / "stop").exists()
        if step >= self._saved + CHECKPOINT_STEPS or step >= total or (stopped and step > self._saved):
            self.save(step)
        line = json.dumps({"step": step, "metrics": {"loss": 1.0}})
        self.scrawl("progress.jsonl", f"{line}\n".encode(), os.O_APPEND)
        self.scrawl("log/000001.log", f"at step {step}\n".encode())
        self.write("status.json", wire.encode(self.status()))
        if step >= total or stopped:
            outcome, code = (Outcome.COMPLETED, 0) if step >= total else (Outcome.STOPPED, 75)
            self.write("result.json", wire.encode(Result(self.incarnation, outcome, code, step, "it left")))
            self.leave()

    def status(self) -> AgentStatus:
        return AgentStatus(
            self.incarnation, self._beats, self._clock.now(), "training", self.step, STEPS_PER_SECOND, 1.0,
            None, self._saved,
        )  # fmt: skip

    def manifest(self, step: int, data: bytes) -> Manifest:
        sha256 = hashlib.sha256(data).hexdigest()
        files = (FileEntry("weights", len(data), (Part(sha256, len(data)),)),)
        ref = CheckpointRef(step, self.order.generation, self.incarnation)
        return Manifest(self.order.run, ref, self.order.global_batch, files, created_at=self._clock.now())

    def save(self, step: int) -> None:
        data = f"{self.order.run} at {step}".encode()
        manifest = self.manifest(step, data)
        self.put(manifest.name, manifest.encode(), data)
        self._saved = step

    def put(self, name: str, manifest: bytes, blob: bytes | None = None) -> None:
        if blob is not None:
            self.scrawl(f"blobs/{hashlib.sha256(blob).hexdigest()}", blob)
        self.place(f"checkpoints/{name}").mkdir(exist_ok=True)
        self.write(f"checkpoints/{name}/manifest.json", manifest)

    def write(self, path: str, data: bytes) -> None:
        draft = self.place(path).with_name(".tmp-draft")
        self.scrawl(str(draft.relative_to(self.outbox)), data)
        draft.replace(self.place(path))

    def scrawl(self, path: str, data: bytes, how: int = os.O_TRUNC) -> None:
        """Writes into an existing file without blocking: by now it may be a pipe that nobody reads."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | how
        with os.fdopen(os.open(self.place(path), flags, 0o600), "wb") as file:
            file.write(data)

    def place(self, path: str) -> Path:
        """The path of that file. Raises OSError if a link leads out of the session: puppets must not harm the
        machine."""
        place = self.outbox / path
        if not Path(os.path.realpath(place.parent)).is_relative_to(os.path.realpath(self.root)):
            raise OSError(errno.ELOOP, "leads out of the session", str(place))
        return place


class HostilePuppet(Puppet):
    """Does harm between honest moments. `tried` names what it tried, `done` what took effect."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.tried: list[str] = []
        self.done: list[str] = []
        self._favourites = self.draw.sample(ATTACKS, k=4)

    def act(self) -> None:
        with suppress(OSError):  # what it broke is broken for itself too
            super().act()
        if self.alive and self.draw.random() < 0.7:
            self.attack(self.draw.choice(self._favourites))

    def attack(self, attack: Attack) -> None:
        self.tried.append(attack.__name__)
        with suppress(OSError):
            if attack(self) is not False:
                self.done.append(self.tried[-1])


Attack = Callable[[HostilePuppet], bool | None]  # False: there was nothing to do


def lie_in_the_status(puppet: HostilePuppet) -> None:
    puppet.write("status.json", hostile.status(wire.to_json(puppet.status()), puppet.draw))


def claim_an_impossible_rate(puppet: HostilePuppet) -> None:
    fields = wire.to_json(puppet.status())
    fields[puppet.draw.choice(("steps_per_second", "step"))] = puppet.draw.choice(
        (10**308, 1e308, 10**400, 1e-320)
    )
    puppet.write("status.json", json.dumps(fields).encode())


def swell_the_status(puppet: HostilePuppet) -> None:
    fields = wire.to_json(puppet.status()) | {"warnings": ["x" * 1000] * (STATUS_BYTES // 1000)}
    puppet.write("status.json", json.dumps(fields).encode())


def lie_in_the_result(puppet: HostilePuppet) -> None:
    marker = Result(puppet.incarnation, Outcome.COMPLETED, 0, puppet.step, "done")
    puppet.write("result.json", hostile.result(wire.to_json(marker), puppet.draw))
    if puppet.draw.random() < 0.5:
        puppet.leave()


def lie_about_progress(puppet: HostilePuppet) -> None:
    puppet.scrawl("progress.jsonl", hostile.progress(puppet.draw))


def flood_the_log(puppet: HostilePuppet) -> None:
    name = puppet.draw.choice(
        ("000001.log", "000002.log", "-rf.log", "\x1b[2J.log", f"{10**30}.log", "é\udcff.log")
    )
    puppet.scrawl(f"log/{name}", hostile.log(puppet.draw) * puppet.draw.choice((1, 20)))


def change_the_incarnation(puppet: HostilePuppet) -> None:
    other = puppet.draw.choice((hostile.incarnation(puppet.draw), hostile.text(puppet.draw)))
    puppet.write("incarnation", other.encode("utf-8", "surrogatepass"))


def forge_a_checkpoint(puppet: HostilePuppet) -> None:
    data = f"{puppet.order.run} at {puppet.step}".encode()
    name, manifest = hostile.checkpoint(puppet.manifest(puppet.step, data), puppet.draw)
    puppet.put(name, manifest, data)


def date_a_checkpoint(puppet: HostilePuppet) -> None:
    manifest = puppet.manifest(puppet.step + 1, b"x")
    data = manifest.encode().replace(b'"created_at": ', b'"created_at": 1' + b"0" * 400 + b', "x": ')
    puppet.put(manifest.name, data)


def reach_beyond_all_steps(puppet: HostilePuppet) -> None:
    step = puppet.draw.choice((9999999999999999999, 2**63 - 1, 2**63, puppet.order.steps_total + 1))
    data = b"beyond"
    manifest = puppet.manifest(step, data)
    puppet.put(manifest.name, manifest.encode(), data)


def leave_thousands_of_checkpoints(puppet: HostilePuppet) -> bool:
    """Only once, because it takes long."""
    if "leave_thousands_of_checkpoints" in puppet.tried[:-1]:
        return False
    order = puppet.order
    for step in range(1, TINY_CHECKPOINTS + 1):
        name, manifest, sha256, data = hostile.tiny(order.run, order.generation, puppet.incarnation, step)
        puppet.scrawl(f"blobs/{sha256}", data)
        puppet.place(f"checkpoints/{name}").mkdir(exist_ok=True)
        puppet.scrawl(f"checkpoints/{name}/manifest.json", manifest)
    return True


def alter_a_blob(puppet: HostilePuppet) -> bool:
    blobs = list(puppet.place("blobs/any").parent.iterdir())
    chosen = [blob for blob in blobs if puppet.draw.random() < 0.3]
    for blob in chosen:
        puppet.scrawl(f"blobs/{blob.name}", puppet.draw.randbytes(8))
    return bool(chosen)


def name_folders_oddly(puppet: HostilePuppet) -> bool:
    made = False
    for place in ("checkpoints", "log", "blobs", "."):
        name = puppet.draw.choice(
            ("a\nb", "\x1b[2J", "-rf", "\udcff\udcfe", "x" * 255, ".tmp-x", " ", "0" * 10)
        )
        folder = puppet.place(f"{place}/{name}")
        made = made or not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
    return made


FILES = (
    "status.json", "result.json", "progress.jsonl", "incarnation", "log", "log/000001.log", "checkpoints",
    "blobs", ".",
)  # fmt: skip


def put_something_odd_in_the_place_of_a_file(puppet: HostilePuppet) -> bool:
    box, draw = puppet.outbox, puppet.draw
    places = [box / name for name in FILES]
    for folder in ("checkpoints", "blobs"):
        with suppress(OSError):
            places += list((box / folder).iterdir())[:3]
    with suppress(OSError):
        places += [entry / "manifest.json" for entry in list((box / "checkpoints").iterdir())[:3]]
    place = puppet.place(str(draw.choice(places).relative_to(box)))
    oddity = draw.choice((*ODDITIES, a_link_somewhere(draw)))
    puppet.tried[-1] = f"{oddity.__name__} at {place.relative_to(puppet.root)}"
    cleared = _clear(place)
    oddity(place)
    return cleared or oddity is not nothing


def _clear(place: Path) -> bool:
    """Whether there was anything to clear."""
    there = os.path.lexists(place)
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    return there


def a_link_somewhere(draw: Random) -> Shape:
    target = draw.choice(("/etc/passwd", "/etc", "nowhere", "..", "../../..", "/dev/full", "/proc/self/mem"))

    def a_link(place: Path) -> None:
        place.symlink_to(target)

    return a_link


def holes(place: Path) -> None:
    with place.open("wb") as file:
        file.truncate(SPARSE_BYTES)


def nothing(_place: Path) -> None:
    return


ODDITIES: tuple[Shape, ...] = (
    a_folder, a_pipe, a_socket, a_link_to_a_device, a_link_to_itself, holes, not_to_be_read, nothing,
)  # fmt: skip

ATTACKS: tuple[Attack, ...] = (
    lie_in_the_status, claim_an_impossible_rate, swell_the_status, lie_in_the_result, lie_about_progress,
    flood_the_log, change_the_incarnation, forge_a_checkpoint, date_a_checkpoint, reach_beyond_all_steps,
    leave_thousands_of_checkpoints, alter_a_blob, name_folders_oddly,
    put_something_odd_in_the_place_of_a_file,
)  # fmt: skip


class PuppetPlatform(ProcessPlatform):
    """The process platform, but it starts puppets. Those of runs in `hostile_runs` are hostile."""

    def __init__(self, folder: Path, clock: Clock, draw: Random, slots: int) -> None:
        options = ProcessOptions(accelerator="cpu", slots=slots, memory_gb=8.0, session_seconds=400.0,
                                 wall_margin_seconds=20.0, grace_seconds=20.0, threads=1)  # fmt: skip
        super().__init__("box", options, folder, clock)
        self._draw = draw
        self.hostile_runs: set[str] = set()
        self.puppets: list[Puppet] = []

    def _spawn(self, session: SessionFolder, lock: int, *_settings: object) -> None:
        order = session.ordered()
        assert order is not None
        (session.root / "launched").write_text(repr(self._clock.elapsed()))
        kind = HostilePuppet if order.run in self.hostile_runs else Puppet
        self.puppets.append(kind(session, order, lock, self._clock, Random(self._draw.random())))
