"""`doctor --live` on a local Kaggle: with each wart turned the other way, exactly its assumption fails."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.client.trying import report
from orchestrator.clock import SystemClock
from orchestrator.core.session import Sighting
from orchestrator.errors import BackendError, OrchestratorError, Transient
from orchestrator.platforms.kaggle import runner
from orchestrator.platforms.kaggle.account import Account
from orchestrator.platforms.kaggle.options import KaggleOptions
from orchestrator.platforms.kaggle.trial import assumptions, evidence
from orchestrator.platforms.kaggle.trial.course import Course
from orchestrator.platforms.kaggle.trial.ground import ENDLESS, Ground, Scale
from orchestrator.platforms.kaggle.trial.witness import Heard, Witness
from orchestrator.platforms.platform import Check, Tried, Verdict
from orchestrator.platforms.trials.assumption import Assumption, Checked, Judgement, at_scale, rows
from orchestrator.platforms.trials.conducting import Ending, cleared
from orchestrator.platforms.trials.record import Record
from orchestrator.platforms.trials.waiting import Late, Unanswered, Waiting
from tests.conformance.test_platforms import agent
from tests.platforms.kaggle_wire import KEY, said, wire
from tests.stand_ins.kaggle import LocalKaggle, Settings, Warts, local_kaggle
from tests.waiting import PATIENCE, wait_until

__all__ = ["agent"]

ROOT = Path(__file__).parents[2]
SCALE = Scale(step=0.1, save=0.3, timeout=4.0, wall=4.0, start=1.0, late=0.8, payload=100_000)
QUICK = {
    "threads": 1, "session_seconds": 60.0, "wall_margin_seconds": 2.0, "poll_seconds": 0.1,
    "report_seconds": 0.1, "visibility_seconds": 0.5, "absence_seconds": 0.5, "publish_seconds": 0.8,
    "ready_seconds": 1.0, "listed_seconds": 2.0, "mount_seconds": 0.8, "hand_over_bytes": 0,
    "accelerators": ("cpu",),
}  # fmt: skip
# An agent that says something and leaves at once: for what ends a trial in its first session.
BRIEF = """
import json, pathlib, sys, threading
outbox = pathlib.Path(json.loads(sys.argv[3])["outbox"])
(outbox / "incarnation").write_text("other")
status = {"incarnation": "other", "heartbeat": 1, "written_at": 1.0, "state": "training", "step": 1}
(outbox / "status.json").write_text(json.dumps(status))
threading.Event().wait(WAITS)
result = {"incarnation": "other", "outcome": "stopped", "exit_code": 0, "step": None, "message": "left"}
(outbox / "result.json").write_text(json.dumps(result))
"""


class Trying:
    """A trial whose steps are taken one by one."""

    def __init__(
        self, folder: Path, kaggle: LocalKaggle, agent: Path, scale: Scale = SCALE, **options: object
    ) -> None:
        key = folder / "key"
        key.write_text(kaggle.settings.key)
        given = {"username": kaggle.settings.username, "key_file": key, "endpoint": kaggle.url}
        settings = KaggleOptions(**(given | QUICK | options))  # type: ignore[arg-type]
        clock = SystemClock()
        witness = Witness(clock)
        (folder / "scratch").mkdir()
        self.said: list[str] = []
        self.record = Record(assumptions.CHECKED)
        self.ground = Ground(
            "here", "kaggle-trial-7f3kq2vd", settings, folder / "sessions", folder / "scratch", agent, clock,
            scale, Account("here", settings, clock, witness), witness,
            Waiting(clock, settings.poll_seconds, self.said.append),
        )  # fmt: skip
        self.course = Course(self.ground, self.record)

    def checks(self) -> dict[str, Check]:
        """Removes everything, and returns what was found."""
        self.course.clear()
        self.course.conclude()
        return {each.id: each for each in self.record.checks(long=True, why="")}

    def failures(self) -> set[str]:
        return {each.id for each in self.checks().values() if each.verdict is Verdict.FAILS}


def ids(*given: Assumption) -> set[str]:
    return {each.id for each in given}


@contextmanager
def trying(
    folder: Path,
    agent: Path,
    warts: Warts | None = None,
    settings: Settings | None = None,
    scale: Scale = SCALE,
    **options: object,
) -> Iterator[tuple[Trying, LocalKaggle]]:
    with local_kaggle(folder / "kaggle", settings or Settings(), warts or Warts()) as kaggle:
        tried = Trying(folder, kaggle, agent, scale, **options)
        yield tried, kaggle
        wait_until(lambda: there(kaggle) == set(tried.course.left()), "nothing to be left without a word")


def there(kaggle: LocalKaggle) -> set[str]:
    """The kernels and datasets of the account, also those that it does not show."""
    with kaggle.lock:
        kaggle.datasets.list_datasets({})  # makes those disappear whose time has come
        return kaggle.datasets.names() | kaggle.datasets.names_of_kernels()


def brief(folder: Path, seconds: float = 0.0) -> Path:
    path = folder / "brief.pyz"
    path.write_text(BRIEF.replace("WAITS", str(seconds)))
    return path


@pytest.mark.soak
def test_each_of_many_warts_is_named(tmp_path: Path, agent: Path) -> None:
    """Those that do not keep a session from going on, in one trial."""
    warts = Warts(
        quota_shape="iso", clock_ahead_seconds=600.0, files_lag_seconds=0.8, sizes_are_omitted=True,
        slug_ending="-x1", log_has_no_newlines=True, log_lag_seconds=60.0, cancel_works=True,
        cancel_loses_outputs=True, delete_lag_seconds=2.0,
    )  # fmt: skip
    named = (
        assumptions.QUOTA, assumptions.CLOCK, assumptions.LISTED, assumptions.SIZES, assumptions.SLUG,
        assumptions.LINES, assumptions.KEPT_LOG, assumptions.CANCELLED, assumptions.DELETED,
    )  # fmt: skip
    for attempt in range(3):  # a trial on a machine that stalls sees less, and says so
        (folder := tmp_path / str(attempt)).mkdir()
        with trying(folder, agent, replace(warts)) as (tried, kaggle):
            first = tried.course.first()
            kaggle.warts.files_lag_seconds = 0.0
            tried.course.hand_over(first)
            found = tried.checks()
        if all(found[each.id].verdict is not Verdict.NOT_SEEN for each in named):
            break
    assert {each.id for each in found.values() if each.verdict is Verdict.FAILS} == ids(*named)


@pytest.mark.parametrize(
    ("warts", "settings", "named"),
    [
        ({"dataset_end": "FAILED"}, {}, assumptions.READY),
        ({}, {"ready_seconds": 60.0}, assumptions.READY),
        ({}, {"visible_seconds": 60.0}, assumptions.VISIBLE),
        ({"unknown_status": "PREEMPTED"}, {}, assumptions.WORDS),
        ({"attach_lag_seconds": 60.0}, {}, assumptions.ATTACHED),
        ({"url_lag_seconds": 60.0}, {}, assumptions.DOWNLOADS),
        ({"status_glitch": "403"}, {}, assumptions.READABLE),
        ({"stays_running": True}, {}, assumptions.ENDS),
        ({"output_lag_seconds": 60.0}, {}, assumptions.PUBLISHED),
        ({"output_files_max": 2}, {}, assumptions.PUBLISHED),
    ],
    ids=lambda given: given.id if isinstance(given, Assumption) else "-".join(given),
)
def test_what_ends_a_trial_is_named_and_does_not_hang_it(
    tmp_path: Path, warts: dict[str, object], settings: dict[str, object], named: Assumption
) -> None:
    kaggle_warts, kaggle_settings = Warts(**warts), Settings(**settings)  # type: ignore[arg-type]
    with trying(tmp_path, brief(tmp_path), kaggle_warts, kaggle_settings) as (tried, _):
        with pytest.raises(BackendError):
            tried.course.first()
        assert tried.failures() == {named.id}


@pytest.mark.parametrize(
    ("warts", "named"),
    [
        ({"wall_loses_outputs": True}, {assumptions.KEPT_AT_TIMEOUT}),
        ({"wall_is_not_enforced": True}, {assumptions.TIMEOUT}),
        ({"wall_end": "ERROR", "stream_events_max": 1}, {assumptions.LOG}),
    ],
    ids=lambda given: "-".join(given) if isinstance(given, dict) else None,
)
def test_a_time_out_that_is_not_as_assumed_is_named(
    tmp_path: Path, warts: dict[str, object], named: set[Assumption]
) -> None:
    long = replace(SCALE, timeout=8.0)  # time for LOOKS_MIN looks, on a busy machine too
    scale = long if named == {assumptions.LOG} else SCALE
    with trying(tmp_path, brief(tmp_path, 60.0), Warts(**warts), scale=scale) as (tried, _):  # type: ignore[arg-type]
        tried.course.time_out(None)
        assert tried.failures() == ids(*named)


@pytest.mark.soak  # its sessions last seconds: a busy machine needs them to start
def test_the_long_trial_leaves_twice_and_continues_exactly_there(tmp_path: Path, agent: Path) -> None:
    with trying(tmp_path, agent, scale=replace(SCALE, wall=12.0)) as (tried, kaggle):
        tried.course.walls()
        found = tried.checks()
        long = [found[each.id] for each in assumptions.CHECKED if each.checked is Checked.LONG]
        assert [each.verdict for each in long] == [Verdict.HOLDS, Verdict.NOT_SEEN, Verdict.NOT_SEEN]
        assert "s03 ended as completed" in long[0].seen
        assert long[1].seen.startswith("only tried with a session of at most 12 s: last heard ")
        assert long[2].seen == "only tried with a checkpoint of 100 kB: found by the push"
        assert [bool(each.get("kernelDataSources")) for each in kaggle.pushed] == [False, True, True]


def test_a_session_that_has_left_by_itself_is_not_taken_for_a_cancelled_one(tmp_path: Path) -> None:
    with trying(tmp_path, brief(tmp_path), Warts(stays_running=True, cancel_works=True)) as (tried, _):
        stay = tried.ground.stay(ENDLESS)
        tried.course._start(stay)
        stay.until("to leave", PATIENCE, lambda sight: sight.sighting is Sighting.SAVING)
        tried.course._cancel(stay)
        assert tried.checks()[assumptions.CANCELLED.id].verdict is Verdict.NOT_SEEN


# --- Its end ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("disk full"), Late("late"), KeyError("bug")])
def test_whatever_ends_a_trial_what_it_made_is_removed(tmp_path: Path, error: BaseException) -> None:
    with trying(tmp_path, brief(tmp_path, 60.0)) as (tried, kaggle):
        left: list[tuple[str, ...]] = []

        def part() -> None:
            tried.course.begin_again()
            left.append(tried.course.left())
            raise error

        if isinstance(error, KeyError):
            with pytest.raises(KeyError):
                cleared(part, tried.course, tried.ground.waiting)
        else:
            trouble = error if isinstance(error, OrchestratorError | OSError) else None
            expected = Ending(trouble, interrupted=trouble is None)
            assert cleared(part, tried.course, tried.ground.waiting) == expected
        assert len(left[0]) == len({"kernel", "dataset"})
        assert there(kaggle) == set()


@pytest.mark.parametrize(
    ("moment", "ending"),
    [
        ("waiting for Kaggle to process the upload", KeyboardInterrupt),
        ("waiting for Kaggle to process the upload", Transient),
        ("s01: pending", Unanswered),
    ],
)
def test_what_could_not_be_seen_any_more_is_no_failure(
    tmp_path: Path, moment: str, ending: type[BaseException]
) -> None:
    settings = Settings(ready_seconds=0.5, visible_seconds=0.5)
    warts = Warts(outage="refused")
    with trying(tmp_path, brief(tmp_path), warts, settings, visibility_seconds=2.0) as (tried, kaggle):
        client = tried.ground.client
        client.patience = replace(client.patience, sleep=lambda _: None)

        def say(text: str) -> None:
            if not text.startswith(moment):
                return
            if ending is KeyboardInterrupt:
                raise KeyboardInterrupt
            kaggle.outage()

        tried.ground.waiting = replace(tried.ground.waiting, say=say)
        with pytest.raises(ending) as ended:
            tried.course.first()
        kaggle.outage(False)
        tried.ground.waiting = replace(tried.ground.waiting, say=tried.said.append)
        if ending is not KeyboardInterrupt:
            assert "connection refused" in str(ended.value)
        assert tried.failures() == set()


def test_a_kernel_that_kaggle_shows_late_is_not_left(tmp_path: Path) -> None:
    settings = Settings(visible_seconds=0.5)
    with trying(tmp_path, brief(tmp_path, 60.0), None, settings, absence_seconds=PATIENCE) as (tried, kaggle):
        stay = tried.ground.stay(ENDLESS)
        tried.course._start(stay)
        tried.course.clear()
        assert tried.course.left() == ()
        assert there(kaggle) == set()


@pytest.mark.parametrize("interruptions", [1, 2])
def test_the_second_interruption_leaves_what_was_made(tmp_path: Path, interruptions: int) -> None:
    with trying(tmp_path, brief(tmp_path, 60.0)) as (tried, kaggle):
        cleared(tried.course.begin_again, tried.course, tried.ground.waiting)
        due = ["Ctrl-C"] * interruptions

        def say(text: str) -> None:
            if text == "deleting what was made" and due:
                due.pop()
                raise KeyboardInterrupt

        waiting = tried.ground.waiting = replace(tried.ground.waiting, say=say)
        assert cleared(tried.course.begin_again, tried.course, waiting) == Ending(interrupted=True)
        assert there(kaggle) == set(tried.course.left())
        assert bool(there(kaggle)) == (interruptions > 1)


# --- Evidence that no wart gives --------------------------------------------------------------------------

DATASET, KERNEL = "a-d1234", "a-s01"


def judged(judgement: Judgement) -> Verdict:
    return judgement[0]


def test_a_file_that_kaggle_unpacked_is_named() -> None:
    heard = [
        Heard(1.0, "ListDatasetFiles", DATASET, answer={"datasetFiles": [{"name": "materials/order.json"}]})
    ]
    verdict, seen = evidence.unchanged(heard, DATASET, ["materials"], began=False, log="")
    assert (verdict, seen) == (Verdict.FAILS, "the dataset has materials/order.json")
    assert (
        judged(evidence.unchanged([], DATASET, ["materials"], True, "x was changed on the way"))
        is Verdict.FAILS
    )
    assert judged(evidence.unchanged([], DATASET, ["materials"], True, "")) is Verdict.HOLDS


def test_inputs_that_are_mounted_late_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """By the runner's own words."""
    looks = iter([runner.Unfit("materials was not there"), None])

    def find() -> Path:
        missing = next(looks)
        if missing is not None:
            raise missing
        return Path("materials")

    runner.appeared(find, 0.05)
    assert judged(evidence.mounted(capsys.readouterr().out, True)) is Verdict.FAILS
    assert judged(evidence.mounted("orchestrator: left", True)) is Verdict.HOLDS


