"""Sessions as private Kaggle kernels of one account. User documentation: docs/kaggle.md.

A session is its kernel and its dataset, both found by its name, so every controller sees the same. A running
kernel cannot be reached; its output can be read once it has ended. Must never decide, and never connect to
anything but the endpoint of its options.
"""

from __future__ import annotations

import fcntl
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from orchestrator.clock import Clock
from orchestrator.core.offer import Offer
from orchestrator.core.order import Order
from orchestrator.core.session import Sighting, StopReply
from orchestrator.errors import NameTaken, NotFound, Rejected, Transient
from orchestrator.files import set_aside, sweep, write_new, write_whole
from orchestrator.platforms.kaggle import checking, endings, kernel, refusals, staging, surveying
from orchestrator.platforms.kaggle.account import Account
from orchestrator.platforms.kaggle.client import KaggleClient
from orchestrator.platforms.kaggle.endings import OVER, SAVED, SAVING, WAITING
from orchestrator.platforms.kaggle.kernel import StagedFile, slug
from orchestrator.platforms.kaggle.logs import events
from orchestrator.platforms.kaggle.options import KaggleOptions
from orchestrator.platforms.kaggle.outbox import KernelOutbox, StatusOutbox
from orchestrator.platforms.kaggle.runner import SAYS
from orchestrator.platforms.kaggle.values import Status
from orchestrator.platforms.platform import Finding, Leftover, Sight
from orchestrator.session.layout import RESULT, SESSION
from orchestrator.session.staging import Materials

# 20 GB at 110 s/GB, plus about 60 %: docs/references/kaggle.md#how-sessions-end
SAVING_SECONDS_MAX = 3600.0
_UNREADABLE = (ValueError, KeyError, TypeError, ArithmeticError)  # caused by one kernel's files or answers
_QUIET_SECONDS_MAX, _LOG_SECONDS_MAX = 2.0, 20.0


