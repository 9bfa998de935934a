"""What every platform must do, as tests. A platform joins with a `Rig` and a class that inherits these.

`PlatformSuite` is for all platforms. `SurvivingSuite` is for those whose sessions survive the controller. The
suites know no platform: a platform's traits say what it cannot do.
"""

from __future__ import annotations

import hashlib
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from orchestrator.core.checkpoint import Manifest
from orchestrator.core.offer import Traits
from orchestrator.core.order import Order, Outcome
from orchestrator.core.session import ABSENT, Observation, Sighting, StopReply
from orchestrator.errors import NotFound, Rejected, Transient
from orchestrator.platforms.platform import Platform
from orchestrator.session.outbox import Collected
from orchestrator.session.staging import Materials
from tests.seen import collected, observed

LONG = 1_000_000  # so many steps that no test waits for the end


class Rig(ABC):
    """One platform under test and the world around it: orders it takes, time, damage, and the truth."""

    platform: Platform
    folder: Path
    budget_seconds: float  # short, but long enough for a checkpoint

    @abstractmethod
    def order(self, session: str, *, total: int = 6, generation: int = 1, **changes: object) -> Order:
        """An order that this platform takes: a small training of `total` steps with regular checkpoints."""

    @abstractmethod
    def materials(self, resume: Path | None = None) -> Materials:
        """The materials for those orders."""

    @abstractmethod
    def until(self, condition: Callable[[], bool]) -> None:
        """Lets time pass until the condition holds. Fails the test if that takes too long."""

    @abstractmethod
    def corrupt(self, session: str) -> str:
        """Alters a blob of the newest checkpoint in a session's outbox; returns the checkpoint's name."""

    @abstractmethod
    def trainings(self, session: str) -> int:
        """The truth: how often a training was started for this session."""

    @abstractmethod
    def expected(self, order: Order, step: int) -> bytes:
        """The content of `state.json` at a step of an uninterrupted training."""

    @property
    def traits(self) -> Traits:
        return self.platform.survey()[0].traits

    def see(self, session: str) -> Observation:
        return observed(self.platform, [session])[session]

    def start(self, order: Order, resume: Path | None = None) -> None:
        self.platform.prepare(order, self.materials(resume))
        self.platform.launch(order)

    def until_ended(self, session: str) -> Observation:
        self.until(lambda: self.see(session).sighting is Sighting.ENDED)
        return self.see(session)

    def until_saved(self, session: str) -> None:
        """Waits until the agent has committed a checkpoint. Override it if the platform only shows that at
        the end."""

        def saved() -> bool:
            status = self.see(session).status
            return status is not None and status.checkpoint is not None

        self.until(saved)

    def collect(self, session: str) -> Collected:
        return collected(self.platform, session, self.into(session))

    def into(self, session: str) -> Path:
        path = self.folder / "collected" / session
        path.mkdir(parents=True, exist_ok=True)
        return path


class SurvivingRig(Rig):
    """A rig whose platform can also be driven from other processes.

    `launch_lines` is the number of new lines of platform code that run up to the start of the agent, give or
    take `slack_lines`.
    """

    launch_lines: int
    slack_lines: int = 3

    @abstractmethod
    def launcher(self, order: Order, *, die_at_line: int = 0) -> Sequence[str]:
        """A command that launches the order. It exits with 0 once launch has returned. With `die_at_line` it
        kills itself with SIGKILL just before the n-th new line of platform code."""

    @abstractmethod
    def another_controller(self) -> Platform:
        """The same platform as a newly started controller sees it."""


def check_blobs(into: Path, manifest: Manifest) -> None:
    for sha256, size in manifest.blobs().items():
        data = (into / "blobs" / sha256).read_bytes()
        assert len(data) == size
        assert hashlib.sha256(data).hexdigest() == sha256


def content(into: Path, manifest: Manifest, path: str) -> bytes:
    [entry] = [entry for entry in manifest.files if entry.path == path]
    return b"".join((into / "blobs" / part.sha256).read_bytes() for part in entry.parts)


def has_launched(rig: Rig, order: Order) -> bool:
    """Whether a launch succeeds, after one that may still take effect."""
    try:
        rig.platform.launch(order)
    except Transient:
        return False
    return True


