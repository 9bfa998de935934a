"""Sessions as containers of a local or remote Docker engine. Nothing is mounted from any machine.

A session is its container, found by name and label, so every controller sees the same. Files go in before
the start and come out at any time, as archives. Must never decide, and keeps no state except its clients,
caches and when it asked sessions to stop.
"""

from __future__ import annotations

import hashlib
import tarfile
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError
from docker.errors import NotFound as DockerNotFound
from requests import ReadTimeout

from orchestrator.clock import Clock
from orchestrator.core.offer import Offer, machine_id
from orchestrator.core.order import Order, Outcome
from orchestrator.core.own_accelerators import NO_OWN, Own
from orchestrator.core.session import Sighting, StopReply
from orchestrator.errors import NameTaken, NotFound, Rejected, Transient
from orchestrator.platforms.docker import checking, endings, gpus, images, leftovers
from orchestrator.platforms.docker import container as containers
from orchestrator.platforms.docker.archives import Entry
from orchestrator.platforms.docker.connection import Connection
from orchestrator.platforms.docker.container import LABEL, EngineClock, Found
from orchestrator.platforms.docker.gpus import Probe
from orchestrator.platforms.docker.options import DockerOptions
from orchestrator.platforms.docker.outbox import ContainerOutbox
from orchestrator.platforms.docker.surveying import offers
from orchestrator.platforms.platform import Finding, Leftover, Sight
from orchestrator.session.layout import SESSION, STOP
from orchestrator.session.staging import Materials

_FILE_BYTES_MAX = 1 << 20
_IDENTITY_CHARS = 16
# Errors that the files or answers of one container can cause; never errors of the engine's connection.
_UNREADABLE = (tarfile.TarError, ValueError, KeyError, TypeError, ArithmeticError)


def _machine(info: Mapping[str, Any]) -> str:
    """The engine by its own id: controllers on several machines may share it. Empty if it gives none."""
    given = info.get("ID")
    identity = hashlib.sha256(str(given).encode()).hexdigest()[:_IDENTITY_CHARS]
    return machine_id(identity, str(info.get("Name") or "an engine")) if given else ""