@pytest.mark.parametrize("seen", [{"gpus": ["Tesla T4"]}, {"tpu": "v5litepod-8"}])
def test_a_cpu_session_with_an_accelerator_is_named(seen: dict[str, object]) -> None:
    assert judged(evidence.no_accelerator(seen)) is Verdict.FAILS


def test_an_older_version_of_a_new_kernel_is_named() -> None:
    push = Heard(1.0, "SaveKernel", KERNEL, answer={"ref": f"/code/ada/{KERNEL}", "versionNumber": 2})
    assert judged(evidence.version([push])) is Verdict.FAILS
    assert judged(evidence.slug([push])) is Verdict.HOLDS


def test_an_output_that_a_push_does_not_find_is_named() -> None:
    asked = {"kernelDataSources": [f"ada/{KERNEL}"]}
    assert judged(evidence.handed([Heard(1.0, "SaveKernel", "b", asked=asked)])) is Verdict.HOLDS
    push = Heard(1.0, "SaveKernel", "b", asked=asked, answer={"invalidKernelSources": [f"ada/{KERNEL}"]})
    assert judged(evidence.handed([push])) is Verdict.FAILS
    assert evidence.handed([]) == (Verdict.NOT_SEEN, "no push was accepted")
    assert evidence.handed([Heard(1.0, "SaveKernel", "b")])[1].startswith("the checkpoint was uploaded")


