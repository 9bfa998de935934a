"""Sessions on another machine's own platform: its processes, or the containers of its engine.

After a takeover by a second machine, its platform of the same name is another one. That knows nothing of
these sessions, and must neither be asked for them nor be told to stop them. What they ship to the home store
still counts; of others nothing more is heard, and `orchestrator.core.ending` gives them up for lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from orchestrator.core.action import Action, Report, Stop
from orchestrator.core.offer import Offer, Uplink, host_of, is_same_machine
from orchestrator.core.order import Order
from orchestrator.core.run import RunRecord
from orchestrator.core.session import StopReply
from orchestrator.engine.perform import Backends, perform
from orchestrator.engine.surveying import FIRST_ANSWER_SECONDS
from orchestrator.errors import NoCapacity, NotFound, Transient
from orchestrator.platforms.platform import Platform, Sight
from orchestrator.session.outbox import Outbox
from orchestrator.session.staging import Materials


@dataclass(frozen=True)
class OutOfReach:
    """The platform `name` of the machine `where`, as seen from this one. Implements the platform protocol.
    `gone`: a session there that is given up counts as stopped, because its slot is not one of ours."""

    name: str
    where: str
    gone: bool = False

    def survey(self) -> tuple[Offer, ...]:
        return ()

    def prepare(self, order: Order, _materials: Materials) -> str | None:
        raise NoCapacity(f"{order.session} {self._why}", backend=self.name, operation="prepare")

    def launch(self, order: Order) -> None:
        raise Transient(f"{order.session} {self._why}", backend=self.name, operation="launch")

    def observe(self, _names: Iterable[str]) -> Mapping[str, Sight]:
        raise Transient(f"the session {self._why}", backend=self.name, operation="observe")

    def open(self, name: str) -> Outbox:
        raise NotFound(f"{name} {self._why}", backend=self.name, operation="collect")

    def stop(self, _name: str) -> StopReply:
        return StopReply.ENDED if self.gone else StopReply.REQUESTED

    def discard(self, _name: str) -> None:
        return None

    @property
    def _why(self) -> str:
        return f"belongs to {self.name} of the machine {self.where}, which this controller does not reach"


class Reach:
    """Which sessions this machine reaches. A platform's first answer says which machine its sessions are
    bound to; `began` is when this controller began to wait for it, by its monotonic clock."""

    def __init__(self, platforms: Mapping[str, Platform], began: float) -> None:
        self._platforms = platforms
        self._began = began
        self._machines: dict[str, str] = {}

    def surveyed(self, platform: str, offers: tuple[Offer, ...]) -> None:
        for offer in offers:
            self._machines[platform] = offer.traits.machine

    def is_unknown(self, record: RunRecord, monotonic: float) -> bool:
        """Whether to leave the run alone until its platforms have answered."""
        if monotonic - self._began > FIRST_ANSWER_SECONDS:
            return False
        if self._platforms.keys() <= self._machines.keys():
            return False
        session = record.session
        bound = [each.platform for each in record.strays if each.machine]
        if session is not None and session.traits.machine:
            bound.append(session.order.platform)
        return any(name in self._platforms and name not in self._machines for name in bound)

    def elsewhere(self, record: RunRecord) -> dict[str, OutOfReach]:
        """The run's sessions that are out of reach, each with its platform as seen from here."""
        session, found = record.session, {}
        for each in record.strays:
            if self._is_elsewhere(each.platform, each.machine):
                found[each.session] = OutOfReach(each.platform, host_of(each.machine), gone=True)
        if session is not None and self._is_elsewhere(session.order.platform, session.traits.machine):
            found[session.name] = OutOfReach(session.order.platform, host_of(session.traits.machine))
        return found

    def _is_elsewhere(self, platform: str, machine: str) -> bool:
        if not machine:
            return False
        mine = self._machines.get(platform)
        return bool(mine) and mine != machine and not is_same_machine(str(mine), machine)

    def beyond(self, record: RunRecord) -> str:
        """The host of the machine on which the run's session is out of reach; empty if it is not."""
        there = None if record.session is None else self.elsewhere(record).get(record.session.name)
        return "" if there is None else there.where

    def perform(self, action: Action, backends: Backends, record: RunRecord) -> Report:
        """Carries out an action; for a session that is out of reach, with the home store alone. Blocks."""
        there = self.elsewhere(record).get(action.session)
        if there is None:
            return perform(action, backends)
        session, asked = record.session, action
        if isinstance(action, Stop) and session is not None and not there.gone:
            ships = session.traits.uplink is Uplink.STORE  # then it hears the store, and nothing else
            asked = replace(action, store=record.store, generation=session.generation if ships else None)
        alone = replace(backends, platforms={**backends.platforms, there.name: there})
        return replace(perform(asked, alone), action=action)