class KagglePlatform:
    """The kaggle platform `name`.

    `folder` is its own folder on this machine. It holds the id of this home, what was staged for a session,
    when it was pushed, which session read a kernel's checkpoint, and which sessions were stopped before their
    launch.
    """

    def __init__(
        self, name: str, options: KaggleOptions, account: Account, folder: Path, clock: Clock
    ) -> None:
        self._name = name
        self._options = options
        self._account = account
        self._folder = folder
        self._clock = clock
        self._saving_since: dict[str, float] = {}  # sessions asked to stop while being saved
        self._empty_since: dict[str, float] = {}  # ended sessions whose output is not visible yet
        self._refresh_at: float | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def _client(self) -> KaggleClient:
        return self._account.client

    def survey(self) -> tuple[Offer, ...]:
        quotas = self._client.quota()
        self._refresh_at = quotas.refresh_at
        return surveying.offers(self._name, self._options, quotas, self._clock.now())

    def checkup(self) -> tuple[Finding, ...]:
        return checking.findings(self._client, self._options.endpoint, self._account.exposed())

    def leftovers(self) -> tuple[Leftover, ...]:
        if not self._home_file.exists():
            return ()  # nothing was ever staged from here
        return tuple(checking.leftovers(self._client, self._home))

    def remove(self, leftover: Leftover) -> None:
        checking.remove(self._client, self._home, leftover)

    def tidy(self) -> None:
        """Removes files that were being packed when a controller died. They may contain secrets."""
        with suppress(FileNotFoundError):
            sweep(self._folder / "packing", prefix="")

    # --- Starting ---------------------------------------------------------------------------------------

    def prepare(self, order: Order, materials: Materials) -> None:
        self._check(order)
        if order.resume is not None and materials.resume is None:
            raise Rejected(
                f"{order.session} needs checkpoint {order.resume}, which was not given", operation="prepare"
            )
        name = slug(order.session)
        if self._stopped(order.session):
            return
        staging.settle(self._client, self._options, order.session)
        there = self._staged(order.session)
        if self._client.status(name) is not None:
            if staging.is_whole(there, order, handed=True):
                return
            raise NameTaken(f"{order.session} was started with another order", operation="prepare")
        handed = self._is_handed_over(order, materials.resume)
        if staging.is_whole(there, order, handed=handed):
            return
        staging.stage(
            self._client, self._options, order, materials,
            home=self._home, handed=handed, folder=self._packing(order.session),
            note=lambda names: _note(self._staged_mark(order.session), names),
        )  # fmt: skip

    def _staged(self, session: str) -> tuple[StagedFile, ...]:
        """The files in the session's dataset that were packed here. The hashes in the names alone prove
        nothing: somebody may have replaced the dataset."""
        packed = (_noted(self._staged_mark(session)) or "").splitlines()
        return tuple(each for each in staging.staged(self._client, session) if each.name in packed)

    def _packing(self, name: str) -> Path:
        return self._folder / "packing" / name

    def _is_handed_over(self, order: Order, resume: Path | None) -> bool:
        """Whether the session reads its checkpoint (here in `resume`) from the output of the kernel that
        wrote it: if it is large and that output is complete.

        Only one session reads it there. If that session brings no newer checkpoint, what it read may have
        been damaged, so the next session gets a copy.
        """
        before = kernel.writer(order)
        if before is None or resume is None or _size(resume) < self._options.hand_over_bytes:
            return False
        if _noted(self._cited_mark(before)) not in (None, order.session):
            return False
        status = self._client.status(before)
        if status is None or status.state not in OVER:
            return False
        try:
            outbox = KernelOutbox(self._client, before)
        except NotFound:  # removed meanwhile
            return False
        wanted = (path.relative_to(resume).as_posix() for path in resume.rglob("*") if path.is_file())
        return all(each in outbox for each in wanted)

    def launch(self, order: Order) -> None:
        """Looks, then pushes, because Kaggle runs a second push in parallel to the first. A lock allows one
        launch at a time on this machine; the ledger keeps controllers on other machines apart."""
        self._check(order)
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "launch-lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._launch(order)

    def _launch(self, order: Order) -> None:
        name = slug(order.session)
        if self._stopped(order.session):
            raise Rejected(f"{order.session} was stopped before it was launched", operation="launch")
        if self._client.status(name) is not None:
            return
        files = self._staged(order.session)
        if not staging.is_whole(files, order, handed=True):  # the next session is prepared anew
            raise NotFound(f"{order.session} is not prepared: its dataset is not ours", operation="launch")
        sent = any(each.kind == "checkpoint" for each in files)
        hand_over = None if sent else kernel.writer(order)
        _note(self._pushed_mark(order.session), repr(self._clock.now()))
        if hand_over is not None:
            _note(self._cited_mark(hand_over), order.session)
        pushed = self._client.push(kernel.push(self._options, order, files, hand_over))
        if hand_over is not None and (pushed.error or pushed.invalid):
            self._cited_mark(hand_over).unlink(missing_ok=True)
        if pushed.error:
            now = self._clock.now()
            raise refusals.refusal(pushed.error, now=now, refresh_at=self._refresh_at, backend=self._name)
        if pushed.invalid:
            self._client.delete_kernel(name)  # it runs, but without its data
            raise refusals.invalid(pushed.invalid, backend=self._name)

    def _check(self, order: Order) -> None:
        if not SESSION.fullmatch(order.session):
            raise Rejected(f"{order.session!r} is not the name of a session")
        if order.platform != self._name or order.accelerator not in self._options.accelerators:
            raise Rejected(f"the order is for {order.accelerator} on {order.platform}; this is {self._name}")
        if order.accelerator not in kernel.MACHINES:
            raise Rejected(f"Kaggle has no {order.accelerator}")
        if kernel.needs_internet(order) and not self._options.internet:
            raise Rejected("the job's requirements need the internet, which this account's kernels lack")

    @cached_property
    def _home(self) -> str:
        """The id that separates this home's files from those of other homes on the account."""
        if not self._home_file.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):  # another controller has just written it
                write_new(self._home_file, uuid.uuid4().hex.encode())
        return self._home_file.read_text().strip()[:12]

    @property
    def _home_file(self) -> Path:
        return self._folder / "home-id"

    # --- Looking ----------------------------------------------------------------------------------------

    def observe(self, names: Iterable[str]) -> Mapping[str, Sight]:
        seen: dict[str, Sight] = {}
        trouble: Transient | Rejected | None = None
        for name in names:
            try:
                status = self._status(name)
                seen[name] = Sight(Sighting.ABSENT) if status is None else self._sight(name, status)
            except (Transient, Rejected) as error:  # one unreadable session must not hide the others
                trouble = error
            except _UNREADABLE as error:
                seen[name] = Sight(Sighting.RUNNING, detail=f"it cannot be read: {error}")
        if trouble is not None and not seen:
            raise trouble
        return seen

    def _status(self, name: str) -> Status | None:
        return self._client.status(slug(name)) if SESSION.fullmatch(name) else None

    def _sight(self, name: str, status: Status) -> Sight:
        if status.state in WAITING:
            return Sight(Sighting.PENDING)
        if status.state in OVER:
            return self._ended(name, status)
        detail = "Kaggle is still saving its output" if status.state == SAVING else ""
        latest = self._told(name)
        outbox = None if latest is None else StatusOutbox(latest.encode())
        return Sight(Sighting.RUNNING, outbox, detail=detail)

    def _told(self, name: str) -> str | None:
        """The newest status that the runner has printed. None means nothing, because logs are late."""
        quiet = min(_QUIET_SECONDS_MAX, self._options.report_seconds / 2)
        try:
            told = events(self._client, slug(name), quiet_seconds=quiet, at_most_seconds=_LOG_SECONDS_MAX)
        except (Transient, Rejected):  # the status shows that it runs, even without a log
            return None
        lines = "".join(told).splitlines()
        statuses = [line.removeprefix(SAYS) for line in lines if line.startswith(SAYS + "{")]
        return statuses[-1] if statuses else None

    def _ended(self, name: str, status: Status) -> Sight:
        outbox = KernelOutbox(self._client, slug(name))
        if RESULT in outbox:
            return Sight(Sighting.ENDED, outbox)
        if (outbox.empty or not outbox.log) and self._may_come(name):
            return Sight(Sighting.RUNNING, detail="it has ended; its output is not visible yet")
        quota = self._client.quota()
        ending, detail = endings.how(status, outbox.log, self._options.session_seconds, quota)
        return Sight(Sighting.ENDED, outbox, ending, detail)

    def _may_come(self, name: str) -> bool:
        """Whether a missing output or log may still appear (docs/references/kaggle.md#output)."""
        now = self._clock.monotonic()
        return now - self._empty_since.setdefault(name, now) < self._options.publish_seconds

    def open(self, name: str) -> KernelOutbox:
        status = self._status(name)
        if status is None:
            self._client.quota()  # otherwise refused credentials would look like a missing kernel
            raise NotFound(f"no outbox of {name}", backend=self._name, operation="collect")
        if status.state == SAVING:
            raise Transient(
                f"Kaggle is still saving the output of {name}", backend=self._name, operation="collect"
            )
        outbox = KernelOutbox(self._client, slug(name), may_come=lambda: self._may_come(name))
        if outbox.empty:
            raise NotFound(f"{name} has left no output", backend=self._name, operation="collect")
        return outbox

    # --- Ending -----------------------------------------------------------------------------------------

    def stop(self, name: str) -> StopReply:
        """Deletes the kernel, which loses its unpublished output. There is no other way from outside
        (docs/references/kaggle.md#cancelling-and-deleting). So callers stop a session only if the user agreed
        to that, or if nobody needs its output."""
        status = self._status(name)
        if not SESSION.fullmatch(name) or (status is not None and status.state in OVER):
            return StopReply.ENDED
        _note(self._stop_mark(name), "")  # from now on nothing of this name is launched
        if status is not None and status.state == SAVING and self._may_end(name):
            return StopReply.REQUESTED
        if status is not None:
            self._client.delete_kernel(slug(name))
            self._pushed_mark(name).unlink(missing_ok=True)
            return StopReply.ENDED
        return StopReply.REQUESTED if self._may_appear(name) else StopReply.ENDED

    def _may_end(self, name: str) -> bool:
        """Whether Kaggle may still be saving its output, which takes minutes per gigabyte. A deletion now
        would lose it."""
        now = self._clock.monotonic()
        return now - self._saving_since.setdefault(name, now) < SAVING_SECONDS_MAX

    def _may_appear(self, name: str) -> bool:
        """Whether it was pushed so recently, by this or an earlier controller, that it may not be visible."""
        pushed_at = _noted(self._pushed_mark(name))
        if pushed_at is None:
            return False
        return abs(self._clock.now() - float(pushed_at)) <= self._options.visibility_seconds

    def _pushed_mark(self, name: str) -> Path:
        return self._folder / "pushed" / name

    def _staged_mark(self, name: str) -> Path:
        return self._folder / "staged" / name

    def _cited_mark(self, before: str) -> Path:
        return self._folder / "cited" / before

    def _stopped(self, name: str) -> bool:
        return self._stop_mark(name).exists()

    def _stop_mark(self, name: str) -> Path:
        return self._folder / "stopped" / name

    def discard(self, name: str) -> None:
        if not SESSION.fullmatch(name):
            return
        status = self._status(name)
        if status is not None and status.state not in OVER | {SAVED}:
            raise Transient(f"{name} is still running", backend=self._name, operation="discard")
        if not staging.is_foreign(self._client, slug(name)):
            if status is not None:
                self._client.delete_kernel(slug(name))
            self._client.delete_dataset(slug(name))  # last, because leftovers are found by their datasets
        self._cited_mark(slug(name)).unlink(missing_ok=True)
        self._staged_mark(name).unlink(missing_ok=True)
        self._stop_mark(name).unlink(missing_ok=True)
        self._empty_since.pop(name, None)
        self._saving_since.pop(name, None)
        set_aside(self._packing(name))
        self._pushed_mark(name).unlink(missing_ok=True)


def configured(name: str, options: KaggleOptions, folder: Path, clock: Clock) -> KagglePlatform:
    """The platform as the user configured it. Makes no request."""
    return KagglePlatform(name, options, Account(name, options, clock), folder, clock)


def _note(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text.encode())


def _noted(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
