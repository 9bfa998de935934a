"""The course of a trial: a machine on which two cells run, then one on which a session runs.

Each step judges what it shows. What a failure makes impossible is not seen.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress

from orchestrator.core.bounds import size_text
from orchestrator.core.order import run_of
from orchestrator.core.session import Sighting
from orchestrator.core.wording import span
from orchestrator.errors import NotFound, OrchestratorError, Rejected, Transient
from orchestrator.platforms.colab.platform import MACHINE
from orchestrator.platforms.colab.trial import assumptions as assumed
from orchestrator.platforms.colab.trial import evidence, probe
from orchestrator.platforms.colab.trial.ground import (
    ALIVE_SECONDS,
    CELLS,
    EXTRA,
    LARGE_BYTES,
    NONE,
    SESSION,
    Ground,
    on_machine,
)
from orchestrator.platforms.colab.values import CPU, Assignment, Reading, Units
from orchestrator.platforms.platform import Leftover, Sight
from orchestrator.platforms.trials.assumption import FAILS, HOLDS, NOT_SEEN, Judgement, at_scale, of
from orchestrator.platforms.trials.record import Record
from orchestrator.platforms.trials.running import under_way
from orchestrator.platforms.trials.waiting import Late
from orchestrator.session.staging import Shipping

UPLINK_SECONDS = 120.0  # a session that was asked to stop waits so long for an uplink that ships nothing


class Course:
    """The steps of one trial. `cells` and `session` raise OrchestratorError if they cannot go on."""

    def __init__(self, ground: Ground, record: Record) -> None:
        self._ground = ground
        self._judge = record.judge
        self._fact = record.fact
        self._say = ground.waiting.say
        self._cli = ground.cli
        self._made: list[str] = []  # sessions that may have a machine
        self._cells = ground.session(CELLS)
        self._ships = ""  # the session that may have shipped something
        self._said = ""
        self._warnings: tuple[str, ...] = ()  # those of the session's agent

    # --- What it makes ----------------------------------------------------------------------------------

    def left(self) -> tuple[str, ...]:
        """The sessions that may still have a machine. Asks nobody."""
        return tuple(self._made)

    def clear(self) -> None:
        """Gives all machines back, and removes what was shipped. A machine that cannot be given back stays
        in `left`."""
        for session in reversed(self.left()):
            self._say(f"{_short(session)}: deleting what was made")
            try:
                self._give_back(session)
            except (OrchestratorError, OSError) as error:
                self._say(f"{_short(session)} is left: {error}")
        if self._ships:
            try:
                self._ground.supplies.store.clear(self._ships)
            except (OrchestratorError, OSError) as error:
                self._say(f"the home store keeps a few kB until the next trial: {error}")

    def _make(self, number: int) -> str:
        """From now on the session may have a machine, which doctor finds, too, if we die."""
        session = self._ground.session(number)
        self._ground.memory.note(session, asked_at=self._ground.clock.now())
        self._made.append(session)
        return session

    def _give_back(self, session: str) -> float:
        """As `doctor --clean` does. Returns for how long the machine was still shown. Raises Late or
        Unanswered if it is still there."""
        leftover = Leftover(MACHINE, session, session, self._ground.run, "", alive=True)
        clock, ends = self._ground.clock, list[float]()

        def gone() -> bool:
            try:
                self._ground.platform.remove(leftover)
            finally:
                ends.append(clock.monotonic())
            return True

        self._ground.waiting.until(f"{_short(session)} to be gone", self._ground.scale.late, gone)
        self._made.remove(session)
        return ends[-1] - ends[0]

    # --- A machine and two cells ------------------------------------------------------------------------

    def cells(self, *, long: bool) -> None:
        self._say("a machine without an accelerator, and two cells")
        earlier = self._earlier()
        reading = self._cli.read(units=True, names=earlier)
        before = self._units(reading)
        self._judge(assumed.UNITS, evidence.units(before))
        self._forget(each for each in earlier if each not in reading.endpoints)
        self._make(CELLS)
        machine = self._allocate(before)
        self._find(machine)
        self._begin(long=long)
        if long:
            self._upload_large()
            self._leave_alone()
        self._second_cell()
        self._let_go()
        self._stop()

    def _earlier(self) -> tuple[str, ...]:
        """The sessions that trials noted which died."""
        noted = self._ground.memory.sessions()
        alive = under_way(self._ground.folder)  # read last: it holds whatever was noted
        return tuple(each for each in noted if run_of(each) not in alive)

    def _forget(self, gone: Iterable[str]) -> None:
        """Forgets sessions without a machine, unless one may still come."""
        for session in gone:
            with suppress(Transient):
                self._ground.platform.discard(session)

    def _units(self, reading: Reading) -> Units:
        if reading.units is None:
            raise Transient("Colab did not say what the account has", operation="trial")
        return reading.units

    def _allocate(self, before: Units) -> Assignment:
        machine = self._cli.new(self._cells, CPU)
        began = self._ground.clock.monotonic()
        looks = 0

        def listed() -> tuple[Assignment, Reading] | None:
            nonlocal looks
            looks += 1
            reading = self._cli.read(units=True, names=[self._cells])
            shown = [each for each in reading.assignments if each.endpoint == machine.endpoint]
            return (shown[0], reading) if shown else None

        try:
            shown, reading = self._ground.waiting.until(
                "the list to show it", self._ground.scale.late, listed
            )
        except Late as late:
            self._judge(assumed.LISTED, (FAILS, str(late)))
            raise
        seconds = self._ground.clock.monotonic() - began
        in_time = looks == 1 or seconds <= self._ground.options.visibility_seconds
        self._judge(assumed.LISTED, of(in_time, f"{span(seconds)} later at most"))
        self._judge(assumed.EXACT, of(shown.accelerator == CPU, f"asked for {CPU}, got {shown.accelerator}"))
        if shown.accelerator == CPU:
            self._judge(assumed.COST, evidence.cost(before, self._units(reading)))
        return shown

    def _find(self, machine: Assignment) -> None:
        """As after a crash that took this machine's files along."""
        none = self._make(NONE)
        self._cli.forget(self._cells)
        reading = self._cli.read(names=[self._cells, none])
        self._judge(assumed.FOUND, evidence.found(machine.endpoint, reading, self._cells, none))
        if none not in reading.endpoints:
            self._made.remove(none)
            self._ground.memory.forget(none)
        again = self._cli.new(self._cells, CPU)
        same = again.endpoint == machine.endpoint
        self._judge(assumed.SAME, of(same, "the same machine" if same else "a second machine"))
        if not same:
            self._cli.adopt(self._make(EXTRA), machine.endpoint)

    def _begin(self, *, long: bool) -> None:
        """A word is uploaded, and a cell tells what it sees."""
        word = secrets.token_hex(8)
        source = self._ground.file(probe.WORD, word.encode())
        scale = self._ground.scale
        seconds = 4 * scale.late + (scale.alive if long else 0.0)
        try:
            self._cli.upload(self._cells, source, on_machine(probe.WORD))
        except Rejected as error:
            self._judge(assumed.FOLDER, (FAILS, str(error)))
            raise
        cell = self._ground.cell("first", seconds)
        self._cli.start(self._cells, cell, seconds_max=self._ground.options.start_seconds)
        try:
            seen = json.loads(self._wait_for(probe.SEEN))
        except Late:
            is_there = self._is_readable()
            self._judge(assumed.FOLDER if is_there else assumed.BUSY, (FAILS, f"{probe.SEEN} cannot be read"))
            raise
        same = seen.get("word") == word
        self._judge(assumed.FOLDER, of(same, "a cell saw the upload" if same else "no cell sees the upload"))
        self._judge(assumed.BUSY, (HOLDS, f"{probe.SEEN} was read"))
        self._judge(assumed.PYTHON, evidence.python(seen))
        kept = {name: value for name, value in seen.items() if name != "word" and value not in ("", [])}
        self._fact("the machine", ", ".join(f"{name} {value}" for name, value in kept.items()))
        if not same:
            raise Transient("uploads do not reach the folder of the cells", operation="trial")

    def _read(self, *names: str) -> dict[str, str]:
        """Those files of the cells' that are there. Raises Transient if that cannot be told now."""
        paths = [on_machine(name) for name in names]
        reading = self._cli.read(files={self._cells: paths})
        if self._cells not in reading.endpoints:
            raise NotFound("the machine is gone", operation="trial")
        there = reading.found[self._cells]
        if there.problem:
            raise Transient(f"the machine's files cannot be read: {there.problem}", operation="trial")
        return {name: there.files[path].decode() for name, path in zip(names, paths, strict=True)
                if path in there.files}  # fmt: skip

    def _wait_for(self, name: str, seconds: float | None = None) -> str:
        """A file of the cells'. Raises Late."""
        late = self._ground.scale.late if seconds is None else seconds
        return self._ground.waiting.until(name, late, lambda: self._read(name).get(name))

    def _is_readable(self) -> bool:
        try:
            self._read(probe.SEEN)
        except OrchestratorError:
            return False
        return True

    def _upload_large(self) -> None:
        size = self._ground.scale.large
        self._say(f"uploading {size_text(size)}")
        name, began = "trial-large", self._ground.clock.monotonic()
        source = self._ground.file(name, secrets.token_bytes(size))
        try:
            self._cli.upload(self._cells, source, on_machine(name))
        except Rejected as error:
            self._judge(assumed.LARGE, (FAILS, str(error)))
            return
        seconds = self._ground.clock.monotonic() - began
        folder = on_machine("")
        entries = self._cli.read(files={self._cells: [folder]}).found[self._cells].folders.get(folder, ())
        whole = any(each.name == name and each.size == size for each in entries)
        told = of(whole, f"in {span(seconds)}" if whole else "it is not there as a whole")
        self._judge(assumed.LARGE, at_scale(told, size_text(size), enough=size >= LARGE_BYTES))

    def _leave_alone(self) -> None:
        """Asks only for the list, which the machine does not notice."""
        seconds = self._ground.scale.alive
        before, began = int(self._wait_for(probe.BEAT)), self._ground.clock.monotonic()
        self._say(f"leaving the machine alone for {span(seconds)}")
        while (spent := self._ground.clock.monotonic() - began) < seconds:
            self._ground.waiting.pause(min(self._ground.waiting.poll, seconds - spent))
            with suppress(Transient):
                if self._cells not in self._cli.read(names=[self._cells]).endpoints:
                    self._judge(assumed.ALIVE, (FAILS, f"it was gone after {span(spent)}"))
                    raise NotFound("the machine is gone", operation="trial")
        beats = int(self._wait_for(probe.BEAT)) - before
        told = of(beats > 0, f"its cell counted {beats} beats")
        self._judge(assumed.ALIVE, at_scale(told, span(seconds), enough=seconds >= ALIVE_SECONDS))

    def _second_cell(self) -> None:
        self._say("a second cell, which should wait")
        seconds, began = self._ground.scale.queue, self._ground.clock.monotonic()
        try:
            self._cli.start(self._cells, self._ground.cell("second"), seconds_max=seconds)
        except Transient as error:
            if self._ground.clock.monotonic() - began < seconds:  # there was no answer
                self._judge(assumed.QUEUED, (NOT_SEEN, str(error)))
            else:
                self._judge(assumed.QUEUED, (HOLDS, f"it did not start in {span(seconds)}"))
            return
        self._judge(assumed.QUEUED, evidence.queued(json.loads(self._wait_for(probe.SECOND))))

    def _let_go(self) -> None:
        """Lets the first cell end, whose client was killed when it had started."""
        empty = self._ground.file(probe.GO, b"")
        try:
            self._cli.upload(self._cells, empty, on_machine(probe.GO))
        except Rejected as error:
            self._judge(assumed.BUSY, (FAILS, str(error)))
            raise
        try:
            beats = int(self._wait_for(probe.ENDED, self._ground.scale.queue))
        except Late as late:
            self._judge(assumed.DETACHED, (FAILS, f"the first cell ended with its client: {late}"))
            return
        self._judge(assumed.DETACHED, (HOLDS, f"it ended when it was told to, after {beats} beats"))

    def _stop(self) -> None:
        try:
            seconds = self._give_back(self._cells)
        except Late as late:
            self._judge(assumed.STOPPED, (FAILS, str(late)))
            raise
        told = f"it was shown for {span(seconds)}" if seconds else "it was gone at once"
        self._judge(assumed.STOPPED, of(seconds <= self._ground.scale.gone, told))

    # --- A session --------------------------------------------------------------------------------------

    def session(self) -> None:
        """Launched, watched, stopped and collected with the platform's own verbs."""
        self._say("a session, as the runs have them")
        platform, order = self._ground.platform, self._ground.order()
        session = self._make(SESSION)
        shipping = self._shipping(session)
        platform.prepare(order, self._ground.materials(shipping))
        platform.launch(order)
        start = self._ground.options.start_seconds + self._ground.scale.late
        self._until("to train", start, lambda sight: (evidence.step(sight) or 0) > 0)
        self._say(f"{_short(session)}: asking it to stop")
        platform.stop(session)
        late = self._ground.scale.late + (UPLINK_SECONDS if shipping else 0.0)
        ended = self._until("to leave", late, lambda sight: sight.sighting is not Sighting.RUNNING)
        began = self._ground.clock.monotonic()
        self._judge(assumed.STAYS, self._kept(ended))
        if shipping is not None:
            self._judge(assumed.REACHES, self._shipped(session))
        self._until_absent(session, began)

    def _shipping(self, session: str) -> Shipping | None:
        """What the session needs to ship to the home store; None if no session there can."""
        store = self._ground.supplies.store
        try:
            shipping = store.shipping()
            why = shipping.unusable(here=self._ground.platform.this_machine)
            if not why:
                self._ships = session
                store.begin(session, SESSION)
                return shipping
        except OrchestratorError as error:
            why = f"this machine cannot use the home store: {error}"
        self._judge(assumed.REACHES, (NOT_SEEN, why))
        return None

    def _until(self, what: str, seconds: float, done: Callable[[Sight], bool]) -> Sight:
        session = self._ground.session(SESSION)

        def look() -> Sight | None:
            sight = self._ground.platform.observe([session])[session]
            status = evidence.status(sight)
            step = None if status is None else status.step
            self._warnings = self._warnings if status is None else status.warnings
            told = (sight.sighting, "" if step is None else f"step {step}", sight.detail)
            self._say_once(", ".join(filter(None, told)))
            if sight.sighting is Sighting.ENDED or done(sight):
                return sight
            return None

        try:
            return self._ground.waiting.until(f"{_short(session)} {what}", seconds, look)
        except Late as late:
            self._judge(assumed.STAYS, (FAILS, str(late)))
            raise

    def _say_once(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._say(f"{_short(self._ground.session(SESSION))}: {text}")

    def _kept(self, sight: Sight) -> Judgement:
        if sight.outbox is None:
            return FAILS, sight.detail or "it is gone"
        return evidence.left_whole(sight.outbox, self._ground.output("machine"), sight.detail)

    def _shipped(self, session: str) -> Judgement:
        nothing = "; ".join(("its result did not come there", *self._warnings))
        try:
            outbox = self._ground.supplies.store.outbox(session, SESSION)
            return evidence.left_whole(outbox, self._ground.output("store"), nothing)
        except OrchestratorError as error:
            return NOT_SEEN, f"this machine cannot read the home store: {error}"

    def _until_absent(self, session: str, began: float) -> None:
        """Waits until the machine has given itself back. It is given back by us otherwise."""

        def absent() -> bool | None:
            return session not in self._cli.read(names=[session]).endpoints or None

        clock, scale = self._ground.clock, self._ground.scale
        self._say(f"{_short(session)}: waiting until its machine gives itself back")
        self._ground.waiting.pause(max(0.0, began + scale.linger - clock.monotonic()))
        try:
            self._ground.waiting.until(f"{_short(session)} to give itself back", scale.gone, absent)
        except Late as late:
            self._judge(assumed.GIVES_BACK, (FAILS, str(late)))
            return
        self._judge(assumed.GIVES_BACK, (HOLDS, f"{span(clock.monotonic() - began)} after its session"))


def _short(session: str) -> str:
    """Its name for a person, such as `s01`."""
    return session.rpartition("-")[2]
