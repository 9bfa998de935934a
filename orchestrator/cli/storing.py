"""`init s3`, `init hf`, `init drive`: asks for what is missing, and says what the test of a store found."""

from __future__ import annotations

import os
import sys

from orchestrator.cli import asking
from orchestrator.cli.call import Call, Exit
from orchestrator.cli.drive import init_drive
from orchestrator.client import home_store, store_kinds
from orchestrator.client.home_store import Credentials, HomeStore
from orchestrator.client.round_trip import MIB, PARTS_BYTES
from orchestrator.core.wording import size_text
from orchestrator.errors import InputError

KEY_CHARACTERS_MAX = 8192
CLOCK_SECONDS_MIN = 2.0  # servers tell the time in whole seconds
_TEMPORARY = (
    "temporary, because they have a session token. A session cannot renew them: when they end, it ships "
    "nothing more. Use keys that live longer than a session."
)
_TEXTS = {"access_key": "Access key", "secret_key": "Secret key"}


def init_store(call: Call) -> int:
    """Adds a store to the config as the home store of new runs, once a round trip has worked."""
    kind = call.options.store
    if call.options.force:
        raise InputError(f"--force replaces the whole config; `init {kind}` only adds a store to it")
    given = {key: value for key, value in vars(call.options).items() if key in store_kinds.NAMES and value}
    store_kinds.check(kind, given)
    if kind == store_kinds.DRIVE:
        _tell(call, init_drive(call, store_kinds.wanted_drive(given)))
        return Exit.OK
    asks = asking.is_possible() and store_kinds.question(kind, given, os.environ) is not None
    if asks:
        asking.tell(store_kinds.ADVICE[kind])
    wanted = store_kinds.wanted(kind, _completed(call, kind, given))
    is_new = home_store.known(call.home, wanted) is None
    credentials = _keys(call, kind, told=asks) if is_new or call.options.stdin else Credentials()
    _tell(call, home_store.set_up(call.home, call.clock, wanted, credentials, asking.tell))
    return Exit.OK


def _completed(call: Call, kind: str, given: dict[str, str]) -> dict[str, str]:
    missing = []
    while (asked := store_kinds.question(kind, given, os.environ)) is not None:
        answer = asked.default
        if asking.is_possible():
            answer = asking.ask(asked.text, asked.default)
        elif not answer:
            missing.append(asked)
            answer = asked.example
        given = store_kinds.answered(given, asked, answer)
    if missing:
        told = f"{', '.join(each.flag for each in missing)}; see `{call.command('init', '--help')}`"
        raise InputError(f"missing, for example: {told}\n{store_kinds.ADVICE[kind]}")
    return given


def _keys(call: Call, kind: str, *, told: bool) -> Credentials:
    """The keys: from standard input, as references to the environment, or from a person, who may have been
    `told` already where they come from."""
    if call.options.stdin and not asking.is_possible():
        lines = sys.stdin.read(KEY_CHARACTERS_MAX).split()
        if len(lines) != len(store_kinds.KEYS):
            raise InputError(
                f"--stdin: two lines are needed, the access key and the secret key ({len(lines)} came)"
            )
        return Credentials(dict(zip(store_kinds.KEYS, lines, strict=True)))
    found = store_kinds.references(kind, os.environ)
    if found and not call.options.stdin:
        return Credentials(references=found)
    if not asking.is_possible():
        raise InputError(store_kinds.lacking_keys(kind, call.command("init", kind), os.environ))
    if not told:
        asking.tell(store_kinds.ADVICE[kind])
    return Credentials({key: asking.ask_secret(_TEXTS[key]) for key in store_kinds.KEYS})


def _tell(call: Call, made: HomeStore) -> None:
    proof, out = made.proof, call.out
    out.document({
        "store": made.store.name,
        "type": made.store.type,
        "options": dict(made.store.options),
        "config": str(made.config),
        "kept": None if made.kept is None else str(made.kept),
        "changed": made.changed,
        "registers": proof.registers,
        "parts": proof.parts,
        "upload_bytes_per_second": proof.upload,
        "download_bytes_per_second": proof.download,
        "clock_ahead_seconds": made.skew,
        "files": list(map(str, made.files)),
    })  # fmt: skip
    yes = "honoured: a session can ship its checkpoints here while it trains"
    no = "not honoured by this server: a session cannot ship its checkpoints while it trains"
    parts = f", an object of {PARTS_BYTES // MIB} MiB in parts" if proof.parts else ""
    config = f"{made.config}, {'changed' if made.changed else 'not changed'}"
    config += f"; the old one is {made.kept}" if made.kept else ""
    out.facts([
        ("store", home_store.described(made.store)),
        ("tested", f"put, get, list, conditional creation, delete{parts}"),
        ("registers", yes if proof.registers else no),
        ("speed", f"{size_text(proof.upload)}/s up, {size_text(proof.download)}/s down, of one small object"),
        ("clock", _clock_text(made.skew)),
        ("keys", _TEMPORARY if "session_token" in made.store.options else ""),
        *(("kept", f"{path}, which only you can read") for path in made.files),
        ("config", config),
        ("home store", f"{made.store.name}, for new runs. Runs keep the store that they began with."),
        ("next", call.command("doctor", made.store.name)),
    ])  # fmt: skip


def _clock_text(ahead: float | None) -> str:
    if ahead is None:
        return ""
    if abs(ahead) < CLOCK_SECONDS_MIN:
        return "agrees with the store's"
    return f"{home_store.clock_text(ahead)} the store's"
