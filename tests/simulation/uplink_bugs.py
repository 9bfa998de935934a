"""Bugs to plant where sessions ship their own outbox: fences, claims, pins and heartbeats.

Every bug patches one place. tests/simulation/test_planted_bugs.py says which check catches it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core import decide, ending, reports, watch, wire
from orchestrator.core.event import Ended
from orchestrator.core.offer import Uplink
from orchestrator.stores import checkpoints as stored
from orchestrator.uplink import accepting, outbox, registers, shipping
from tests.simulation import bugs


def ignores_the_fence(patch: pytest.MonkeyPatch) -> None:
    def check(store: Any, run: str, generation: int) -> registers.Fence:
        return registers.fence_of(store, run) or registers.Fence(generation)

    patch.setattr(registers, "check_fence", check)


def looks_at_the_fence_once(patch: pytest.MonkeyPatch) -> None:
    real = shipping.Uplink._check

    def check(self: Any) -> None:
        if not self._claimed:
            real(self)

    patch.setattr(shipping.Uplink, "_check", check)


def claims_what_is_claimed(patch: pytest.MonkeyPatch) -> None:
    def claim(store: Any, keys: Any, incarnation: str) -> None:
        held = store.registers.read(keys.claim)
        claim = wire.encode(registers.Claim(incarnation))
        store.registers.swap(keys.claim, claim, None if held is None else held.version)

    patch.setattr(registers, "claim", claim)


def closes_without_a_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(registers, "close_fence", lambda *_: None)


def retires_without_looking_at_the_pins(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(registers, "pinned", lambda _store, _keys: frozenset())


def retires_all_but_the_oldest(patch: pytest.MonkeyPatch) -> None:
    def superseded(published: Any, *, pinned: Any, **_: Any) -> Any:
        return [each for each in list(published)[1:] if each.name not in pinned]

    patch.setattr(shipping, "superseded_while_open", superseded)


def accepts_what_another_agent_ships(patch: pytest.MonkeyPatch) -> None:
    """The claim is not asked whose checkpoints count."""

    def published(self: Any) -> dict[str, None]:
        refs = stored.names(self._store, self._keys.run)
        return {ref.name: None for ref in refs if ref.generation == self._generation}

    patch.setattr(outbox.StoreOutbox, "published", published)
    claims_what_is_claimed(patch)
    bugs.accepts_every_incarnation(patch)


def accepts_without_looking_for_blobs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(accepting.Look, "_complete", lambda _self, manifest, _listed: [manifest])


def deletes_what_is_not_complete(patch: pytest.MonkeyPatch) -> None:
    real = accepting.Look._wait

    def impatient(self: Any, name: str, reason: str) -> None:
        real(self, name, reason)
        self._store.delete(stored.manifest_key(self._keys.run, name))

    patch.setattr(accepting.Look, "_wait", impatient)


def goes_on_without_what_is_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reports, "waits_for_late", lambda _session, _now: False)


def believes_a_heartbeat_too_long(patch: pytest.MonkeyPatch) -> None:
    real = watch.Watch.silent_for
    patch.setattr(watch.Watch, "silent_for", lambda self, seconds: real(self, 3.0 * seconds))


def gives_up_what_does_not_ship(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ending, "is_durable", lambda traits, _status: traits.durable_mid_run)


def stops_what_does_not_ship(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decide, "is_durable", lambda traits, _status: traits.durable_mid_run)


def believes_the_platform_before_the_heart(patch: pytest.MonkeyPatch) -> None:
    real = ending.ending

    def hasty(session: Any, seen: Any, now: float, **more: Any) -> Ended | None:
        traits = replace(session.traits, uplink=Uplink.SHARED)
        return real(replace(session, traits=traits), seen, now, **more)

    patch.setattr(decide, "ending", hasty)