class PlatformSuite:
    """Every verb of the protocol, on one platform. Subclasses provide the fixture `rig`."""

    def test_survey_says_what_there_is(self, rig: Rig) -> None:
        offers = rig.platform.survey()
        assert offers[0].unavailable is None
        for offer in offers:
            assert offer.platform == rig.platform.name
            assert offer.slots >= 1
            assert offer.unavailable is None or offer.unavailable.reason
            assert offer.traits.visibility_seconds > 0
            assert offer.traits.poll_seconds > 0

    def test_a_prepared_session_has_not_started(self, rig: Rig) -> None:
        order = rig.order("a-s01")
        rig.platform.prepare(order, rig.materials())
        rig.platform.prepare(order, rig.materials())
        assert rig.see("a-s01") == ABSENT
        assert rig.trainings("a-s01") == 0

    def test_an_unknown_session_is_absent(self, rig: Rig) -> None:
        rig.start(rig.order("a-s01"))
        rig.until_ended("a-s01")
        seen = observed(rig.platform, ["a-s01", "never-s01", "Not A Name/../.."])
        assert set(seen) == {"a-s01", "never-s01", "Not A Name/../.."}
        assert seen["never-s01"] == seen["Not A Name/../.."] == ABSENT
        assert observed(rig.platform, []) == {}

    def test_a_whole_life(self, rig: Rig) -> None:
        order = rig.order("a-s01")
        rig.start(order)
        ended = rig.until_ended("a-s01")
        assert ended.result is not None
        assert ended.result.outcome is Outcome.COMPLETED, ended
        assert ended.result.step == order.steps_total
        assert ended.incarnations == (ended.result.incarnation,)
        collected = rig.collect("a-s01")
        assert collected.corrupt == ()
        steps = [manifest.ref.step for manifest in collected.manifests]
        assert steps == sorted(steps)
        assert steps[-1] == order.steps_total
        for manifest in collected.manifests:
            assert (manifest.run, manifest.ref.generation) == (order.run, order.generation)
            assert manifest.ref.incarnation == ended.result.incarnation
            check_blobs(rig.into("a-s01"), manifest)
        final = content(rig.into("a-s01"), collected.manifests[-1], "state.json")
        assert final == rig.expected(order, order.steps_total)
        for name in ("incarnation", "status.json", "result.json", "log"):
            assert (rig.into("a-s01") / name).exists(), name

    def test_a_launch_starts_once_however_often_it_is_asked(self, rig: Rig) -> None:
        order = rig.order("a-s01")
        rig.start(order)
        rig.platform.launch(order)
        rig.until(lambda: rig.see("a-s01").sighting is not Sighting.ABSENT)
        rig.platform.launch(order)
        rig.until_ended("a-s01")
        rig.platform.launch(order)
        assert rig.see("a-s01").sighting is Sighting.ENDED
        assert rig.trainings("a-s01") == 1

    def test_what_is_not_prepared_does_not_start(self, rig: Rig) -> None:
        with pytest.raises(Rejected):
            rig.platform.launch(rig.order("a-s01"))
        assert rig.see("a-s01") == ABSENT

    def test_before_its_launch_an_order_may_be_replaced(self, rig: Rig) -> None:
        rig.platform.prepare(rig.order("a-s01", total=4), rig.materials())
        order = rig.order("a-s01", total=7)
        rig.start(order)
        result = rig.until_ended("a-s01").result
        assert result is not None
        assert result.step == 7

    def test_after_its_launch_an_order_stays(self, rig: Rig) -> None:
        rig.start(rig.order("a-s01"))
        rig.until_ended("a-s01")
        with pytest.raises(Rejected):
            rig.platform.prepare(rig.order("a-s01", total=99), rig.materials())

    def test_a_second_session_goes_on_where_the_first_left(self, rig: Rig) -> None:
        rig.start(rig.order("a-s01", total=5))
        rig.until_ended("a-s01")
        newest = rig.collect("a-s01").manifests[-1]
        order = rig.order("a-s02", total=11, generation=2, resume=newest.name, resume_step=newest.ref.step)
        rig.start(order, resume=rig.into("a-s01"))
        result = rig.until_ended("a-s02").result
        assert result is not None
        assert result.outcome is Outcome.COMPLETED, result
        final = rig.collect("a-s02").manifests[-1]
        assert content(rig.into("a-s02"), final, "state.json") == rig.expected(order, 11)
        assert rig.see("a-s01").sighting is Sighting.ENDED

    def test_an_order_without_its_checkpoint_is_refused(self, rig: Rig) -> None:
        order = rig.order("a-s02", generation=2, resume="0000000005-g01-abc", resume_step=5)
        with pytest.raises(Rejected):
            rig.platform.prepare(order, rig.materials())

    def test_a_stopped_session_saves_and_leaves(self, rig: Rig) -> None:
        order = rig.order("a-s01", total=LONG)
        rig.start(order)
        rig.until(lambda: rig.see("a-s01").sighting is Sighting.RUNNING)
        rig.until_saved("a-s01")
        reply = rig.platform.stop("a-s01")
        if (
            reply is StopReply.ENDED
        ):  # at once, and all it did is lost: asked for only where that was agreed to
            assert not rig.traits.durable_mid_run
            assert rig.see("a-s01") == ABSENT
            with pytest.raises(Rejected):
                rig.platform.launch(order)
            return
        assert reply is StopReply.REQUESTED
        result = rig.until_ended("a-s01").result
        assert result is not None
        assert result.outcome is Outcome.STOPPED, result
        newest = rig.collect("a-s01").manifests[-1]
        assert newest.ref.step == result.step, (newest, result)
        state = content(rig.into("a-s01"), newest, "state.json")
        assert state == rig.expected(order, newest.ref.step)
        rig.until(lambda: rig.platform.stop("a-s01") is StopReply.ENDED)

    def test_stopped_before_its_launch_it_never_starts(self, rig: Rig) -> None:
        order = rig.order("a-s01")
        rig.platform.prepare(order, rig.materials())
        assert rig.platform.stop("a-s01") is StopReply.ENDED
        with pytest.raises(Rejected):
            rig.platform.launch(order)
        assert rig.see("a-s01") == ABSENT
        assert rig.trainings("a-s01") == 0

    def test_stopped_before_it_was_prepared_it_never_starts(self, rig: Rig) -> None:
        order = rig.order("a-s01")
        assert rig.platform.stop("a-s01") is StopReply.ENDED
        rig.platform.prepare(order, rig.materials())
        with pytest.raises(Rejected):
            rig.platform.launch(order)
        assert rig.see("a-s01") == ABSENT

    def test_it_leaves_before_its_deadline(self, rig: Rig) -> None:
        for number, times in enumerate((1, 2, 2), start=1):  # a machine that stalls may eat up a short one
            session = f"a-s{number:02d}"
            budget_seconds = times * rig.budget_seconds
            order = rig.order(session, total=LONG, generation=number, budget_seconds=budget_seconds)
            rig.start(order)
            ended = rig.until_ended(session)
            if ended.result is not None and ended.result.outcome is Outcome.STOPPED:
                break
        result = ended.result
        assert result is not None, ended
        assert result.outcome is Outcome.STOPPED, result
        newest = rig.collect(session).manifests[-1]
        late = "could not be committed in time" in result.message  # but was, a moment later
        assert late or newest.ref.step == result.step, (newest, result)
        assert content(rig.into(session), newest, "state.json") == rig.expected(order, newest.ref.step)

    def test_what_was_collected_is_not_brought_again(self, rig: Rig) -> None:
        rig.start(rig.order("a-s01", total=LONG))
        into = rig.into("a-s01")
        if not rig.traits.durable_mid_run:
            rig.until(lambda: rig.see("a-s01").sighting is Sighting.RUNNING)
            with pytest.raises((NotFound, Transient)):
                rig.collect("a-s01")
            return
        rig.until_saved("a-s01")
        rig.until(lambda: bool(rig.collect("a-s01").manifests))  # one may be superseded while it is copied
        first = rig.collect("a-s01")
        names = {manifest.name for manifest in first.manifests}
        assert names <= {manifest.name for manifest in rig.collect("a-s01").manifests}
        for blob in (into / "blobs").iterdir():  # as the engine does once they are in the store
            blob.unlink()
        rig.platform.stop("a-s01")
        rig.until_ended("a-s01")
        last = rig.collect("a-s01")
        assert not names & {manifest.name for manifest in last.manifests}
        assert last.manifests
        for manifest in last.manifests:
            check_blobs(into, manifest)

    def test_a_corrupt_checkpoint_is_named_and_not_returned(self, rig: Rig) -> None:
        rig.start(rig.order("a-s01"))
        rig.until_ended("a-s01")
        name = rig.corrupt("a-s01")
        collected = rig.collect("a-s01")
        assert [bad for bad, _ in collected.corrupt] == [name]
        assert name not in [manifest.name for manifest in collected.manifests]
        assert not (rig.into("a-s01") / "checkpoints" / name / "manifest.json").exists()
        for blob in (rig.into("a-s01") / "blobs").iterdir():
            assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name

    def test_nothing_is_collected_of_what_never_ran(self, rig: Rig) -> None:
        rig.platform.prepare(rig.order("a-s01"), rig.materials())
        for session in ("a-s01", "never-s01"):
            with pytest.raises(NotFound):
                rig.collect(session)

    def test_discarded_it_is_gone(self, rig: Rig) -> None:
        rig.start(rig.order("a-s01"))
        rig.until_ended("a-s01")
        rig.until(lambda: rig.platform.stop("a-s01") is StopReply.ENDED)
        rig.platform.discard("a-s01")
        rig.platform.discard("a-s01")
        rig.platform.discard("never-s01")
        assert rig.see("a-s01") == ABSENT
        with pytest.raises(NotFound):
            rig.collect("a-s01")

    def test_orders_for_others_are_refused(self, rig: Rig) -> None:
        order = rig.order("a-s01", platform="somebody-else")
        with pytest.raises(Rejected):
            rig.platform.prepare(order, rig.materials())
        with pytest.raises(Rejected):
            rig.platform.launch(order)
        order = rig.order("a-s01", accelerator="a-machine-nobody-has")
        with pytest.raises(Rejected):
            rig.platform.prepare(order, rig.materials())


