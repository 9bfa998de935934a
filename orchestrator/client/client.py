"""The one entry point: every question and every wish of a front end is a method here, and each is short.

Imports lazily, so that a program that only lists runs loads neither the config nor any platform. Must never
print, parse arguments or exit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self

from orchestrator.client.ahead import Ahead
from orchestrator.client.backups import Backups
from orchestrator.client.home import Home
from orchestrator.client.jobs import Jobs
from orchestrator.client.ledgers import Ledgers
from orchestrator.client.notifications import Notifications
from orchestrator.client.past import Past
from orchestrator.client.schedules import Schedules
from orchestrator.client.stores import Stores
from orchestrator.clock import Clock, SystemClock

if TYPE_CHECKING:
    from orchestrator.client.checkup import Finding
    from orchestrator.client.controlling import Controller
    from orchestrator.client.health import Health
    from orchestrator.client.leftovers import Leftovers, Orphan, Removal
    from orchestrator.client.planning import Plan
    from orchestrator.client.pruning import Pruned, PrunePlan
    from orchestrator.client.quota import Quotas
    from orchestrator.client.run import Run
    from orchestrator.client.setting_up import SetUp
    from orchestrator.client.status import RunStatus
    from orchestrator.client.submitting import Submission
    from orchestrator.client.wiring import Wired


class Client:
    """One user's orchestrator: the runs of one home.

    `home` defaults to `$ORCHESTRATOR_HOME`, else to the user's data folder. It need not exist yet. Raises
    InputError if it is a file. Threads may share a client.

    Each call opens the ledger and closes it again. Inside `with client:` all calls share one connection.
    Every method may raise BackendError if the ledger cannot be read or written.
    """

    def __init__(
        self, home: Home | str | os.PathLike[str] | None = None, *, clock: Clock | None = None
    ) -> None:
        self.home = home if isinstance(home, Home) else Home.of(os.fspath(home) if home is not None else None)
        self.clock: Clock = clock or SystemClock()
        # Hears how far a submit has fetched an input: its name, bytes, and all bytes if they are known.
        self.fetch_progress: Callable[[str, int, int | None], None] | None = None
        self.ledgers = Ledgers(self.home)
        self.stores = Stores(self)
        self.schedules = Schedules(self)
        self.notifications = Notifications(self)
        self.outlook = Ahead(self)
        self.jobs = Jobs(self)
        self.backups = Backups(self)
        self.past = Past(self)

    def __enter__(self) -> Self:
        self.ledgers.hold()
        return self

    def __exit__(self, *_: object) -> None:
        self.ledgers.let_go()

    def __repr__(self) -> str:
        return f"Client({str(self.home.path)!r})"

    # --- Runs -------------------------------------------------------------------------------------------

    def runs(
        self, *, all: bool = False, limit: int | None = None, after: str | None = None
    ) -> tuple[RunStatus, ...]:
        """The runs under way, newest first; with `all` also runs that are over. At most `limit` of them;
        with `after`, only those that come behind that run.

        Raises InputError for a `limit` below 0, and for an unknown run.
        """
        from orchestrator.client.status import statuses

        return statuses(self, all=all, limit=limit, after=after)

    def run(self, name: str) -> Run:
        """Finds a run by its full name, a unique prefix, or its job's name (which finds the newest run).

        Raises InputError that lists the candidates or the nearest names.
        """
        from orchestrator.client.run import Run

        with self.ledgers.runs() as ledger:
            return Run(self, ledger.find(name))

    def submit(
        self,
        job: str | os.PathLike[str],
        *,
        platforms: str | Iterable[str] = (),
        unless_running: bool = False,
        deadline: str | float | None = None,
        start: str | None = None,
    ) -> Submission:
        """Freezes the job in this YAML file with its source, records a run of it, and starts a controller
        unless one runs. The run continues when this program ends.

        `platforms`: use only these. `unless_running`: submit nothing if a run of this job is under way.
        `deadline`: when it should be done, as for `outlook`; the router prefers runs that would miss theirs.
        `start`: the checkpoint of another run to begin with, as `RUN` (the newest one) or `RUN@STEP`. Raises
        SpecError for a wrong job or config, InputError for files that cannot be frozen or must not leave this
        machine and for a `start` that the job cannot go on from, NoRoute if no platform can ever run the job,
        AccessDenied if a person must act first. A job with a schedule is registered instead:
        `schedules.register`.
        """
        from orchestrator.client.submitting import submit

        return submit(
            self, job, _names(platforms), unless_running=unless_running, deadline=deadline, start=start
        )

    def plan(self, job: str | os.PathLike[str], *, platforms: str | Iterable[str] = ()) -> Plan:
        """Where and when the job in this YAML file would run. Launches and writes nothing.

        Asks every platform, which takes up to 30 seconds. Raises SpecError for a wrong job or config, and
        InputError for files that cannot be frozen or must not leave this machine.
        """
        from orchestrator.client.planning import plan

        return plan(self, job, _names(platforms))

    def job_schema(self) -> dict[str, Any]:
        """The JSON Schema (draft 2020-12) of a job's YAML file."""
        from orchestrator import spec

        return spec.schema()

    # --- Around them ------------------------------------------------------------------------------------

    def wired(self) -> Wired:
        """The user's platforms and stores. Raises SpecError or InputError for a wrong config."""
        from orchestrator.client.wiring import Wired

        return Wired.from_home(self.home.path, self.clock, self.fetch_progress)

    @property
    def controller(self) -> Controller:
        """Runs, starts and stops the controller of this home."""
        from orchestrator.client.controlling import Controller

        return Controller(self.home, self.clock)

    def health(self) -> Health:
        """Whether a controller runs and ticks. Raises the same errors as opening the ledger."""
        from orchestrator.client import health
        from orchestrator.client.owning import running

        with self.ledgers.existing() as ledger:
            if ledger is None:
                return health.Health()
            owner = running(ledger, self.clock)
            return health.of(self.home, self.clock, owner, ledger.standbys())

    def quota(self, platforms: str | Iterable[str] = ()) -> Quotas:
        """What is left of the quota of each platform, or of these, and what used the rest.

        Asks every platform, which takes up to 30 seconds. Platforms that do not answer are listed separately.
        Raises SpecError or InputError for a wrong config, InputError for a platform that it does not have.
        """
        from orchestrator.client import quota

        return quota.quota(self, _names(platforms))

    def doctor(self, names: str | Iterable[str] = ()) -> Iterator[Finding]:
        """What works, what is missing and how to fix it: for everything, or for these platforms and stores.

        Yields each finding as soon as it is known; all of them take up to a minute. A check that fails is a
        finding, too. Raises InputError for a name that the config does not have.
        """
        from orchestrator.client import checkup

        return checkup.findings(self.home, self.clock, _names(names))

    def leftovers(self, names: str | Iterable[str] = ()) -> Leftovers:
        """What sessions left on all platforms, or on these, and no run needs any more. Changes nothing.

        Platforms that do not answer are listed separately. Raises SpecError or InputError for a wrong config,
        InputError for a name that it does not have, and the same errors as opening the ledger.
        """
        from orchestrator.client import leftovers

        return leftovers.find(self.home, leftovers.configured(self.home, self.clock, _names(names)))

    def remove_leftovers(self, orphans: Iterable[Orphan]) -> Removal:
        """Removes these and kills those that run. Keeps what a live run has come to need meanwhile.

        Raises the same errors as `leftovers`.
        """
        from orchestrator.client import leftovers

        return leftovers.remove(self.home, leftovers.configured(self.home, self.clock), orphans)

    def prune_plan(
        self,
        *,
        older_than_seconds: float = 30 * 86400.0,
        keep: int = 0,
        unknown: bool = False,
        checkpoints: bool = False,
        history: bool = False,
        progress: Callable[[str], None] | None = None,
    ) -> PrunePlan:
        """What is no longer needed in the home, in the stores and on the platforms. Changes nothing.

        Logs and sessions may go `older_than_seconds` after their run's end. The newest `keep` runs of each
        job keep everything. `unknown`: include what belongs to runs that this ledger does not know.
        `checkpoints`: include checkpoints of finished runs, except each run's newest and best. `history`:
        include the events of these runs in the ledger, except the first and the last. `progress` is
        called with what is being looked at.

        Stores and platforms that do not answer are listed separately. Raises SpecError or InputError for a
        wrong config, InputError for a `keep` below 0, and the same errors as reading the ledger.
        """
        from orchestrator.client import pruning
        from orchestrator.pruning.rules import Policy

        policy = Policy(self.clock.now(), older_than_seconds, keep, unknown, checkpoints, history)
        return pruning.plan(self.home, self.clock, policy, progress)

    def prune(
        self,
        plan: PrunePlan,
        *,
        stopped: Callable[[], bool] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Pruned:
        """Removes what the plan lists. Keeps what has come to be needed meanwhile.

        Stops soon after `stopped` returns True. Everything else stays intact, and another plan can continue.
        `progress` is called with how many more things were removed. Raises the same errors as `prune_plan`,
        and Transient if another prune of this home is running.
        """
        from orchestrator.client import pruning

        return pruning.carry_out(self.home, self.clock, plan, stopped, progress)

    def init(self, *, force: bool = False) -> SetUp:
        """Looks at this machine and writes the config. `force` replaces an existing config and keeps a copy.

        Raises InputError if a config exists and `force` is not given, or if it cannot be written.
        """
        from orchestrator.client import setting_up

        return setting_up.init(self.home, force=force)


def _names(given: str | Iterable[str]) -> tuple[str, ...]:
    """One name alone is a name, not its letters."""
    return (given,) if isinstance(given, str) else tuple(given)
