"""The outboxes of all incarnations of a simulated session, as one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from orchestrator.core import wire
from orchestrator.errors import Transient
from orchestrator.platforms.simulated.agent import SimulatedAgent
from orchestrator.session.layout import INCARNATION, LOG, RESULT, STATUS
from orchestrator.session.outbox import Growth


class SimulatedOutbox:
    """The outbox at time `at`. Of several results it shows that of the agent that started first."""

    def __init__(self, agents: list[SimulatedAgent], at: float) -> None:
        self._agents = agents
        self.at = at

    def small(self, name: str) -> bytes | None:
        if name == INCARNATION:
            return "\n".join(agent.incarnation for agent in self._agents).encode()
        if name == STATUS:
            speaker = next((agent for agent in self._agents if agent.running), self._agents[0])
            return wire.encode(speaker.status(self.at))
        assert name == RESULT
        found = next((agent.result for agent in self._agents if agent.result is not None), None)
        return None if found is None else wire.encode(found)

    def checkpoints(self) -> Iterable[str]:
        return [name for agent in self._agents for name in agent.checkpoints]

    def manifest(self, name: str) -> bytes | None:
        found = (agent.checkpoints[name] for agent in self._agents if name in agent.checkpoints)
        return next((manifest.encode() for manifest in found), None)

    def blob(self, sha256: str, target: Path) -> bool:
        data = next((agent.blobs[sha256] for agent in self._agents if sha256 in agent.blobs), None)
        if data is not None:
            target.write_bytes(data)
        return data is not None

    def growing(self, here: Path, folder: Path) -> Growth:
        del here
        written = [checkpoint for agent in self._agents for checkpoint in agent.life.written]
        (folder / LOG).mkdir()
        lines = "".join(f"{each.at:.0f} checkpoint {each.name}\n" for each in written)
        (folder / LOG / "000001.log").write_text(lines)
        return Growth(folder)


class SpokenOutbox(SimulatedOutbox):
    """Only what a session says of itself while it runs."""

    def small(self, name: str) -> bytes | None:
        return None if name == RESULT else super().small(name)

    def checkpoints(self) -> Iterable[str]:
        return []


class PartialOutbox(SimulatedOutbox):
    """An outbox that is listed, while its blobs cannot be downloaded yet."""

    def blob(self, sha256: str, target: Path) -> bool:
        if any(sha256 in agent.blobs for agent in self._agents):
            raise Transient(f"blob {sha256[:12]}… cannot be downloaded yet")
        return super().blob(sha256, target)