def test_a_status_that_goes_back_is_named() -> None:
    said = ["RUNNING", "COMPLETE", "RUNNING"]
    heard = [
        Heard(float(at), "GetKernelSessionStatus", KERNEL, answer={"status": state})
        for at, state in enumerate(said)
    ]
    assert evidence.words(heard[:2], KERNEL) == (Verdict.HOLDS, "RUNNING → COMPLETE")
    assert judged(evidence.words(heard, KERNEL)) is Verdict.FAILS


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ({2.0: "blobs_received"}, Verdict.NOT_SEEN),
        ({2.0: "blobs_received", 61.0: "blobs_received"}, Verdict.FAILS),
        ({2.0: "failed"}, Verdict.FAILS),
        ({2.0: "blobs_received", 9.0: "ready"}, Verdict.HOLDS),
    ],
)
def test_a_dataset_is_late_only_if_it_was_waited_for(looks: dict[float, str], expected: Verdict) -> None:
    heard = [Heard(at, "GetDatasetStatus", DATASET, answer={"status": word}) for at, word in looks.items()]
    cut = Heard(90.0, "GetDatasetStatus", DATASET, status=0)
    made = Heard(1.0, "CreateDataset", DATASET)
    assert judged(evidence.ready([made, *heard, cut], DATASET, 60.0)) is expected


