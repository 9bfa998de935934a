"""Reads sessions: what their platform sees and what they report, as one observation each. If that fails,
finds out whether one session or the platform causes it.

Runs in workers, never in the engine's thread. Knows platforms only through the protocol; decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from orchestrator.core import bounds
from orchestrator.core.order import Outcome
from orchestrator.core.session import Observation, Sighting
from orchestrator.errors import BackendError
from orchestrator.freeze import left_out
from orchestrator.home import Folders
from orchestrator.platforms.platform import Platform, Sight
from orchestrator.session.outbox import Outbox
from orchestrator.session.saying import Said, said
from orchestrator.unforeseen import Unforeseen, raise_again, sentence


@dataclass(frozen=True)
class Readings:
    """One platform's answer to observe. If it gave none, `trouble` says why, and there is only what sessions
    say elsewhere.

    `unread`: sessions that cannot be read, each with a sentence. `unheard`: sessions of which nothing is
    known now, each with the reason. `broken`: the platform's own code failed, or may have failed.
    """

    platform: str
    observations: Mapping[str, Observation]
    trouble: str = ""
    unread: Mapping[str, str] = field(default_factory=dict)
    unheard: Mapping[str, str] = field(default_factory=dict)
    broken: bool = False


def observe(
    name: str,
    platform: Platform,
    wanted: tuple[str, ...],
    unforeseen: Unforeseen = raise_again,
    outboxes: Mapping[str, Outbox] = MappingProxyType({}),
) -> Readings:
    """One batched reading. If the platform does not answer, the sessions that are heard elsewhere.

    If the platform's code fails, each session is read alone, to find the one that causes it. `outboxes`:
    session name → its outbox, for outboxes that are not on the platform.
    """
    try:
        found, unheard = _observations(platform, wanted, outboxes)
        return Readings(name, found, unheard=unheard)
    except (BackendError, OSError) as error:
        return Readings(name, _heard(outboxes, f"{name} does not answer"), str(error))
    except Exception as error:  # noqa: BLE001 the barrier: logged, and one session or platform is blamed
        doing = f"observing {', '.join(wanted[:3])}{' and others' if len(wanted) > 3 else ''}"
        unforeseen(doing, error)
        met = sentence(doing, error)
    several = wanted if len(wanted) > 1 else ()
    alone = [observe(name, platform, (each,), unforeseen, outboxes) for each in several]
    found = {session: seen for reading in alone for session, seen in reading.observations.items()}
    unheard = {session: why for reading in alone for session, why in reading.unheard.items()}
    if not found and _fails_by_itself(platform):
        return Readings(name, {}, met, broken=True)
    if not alone:
        return Readings(name, found, unread={wanted[0]: met})
    unread = {session: why for reading in alone for session, why in reading.unread.items()}
    if len(unread) == len(wanted):  # perhaps caused by no session: start none there for a while
        return Readings(name, found, met, unread, unheard, broken=True)
    return Readings(name, found, unread=unread, unheard=unheard)


def explained(readings: Readings, bundles: Mapping[str, str], folders: Folders) -> Readings:
    """The same readings, where a failure says why, if the training missed what a submit left at home. That
    fails again wherever it starts. `bundles`: session → its source's archive."""
    found = dict(readings.observations)
    for name, seen in readings.observations.items():
        result, bundle = seen.result, bundles.get(name)
        if result is None or result.outcome is not Outcome.CRASHED or not bundle:
            continue
        if why := left_out.missed(result.message, left_out.read(folders.bundle(bundle))):
            told = replace(result, message=f"{result.message.rstrip('.')}; {why}", hopeless=True)
            found[name] = replace(seen, result=told)
    return replace(readings, observations=found)


def _heard(outboxes: Mapping[str, Outbox], detail: str) -> dict[str, Observation]:
    """The sessions whose heartbeats come through a store. As long as their platform does not answer, they run
    until their hearts stop."""
    found = {}
    for name, each in outboxes.items():
        with suppress(BackendError, OSError):
            found[name] = observation(Sight(Sighting.RUNNING, detail=detail), each)
    return {name: seen for name, seen in found.items() if seen.status is not None}


def _observations(
    platform: Platform, wanted: tuple[str, ...], outboxes: Mapping[str, Outbox]
) -> tuple[dict[str, Observation], dict[str, str]]:
    """The sessions that can be read, and why nothing is known of the others."""
    found, unheard = {}, {}
    for session, sight in platform.observe(wanted).items():
        try:
            found[session] = observation(sight, outboxes.get(session))
        except (BackendError, OSError) as error:
            unheard[session] = str(error)
    return found, unheard


def observation(sight: Sight, elsewhere: Outbox | None = None) -> Observation:
    """One reading of one session. `elsewhere` is where it ships its outbox to: that is read if the platform
    cannot read the outbox itself.

    Raises BackendError or OSError if the outbox cannot be read now and either the session has ended (whether
    it left a result is unknown) or the outbox is elsewhere (whether its heart beats is unknown).
    """
    log = bounds.text(sight.log, bounds.SPOKEN_BYTES_MAX)
    if sight.outbox is None and elsewhere is None:
        return Observation(
            sight.sighting, ending=sight.ending, detail=sight.detail, notes=sight.notes, log=log
        )
    try:
        found = _said(sight, elsewhere)
    except (BackendError, OSError) as error:
        if sight.sighting is Sighting.ENDED or elsewhere is not None:
            raise
        return Observation(sight.sighting, detail=f"it cannot be read: {error}", notes=sight.notes, log=log)
    ending, detail = sight.ending, sight.detail
    if found.unfit:
        ending, detail = Outcome.CRASHED, f"its result cannot be read: {found.unfit}"
    return Observation(
        sight.sighting, found.incarnations, found.status, found.result, ending, detail,
        (*sight.notes, *found.notes), log,
    )  # fmt: skip


def _said(sight: Sight, elsewhere: Outbox | None) -> Said:
    """What the session reports. While it runs, its result only counts once it is shipped: until then the last
    checkpoint may still be on its way. What the platform's outbox lacks, `elsewhere` may have."""
    if sight.outbox is None:
        assert elsewhere is not None
        return said(elsewhere)
    if elsewhere is None:
        return said(sight.outbox)
    try:
        found = said(sight.outbox)
    except (BackendError, OSError):
        return said(elsewhere)
    ended = sight.sighting is Sighting.ENDED
    if not ended:
        found = replace(found, result=None, unfit="")
    if sight.partial or (ended and found.result is None and not found.unfit):
        return _newest(found, said(elsewhere), ended=ended)
    return found


def _newest(here: Said, elsewhere: Said, *, ended: bool) -> Said:
    """Two reports of one session as one: each may be late, so the status with more heartbeats counts. The
    other's result counts only if the session has `ended`."""
    statuses = [each.status for each in (here, elsewhere) if each.status is not None]
    named = tuple(dict.fromkeys((*elsewhere.incarnations, *here.incarnations)))
    return replace(
        elsewhere if ended else here,
        incarnations=named[:2],
        status=max(statuses, key=lambda status: status.heartbeat, default=None),
        notes=tuple(dict.fromkeys((*here.notes, *elsewhere.notes))),
    )


def _fails_by_itself(platform: Platform) -> bool:
    """Whether the platform's code fails even without any session. Then no session causes it."""
    try:
        platform.observe(())
    except Exception:  # noqa: BLE001 - already logged
        return True
    return False
