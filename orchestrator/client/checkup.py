"""What works here, what is missing, and how to fix it. Yields each finding as soon as it is known.

Leaves nothing behind, except the folder of a store that had none yet. Must never know how a finding is shown.
"""

from __future__ import annotations

import contextlib
import hashlib
import platform
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from orchestrator import cron
from orchestrator.client import deliveries, growth, leftovers, likeness, routing, service
from orchestrator.client.home import Home
from orchestrator.client.lost import lost
from orchestrator.client.lost import schedules as lost_schedules
from orchestrator.client.wiring import Wired
from orchestrator.clock import Clock
from orchestrator.config import Config
from orchestrator.core.lifecycle import FINAL
from orchestrator.core.offer import Offer, UntilKind
from orchestrator.core.wording import count_text, size_text
from orchestrator.engine.surveying import Surveyed
from orchestrator.errors import InputError, OrchestratorError, Remedy, SpecError, remedy
from orchestrator.files import NoLocks, check_locks, disk_of, draft_file, in_memory, lacks_inodes, shortage
from orchestrator.platforms.platform import Checkup, Health, Platform
from orchestrator.stores import encryption
from orchestrator.stores.checkup import Checkup as StoreCheckup
from orchestrator.stores.store import Store

PYTHON_MIN = (3, 11)
FREE_BYTES_MIN = 2e9
_CONTAINER = Path("/.dockerenv")  # its engine starts the controller again
CONTENTS = "home: contents"


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"  # it works, but something needs attention
    MISSING = "missing"  # it does not work


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    `advice`: what a person can do about it or, if all is well, do to get more; one command or sentence per
    line. `command`: the words of a command of ours that helps, such as ("prune",). `error`: the error that
    the check raised, if it did.
    """

    what: str
    state: State
    text: str
    advice: str = ""
    remedy: Remedy = Remedy.NONE
    command: tuple[str, ...] = ()
    error: OrchestratorError | OSError | None = None


def findings(home: Home, clock: Clock, names: Collection[str] = ()) -> Iterator[Finding]:
    """Checks everything, or these platforms and stores, one after the other.

    Raises InputError for a name that is neither.
    """
    if not names:
        yield _python()
        yield from _looked_at("home", lambda: _home(home))
        yield from _looked_at("ledger", lambda: _ledger(home))
        yield from _grown(home, clock)
        yield from _looked_at("agent", _agent)
        yield from _looked_at("time zones", _time_zones)
        yield from _rebooted(home)
    try:
        wired = Wired.from_home(home.path, clock)
        path = home.folders.config
        text = str(path) if path.exists() else "none, so the defaults apply; `init` writes one"
        yield Finding("config", State.OK, text)
    except (OrchestratorError, OSError) as error:
        yield _trouble("config", error)
        return
    leftovers.check_names(home, wired.config, names)
    if not names:
        with contextlib.suppress(OrchestratorError, OSError):  # reported under `ledger`
            yield from _targets(home, wired)
    yield from _platforms(home, wired, names)
    if not names:
        with contextlib.suppress(OrchestratorError, OSError):  # reported under `ledger`
            yield from _taken_out(home, wired.config)
            yield from _alike(home, wired)
    for given in wired.config.stores:
        if not names or given.name in names:
            yield from _looked_at(
                f"store {given.name}",
                lambda given=given: _store(clock, given.type, wired.built(given)),  # type: ignore[misc]
            )
            yield from _remarks(f"store {given.name}", lambda given=given: wired.built(given))  # type: ignore[misc]


def _looked_at(what: str, look: Callable[[], tuple[State, str]]) -> Iterator[Finding]:
    """The check's finding, or its failure."""
    try:
        yield Finding(what, *look())
    except (OrchestratorError, OSError) as error:
        yield _trouble(what, error)


def _rebooted(home: Home) -> Iterator[Finding]:
    """Whether a reboot would end things that somebody relies on."""
    if in_memory(home.path):
        text = f"it lies in memory ({disk_of(home.path)}): a reboot removes every run and checkpoint in it"
        yield Finding("home: reboot", State.WARNING, text, "set ORCHESTRATOR_HOME to a folder on a disk")
    with contextlib.suppress(OrchestratorError, OSError):  # reported under `ledger`
        ledger = home.existing_ledger()
        if ledger is None:
            return
        with ledger:
            counts = ledger.counts()
        final = {phase.value for phase in FINAL}
        under_way = sum(count for phase, count in counts.phases.items() if phase not in final)
        what = count_text(under_way, "run") if under_way else "a schedule" if counts.next_fire else ""
        found = service.look(home)
        if found.survives_reboot:
            yield Finding("service", State.OK, f"{found.name}: starts with this machine")
        elif what and not _CONTAINER.exists():
            advice = found.advice if found.enabled or found.path is None else (
                "`orchestrator service install` starts it with this machine"
            )  # fmt: skip
            text = f"{what} would wait after a reboot: nothing starts the controller"
            yield Finding("service", State.WARNING, text, advice)