@pytest.mark.parametrize(("at", "expected"), [(3.0, Verdict.NOT_SEEN), (90.0, Verdict.FAILS)])
def test_a_kernel_is_late_only_if_it_was_waited_for(at: float, expected: Verdict) -> None:
    push = Heard(1.0, "SaveKernel", KERNEL)
    look = Heard(at, "GetKernelSessionStatus", KERNEL, status=404)
    assert judged(evidence.visible([push, look], push, KERNEL, 60.0)) is expected


def test_what_was_late_because_kaggle_did_not_answer_is_not_seen() -> None:
    outage = [Heard(5.0, "ListKernels", status=503)]
    assert judged(evidence.in_time(False, "late", outage, 1.0)) is Verdict.NOT_SEEN
    assert judged(evidence.in_time(False, "late", outage, 6.0)) is Verdict.FAILS
    assert judged(evidence.in_time(True, "early", outage, 1.0)) is Verdict.HOLDS


@pytest.mark.parametrize(
    ("state", "since", "expected"),
    [
        ("RUNNING", 0.0, Verdict.HOLDS),
        ("RUNNING", 5.0, Verdict.NOT_SEEN),
        ("COMPLETE", 0.0, Verdict.NOT_SEEN),
    ],
)
def test_whether_a_running_kernel_was_deleted(state: str, since: float, expected: Verdict) -> None:
    look = Heard(1.0, "GetKernelSessionStatus", KERNEL, answer={"status": state})
    assert judged(evidence.deleted([look, Heard(2.0, "DeleteKernel", KERNEL)], since)) is expected


