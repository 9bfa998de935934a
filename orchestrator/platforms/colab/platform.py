"""Sessions on machines of Google Colab, one each. User documentation: docs/colab.md.

A session's machine is found by the session's name, with or without what is known here. It is started once,
and read and stopped through files. Must never decide, and never touch a machine that is not of a session:
the user's own notebooks run on the same account.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from orchestrator.clock import Clock
from orchestrator.core.offer import Offer
from orchestrator.core.order import Order, Outcome, run_of
from orchestrator.core.session import Sighting, StopReply
from orchestrator.errors import NameTaken, Rejected, Transient
from orchestrator.files import sweep
from orchestrator.platforms.colab import checking, staging, surveying
from orchestrator.platforms.colab.environment import Environment
from orchestrator.platforms.colab.launching import Launcher
from orchestrator.platforms.colab.machine import Machine, look, must_be_there, seen, small_paths, state_paths
from orchestrator.platforms.colab.memory import Memory
from orchestrator.platforms.colab.options import ColabOptions
from orchestrator.platforms.colab.outbox import ContentsOutbox
from orchestrator.platforms.colab.runner import Cli
from orchestrator.platforms.colab.stopping import Stopper, may_run
from orchestrator.platforms.colab.values import Reading, Units
from orchestrator.platforms.platform import Finding, Leftover, Sight, Trial
from orchestrator.platforms.trials.running import PACKING, TRIALS, under_way
from orchestrator.session.layout import SESSION
from orchestrator.session.staging import Materials

MACHINE, PACKED = "machine", "packed files"  # kinds of leftovers


class ColabPlatform:
    """The colab platform `name`. `folder` is its own folder on this machine, with the command line and what
    is known of each session."""

    def __init__(self, name: str, options: ColabOptions, cli: Cli, folder: Path, clock: Clock) -> None:
        self._name = name
        self._options = options
        self._cli = cli
        self._folder = folder
        self._clock = clock
        self._memory = Memory(folder)
        self._launcher = Launcher(name, cli, self._memory, options, folder, clock)
        self._stopper = Stopper(name, cli, self._memory, self._launcher, options, folder, clock)
        self._units: Units | None = None  # as read last

    @property
    def name(self) -> str:
        return self._name

    def survey(self) -> tuple[Offer, ...]:
        reading, units = self._account()
        if surveying.is_surprising(self._units, units):  # read again before it is believed
            reading, units = self._account()
        self._units = units
        cost = surveying.measured(reading)
        if cost is not None:
            self._memory.measured(*cost)
        rates, used = self._memory.rates(), self._memory.accelerators()
        return surveying.offers(self._name, self._options, units, rates, self._clock.now(), used)

    def _account(self) -> tuple[Reading, Units]:
        reading = self._cli.read(units=True)
        if reading.units is None:
            raise Transient("Colab did not say what the account has", backend=self._name, operation="survey")
        return reading, reading.units

    # --- Starting ---------------------------------------------------------------------------------------

    def prepare(self, order: Order, materials: Materials) -> None:
        """Packs what the session gets by upload. Asks Colab nothing: a session of this name that this
        machine does not know is found at the launch."""
        self._check(order)
        known = self._memory.of(order.session)
        if known.stopped:
            return
        if known.sent:
            if known.order == staging.fingerprint(order):
                return
            raise NameTaken(f"{order.session} was started with another order", operation="prepare")
        staging.stage(self._folder, order, materials, here=self.this_machine)
        prepared = staging.fingerprint(order)
        self._memory.note(order.session, order=prepared, accelerator=order.accelerator)

    def launch(self, order: Order) -> None:
        self._check(order)
        self._launcher.launch(order)

    @property
    def this_machine(self) -> bool:
        """Those of a local Colab do."""
        return checking.on_loopback(self._options.proxy)

    def _check(self, order: Order) -> None:
        if not SESSION.fullmatch(order.session):
            raise Rejected(f"{order.session!r} is not the name of a session")
        if order.platform != self._name or order.accelerator not in self._options.accelerators:
            raise Rejected(f"the order is for {order.accelerator} on {order.platform}; this is {self._name}")

    # --- Looking ----------------------------------------------------------------------------------------

    def observe(self, names: Iterable[str]) -> Mapping[str, Sight]:
        wanted = tuple(names)
        ours = [each for each in wanted if SESSION.fullmatch(each)]
        if not ours:
            return dict.fromkeys(wanted, Sight(Sighting.ABSENT))
        reading = self._cli.read(files={each: small_paths(each) for each in ours})
        return {each: self._sight(each, seen(reading, each)) for each in wanted}

    def _sight(self, name: str, machine: Machine | None) -> Sight:
        if machine is None:
            return Sight(Sighting.ABSENT)
        if machine.found.problem:  # Colab has the machine: the heartbeat says whether the session lives
            return Sight(Sighting.RUNNING, detail=f"its machine cannot be read: {machine.found.problem}")
        if not machine.is_started:
            return Sight(Sighting.PENDING, detail="its machine is there; it has not started yet")
        outbox = ContentsOutbox(self._cli, name, machine.found.files)
        if machine.left is None:
            return Sight(Sighting.RUNNING, outbox)
        return Sight(Sighting.ENDED, outbox, ending=Outcome.LOST, detail=machine.left.text)

    def open(self, name: str) -> ContentsOutbox:
        machine = look(self._cli, name) if SESSION.fullmatch(name) else None
        must_be_there(machine, name)
        return ContentsOutbox(self._cli, name)

    # --- Ending -----------------------------------------------------------------------------------------

    def stop(self, name: str) -> StopReply:
        return self._stopper.stop(name) if SESSION.fullmatch(name) else StopReply.ENDED

    def discard(self, name: str) -> None:
        if SESSION.fullmatch(name):
            self._stopper.discard(name)

    # --- What a person sees -----------------------------------------------------------------------------

    def log_in(self, say: Callable[[str], None]) -> None:
        if self.this_machine:
            say("the proxy is on this machine; for a local Colab (`make colab-local`), no login is needed")
        say("preparing Colab's command line, which may take a minute")
        self._cli.ready()
        self._cli.login()

    def checkup(self) -> tuple[Finding, ...]:
        reading, units = self._account()
        return checking.findings(self._options, units, self._memory.rates(), reading)

    def leftovers(self) -> tuple[Leftover, ...]:
        """Machines and packed files of sessions that this home knows. Colab's list names no sessions, so a
        machine is only known to be ours by a session's name."""
        sessions = {each: self._memory.of(each) for each in self._memory.sessions()}
        asked = [each for each, known in sessions.items() if known.asked_at is not None or known.sent]
        reading = self._cli.read(files={each: state_paths(each) for each in asked}) if asked else None
        machines = {each: None if reading is None else seen(reading, each) for each in sessions}
        ours = [found for each in sessions for found in self._left_by(each, machines[each])]
        tried = () if self._trials is None else self._trials.leftovers()
        trials = under_way(self._folder / TRIALS)  # read last: it holds whatever was listed
        return (*ours, *(replace(each, run="", in_trial=each.run in trials) for each in tried))

    def _left_by(self, name: str, machine: Machine | None) -> Iterable[Leftover]:
        if machine is not None:
            alive = machine.left is None and may_run(machine)
            state = "running" if alive else "ended" if machine.left is not None else "never started"
            yield Leftover(MACHINE, name, name, run_of(name), state, alive)
        elif staging.archive(self._folder, name).exists():
            yield Leftover(PACKED, name, name, run_of(name), "not launched")

    def remove(self, leftover: Leftover) -> None:
        if not leftover.run and self._trials is not None:
            run = run_of(leftover.session)
            if run in under_way(self._folder / TRIALS):
                raise Transient(f"{run} is under way", backend=self._name, operation="remove")
            self._trials.remove(replace(leftover, run=run))
            return
        machine = look(self._cli, leftover.name)
        if machine is not None and not leftover.alive and machine.left is None and may_run(machine):
            text = f"{leftover.name} is running now"
            raise Transient(text, backend=self._name, operation="remove")
        self._stopper.give_back(leftover.name)
        self._stopper.forget(leftover.name)

    def tidy(self) -> None:
        """Removes files that were in use when a controller died. They contain credentials."""
        for home in (self._folder, self._folder / TRIALS):
            for folder in (home, home / staging.PREPARED, home / "sessions"):
                with suppress(FileNotFoundError):
                    sweep(folder)
        with suppress(FileNotFoundError):
            sweep(self._folder / TRIALS / PACKING, prefix="")
        self._cli.tidy()

    # --- Trials -----------------------------------------------------------------------------------------

    def trial(self, *, long: bool) -> Trial:
        from orchestrator.platforms.colab.trial.trial import ColabTrial  # it builds platforms like this one

        folder = self._folder / TRIALS
        return ColabTrial(self._name, self._options, self._cli, folder, self._clock, long=long)

    @property
    def _trials(self) -> ColabPlatform | None:
        """Trials have a memory of their own, as if they were another home."""
        folder = self._folder / TRIALS
        if not folder.exists():
            return None
        return ColabPlatform(self._name, self._options, self._cli, folder, self._clock)


def configured(name: str, options: ColabOptions, folder: Path, clock: Clock) -> ColabPlatform:
    """The platform as the user configured it. Starts nothing."""
    environment = Environment(
        folder / "cli", python=options.python, auth=options.auth, adc_file=options.adc_file,
        proxy=options.proxy, ca_file=options.ca_file,
    )  # fmt: skip
    return ColabPlatform(name, options, Cli(environment, backend=name, clock=clock), folder, clock)
