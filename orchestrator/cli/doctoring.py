"""`doctor`: what works here, what is missing, and how to fix it. Leaves nothing
behind but the folder of a store that had none; `--clean` is another module's."""

from __future__ import annotations

import contextlib
import hashlib
import platform
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.cli import cleaning, growth
from orchestrator.cli.call import Call, Exit, exit_code, os_error_text
from orchestrator.cli.output import count_text, size_text
from orchestrator.client.lost import lost
from orchestrator.client.routing import survey_all
from orchestrator.client.wiring import Wired
from orchestrator.config import Config
from orchestrator.core.offer import Offer, UntilKind
from orchestrator.core.wording import unknown
from orchestrator.engine.market import Surveyed
from orchestrator.errors import InputError, OrchestratorError, SpecError
from orchestrator.platforms.platform import Checkup, Health, Platform
from orchestrator.stores.store import Store

PYTHON_MIN = (3, 11)
FREE_BYTES_MIN = 2e9
CONTENTS = "home: contents"


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `mend`: what to do about it; `exit_code` 0 where nothing needs to be done."""

    what: str
    state: str  # ok, warning, missing
    text: str
    mend: str = ""
    exit_code: Exit = Exit.OK


def doctor(call: Call) -> int:
    """Looks at everything, or at the named platforms and stores; the exit code is of the worst finding."""
    names = tuple(call.options.names)
    cleaning.check_options(call)
    if call.options.clean:
        return _clean(call, names)
    findings = list(_findings(call, names))
    call.out.document({"findings": [vars(finding) for finding in findings]})
    call.out.table(("", "STATE", "FOUND"), [(f.what, f.state, f.text) for f in findings])
    mends = [(_mend_title(f), f.mend) for f in findings if f.mend]
    if mends:
        call.out.say()
        call.out.facts(mends)
    codes = {finding.exit_code for finding in findings}
    return next((code for code in (Exit.HUMAN, Exit.INPUT, Exit.UNAVAILABLE) if code in codes), Exit.OK)


def _mend_title(finding: Finding) -> str:
    if finding.what == CONTENTS:
        return "to free space"
    return f"to {'have' if finding.state == 'ok' else 'fix'} {finding.what}"


def _clean(call: Call, names: tuple[str, ...]) -> int:
    wired = call.wired()
    _check_names(wired.config, names)
    return cleaning.clean(
        call, {name: each for name, each in wired.platforms().items() if not names or name in names}
    )


def _findings(call: Call, names: tuple[str, ...]) -> Iterator[Finding]:
    if not names:
        yield _python()
        yield from _looked_at("home", lambda: _home(call))
        yield from _looked_at("ledger", lambda: _ledger(call))
        yield from _grown(call)
        yield from _looked_at("agent", _agent)
    try:
        wired = call.wired()
        where = (
            str(call.home.folders.config)
            if call.home.folders.config.exists()
            else "the defaults; `init` writes one"
        )
        yield Finding("config", "ok", where)
    except (OrchestratorError, OSError) as error:
        yield _trouble("config", error)
        return
    _check_names(wired.config, names)
    yield from _platforms(call, wired, names)
    if not names:
        with contextlib.suppress(OrchestratorError, OSError):  # told under `ledger`
            yield from _taken_out(call, wired.config)
    for given in wired.config.stores:
        if not names or given.name in names:
            yield from _looked_at(
                f"store {given.name}",
                lambda given=given: _store(call, given.type, wired.built(given)),  # type: ignore[misc]
            )


def _check_names(config: Config, names: tuple[str, ...]) -> None:
    known = [*(each.name for each in config.platforms), *(each.name for each in config.stores)]
    strange = [name for name in names if name not in known]
    if strange:
        raise InputError(unknown(f"platform or store {strange[0]!r}", strange[0], known))


def _looked_at(what: str, look: Callable[[], tuple[str, str]]) -> Iterator[Finding]:
    """What a look found, as (state, text), or its failure."""
    try:
        state, text = look()
        yield Finding(what, state, text)
    except (OrchestratorError, OSError) as error:
        yield _trouble(what, error)


def _trouble(what: str, error: OrchestratorError | OSError) -> Finding:
    text = os_error_text(error) if isinstance(error, OSError) else str(error)
    first, *rest = text.splitlines() or [type(error).__name__]
    more = f" (and {count_text(len(rest), 'more fault')})" if rest else ""
    return Finding(what, "missing", first + more, "\n".join(rest) or _mend(what, error), exit_code(error))


def _mend(what: str, error: OrchestratorError | OSError) -> str:
    if what == "home" and exit_code(error) is Exit.HUMAN:  # a full disk says itself what to do
        return "set ORCHESTRATOR_HOME (or --home) to a folder that you may write to"
    return "correct the config" if isinstance(error, SpecError) else ""  # others say what to do


def _python() -> Finding:
    found = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info < PYTHON_MIN:
        return Finding("python", "missing", found, "install Python 3.11 or newer", Exit.HUMAN)
    return Finding("python", "ok", found)


def _home(call: Call) -> tuple[str, str]:
    path = call.home.path
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    with tempfile.TemporaryFile(dir=there) as stream:
        stream.write(b"x")
        stream.flush()
    free = shutil.disk_usage(there).free
    text = f"{path}, {size_text(free)} free" + ("" if there == path else " (not made yet)")
    return ("ok" if free >= FREE_BYTES_MIN else "warning"), text


def _ledger(call: Call) -> tuple[str, str]:
    ledger = call.home.existing_ledger()
    if ledger is None:
        return "ok", "none yet: the first submit makes it"
    with ledger:
        runs, size = len(ledger.summaries()), ledger.size()
        owner = ledger.owner()
    controls = f"controlled by {owner}" if owner else "no controller runs; submit starts one"
    return "ok", f"{count_text(runs, 'run')}, {size_text(size)}; {controls}"


def _grown(call: Call) -> Iterator[Finding]:
    """What lies in the home. A disk that is nearly full is told under `home`, and mended here."""
    if not call.home.path.is_dir():
        return
    with contextlib.suppress(OrchestratorError):  # told under `ledger`
        try:
            found = growth.of_home(call.home, call.clock)
        except OSError as error:
            yield _trouble(CONTENTS, error)
            return
        full = shutil.disk_usage(call.home.path).free < FREE_BYTES_MIN
        yield Finding(CONTENTS, "warning" if full else "ok", found.text,
                      call.command("prune") if found.freed else "")  # fmt: skip


def _agent() -> tuple[str, str]:
    from orchestrator.agent import archive

    return "ok", f"builds, {size_text(len(archive.content()))}"


def _platforms(call: Call, wired: Wired, names: tuple[str, ...]) -> Iterator[Finding]:
    try:
        answers = survey_all(wired)
    except InputError as error:
        yield _trouble("platforms", error)
        return
    types = {each.name: each.type for each in wired.config.platforms}
    platforms = wired.platforms()
    for answer in answers:
        if names and answer.platform not in names:
            continue
        yield _platform(answer, types[answer.platform])
        if answer.trouble is None:
            yield from _checkup(answer.platform, platforms[answer.platform])
            yield from _left_over(call, answer.platform, platforms[answer.platform])


def _checkup(name: str, platform: Platform) -> Iterator[Finding]:
    """What the platform says of itself, where it says anything."""
    if not isinstance(platform, Checkup):
        return
    try:
        for found in platform.checkup():
            code = Exit.HUMAN if found.health is Health.MISSING else Exit.OK
            yield Finding(f"{name}: {found.what}", found.health.value, found.text, found.mend, code)
    except (OrchestratorError, OSError) as error:
        yield _trouble(f"{name}: checkup", error)


def _left_over(call: Call, name: str, platform: Platform) -> Iterator[Finding]:
    with contextlib.suppress(OrchestratorError, OSError):  # told under `ledger`, or in the checkup
        found = cleaning.orphans(call, {name: platform}, {})
        if found:
            text = f"{count_text(len(found), 'thing')} of runs that are over, or that nobody knows"
            yield Finding(f"{name}: leftovers", "warning", text, call.command("doctor", "--clean"))


def _taken_out(call: Call, config: Config) -> Iterator[Finding]:
    """Platforms and stores that the config no longer has, though runs need them: these are held."""
    ledger = call.home.existing_ledger()
    if ledger is None:
        return
    with ledger:
        found = lost(ledger, config)
    for what, runs in found.items():
        text = f"not in the config any more, but needed by {', '.join(runs)}"
        mend = (
            "put it back into the config until they are over; they go on as soon as a controller runs: "
            f"{call.command('up', '--detach')}"
        )
        yield Finding(what.replace("'", ""), "missing", text, mend, Exit.INPUT)


def _platform(answer: Surveyed, kind: str) -> Finding:
    what = f"platform {answer.platform}"
    if answer.trouble is not None:
        code = Exit.HUMAN if answer.denied else Exit.UNAVAILABLE
        # What is denied says itself what to do.
        mend = "" if answer.denied else "see that it runs, and that the config says where"
        return Finding(what, "missing", f"{kind}: {answer.trouble}", mend, code)
    waiting = [
        offer.unavailable.until
        for offer in answer.offers
        if offer.unavailable is not None and offer.unavailable.until.kind is UntilKind.HUMAN
    ]
    text = f"{kind}: {'; '.join(map(_offer_text, answer.offers)) or 'offers nothing'}"
    mend = "\n".join(dict.fromkeys(command for until in waiting for command in until.commands))
    if waiting and len(waiting) == len(answer.offers):
        return Finding(what, "missing", text, mend, Exit.HUMAN)
    return Finding(what, "ok" if answer.offers and not waiting else "warning", text, mend)


def _offer_text(offer: Offer) -> str:
    if offer.unavailable is not None:
        when = "never" if offer.unavailable.until.kind is UntilKind.NEVER else "not now"
        return f"{offer.accelerator}, {when}: {offer.unavailable.reason}"
    text = f"{offer.accelerator}, {count_text(offer.slots, 'slot')}"
    text += f", {offer.memory_gb:.1f} GB" if offer.memory_gb is not None else ""
    wall = offer.traits.session_seconds
    return text + (f", sessions of {wall:,.0f} s" if wall is not None else "")


def _store(call: Call, kind: str, store: Store) -> tuple[str, str]:
    """Puts, gets and deletes an object of a few bytes."""
    data = secrets.token_bytes(32)
    sha256 = hashlib.sha256(data).hexdigest()
    key = f"doctor/{sha256[:16]}"
    with tempfile.TemporaryDirectory(prefix="orchestrator-") as folder:
        source, target = Path(folder) / "source", Path(folder) / "target"
        source.write_bytes(data)
        store.put(key, source, sha256)
        try:
            store.get(key, target, sha256)
        finally:
            store.delete(key)
    held = growth.of_store(store, call.clock)
    return "ok", f"{kind}: an object was put, read back and deleted; it holds {held.text}"
