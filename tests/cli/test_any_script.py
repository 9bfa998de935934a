"""Scripts as people write them: what comes home, what is not repeated, and how a run goes on after a fix.

One user's runs, all submitted at once, because what they wait for is each other's sessions.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.core.lifecycle import Phase
from tests.cli.calls import Caller, caller
from tests.waiting import wait_until

SCRIPTS = Path(__file__).parent / "data" / "scripts"
PATIENCE = 240.0
CONFIG = """
stores: {home: {type: folder, path: store}, other: {type: folder, path: other}}
home_store: home
platforms:
  here: {type: process, accelerator: cpu, slots: 3, session_seconds: 600, setup_seconds: 1, grace_seconds: 5,
         poll_seconds: 0.2}
"""
JOBS: dict[str, dict[str, Any]] = {
    "leave": {"command": "python leave.py", "outputs": ["results/"]},
    "learn": {"command": "python learn.py {steps}"},
    "early": {"command": "python learn.py {steps} 5"},
    "forget": {"command": "python forget.py"},
    "nan-fails": {"command": "python diverge.py wait", "on_nan": "fail"},
    "nan-stays": {"command": "python diverge.py"},
    "memory": {"command": "python memory.py {micro_batch}"},
    "module": {"command": "python fail.py module"},
    "syntax": {"command": "python fail.py syntax"},
    "arguments": {"command": "python fail.py arguments"},
    "program": {"command": "trian --steps 5"},
    "watched": {
        "command": {"shell": "mkdir -p out\necho 5 > out/ckpt_5\nexit 3"},
        "checkpoint": {"watch": "out/ckpt_{step}"},
        "retry": {"without_progress": 1},
    },
    "network": {"command": "python fail.py network", "retry": {"without_progress": 2}},
}


@dataclass
class Lab:
    """A user whose jobs are those of JOBS, and the name of each one's run."""

    user: Caller
    runs: dict[str, str] = field(default_factory=dict)

    def write(self, name: str, /, **changes: Any) -> str:
        """Writes the job with changed keys; returns its file's name. None removes a key."""
        spec = {
            "name": name, "source": "code", "work": {"total": 10, "global_batch": 8},
            "profiles": {"cpu": {"micro_batch": 8, "precision": "fp32"}}, **JOBS[name], **changes,
        }  # fmt: skip
        path = self.user.folder / f"{name}{'-changed' if changes else ''}.yaml"
        path.write_text(yaml.safe_dump(spec))
        return path.name

    def over(self, name: str) -> Any:
        """What `show --json` says of the run of this job, once it is over."""
        run = self.runs[name]
        wait_until(lambda: self._is_over(run), f"the end of {run}", PATIENCE)
        return self.user("show", run, "--json").json

    def _is_over(self, run: str) -> bool:
        record = self.user.record(run)
        return record.phase.final and record.wish is None  # a retry is a wish first

    def sessions(self, name: str) -> list[str]:
        return [str(each["ending"]) for each in self.over(name)["sessions"]]

    def refused(self, *words: str) -> str:
        return self.user(*words, code=2).err


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with caller(tmp_path_factory.mktemp("lab")) as user:
        user.config(CONFIG)
        shutil.copytree(SCRIPTS, user.folder / "code", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(user.folder / "code", user.folder / "fixed")
        (user.folder / "code" / "bug.txt").write_text("bad sample 17")
        found = Lab(user)
        for name in JOBS:
            found.runs[name] = user.submitted(found.write(name))
        yield found


# --- What is not repeated -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("program", "exit code 127: trian: command not found"),
        ("module", "ModuleNotFoundError: No module named 'flash_attention_that_nobody_has'"),
        ("syntax", "SyntaxError: "),
        ("arguments", "exit code 2: train.py: error: unrecognized arguments: --stepz 5"),
    ],
)
def test_what_would_fail_again_fails_in_one_session(lab: Lab, name: str, reason: str) -> None:
    found = lab.over(name)
    assert (found["phase"], len(found["sessions"])) == ("failed", 1)
    assert reason in found["reason"]
    assert "it would fail again, so it is not repeated" in found["reason"]
    shown = lab.user("show", lab.runs[name]).out
    assert f"orchestrator retry {lab.runs[name]}" in shown
    assert reason in shown


def test_what_may_pass_is_repeated(lab: Lab) -> None:
    assert lab.over("network")["phase"] == "failed"
    assert len(lab.sessions("network")) == 2
    assert "no newer checkpoint in 2 sessions in a row" in lab.over("network")["reason"]