def _remarks(what: str, built: Callable[[], Store]) -> Iterator[Finding]:
    """What the store says about itself. An error was reported by the store's own check already."""
    with contextlib.suppress(OrchestratorError, OSError):
        store = built()
        for remark in store.checkup() if isinstance(store, StoreCheckup) else ():
            state = State.WARNING if remark.advice else State.OK
            yield Finding(f"{what}: {remark.what}", state, remark.text, remark.advice)


def _trouble(what: str, error: OrchestratorError | OSError) -> Finding:
    first, *rest = _text(error).splitlines() or [type(error).__name__]
    more = f" (and {count_text(len(rest), 'more mistake')})" if rest else ""
    advice = "\n".join(rest) or _advice(what, error)
    return Finding(what, State.MISSING, first + more, advice, remedy(error), error=error)


def _text(error: OrchestratorError | OSError) -> str:
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.strerror} ({error.filename})" if error.filename else error.strerror


def _advice(what: str, error: OrchestratorError | OSError) -> str:
    if what == "home" and remedy(error) is Remedy.ACT and not isinstance(error, NoLocks):
        return "set ORCHESTRATOR_HOME (or --home) to a folder that you can write to"
    return "correct the config" if isinstance(error, SpecError) else ""  # other errors say what to do


def _python() -> Finding:
    found = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info < PYTHON_MIN:
        return Finding("python", State.MISSING, found, "install Python 3.11 or newer", Remedy.ACT)
    return Finding("python", State.OK, found)


def _home(home: Home) -> tuple[State, str]:
    path = home.path
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    with draft_file(there) as draft:
        draft.write(b"x")
        check_locks(draft.path, path)
    free = shutil.disk_usage(there).free
    text = f"{path}, {size_text(free)} free" + ("" if there == path else " (does not exist yet)")
    if lacks_inodes(there):
        return State.WARNING, f"{text}; {shortage(there, *path.glob('*/*/*'))[0]}"
    return (State.OK if free >= FREE_BYTES_MIN else State.WARNING), text


def _ledger(home: Home) -> tuple[State, str]:
    ledger = home.existing_ledger()
    if ledger is None:
        return State.OK, "none yet: the first submit creates it"
    with ledger:
        runs, size = len(ledger.summaries()), ledger.size()
        owner, standbys = ledger.owner(), ledger.standbys()
    controls = f"controlled by {owner}" if owner else "no controller is running; submit starts one"
    controls += "".join(f"; standing by: {each}" for each in standbys)
    return State.OK, f"{count_text(runs, 'run')}, {size_text(size)}; {controls}"


def _grown(home: Home, clock: Clock) -> Iterator[Finding]:
    """The contents of the home. `home` reports a disk that is nearly full; the advice comes here."""
    if not home.path.is_dir():
        return
    with contextlib.suppress(OrchestratorError):  # reported under `ledger`
        try:
            found = growth.of_home(home, clock)
        except OSError as error:
            yield _trouble(CONTENTS, error)
            return
        full = shutil.disk_usage(home.path).free < FREE_BYTES_MIN
        state = State.WARNING if full else State.OK
        yield Finding(CONTENTS, state, found.text, command=("prune",) if found.freed else ())


def _agent() -> tuple[State, str]:
    from orchestrator.agent import archive

    return State.OK, f"builds, {size_text(len(archive.content()))}"


def _targets(home: Home, wired: Wired) -> Iterator[Finding]:
    """Who is told what happens. Sends nothing: `notify test` does."""
    for each in deliveries.targets(home, wired):
        what = f"notify {each.name}"
        waiting = f", {count_text(each.waiting, 'notification')} to be sent" if each.waiting else ""
        if each.trouble:
            yield Finding(what, State.MISSING, f"{each.trouble}{waiting}", remedy=Remedy.ACT)
        elif each.dead:
            text = f"{count_text(each.dead, 'notification')} not delivered and given up{waiting}"
            yield Finding(what, State.WARNING, text, command=("notify", "list"))
        else:
            text = f"has an address{waiting}"
            yield Finding(what, State.OK, text, "try it", command=("notify", "test", each.name))


def _platforms(home: Home, wired: Wired, names: Collection[str]) -> Iterator[Finding]:
    try:
        answers = routing.survey_all(wired)
    except InputError as error:
        yield _trouble("platforms", error)
        return
    types = {each.name: each.type for each in wired.config.platforms}
    platforms, unreachable = wired.platforms(), wired.unreachable()
    for answer in answers:
        if names and answer.platform not in names:
            continue
        yield _platform(answer, types[answer.platform])
        if why := unreachable.get((answer.platform, "")):
            yield Finding(f"{answer.platform}: home store", State.MISSING, why, "", Remedy.EDIT)
        if answer.trouble is None:
            yield from _checkup(answer.platform, platforms[answer.platform])
            yield from _left_over(home, answer.platform, platforms[answer.platform])


def _checkup(name: str, platform: Platform) -> Iterator[Finding]:
    """The platform's own checks, if it has any."""
    if not isinstance(platform, Checkup):
        return
    try:
        for found in platform.checkup():
            needed = Remedy.ACT if found.health is Health.MISSING else Remedy.NONE
            yield Finding(f"{name}: {found.what}", State(found.health), found.text, found.advice, needed)
    except (OrchestratorError, OSError) as error:
        yield _trouble(f"{name}: checkup", error)