class SurvivingSuite:
    """Controllers come and go, several at a time, and are killed anywhere: each session is started once."""

    def test_a_new_controller_sees_what_the_old_one_started(self, rig: SurvivingRig) -> None:
        order = rig.order("a-s01")
        rig.platform.prepare(order, rig.materials())
        subprocess.run(rig.launcher(order), check=True)
        rig.platform = rig.another_controller()
        assert rig.until_ended("a-s01").result is not None
        assert rig.collect("a-s01").manifests

    def test_launched_by_several_at_once_it_starts_once(self, rig: SurvivingRig) -> None:
        order = rig.order("a-s01")
        rig.platform.prepare(order, rig.materials())
        launchers = [subprocess.Popen(rig.launcher(order)) for _ in range(4)]
        assert [launcher.wait(240) for launcher in launchers] == [0, 0, 0, 0]
        result = rig.until_ended("a-s01").result
        assert result is not None
        assert result.outcome is Outcome.COMPLETED
        assert rig.trainings("a-s01") == 1

    def test_a_launcher_killed_at_any_line_starts_nothing_twice(self, rig: SurvivingRig) -> None:
        around = range(rig.launch_lines - rig.slack_lines, rig.launch_lines + rig.slack_lines)
        before = Random(20261120).sample(range(1, around.start), 2)
        self.kill_at(rig, [*sorted(before), *around])

    @pytest.mark.soak
    def test_a_launcher_killed_at_every_line_starts_nothing_twice(self, rig: SurvivingRig) -> None:
        self.kill_at(rig, list(range(1, rig.launch_lines + 15)))

    def kill_at(self, rig: SurvivingRig, lines: list[int]) -> None:
        killed = 0
        for line in lines:
            session = f"a-s{line:02d}"
            order = rig.order(session, total=1)
            rig.platform.prepare(order, rig.materials())
            killed += subprocess.run(rig.launcher(order, die_at_line=line)).returncode != 0
            rig.until(lambda order=order: has_launched(rig, order))  # type: ignore[misc]
            result = rig.until_ended(session).result
            assert result is not None, f"killed at line {line}"
            assert result.outcome is Outcome.COMPLETED, f"killed at line {line}: {result}"
            assert rig.trainings(session) == 1, f"killed at line {line}"
            rig.until(lambda session=session: rig.platform.stop(session) is StopReply.ENDED)  # type: ignore[misc]
            rig.platform.discard(session)  # some platforms run few at a time
        assert killed > 0