class DockerPlatform:
    """The docker platform `name`. `folder` is its own folder on this machine, with the id of this home."""

    def __init__(self, name: str, options: DockerOptions, folder: Path, clock: Clock) -> None:
        self._name = name
        self._options = options
        self._folder = folder
        self._clock = clock
        self._connection = Connection(name, options)
        self._probe = Probe()
        self._own: Own = NO_OWN
        self._asked: dict[str, float] = {}
        self._asked_lock = threading.Lock()
        self._incarnations: dict[str, bytes] = {}  # of living containers, by id

    @property
    def name(self) -> str:
        return self._name

    def equip(self, own: Own) -> None:
        self._own = own

    def survey(self) -> tuple[Offer, ...]:
        client = self._connection.client("survey")
        with self._connection.told("survey"):
            info = client.info()
            others = tuple(f for f in containers.listed(client) if not self._is_mine(f))
            probe = self._probed(client, info)
            found = offers(self._name, self._options, info, others=others, probe=probe, own=self._own)
        machine = _machine(info)
        return tuple(replace(each, traits=replace(each.traits, machine=machine)) for each in found)

    def _is_mine(self, found: Found) -> bool:
        return (found.home, found.platform) == (leftovers.known_home(self._folder), self._name)

    def _probed(self, client: docker.DockerClient, info: dict[str, Any]) -> Probe:
        """Asked again until there is an answer, then kept: GPUs do not change."""
        if not self._probe.found and self._options.gpus and gpus.lack(info) is None:
            home = leftovers.known_home(self._folder) or ""
            self._probe = gpus.probe(
                client, self._options, self._options.gpus, cdi=gpus.by_cdi(info), home=home
            )
        return self._probe

    def checkup(self) -> tuple[Finding, ...]:
        client = self._connection.client("checkup")
        with self._connection.told("checkup"):
            home = leftovers.known_home(self._folder) or ""
            place = self._connection.place
            return checking.findings(client, self._options, client.info(), place=place, home=home)

    # --- Starting ---------------------------------------------------------------------------------------

    def prepare(self, order: Order, materials: Materials) -> str | None:
        self._check(order)
        if materials.shipping is not None and not order.internet:
            raise Rejected(
                f"{order.session} cannot ship to its home store: a container whose job asks for no internet "
                "has no network; set the job's needs.internet, or `uplink: false` for "
                f"{self._name} in config.yaml"
            )
        client = self._connection.client("prepare")
        with self._connection.told("prepare"):
            there = self._cleared(client, order)
            if there is not None:
                return there.pin
            if _tombstone(client, order.session):
                return None
            image = images.resolve(client, self._options, order, materials, self._home())
            materials.say("copying the job's files into its container")
            chosen = gpus.choose(client, self._options, order)
            cdi = bool(chosen) and gpus.by_cdi(client.info())
            plan = containers.Plan(order, image, self._options, self._home(), chosen, cdi)
            containers.create(client, plan, materials)
            gpus.check_alone(client, self._options, order, chosen)
            return image.pin

    def _cleared(self, client: docker.DockerClient, order: Order) -> Found | None:
        """The container if the order is prepared already; otherwise None, after removing leftovers."""
        for found in containers.listed(client, session=order.session):
            if found.prepared and found.order == containers.fingerprint(order):
                return found
            if found.started and found.prepared:
                raise NameTaken(f"{order.session} was started with another order")
            containers.remove(client, found.id)
        containers.remove_volumes(client, keep=_stopped(order.session), session=order.session)
        return None

    def launch(self, order: Order) -> None:
        self._check(order)
        client = self._connection.client("launch")
        with self._connection.told("launch"):
            found = self._named(client, order.session)
            if (found is None or not found.started) and _tombstone(client, order.session):
                raise Rejected(f"{order.session} was stopped before it was launched")
            if found is None:
                raise Rejected(f"{order.session} is not prepared")
            if found.order != containers.fingerprint(order):
                raise Rejected(f"{order.session} is not prepared for this order")
            if found.started:
                return
            try:
                client.api.start(found.id)
            except DockerNotFound:
                if self._named(client, order.session) is None:
                    raise Rejected(f"{order.session} was stopped before it was launched") from None
                raise

    def _check(self, order: Order) -> None:
        if not SESSION.fullmatch(order.session):
            raise Rejected(f"{order.session!r} is not the name of a session")
        self._options.check(order, self._name)

    def _home(self) -> str:
        """The id that separates this home's containers from those of other homes on the engine."""
        return leftovers.home(self._folder)

    # --- Looking ----------------------------------------------------------------------------------------

    def observe(self, names: Iterable[str]) -> Mapping[str, Sight]:
        wanted = tuple(names)
        client = self._connection.client("observe")
        with self._connection.told("observe"):
            found = containers.listed(client, platform=self._name)
            there = {each.session: each for each in found if each.prepared}
            self._incarnations = {
                each.id: self._incarnations[each.id] for each in found if each.id in self._incarnations
            }
            clock = EngineClock(client)
            seen = ((name, self._sight(client, there.get(name), clock)) for name in wanted)
            return {name: sight for name, sight in seen if sight is not None}

    def _sight(self, client: docker.DockerClient, found: Found | None, clock: EngineClock) -> Sight | None:
        """None if the engine does not answer for this container, as while a file goes in or out of it."""
        if found is None:
            return Sight(Sighting.ABSENT)
        try:
            if not found.started:
                return self._not_started(client, found)
            if found.alive:
                return self._living(client, found, clock)
            return self._ended(client, found)
        except DockerNotFound:  # removed between the two calls
            return Sight(Sighting.ABSENT)
        except APIError as error:  # one container that cannot be read must not hide the others
            return Sight(Sighting.RUNNING, detail=f"it cannot be read: {error.explanation or error}")
        except _UNREADABLE as error:
            return Sight(Sighting.RUNNING, detail=f"it cannot be read: {error}")
        except ReadTimeout:  # the listing was answered: the engine itself is well
            return None

    def _not_started(self, client: docker.DockerClient, found: Found) -> Sight:
        """Absent, unless the engine tried to start it and failed."""
        error = client.api.inspect_container(found.id)["State"].get("Error")
        if not error:
            return Sight(Sighting.ABSENT)
        why = f"the engine could not start it: {error}"
        return Sight(Sighting.ENDED, ending=Outcome.NO_CAPACITY, detail=why)

    def _living(self, client: docker.DockerClient, found: Found, clock: EngineClock) -> Sight:
        self._enforce_wall(client, found, clock)
        outbox = self._outbox(found)
        if found.state != "paused":
            return Sight(Sighting.RUNNING, outbox)
        detail = f"the container is paused; to resume it: `docker unpause {found.name}`"
        return Sight(Sighting.RUNNING, outbox, detail=detail, notes=(detail,))

    def _ended(self, client: docker.DockerClient, found: Found) -> Sight:
        """How it ended according to the engine. A result in its outbox takes precedence."""
        state = client.api.inspect_container(found.id)["State"]
        asked = self._asked_to_stop(client, found)
        said, python = containers.last_words(client, found.id), self._options.python
        ending, detail = endings.how(state, wall_seconds=self._wall, asked=asked, said=said, python=python)
        return Sight(Sighting.ENDED, self._outbox(found), ending, detail)

    def _asked_to_stop(self, client: docker.DockerClient, found: Found) -> bool:
        try:
            return containers.read(client, found.id, STOP, _FILE_BYTES_MAX) is not None
        except ValueError:  # something is there
            return True

    def _outbox(self, found: Found) -> ContainerOutbox:
        return ContainerOutbox(self._connection, found.id, alive=found.alive, incarnations=self._incarnations)

    @property
    def _wall(self) -> float | None:
        limit = self._options.session_seconds
        return None if limit is None else limit + self._options.slack_seconds

    def _enforce_wall(self, client: docker.DockerClient, found: Found, clock: EngineClock) -> None:
        """Kills what runs longer than its limit, by the engine's own clock."""
        if self._wall is None:
            return
        began = endings.moment(client.api.inspect_container(found.id)["State"]["StartedAt"])
        if (clock.now - began).total_seconds() > self._wall:
            try:
                _signal(client, found, "SIGKILL")
            except APIError as error:
                if error.status_code not in (404, 409):  # it has just ended
                    raise

    def open(self, name: str) -> ContainerOutbox:
        client = self._connection.client("collect")
        with self._connection.told("collect"):
            found = self._named(client, name)
        if found is None or not found.started:
            raise NotFound(f"no outbox of {name}", backend=self._name, operation="collect")
        return self._outbox(found)

    # --- Ending -----------------------------------------------------------------------------------------

    def stop(self, name: str) -> StopReply:
        client = self._connection.client("stop")
        with self._connection.told("stop"):
            found = self._named(client, name)
            if found is None or not found.started:
                if self._never_starts(client, name):
                    return StopReply.ENDED
                found = self._named(client, name)
            if found is None or not found.alive:
                return StopReply.ENDED
            return self._ask(client, found)

    def _never_starts(self, client: docker.DockerClient, name: str) -> bool:
        """Makes sure that nothing of this name can start any more. False if it has just started."""
        if not SESSION.fullmatch(name):
            return True
        given = {"session": name, "platform": self._name, "home": self._home()}
        client.api.create_volume(
            _stopped(name), labels={f"{LABEL}.{key}": value for key, value in given.items()}
        )
        found = self._named(client, name)
        if found is None:
            return True
        try:  # if it is started at this moment, it ends at once without training
            containers.put(client, found.id, self._options, Entry(STOP, b""))
            containers.remove(client, found.id)
        except APIError as error:
            if error.status_code not in (404, 409):
                raise
            return error.status_code == 404
        return True

    def _ask(self, client: docker.DockerClient, found: Found) -> StopReply:
        now = self._clock.monotonic()
        with self._asked_lock:
            asked = self._asked.get(found.session)
        try:
            if asked is None:
                containers.put(client, found.id, self._options, Entry(STOP, b""))
                _signal(client, found, "SIGTERM")
                with self._asked_lock:  # only now: the grace time starts when it was told
                    self._asked.setdefault(found.session, now)
            elif now - asked > self._options.grace_seconds:
                _signal(client, found, "SIGKILL")
            elif found.state == "paused":
                client.api.unpause(found.id)
        except APIError as error:
            if error.status_code not in (404, 409, 500):
                raise
            again = self._named(client, found.session)  # it may just have ended
            if again is not None and again.alive:
                raise
            return StopReply.ENDED
        return StopReply.REQUESTED

    def discard(self, name: str) -> None:
        client = self._connection.client("discard")
        with self._connection.told("discard"):
            for found in containers.listed(client, session=name, platform=self._name):
                if found.alive:
                    raise Transient(f"{name} is still running", backend=self._name, operation="discard")
                containers.remove(client, found.id)
            containers.remove_volumes(client, session=name, platform=self._name)
        with self._asked_lock:
            self._asked.pop(name, None)

    def leftovers(self) -> tuple[Leftover, ...]:
        home = leftovers.known_home(self._folder)
        if home is None:
            return ()
        client = self._connection.client("leftovers")
        with self._connection.told("leftovers"):
            return leftovers.found(client, home)

    def unneeded_images(self, needed: Iterable[Path]) -> tuple[Leftover, ...]:
        home = leftovers.known_home(self._folder)
        if home is None:
            return ()
        client = self._connection.client("unneeded_images")
        with self._connection.told("unneeded_images"):
            return images.unneeded(client, self._options, home, needed, self._own)

    def remove(self, leftover: Leftover) -> None:
        client = self._connection.client("remove")
        with self._connection.told("remove"):
            if leftover.kind == images.IMAGE:
                images.remove(client, self._home(), leftover.name)
                return
            leftovers.remove(client, self._home(), leftover)

    def _named(self, client: docker.DockerClient, name: str) -> Found | None:
        """The session's container; None if none of ours has its name."""
        if not SESSION.fullmatch(name):
            return None
        for found in containers.listed(client, session=name, platform=self._name):
            if found.prepared:
                return found
        return None


def _stopped(session: str) -> str:
    """The name of the volume that marks a session as never to be started."""
    return f"{session}.stopped"


def _tombstone(client: docker.DockerClient, session: str) -> bool:
    try:
        client.api.inspect_volume(_stopped(session))
    except DockerNotFound:
        return False
    return True


def _signal(client: docker.DockerClient, found: Found, signal: str) -> None:
    """A paused container receives no signal, not even SIGKILL, until it is resumed."""
    if found.state == "paused":
        client.api.unpause(found.id)
    client.api.kill(found.id, signal)