def test_out_of_memory_is_repeated_with_a_smaller_micro_batch(lab: Lab) -> None:
    found = lab.over("memory")
    assert found["phase"] == "done"
    assert [each["order"]["micro_batch"] for each in found["sessions"]] == [8, 4]


def test_the_same_exception_at_the_same_step_is_not_repeated(lab: Lab) -> None:
    found = lab.over("learn")
    assert found["phase"] == "failed"
    assert [each["order"]["resume_step"] for each in found["sessions"]] == [0, 5]
    assert "the same error at step 7 as in the session before" in found["reason"]
    assert "ValueError: bad sample 17" in found["reason"]


# --- How a run ended ------------------------------------------------------------------------------------


def told_everywhere(lab: Lab, name: str) -> list[str]:
    """What `show`, `ps`, `why` and `submit --follow`'s end say of the run, and `--json`."""
    lab.over(name)
    run, user = lab.runs[name], lab.user
    [listed] = [each for each in user("ps", "--all", "--json").json["runs"] if each["run"] == run]
    followed = user("show", run, "--follow")
    return [
        user("show", run).out, user("ps", "--all").out, user("why", run).out, followed.out,
        str(user("show", run, "--json").json["reason"]), str(listed["reason"]),
    ]  # fmt: skip


def test_done_without_a_checkpoint_is_told_everywhere_with_the_line_to_add(lab: Lab) -> None:
    found = lab.over("forget")
    assert (found["phase"], len(found["sessions"]), found["checkpoints"]) == ("done", 1, [])
    for said in told_everywhere(lab, "forget"):
        assert "not resumable: no checkpoint" in said
    [note] = found["notes"]
    assert 'checkpoint: {watch: "checkpoints/ckpt_{step}.pt"}' in note
    kept = lab.user.folder / "forgotten"
    lab.user("pull", lab.runs["forget"], "--outputs", "-o", str(kept))
    assert sorted(path.name for path in kept.rglob("*.pt")) == ["ckpt_1.pt", "ckpt_2.pt", "ckpt_3.pt"]


def test_done_before_the_last_step_is_told_everywhere(lab: Lab) -> None:
    assert lab.over("early")["phase"] == "done"
    for said in told_everywhere(lab, "early"):
        assert "at step 5 of 10: it stopped early by itself" in said


def test_a_loss_that_is_no_number_is_noted_or_ends_the_run(lab: Lab) -> None:
    stays, fails = lab.over("nan-stays"), lab.over("nan-fails")
    assert (stays["phase"], fails["phase"]) == ("done", "failed")
    assert any("loss is nan at step 2" in each for each in stays["notes"])
    assert fails["reason"].startswith("diverged: loss is nan at step 2 (on_nan: fail)")
    assert len(fails["sessions"]) == 1


# --- Outputs --------------------------------------------------------------------------------------------


def files(folder: Path) -> dict[str, str]:
    return {str(each.relative_to(folder)): each.read_text() for each in folder.rglob("*") if each.is_file()}


def test_of_each_output_the_newest_version_comes_home(lab: Lab, tmp_path: Path) -> None:
    run, folder = lab.runs["leave"], tmp_path / "new"
    assert lab.over("leave")["phase"] == "done"
    said = lab.user("pull", run, "--outputs", "-o", str(folder))
    assert files(folder) == {
        "results/table.csv": "two", "results/%2drf": "two",
        "results/only-one.txt": "one", "results/only-two.txt": "two",
    }  # fmt: skip
    assert "'results/table.csv' (s01)" in said.err
    assert "only-one" not in said.err
    assert "'results/-rf' is called results/%2drf here" in said.err
    assert f"orchestrator pull {run} --outputs" in lab.user("show", run).out
    again = lab.user("pull", run, "--outputs", "-o", str(folder), "--json").json
    assert (again["files"], again["sessions"], again["skipped"]) == (4, [1, 2], [])
    assert again["older"] == {"results/table.csv": 1, "results/-rf": 1}
    assert again["renamed"] == {"results/-rf": "results/%2drf"}


