"""Tests a store before the config names it: every verb once, in keys of its own, which are removed again.

Decides what a store must be able to do, and says which promise it broke. Must never know what kind of store
it is; the server's clock is read from any answer over HTTP.
"""

from __future__ import annotations

import email.utils
import hashlib
import secrets
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from orchestrator.clock import Clock
from orchestrator.errors import Conflict, NotFound, OrchestratorError, Rejected, Transient
from orchestrator.stores.register import Registers
from orchestrator.stores.store import Store

MIB = 1024 * 1024
SPEED_BYTES = 2 * MIB
PARTS_BYTES = 17 * MIB  # S3 sends more than 16 MiB in parts, Drive more than 8
PARTS_SECONDS_MAX = 60.0
CLOCK_SECONDS = 10.0
SKEW_SECONDS_MAX = 300.0  # S3 refuses signatures beyond 15 minutes; tokens of others last minutes, too
_FIRST, _SECOND, _THIRD = b"1", b"2", b"3"


@dataclass(frozen=True)
class Proof:
    """What a round trip found. Speeds in bytes per second, of one object of `SPEED_BYTES`. `parts`: whether
    an object of `PARTS_BYTES` was tested, too."""

    registers: bool
    parts: bool
    upload: float
    download: float


def prove(store: Store, clock: Clock, tell: Callable[[str], None] = lambda _text: None) -> Proof:
    """Puts, gets, lists, creates conditionally, swaps a register, sends an object in parts if that takes less
    than a minute, and deletes. Tells a person what takes long.

    Raises the store's own errors, and Rejected that names a promise which the store does not keep.
    """
    root = f"init/{secrets.token_hex(8)}"
    with tempfile.TemporaryDirectory(prefix="orchestrator-") as folder:
        trial = _Trial(store, root, Path(folder), clock)
        try:
            trial.objects()
            upload, download = trial.speed()
            registers = trial.registers()
            seconds = PARTS_BYTES / upload + PARTS_BYTES / download
            size = f"an object of {PARTS_BYTES // MIB} MiB, which is sent in parts"
            if parts := seconds <= PARTS_SECONDS_MAX:
                tell(f"Testing {size} (about {max(1, seconds):.0f} s)…")
                trial.parts()
            else:
                tell(f"Not tested: {size}. It would take about {seconds:,.0f} s.")
            trial.delete()
        except BaseException:
            trial.clean()
            raise
    return Proof(registers, parts, upload, download)


class _Trial:
    def __init__(self, store: Store, root: str, folder: Path, clock: Clock) -> None:
        self._store, self._root, self._folder, self._clock = store, root, folder, clock
        self._keys = {name: f"{root}/{name}" for name in ("small", "large", "parts")}
        self._register = f"{root}/register"

    def objects(self) -> None:
        key = self._keys["small"]
        # First a list: the answer to it says why access is denied, unlike S3's answer to a look-up.
        if list(self._store.list(f"{self._root}/")) or self._store.stat(key) is not None:
            raise Rejected(f"the store says that {key} exists, which nobody has written")
        data = secrets.token_bytes(32)
        self._put(key, data)
        self._put(key, data)  # the same bytes again change nothing
        there = self._store.stat(key)
        if there is None or there.size != len(data):
            raise Rejected("an object was stored, but the store does not show it with its size")
        if self._got(key) != data:
            raise Rejected("an object came back with other bytes")
        if key not in [stat.key for stat in self._store.list(f"{self._root}/")]:
            raise Rejected("an object was stored, but the list of objects does not have it")
        try:
            self._put(key, secrets.token_bytes(32))
        except Rejected:
            return
        raise Rejected("the store replaced an object instead of refusing other bytes under its key")

    def speed(self) -> tuple[float, float]:
        data = secrets.token_bytes(SPEED_BYTES)
        took = self._timed(lambda: self._put(self._keys["large"], data))
        back = self._timed(lambda: self._got(self._keys["large"]))
        return len(data) / took, len(data) / back

    def parts(self) -> None:
        data = secrets.token_bytes(PARTS_BYTES)
        self._put(self._keys["parts"], data)
        if self._got(self._keys["parts"]) != data:
            raise Rejected("an object that was sent in parts came back with other bytes")

    def registers(self) -> bool:
        """Whether the store has registers that change by compare-and-swap only."""
        registers = self._store.registers
        if registers is None:
            return False
        first = registers.swap(self._register, _FIRST, None)
        second = registers.swap(self._register, _SECOND, first)
        held = registers.read(self._register)
        if held is None or held.value != _SECOND or second != held.version:
            raise Rejected("a register was written, but reads as something else")
        refused = [self._refuses(registers, version) for version in (first, None)]
        registers.delete(self._register)
        return all(refused)

    def delete(self) -> None:
        for key in self._keys.values():
            self._store.delete(key)
            if self._store.stat(key) is not None:
                raise Rejected("an object was deleted, but the store still shows it")
            with suppress(NotFound):
                self._got(key)
                raise Rejected("an object was deleted, but the store still has it")

    def clean(self) -> None:
        """Removes what a failed trial left, as far as the store lets it."""
        for key in self._keys.values():
            with suppress(OrchestratorError, OSError):
                self._store.delete(key)
        with suppress(OrchestratorError, OSError):
            registers = self._store.registers
            if registers is not None:
                registers.delete(self._register)

    def _refuses(self, registers: Registers, version: str | None) -> bool:
        try:
            registers.swap(self._register, _THIRD, version)
        except Conflict:
            return True
        return False

    def _put(self, key: str, data: bytes) -> None:
        source = self._folder / "source"
        source.write_bytes(data)
        self._store.put(key, source, hashlib.sha256(data).hexdigest())

    def _got(self, key: str) -> bytes:
        target = self._folder / "target"
        self._store.get(key, target, bytes_max=PARTS_BYTES)
        return target.read_bytes()

    def _timed(self, act: Callable[[], object]) -> float:
        began = self._clock.monotonic()
        act()
        return max(self._clock.monotonic() - began, 1e-6)


class _Kept(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: its own answer has the time."""

    def redirect_request(self, *_: object) -> None:
        return None


def skew(address: str, clock: Clock) -> float | None:
    """How many seconds this machine's clock is ahead of the server's; None if the server does not say.

    Any answer will do, also a refusal, so it sends no credentials. Raises Transient for a server of another
    protocol.
    """
    opener = urllib.request.build_opener(_Kept)
    request = urllib.request.Request(address, method="HEAD")
    try:
        try:
            with opener.open(request, timeout=CLOCK_SECONDS) as answer:
                told = answer.headers.get("Date")
        except urllib.error.HTTPError as refusal:
            told = refusal.headers.get("Date")
            refusal.close()
        return None if told is None else clock.now() - email.utils.parsedate_to_datetime(told).timestamp()
    except (OSError, ValueError, TypeError, OverflowError):
        return None
    except HTTPException:
        raise Transient(
            f"what answers at {address} is no web server: check the address. The config was not changed."
        ) from None
