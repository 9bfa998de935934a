"""Sessions as private Kaggle kernels of one account. User documentation: docs/kaggle.md.

A session is its kernel and its dataset, both named after it. A running kernel cannot be reached; its output
can be read once it has ended. Must never decide, and never connect to anything but the endpoint of its
options.
"""

from __future__ import annotations

import fcntl
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import IO

from orchestrator.clock import Clock
from orchestrator.core.durable import is_shipping
from orchestrator.core.offer import Offer
from orchestrator.core.order import Order, run_of
from orchestrator.core.session import Sighting, StopReply
from orchestrator.errors import (
    AccessDenied,
    BackendError,
    NameTaken,
    NotFound,
    Refused,
    Rejected,
    Transient,
)
from orchestrator.files import flock, make_folder, read_own, set_aside, sweep, write_new, written
from orchestrator.platforms.kaggle import checking, kernel, mounting, refusals, staging, surveying
from orchestrator.platforms.kaggle.account import Account
from orchestrator.platforms.kaggle.client import KaggleClient
from orchestrator.platforms.kaggle.connection import on_loopback
from orchestrator.platforms.kaggle.endings import OVER, SAVED, SAVING, WAITING
from orchestrator.platforms.kaggle.finding import Finder, Found, other_name
from orchestrator.platforms.kaggle.kernel import StagedFile, slug
from orchestrator.platforms.kaggle.leaving import Leavings
from orchestrator.platforms.kaggle.logs import Told, events, spoken
from orchestrator.platforms.kaggle.memory import Known, Memory
from orchestrator.platforms.kaggle.options import KaggleOptions
from orchestrator.platforms.kaggle.outbox import KernelOutbox
from orchestrator.platforms.kaggle.stopping import Stopper
from orchestrator.platforms.kaggle.values import Pushed, Quotas, Status
from orchestrator.platforms.platform import Finding, Leftover, Sight, Trial
from orchestrator.platforms.trials.running import PACKING, TRIALS, under_way
from orchestrator.session import saying
from orchestrator.session.layout import SESSION
from orchestrator.session.staging import Materials

LOCK_SECONDS_MAX, _LOCK_PAUSE_SECONDS = 60.0, 0.1  # for the launch of another process
_UNREADABLE = (ValueError, KeyError, TypeError, ArithmeticError)  # caused by one kernel's files or answers
_QUIET_SECONDS_MAX, _LOG_SECONDS_MAX = 2.0, 20.0


