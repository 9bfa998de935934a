"""The one door: every question and every wish of a front end is a method here, and each method is short.

Imports lazily, so that a program that only lists runs loads neither the config nor any platform. Must never
print, parse arguments or exit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self

from orchestrator.client.home import Home
from orchestrator.client.ledgers import Ledgers
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

    `home` defaults to `$ORCHESTRATOR_HOME`, else the user's data folder; it need not exist yet. Raises
    InputError where it names a file. Threads may share a client.

    Each call opens the ledger and closes it again; inside `with client:` all calls share one connection.
    Every method may raise BackendError where the ledger cannot be read or written.
    """

    def __init__(
        self, home: Home | str | os.PathLike[str] | None = None, *, clock: Clock | None = None
    ) -> None:
        self.home = home if isinstance(home, Home) else Home.of(os.fspath(home) if home is not None else None)
        self.clock: Clock = clock or SystemClock()
        self.ledgers = Ledgers(self.home)

    def __enter__(self) -> Self:
        self.ledgers.hold()
        return self

    def __exit__(self, *_: object) -> None:
        self.ledgers.let_go()

    def __repr__(self) -> str:
        return f"Client({str(self.home.path)!r})"

    # --- Runs -------------------------------------------------------------------------------------------

    def runs(self, *, all: bool = False, limit: int | None = None) -> tuple[RunStatus, ...]:
        """The runs under way, newest first; with `all` also those that are over. At most `limit` of them."""
        from orchestrator.client.status import statuses

        return statuses(self, all=all, limit=limit)

    def run(self, name: str) -> Run:
        """The run of this name: the whole of it, a prefix that only it has, or its job's name (its newest).

        Raises InputError that lists the candidates, or the nearest names.
        """
        from orchestrator.client.run import Run

        with self.ledgers.runs() as ledger:
            return Run(self, ledger.find(name))

    def submit(
        self,
        job: str | os.PathLike[str],
        *,
        platforms: Iterable[str] = (),
        unless_running: bool = False,
    ) -> Submission:
        """Freezes the job in this YAML file with its source, records a run of it, and starts a controller
        unless one runs. It goes on when this program ends.

        `platforms`: run only there. `unless_running`: submit nothing if a run of this job is under way.
        Raises SpecError for a wrong job or config, InputError for what cannot be frozen or may not leave,
        NoRoute where no offer will ever take the job, AccessDenied where a person must act first.
        """
        from orchestrator.client.submitting import submit

        return submit(self, job, tuple(platforms), unless_running=unless_running)

    def plan(self, job: str | os.PathLike[str], *, platforms: Iterable[str] = ()) -> Plan:
        """Where and when the job in this YAML file would run. Launches and writes nothing.

        Asks every platform, which takes up to 30 seconds. Raises SpecError for a wrong job or config,
        InputError for what cannot be frozen or may not leave.
        """
        from orchestrator.client.planning import plan

        return plan(self, job, tuple(platforms))

    def job_schema(self) -> dict[str, Any]:
        """The JSON Schema (draft 2020-12) of a job's YAML file."""
        from orchestrator import spec

        return spec.schema()

    # --- Around them ------------------------------------------------------------------------------------

    def wired(self) -> Wired:
        """The user's platforms and stores. Raises SpecError or InputError for what is wrong in the config."""
        from orchestrator.client.wiring import Wired

        return Wired.from_home(self.home.path, self.clock)

    @property
    def controller(self) -> Controller:
        """What runs, starts and stops the controller of this home."""
        from orchestrator.client.controlling import Controller

        return Controller(self.home, self.clock)

    def health(self) -> Health:
        """Whether a controller runs and ticks. Raises what opening the ledger raises."""
        from orchestrator.client import health

        return health.of(self.home, self.clock, self.ledgers.owner())

    def quota(self, platforms: Collection[str] = ()) -> Quotas:
        """What is left of each platform's quota, or of these, and what the rest went into.

        Asks every platform, which takes up to 30 seconds; one that does not answer is told apart. Raises
        SpecError or InputError for what is wrong in the config, InputError for a platform that it lacks.
        """
        from orchestrator.client import quota

        return quota.quota(self, platforms)

    def doctor(self, names: Collection[str] = ()) -> Iterator[Finding]:
        """What works, what is missing and how to fix it: of everything, or of these platforms and stores.

        Each finding comes when it is known; all take up to a minute. What fails is a finding. Raises
        InputError for a name that the config does not have.
        """
        from orchestrator.client import checkup

        return checkup.findings(self.home, self.clock, names)

    def leftovers(self, names: Collection[str] = ()) -> Leftovers:
        """What sessions left on all platforms, or on these, though no run needs it. Changes nothing.

        Raises SpecError or InputError for what is wrong in the config, InputError for a name that it lacks,
        and what opening the ledger raises. A platform that does not answer is told apart.
        """
        from orchestrator.client import leftovers

        return leftovers.find(self.home, leftovers.configured(self.home, self.clock, names))

    def remove_leftovers(self, orphans: Iterable[Orphan]) -> Removal:
        """Removes these, killing what runs, but for what a live run has come to need since they were listed.

        Raises what `leftovers` raises.
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
        progress: Callable[[str], None] | None = None,
    ) -> PrunePlan:
        """What nothing in the home, the stores and on the platforms needs any more. Changes nothing.

        Logs and sessions go that many seconds after their run's end. The newest `keep` runs of each job keep
        everything. `unknown`: also what is of runs that this ledger does not know. `checkpoints`: also those
        of finished runs, but for the newest and the best of each. `progress` hears what is being looked at.

        Raises SpecError or InputError for what is wrong in the config, InputError for a `keep` below 0, and
        what reading the ledger raises. A store or platform that does not answer is told apart.
        """
        from orchestrator.client import pruning
        from orchestrator.pruning.rules import Policy

        policy = Policy(self.clock.now(), older_than_seconds, keep, unknown, checkpoints)
        return pruning.plan(self.home, self.clock, policy, progress)

    def prune(
        self,
        plan: PrunePlan,
        *,
        stopped: Callable[[], bool] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Pruned:
        """Removes what the plan says goes, but for what is needed by now.

        Stops soon after `stopped` says so: what is left stays whole, and another plan goes on. `progress`
        hears how many more things are gone. Raises what `prune_plan` raises, and Transient where another
        prune of this home is under way.
        """
        from orchestrator.client import pruning

        return pruning.carry_out(self.home, self.clock, plan, stopped, progress)

    def init(self, *, force: bool = False) -> SetUp:
        """Looks at this machine and writes the config; with `force` also where there is one, which is kept.

        Raises InputError where there is one, or it cannot be written.
        """
        from orchestrator.client import setting_up

        return setting_up.init(self.home, force=force)