def test_what_was_tried_is_told_and_must_be_enough() -> None:
    whole = (Verdict.HOLDS, "found by the push")
    assert at_scale(whole, "84 MB", enough=True) == (Verdict.HOLDS, "84 MB: found by the push")
    assert judged(at_scale(whole, "1 MB", enough=False)) is Verdict.NOT_SEEN
    assert judged(at_scale((Verdict.FAILS, "lost"), "1 MB", enough=False)) is Verdict.FAILS


def test_a_session_that_ends_long_before_its_time_out_is_named() -> None:
    assert judged(evidence.timeout(100.0, 240.0, poll=15.0, late=600.0)) is Verdict.FAILS
    assert judged(evidence.timeout(215.0, 240.0, poll=15.0, late=600.0)) is Verdict.HOLDS


# --- What is told -----------------------------------------------------------------------------------------


def test_no_text_holds_a_signature_and_no_report_the_accounts_name() -> None:
    record = Record(assumptions.CHECKED)
    record.fact("address", "https://www.kaggle.com/code/Ada/x?X-Signature=f00d and canada")
    assert record.facts() == (("address", "https://www.kaggle.com/code/Ada/x?… and canada"),)
    check = Check("A1", "text", Verdict.HOLDS, "of ada")
    tried = Tried("kaggle-trial-x", "ada", (check,), record.facts(), ("by ada",), "look at ada/x")
    told = report("kaggle", tried, 0.0, 1.0)
    assert "| address | https://www.kaggle.com/code/ACCOUNT/x?… and canada |" in told
    for words in ("| of ACCOUNT |", "Left behind: by ACCOUNT", "It ended early: look at ACCOUNT/x"):
        assert words in told


def test_no_answer_that_is_kept_holds_the_key(tmp_path: Path) -> None:
    """Even if Kaggle repeats it."""
    (tmp_path / "key").write_text(KEY)
    witness = Witness(SystemClock())
    with wire() as server:
        server.always("CancelKernelSession", said({"errorMessage": f"{KEY} is not allowed to"}))
        options = KaggleOptions(username="ada", key_file=tmp_path / "key", endpoint=server.url)
        assert not Account("here", options, SystemClock(), witness).client.cancel(7)
    [heard] = witness.heard
    assert heard.answer == {"errorMessage": "… is not allowed to"}


def test_the_page_lists_the_assumptions_of_the_code() -> None:
    text = (ROOT / "docs" / "kaggle.md").read_text(encoding="utf-8").partition("## What was never tried")[2]
    assert re.findall(r"^\| A\d.*$", text, re.MULTILINE) == rows(assumptions.ALL)


def test_each_assumption_has_an_id_of_its_own() -> None:
    assert [each.id for each in assumptions.ALL] == [
        f"A{number}" for number in range(1, len(assumptions.ALL) + 1)
    ]