class KagglePlatform:
    """The kaggle platform `name`. `folder` is its own folder on this machine, with the id of this home and
    what is known of each session."""

    def __init__(
        self, name: str, options: KaggleOptions, account: Account, folder: Path, clock: Clock
    ) -> None:
        self._name = name
        self._options = options
        self._account = account
        self._folder = folder
        self._clock = clock
        self._memory = Memory(folder / "sessions")
        self._finder = Finder(lambda: self._client, self._memory, options, clock, home=lambda: self._home)
        self._leavings = Leavings(lambda: self._client, self._memory, options, clock)
        self._stopper = Stopper(lambda: self._client, self._memory, self._finder, self._leavings, options,
                                clock, listen=self._told)  # fmt: skip
        self._quotas: Quotas | None = None  # as read last

    @property
    def name(self) -> str:
        return self._name

    @property
    def _client(self) -> KaggleClient:
        return self._account.client

    @property
    def this_machine(self) -> bool:
        """Those of a local Kaggle do."""
        return on_loopback(self._options.endpoint)

    def survey(self) -> tuple[Offer, ...]:
        quotas = self._client.quota()
        if surveying.is_surprising(self._quotas, quotas):  # read again before it is believed
            quotas = self._client.quota()
        self._quotas = quotas
        return surveying.offers(self._name, self._options, quotas, self._clock.now())

    def checkup(self) -> tuple[Finding, ...]:
        return checking.findings(self._client, self._options.endpoint, self._account.exposed())

    def leftovers(self) -> tuple[Leftover, ...]:
        """What a trial left belongs to no run, so it can be removed without a doubt."""
        known = self._memory.sessions()
        ours = checking.leftovers(self._client, self._home, known) if self._home_file.exists() else ()
        tried = () if self._trials is None else self._trials.leftovers()
        trials = under_way(self._folder / TRIALS)  # read last: it holds whatever was listed
        return (*ours, *(replace(each, run="", in_trial=each.run in trials) for each in tried))

    def remove(self, leftover: Leftover) -> None:
        if leftover.run:
            checking.remove(self._client, self._home, leftover)
        elif self._trials is not None:
            run = run_of(leftover.session)
            if run in under_way(self._folder / TRIALS):
                raise Transient(f"{run} is under way", backend=self._name, operation="remove")
            self._trials.remove(replace(leftover, run=run))

    @property
    def _trials(self) -> KagglePlatform | None:
        """Trials have an id and a memory of their own, as if they were another home."""
        folder = self._folder / TRIALS
        if not folder.exists():
            return None
        return KagglePlatform(self._name, self._options, self._account, folder, self._clock)

    def trial(self, *, long: bool) -> Trial:
        from orchestrator.platforms.kaggle.trial.trial import KaggleTrial  # it builds platforms like this one

        return KaggleTrial(self._name, self._options, self._folder / TRIALS, self._clock, long=long)

    def tidy(self) -> None:
        """Removes files that were being packed when a controller or a trial died, and what sessions that are
        over no longer need of the account. They may contain secrets."""
        with suppress(BackendError):
            staging.forget_credentials(self._client, self._memory)
        for folder in (self._folder, self._folder / TRIALS):
            with suppress(FileNotFoundError):
                sweep(folder / PACKING, prefix="")

    # --- Starting ---------------------------------------------------------------------------------------

    def prepare(self, order: Order, materials: Materials) -> None:
        self._check(order)
        if order.resume is not None and materials.resume is None:
            raise Rejected(
                f"{order.session} needs checkpoint {order.resume}, which was not given", operation="prepare"
            )
        if self._memory.of(order.session).stopped:
            return
        known = staging.settled(self._client, self._options, self._memory, order.session)
        if not self._finder.find(order.session, fresh=True).gone:
            if staging.is_whole(known.files, order, handed=True):
                return
            raise NameTaken(f"{order.session} was started with another order", operation="prepare")
        handed = self._is_handed_over(order, materials.resume)
        if staging.is_staged(self._client, self._options, known, order, handed=handed):
            return
        staging.stage(
            self._client, self._options, order, materials, self._memory,
            home=self._home, handed=handed, folder=self._packing(order.session),
        )  # fmt: skip

    def _packing(self, name: str) -> Path:
        return self._folder / PACKING / name

    def _is_handed_over(self, order: Order, resume: Path | None) -> bool:
        """Whether the session reads its checkpoint (here in `resume`) from the output of the kernel that
        wrote it: if it is large and that output is complete.

        Only one session reads it there. If that session brings no newer checkpoint, what it read may have
        been damaged, so the next session gets a copy.
        """
        before = self._writer(order)
        if before is None or resume is None or _size(resume) < self._options.hand_over_bytes:
            return False
        if self._memory.reader_of(before) not in (None, order.session):
            return False
        status = self._client.status(before)
        if status is None or status.state not in OVER:
            return False
        try:
            outbox = KernelOutbox(self._client, before)
        except NotFound:  # removed meanwhile
            return False
        wanted = (path.relative_to(resume).as_posix() for path in resume.rglob("*") if path.is_file())
        return outbox.names.issuperset(wanted)

    def _writer(self, order: Order) -> str | None:
        """The kernel that wrote the checkpoint to resume from, if it was one."""
        session = kernel.writer(order)
        return None if session is None else self._memory.of(session).kernel or slug(session)

    def launch(self, order: Order) -> None:
        """Looks, then pushes, because Kaggle runs a second push in parallel to the first. A lock allows one
        launch at a time on this machine; the ledger keeps controllers on other machines apart."""
        self._check(order)
        with self._launching():
            self._launch(order)

    @contextmanager
    def _launching(self) -> Iterator[None]:
        """Holds the lock. Raises Transient if another process does so for long: it may be stopped."""
        make_folder(self._folder)
        ends = self._clock.monotonic() + LOCK_SECONDS_MAX
        with written(self._folder / "launch-lock") as lock:
            while not _is_taken(lock):
                if self._clock.monotonic() >= ends:
                    text = "another process has not finished its launch: look for one of ours that is stopped"
                    raise Transient(text, backend=self._name, operation="launch")
                self._clock.wait(threading.Event(), _LOCK_PAUSE_SECONDS)
            yield

    def _launch(self, order: Order) -> None:
        session = order.session
        known = self._memory.of(session)
        if known.stopped:
            raise Rejected(f"{session} was stopped before it was launched", operation="launch")
        try:
            found = self._finder.find(session, fresh=True)
        except AccessDenied:
            if known.pushed_at is None:
                raise
            raise self._unknown(session) from None
        refused_before = found.status is not None and found.status.state == SAVED and known.pushed_at is None
        if known.accepted or (not found.gone and not refused_before):
            return
        if not refused_before and self._finder.may_appear(known):
            raise self._unknown(session)
        self._check_staged(known, order)
        sent_names = (name for names in known.mounted.values() for name in names)
        files = [each for each in map(StagedFile.parse, sent_names) if each is not None]
        sent = any(each.kind == "checkpoint" for each in files)
        hand_over = None if sent else self._writer(order)
        attempt = max(1, known.attempt)
        pushed_at = self._clock.now()
        self._memory.note(session, attempt=attempt, pushed_at=pushed_at, reads_from=hand_over or "")
        push = kernel.push(
            self._options, order, name=slug(session, attempt), home=self._home,
            datasets=tuple(known.mounted), files=files, hand_over=hand_over,
            mounts=mounting.mounts(order, known.mounts),
        )  # fmt: skip
        try:
            pushed = self._client.push(push)
        except (Refused, Rejected, AccessDenied):  # certainly without effect
            self._memory.note(session, pushed_at=None, reads_from="")
            raise
        finally:
            self._finder.forget_list()
        self._take_answer(order, pushed, slug(session, attempt))

    def _check_staged(self, known: Known, order: Order) -> None:
        """Raises NotFound if it must be prepared anew, and Refused if that is unknown: nothing was pushed, so
        the next try may use what was uploaded."""
        try:
            staged = staging.is_staged(self._client, self._options, known, order, handed=True)
        except Transient as error:
            raise Refused(str(error), backend=self._name, operation="launch") from error
        if not staged:
            raise NotFound(f"{order.session} is not prepared: its dataset is not ours", operation="launch")

    def _unknown(self, session: str) -> Transient:
        text = f"an earlier push of {session} may have taken effect"
        return Transient(text, backend=self._name, operation="launch")

    def _take_answer(self, order: Order, pushed: Pushed, asked: str) -> None:
        """Raises Refused or QuotaExhausted if nothing runs. Then the next try may push again."""
        session = order.session
        if pushed.error:
            self._memory.note(session, pushed_at=None, reads_from="")
            raise self._refusal(order, pushed.error)
        name = pushed.slug or asked
        if name != asked:
            self._memory.tell(session, other_name(name, asked))
        if pushed.invalid:
            self._without_data(session, name, pushed.id, pushed.invalid)
        if pushed.version > 1:
            self._memory.tell(session, f"{name} had been pushed before: an older version may run beside it")
        self._memory.note(session, kernel=name, kernel_id=pushed.id, accepted=True)

    def _refusal(self, order: Order, error: str) -> BackendError:
        """The quota is read again before a refusal for the quota is believed."""
        quotas = None
        if refusals.is_about_quota(error):
            with suppress(BackendError):
                quotas = self._client.quota()
        pool = kernel.MACHINES[order.accelerator].pool
        return refusals.refusal(error, now=self._clock.now(), quotas=quotas, pool=pool, backend=self._name)

    def _without_data(self, session: str, name: str, number: int, missing: tuple[str, ...]) -> None:
        """It runs, but without its data, so it is deleted. The next try gets another name, because a deleted
        one stays taken, and after a second time also another dataset. Raises Refused, or Transient if it may
        still run: then it is the session's kernel."""
        known = self._memory.note(session, kernel=name, kernel_id=number)
        if not self._client.delete_kernel(name):
            raise self._unknown(session)
        self._memory.note(
            session,
            kernel="",
            kernel_id=0,
            seen=False,
            attempt=known.attempt + 1,
            pushed_at=None,
            reads_from="",
            unfound=known.unfound + 1,
        )
        raise refusals.invalid(missing, backend=self._name)

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
            make_folder(self._folder)
            with suppress(FileExistsError):  # another controller has just written it
                write_new(self._home_file, uuid.uuid4().hex.encode())
        return read_own(self._home_file, 256).decode().strip()[:12]

    @property
    def _home_file(self) -> Path:
        return self._folder / "home-id"

    # --- Looking ----------------------------------------------------------------------------------------

    def observe(self, names: Iterable[str]) -> Mapping[str, Sight]:
        seen: dict[str, Sight] = {}
        trouble: BackendError | None = None
        for name in names:
            try:
                sight = self._sight(name)
            except (Transient, Refused, Rejected) as error:  # one unreadable session must not hide the others
                trouble = error
            except _UNREADABLE as error:
                seen[name] = Sight(Sighting.RUNNING, detail=f"it cannot be read: {error}")
            else:
                seen |= {} if sight is None else {name: sight}
        staging.forget_credentials(self._client, self._memory)
        if trouble is not None and not seen:
            raise trouble
        return seen

    def _sight(self, name: str) -> Sight | None:
        """None if Kaggle does not show the status of a kernel that it lists: nothing is known of it now."""
        if not SESSION.fullmatch(name):
            return Sight(Sighting.ABSENT)
        found = self._finder.find(name)
        if found.status is None:
            return None if found.listed else self._absent(name)
        sight = self._sight_of(name, found.slug, found.status)
        return replace(sight, notes=(*sight.notes, *self._memory.of(name).said))

    def _absent(self, name: str) -> Sight:
        """A kernel that Kaggle accepted exists, even if nothing shows it yet."""
        known = self._memory.of(name)
        if known.accepted and not known.seen and self._finder.may_appear(known):
            return Sight(Sighting.PENDING, detail="Kaggle has accepted it, but does not show it yet")
        return Sight(Sighting.ABSENT)

    def _sight_of(self, name: str, name_there: str, status: Status) -> Sight:
        if status.state in WAITING:
            return Sight(Sighting.PENDING)
        if status.state in OVER:
            self._memory.note(name, over=True)
            return self._leavings.sight(name, name_there, status, lambda: self._told(name, name_there))
        self._leavings.forget(name)
        told = self._told(name, name_there)
        if status.state == SAVING or told.left:
            text = f"Kaggle is still saving its output; {self._look_at(name_there)}"
            return Sight(Sighting.SAVING, told.outbox, detail=text, log=told.log, partial=True)
        look = self._look_at(name_there)
        return Sight(Sighting.RUNNING, told.outbox, detail=look, log=told.log, partial=True)

    def _told(self, name: str, name_there: str) -> Told:
        """What the runner has printed. Nothing means nothing, because logs are late."""
        quiet = min(_QUIET_SECONDS_MAX, self._options.report_seconds / 2)
        try:
            told = spoken(
                events(self._client, name_there, quiet_seconds=quiet, at_most_seconds=_LOG_SECONDS_MAX)
            )
        except (Transient, Refused, Rejected):  # the status shows that it runs, even without a log
            return Told()
        if told.status is not None:  # otherwise another look may have heard it
            self._memory.note(name, worked=True, shipped=is_shipping(saying.status(told.status.encode())))
        if told.session_id is not None:
            self._memory.note(name, session_id=told.session_id)
        return told

    def open(self, name: str) -> KernelOutbox:
        found = self._finder.find(name) if SESSION.fullmatch(name) else Found(name, None)
        if found.status is None:
            if found.listed or self._must_be_there(name):
                raise self._later(found.slug)
            self._client.quota()  # otherwise refused credentials would look like a missing kernel
            raise NotFound(f"no outbox of {name}", backend=self._name, operation="collect")
        if found.status.state not in OVER | {SAVED}:
            raise self._later(found.slug)
        outbox = KernelOutbox(self._client, found.slug)
        if not outbox.names:
            if self._leavings.must_come(name, found.status):
                raise self._later(found.slug)
            text = f"{found.slug} has left no output that Kaggle shows"
            raise NotFound(text, backend=self._name, operation="collect")
        known = self._memory.of(name)
        if len(outbox.checkpoints()) < known.checkpoints and not known.shipped:
            raise self._later(found.slug)
        return outbox

    def _must_be_there(self, name: str) -> bool:
        """Whether one answer that the kernel is missing is not enough: it has ended, and its work is nowhere
        else."""
        known = self._memory.of(name)
        return known.ships and known.over and known.worked and not known.shipped

    def _later(self, slug: str) -> Transient:
        text = f"Kaggle does not show its output yet; {self._look_at(slug)}"
        return Transient(text, backend=self._name, operation="collect")

    def _look_at(self, slug: str) -> str:
        return f"look at {kernel.page(self._client.username(), slug)}"

    # --- Ending -----------------------------------------------------------------------------------------

    def stop(self, name: str) -> StopReply:
        return self._stopper.stop(name) if SESSION.fullmatch(name) else StopReply.ENDED

    def discard(self, name: str) -> None:
        if not SESSION.fullmatch(name):
            return
        found = self._finder.find(name, fresh=True)
        state = None if found.status is None else found.status.state
        known = self._memory.of(name)
        may_appear = not known.seen and self._finder.may_appear(known)
        if found.listed or (may_appear if state is None else state not in OVER | {SAVED}):
            raise Transient(f"{name} may still be running", backend=self._name, operation="discard")
        if state is not None:
            self._client.delete_kernel(found.slug)
        for dataset in (*known.datasets, *known.mounted, *self._other_datasets(name, known)):
            self._client.delete_dataset(dataset)
        self._leavings.forget(name)
        self._stopper.forget(name)
        set_aside(self._packing(name))
        self._memory.forget(name)

    def _other_datasets(self, session: str, known: Known) -> list[str]:
        """The session's datasets of which this machine knows nothing: an earlier version made them, or what
        was known is lost."""
        named = [each.slug for each in self._client.datasets() if kernel.is_dataset_of(each.slug, session)]
        others = (each for each in named if each not in (*known.datasets, known.credential))
        return [each for each in others if staging.is_ours(self._client, each, self._home)]


def configured(name: str, options: KaggleOptions, folder: Path, clock: Clock) -> KagglePlatform:
    """The platform as the user configured it. Makes no request."""
    return KagglePlatform(name, options, Account(name, options, clock), folder, clock)


def _is_taken(lock: IO[bytes]) -> bool:
    """Whether the lock is ours now."""
    return flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, Path(lock.name))


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