def test_one_session_s_outputs_come_alone(lab: Lab, tmp_path: Path) -> None:
    run, folder = lab.runs["leave"], tmp_path / "first"
    lab.over("leave")
    said = lab.user("pull", run, "--outputs", "--session", "1", "-o", str(folder))
    assert files(folder) == dict.fromkeys(
        ("results/table.csv", "results/%2drf", "results/only-one.txt"), "one"
    )
    assert "earlier sessions" not in said.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("leave", "--outputs", "--session", "9"), "session 9 of RUN left no outputs; these did: 1, 2"),
        (("leave", "--session", "1"), "--session goes with --outputs"),
        (("leave", "--outputs", "--step", "1"), "not allowed with argument --outputs"),
        (("leave", "--outputs", "-o", "code"), "code exists and holds something else"),
        (("syntax", "--outputs"), "RUN has no outputs: its sessions left none (`orchestrator help outputs`)"),
    ],
)
def test_outputs_that_cannot_be_pulled_are_told(lab: Lab, words: tuple[str, ...], told: str) -> None:
    name, *options = words
    lab.over(name)
    assert told.replace("RUN", lab.runs[name]) in lab.refused("pull", lab.runs[name], *options)


# --- Begin with another run's checkpoint ----------------------------------------------------------------


def test_a_new_run_begins_with_a_checkpoint_of_another_and_needs_it_no_more(lab: Lab) -> None:
    lab.over("early")
    user, origin = lab.user, lab.runs["early"]
    job = lab.write("learn", source="fixed")
    user.config(CONFIG.replace("home_store: home", "home_store: other"))
    said = user("submit", job, "--from", f"{origin}@5")
    user.config(CONFIG)
    run = said.out.split()[0]
    assert (user.home / "other" / "runs" / run).is_dir()
    assert f"begins      from {origin} at step 5" in said.out
    shutil.rmtree(user.home / "store" / "runs" / origin)
    lab.runs["begun"] = run
    found = lab.over("begun")
    assert (found["phase"], found["progress"]["step"]) == ("done", 10)
    assert "learning from 5" in user("logs", run).out
    assert f"submitted from {origin} at step 5" in user("why", run).out


def test_a_damaged_checkpoint_begins_nothing(lab: Lab) -> None:
    lab.over("learn")
    user, origin = lab.user, lab.runs["learn"]
    [blob] = (user.home / "store" / "runs" / origin).glob("blobs/*/*")
    whole, runs = blob.read_bytes(), sorted((user.home / "store" / "runs").glob("learn-*"))
    blob.write_bytes(b"9")
    said = user("submit", lab.write("learn", source="fixed"), "--from", origin, code=4).err
    blob.write_bytes(whole)
    assert "cannot be used" in said
    assert f"{origin} has no other" in said
    [manifest] = (user.home / "store" / "runs" / origin).glob("checkpoints/*[!s]/manifest.json")
    aside = manifest.rename(manifest.with_name("aside"))
    said = user("submit", lab.write("learn", source="fixed"), "--from", origin, code=4).err
    aside.rename(manifest)
    assert f"it is gone from the home store; {origin} has no other" in said
    assert sorted((user.home / "store" / "runs").glob("learn-*")) == runs


@pytest.mark.parametrize(
    ("start", "changes", "told"),
    [
        ("learn@7", {}, "RUN has no checkpoint at step 7; it has: 5"),
        ("learn@x", {}, "'x' is not a step; write "),
        ("learn@", {}, "'' is not a step; write "),
        ("forget", {}, "RUN has no checkpoint to begin with: submit the job without --from"),
        ("learn", {"work": {"total": 10, "global_batch": 16}}, "work.global_batch was 8 and would be 16"),
        ("learn", {"work": {"total": 10, "global_batch": 8, "group": 2}}, "work.group was 1 and would be 2"),
        ("learn", {"seed": 4}, "seed was 0 and would be 4"),
        ("learn", {"work": {"total": 4, "global_batch": 8}}, "step 5 is trained already"),
        ("elsewhere-12345678", {}, "`orchestrator adopt STORE` brings the runs of another machine's store"),
    ],
)
def test_a_start_that_the_job_cannot_go_on_from_is_refused(
    lab: Lab, start: str, changes: dict[str, Any], told: str
) -> None:
    name, at, step = start.partition("@")
    if name in lab.runs:
        lab.over(name)
    run = lab.runs.get(name, name)
    job = lab.write("learn", source="fixed", **changes)
    before = lab.user("ps", "--all", "--json").json["runs"]
    for words in ((), ("--dry-run",)):
        assert told.replace("RUN", run, 1) in lab.refused("submit", job, "--from", f"{run}{at}{step}", *words)
    assert [each["run"] for each in lab.user("ps", "--all", "--json").json["runs"]] == [
        each["run"] for each in before
    ]