def _left_over(home: Home, name: str, platform: Platform) -> Iterator[Finding]:
    with contextlib.suppress(OrchestratorError, OSError):  # reported under `ledger`, or in the checkup
        there = leftovers.find(home, {name: platform}).orphans
        found = [each for each in there if each.doubt is not leftovers.Doubt.TRIAL]
        if found:
            text = f"{count_text(len(found), 'thing')} of runs that are over or unknown"
            yield Finding(f"{name}: leftovers", State.WARNING, text, command=("doctor", "--clean"))


def _taken_out(home: Home, config: Config) -> Iterator[Finding]:
    """Platforms and stores that the config no longer has, but runs need. These runs are held."""
    ledger = home.existing_ledger()
    if ledger is None:
        return
    with ledger:
        found, schedules = lost(ledger, config), lost_schedules(ledger, config)
        unreadable = ledger.schedules.unreadable()
    for what, runs in found.items():
        text = f"no longer in the config, but needed by {', '.join(runs)}"
        advice = "put it back into the config until they are over; they continue once a controller runs"
        yield Finding(
            what.replace("'", ""), State.MISSING, text, advice, Remedy.EDIT, command=("up", "--detach")
        )
    for name, what in schedules.items():
        text, advice = f"the config no longer has its {what}", "put it back, or submit its job again"
        command = ("schedule", "rm", name)
        yield Finding(f"schedule {name}", State.MISSING, text, advice, Remedy.EDIT, command=command)
    for name, text in unreadable.items():
        yield Finding(f"schedule {name}", State.MISSING, text, command=("schedule", "rm", name))


def _time_zones() -> tuple[State, str]:
    """The database that schedules use; Python prefers the system's, which may be old."""
    source, version = cron.database()
    return (State.OK if cron.knows("Europe/Berlin") else State.MISSING), f"{version}, from {source}"


def _alike(home: Home, wired: Wired) -> Iterator[Finding]:
    """Whether this machine can take over from another one that uses the same ledger."""
    ledger = home.existing_ledger()
    if ledger is None:
        return
    with ledger:
        found = tuple(likeness.doubts(ledger, wired)) if ledger.is_shared else None
    for doubt in found or ():
        yield Finding("taking over", State.WARNING, doubt)
    if found == ():
        yield Finding("taking over", State.OK, "this machine has what the ledger's other controllers have")


def _platform(answer: Surveyed, kind: str) -> Finding:
    what = f"platform {answer.platform}"
    if answer.trouble is not None:
        needed = Remedy.ACT if answer.denied else Remedy.RETRY
        is_told = answer.denied or answer.preparing  # what to do, by the platform's own message
        advice = "" if is_told else "check that it is running, and that the config has its address"
        return Finding(what, State.MISSING, f"{kind}: {answer.trouble}", advice, needed)
    closed = [offer.unavailable.until for offer in answer.offers if offer.unavailable is not None]
    waiting = [until for until in closed if until.kind is UntilKind.HUMAN]
    starts = [until for until in closed if until.kind is UntilKind.START]
    text = f"{kind}: {'; '.join(map(_offer_text, answer.offers)) or 'offers nothing'}"
    advice = "\n".join(dict.fromkeys(command for until in (*waiting, *starts) for command in until.commands))
    if waiting and len(waiting) == len(answer.offers):
        return Finding(what, State.MISSING, text, advice, Remedy.ACT)
    state = State.OK if answer.offers and not waiting and not starts else State.WARNING
    return Finding(what, state, text, advice)


def _offer_text(offer: Offer) -> str:
    if offer.unavailable is not None:
        when = "never" if offer.unavailable.until.kind is UntilKind.NEVER else "not now"
        return f"{offer.accelerator}, {when}: {offer.unavailable.reason}"
    text = f"{offer.accelerator}, {count_text(offer.slots, 'slot')}"
    text += f", {offer.memory_gb:.1f} GB" if offer.memory_gb is not None else ""
    wall = offer.traits.session_seconds
    return text + (f", sessions of {wall:,.0f} s" if wall is not None else "")


def _store(clock: Clock, kind: str, store: Store) -> tuple[State, str]:
    """Puts, gets and deletes an object of a few bytes."""
    data = secrets.token_bytes(32)
    sha256 = hashlib.sha256(data).hexdigest()
    key = f"doctor/{sha256[:16]}"
    with tempfile.TemporaryDirectory(prefix="orchestrator-") as folder:
        source, target = Path(folder) / "source", Path(folder) / "target"
        source.write_bytes(data)
        store.put(key, source, sha256)
        try:
            store.get(key, target, sha256, bytes_max=len(data))
        finally:
            store.delete(key)
    held = growth.of_store(store, clock)
    text = f"{kind}: an object was put, read back and deleted; it holds {held.text}"
    trouble = encryption.key_trouble(store)
    return (State.WARNING, f"{text}; but {trouble}") if trouble else (State.OK, text)