# --- Retry ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"work": {"total": 10, "global_batch": 16}}, "work.global_batch was 8 and would be 16"),
        ({"work": {"total": 10, "global_batch": 8, "group": 4}}, "work.group was 1 and would be 4"),
        ({"seed": 1}, "seed was 0 and would be 1"),
        ({"name": "other"}, "declares the job 'other', but RUN is of 'learn'"),
        ({"command": "python lern.py"}, "did you mean 'learn.py'?"),
    ],
)
def test_a_fix_that_is_another_training_is_refused(lab: Lab, changes: dict[str, Any], told: str) -> None:
    lab.over("learn")
    run = lab.runs["learn"]
    said = lab.refused("retry", run, lab.write("learn", **changes))
    assert told.replace("RUN", run) in said
    assert lab.user.record(run).phase is Phase.FAILED


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("learn", "learn.yaml", "--source", "fixed"), "give the job's file or a source folder, not both"),
        (("learn", "--source", "gone"), "--source gone is not a folder"),
        (("learn", "gone.yaml"), "gone.yaml does not exist"),
        (("early",), "RUN is done: only a run that failed or is held can be retried; "
                     "`orchestrator submit JOB --from RUN` begins a new run with its checkpoint"),
        (("forget",), "only a run that failed or is held can be retried; submit the job again"),
    ],
)  # fmt: skip
def test_a_retry_that_makes_no_sense_is_told(lab: Lab, words: tuple[str, ...], told: str) -> None:
    name, *rest = words
    lab.over(name)
    assert told.replace("RUN", lab.runs[name]) in lab.refused("retry", lab.runs[name], *rest)


def test_a_run_under_way_is_not_retried(lab: Lab) -> None:
    run = lab.user.submitted(lab.write("nan-stays", command="python diverge.py wait"))
    wait_until(lambda: lab.user.record(run).session is not None, "a session", PATIENCE)
    said = lab.refused("retry", run)
    assert "only a run that failed or is held can be retried" in said
    assert f"orchestrator hold {run}" in said
    lab.user("cancel", run, "--discard")


def test_a_retry_continues_from_the_newest_checkpoint(lab: Lab) -> None:
    lab.over("learn")
    user, run = lab.user, lab.runs["learn"]
    said = user("retry", run, "--source", "fixed")
    assert said.out.startswith(f"{run} continues from step 5, with a changed source")
    found = lab.over("learn")
    assert found["phase"] == "done"
    assert [each["order"]["resume_step"] for each in found["sessions"]] == [0, 5, 5]
    assert found["sessions"][-1]["ending"] == "completed at step 10"
    assert "the user changed its job: source" in user("why", run).out


def test_a_retry_that_looks_elsewhere_for_the_checkpoint_is_told(lab: Lab) -> None:
    found = lab.over("watched")
    assert (found["phase"], found["progress"]["step"]) == ("failed", 5)
    user, run = lab.user, lab.runs["watched"]
    shutil.copytree(user.folder / "fixed", user.folder / "full")
    (user.folder / "full" / "out").mkdir()
    (user.folder / "full" / "out" / "ckpt_900").touch()
    assert "matches out/ckpt_900 in the source" in lab.refused("retry", run, "--source", "full")
    same = user("retry", run, lab.write("watched", tags=["again"]))
    assert "was saved as" not in same.err
    lab.over("watched")
    said = user("retry", run, lab.write("watched", checkpoint={"watch": "saved/ckpt_{step}"}))
    assert "step 5 was saved as out/ckpt_{step}, which checkpoint.watch no longer matches" in said.err
    lab.over("watched")


def test_a_retry_without_a_checkpoint_starts_over_and_says_so(lab: Lab) -> None:
    lab.over("module")
    user, run = lab.user, lab.runs["module"]
    said = user(
        "retry", run, lab.write("module", command="python learn.py {steps}", source="fixed"), "--json"
    )
    assert said.json["step"] == 0
    assert set(said.json["changes"]) == {"source", "command"}
    found = lab.over("module")
    assert (found["phase"], found["progress"]["step"]) == ("done", 10)
    plain = user("retry", lab.runs["syntax"])
    assert "continues from the beginning, with the job as it is" in plain.out
    assert len(lab.sessions("syntax")) == 2
    assert lab.over("syntax")["phase"] == "failed"
