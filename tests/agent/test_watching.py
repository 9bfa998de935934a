"""Scripts that know nothing of the contract: what they save becomes a checkpoint, and comes back."""

from __future__ import annotations

import io
import os
import signal
import zipfile
from dataclasses import replace
from itertools import accumulate, cycle
from pathlib import Path

import pytest

from orchestrator.agent.commanding import with_resume
from orchestrator.agent.folder import Folder
from orchestrator.agent.watching import Watcher
from orchestrator.clock import SystemClock
from orchestrator.core.checkpoint import Manifest
from orchestrator.core.order import Outcome
from orchestrator.core.save_pattern import SavePattern
from tests.agent.sessions import QUICK, Stay, session, written
from tests.agent.test_session import weights_after
from tests.waiting import wait_until

WATCH = "checkpoints/ckpt_{step}.pt"
SETTLING = replace(QUICK, settle=0.15, save_floor=0.0, save_ceiling=0.1, scan=0.1)
ENDLESS = ("--steps", "1000000", "--pause", "0.01")
RESUME = ("--resume", "{resume}")


def newest(stay: Stay) -> Manifest:
    return wait_until(lambda: [None, *stay.manifests()][-1], lambda: f"a commit: {stay.log()}")


def resumed(
    root: Path, before: Path, saved: Manifest, *flags: str, watch: str = WATCH, total: int | None = None
) -> tuple[Stay, bytes]:
    """The next session, to its end; and the state that it ended with."""
    total = total or saved.ref.step + 10
    command = ("saver.py", "--steps", str(total), *flags, *RESUME)
    with session(
        root, *command, watch=watch, steps_total=total, generation=2, staged=before / "outbox",
        resume=saved.name, resume_step=saved.ref.step,
    ) as stay:  # fmt: skip
        result = stay.live(SETTLING)
        assert result.outcome is Outcome.COMPLETED, stay.log()
        return stay, (root / "work" / "source" / "final").read_bytes()


@pytest.mark.parametrize(
    ("watch", "to", "flags"),
    [
        (WATCH, "checkpoints/ckpt_{step}.pt", ()),
        ("out/checkpoint-{step}", "out/checkpoint-{step}", ("--folder",)),
        (
            "logs/version_*/epoch={epoch}-step={step}.ckpt",
            "logs/version_3/epoch={epoch}-step={step}.ckpt",
            (),
        ),
        ("last.pt", "last.pt", ()),  # always the same file
        ("last.state", "last.state", ("--plain", "--pause", "0.1")),
    ],
)
def test_what_a_script_saves_is_resumed_to_the_same_state(
    tmp_path: Path, watch: str, to: str, flags: tuple[str, ...]
) -> None:
    with session(
        tmp_path / "1", "saver.py", *ENDLESS, "--to", to, *flags, *RESUME, watch=watch, steps_total=10**6
    ) as first:
        agent = first.start(SETTLING)
        newest(first)
        agent.send_signal(signal.SIGTERM)
        result = first.end()
        assert result.outcome is Outcome.STOPPED
        assert "begins at 0 from None" in first.log()
        saved = first.manifests()[-1]
        assert result.step == saved.ref.step
    place = to.format(step=saved.ref.step, epoch=saved.ref.step // 5)
    assert all(entry.path.startswith(place) for entry in saved.files)
    flags = ("--to", to, *flags)
    if "{step}" not in watch:  # our count, not the script's, which has made many more steps
        total = 50_000
        flags = (*flags, "--steps", f"{total}", "--pause", "0", "--every", f"{total // 10}")
        second, state = resumed(tmp_path / "2", tmp_path / "1", saved, *flags, watch=watch, total=total)
    else:
        total = saved.ref.step + 10
        second, state = resumed(tmp_path / "2", tmp_path / "1", saved, *flags, watch=watch)
    assert f"from {place}\n" in second.log()
    assert state == weights_after(total)
    assert second.manifests()[-1].parent == saved.name


def test_a_half_written_save_is_not_taken(tmp_path: Path) -> None:
    """Neither while it is written, nor when the script is killed in the middle of it."""
    flags = ("--tear-at", "15", "--pause", "0.05", *RESUME)
    with session(tmp_path / "1", "saver.py", *flags, watch=WATCH) as first:
        agent = first.start(SETTLING)
        wait_until(lambda: "torn" in first.log(), "the script to hang in a save")
        assert newest(first).ref.step <= 10
        agent.send_signal(signal.SIGTERM)
        assert first.end().step == 10
        saved = first.manifests()[-1]
        assert saved.ref.step == 10
    _, state = resumed(tmp_path / "2", tmp_path / "1", saved)
    assert state == weights_after(20)


def test_a_file_that_is_open_for_writing_has_not_settled(tmp_path: Path) -> None:
    script = (
        "import pathlib, time\n"
        "with open('last.bin', 'wb') as file:\n"
        "    file.write(b'half')\n    file.flush()\n"
        "    while not pathlib.Path('go').exists(): time.sleep(0.01)\n"
        "    file.write(b' and half')\n"
        "while not pathlib.Path('end').exists(): time.sleep(0.01)\n"
    )
    source = written(tmp_path, script)
    with session(tmp_path / "s", "train.py", source=source, watch="last.bin") as stay:
        stay.start(replace(SETTLING, settle=0.05))
        work = tmp_path / "s" / "work" / "source"
        wait_until(lambda: (work / "last.bin").exists() and (stay.status() or 0), "the save to begin")
        beats = stay.wait_for(lambda status: status.heartbeat > 3, "time to pass").heartbeat
        stay.wait_for(lambda status: status.heartbeat > beats + 10, "time to pass")
        assert stay.manifests() == []
        (work / "go").touch()
        assert stay.content(newest(stay), "last.bin") == b"half and half"
        (work / "end").touch()
        assert stay.end().outcome is Outcome.COMPLETED


class Slow(SystemClock):
    """A look takes 100 seconds, and the next one begins 10 seconds later."""

    def __init__(self) -> None:
        self._readings = accumulate(cycle((10.0, 100.0)))

    def monotonic(self) -> float:
        return next(self._readings)


def test_the_time_that_a_look_takes_does_not_count_as_quiet(tmp_path: Path) -> None:
    """As of a folder with many files, or of an agent that is stalled. It may have changed meanwhile."""
    folder, offered = Folder(tmp_path), list[Path]()
    folder.lay_out()
    watcher = Watcher(
        folder, SavePattern.parse("last.bin"), None, Slow(), 15.0, offered.append, lambda: None, lambda: 0.0
    )
    (folder.source / "last.bin").write_bytes(b"state")
    watcher._look()
    watcher._look()
    assert offered == []
    watcher._look()
    assert len(offered) == 1


def test_the_script_may_remove_and_change_what_was_taken(tmp_path: Path) -> None:
    """A commit is a copy: neither side changes the other's files."""
    with session(tmp_path / "s", "saver.py", *ENDLESS, "--to", "last.pt", watch="last.pt") as stay:
        stay.start(SETTLING)
        wait_until(lambda: len(stay.manifests()) >= 2, "another one")  # verifies every blob
        (tmp_path / "s" / "work" / "source" / "last.pt").unlink(missing_ok=True)
        assert stay.manifests()
        os.kill(stay.agents[-1].pid, signal.SIGTERM)
        assert stay.end().outcome is Outcome.STOPPED
        for saved in stay.manifests():
            with zipfile.ZipFile(io.BytesIO(stay.content(saved, "last.pt"))) as archive:
                assert archive.read("state") == weights_after(int(archive.read("step")))


def test_a_file_that_is_overwritten_all_the_time_is_taken(tmp_path: Path) -> None:
    """More often than the agent can look at who writes it. The first is step 1, so that it is progress."""
    flags = ("--every", "1", "--pause", "0.001", "--to", "last.pt")
    with session(tmp_path, "saver.py", *ENDLESS[:2], *flags, watch="last.pt", steps_total=10**6) as stay:
        agent = stay.start(SETTLING)
        newest(stay)
        agent.send_signal(signal.SIGTERM)
        assert stay.end().outcome is Outcome.STOPPED
        for saved in stay.manifests():
            assert saved.ref.step >= 1
            with zipfile.ZipFile(io.BytesIO(stay.content(saved, "last.pt"))) as archive:
                assert archive.read("state") == weights_after(int(archive.read("step")))


def test_a_file_of_an_unknown_format_that_is_never_still_is_taken(tmp_path: Path) -> None:
    """Such as a pickle that is written again every second: it is taken while nobody has it open."""
    flags = ("--every", "1", "--pause", "0.05", "--plain", "--to", "state.pkl")
    with session(tmp_path, "saver.py", *ENDLESS[:2], *flags, watch="state.pkl", steps_total=10**6) as stay:
        agent = stay.start(SETTLING)
        newest(stay)
        agent.send_signal(signal.SIGTERM)
        assert stay.end().outcome is Outcome.STOPPED
        for saved in stay.manifests():
            step, _, state = stay.content(saved, "state.pkl").partition(b" ")
            assert state == weights_after(int(step))


def test_a_folder_that_gets_its_last_file_late_is_waited_for(tmp_path: Path) -> None:
    """As if the optimizer of a large model was gathered between two files, longer than the settle time."""
    script = (
        "import pathlib, time\n"
        "folder = pathlib.Path('checkpoint-5')\n"
        "folder.mkdir()\n"
        "times = []\n"
        "for number in range(20):\n"
        "    (folder / f'part-{number}').write_bytes(b'state')\n"
        "    times.append(time.monotonic())\n"
        "    time.sleep(0.1 if number < 19 else 0.5)\n"
        "(folder / 'last').write_bytes(b'state')\n"
        "times.append(time.monotonic())\n"
        "pathlib.Path('slowest').write_text(str(max(b - a for a, b in zip(times, times[1:]))))\n"
        "while not pathlib.Path('end').exists(): time.sleep(0.01)\n"
    )
    source = written(tmp_path, script)
    for settle in (0.15, 0.6, 2.4, 9.6):  # a script that is stalled for ten times as long seems to be done
        place = tmp_path / f"{settle}"
        with session(place, "train.py", source=source, watch="checkpoint-{step}") as stay:
            stay.start(replace(SETTLING, settle=settle))
            saved = newest(stay)
            wait_until((place / "work/source/slowest").exists, "all files")
            (place / "work/source/end").touch()
            stay.end()
        if float((place / "work/source/slowest").read_text()) < 10 * settle:
            break
    assert len(saved.files) == 21


def test_what_was_saved_before_the_newest_is_passed_over(tmp_path: Path) -> None:
    """Several saves lie there at the first look, and no later one follows for a while."""
    script = (
        "import pathlib, time\n"
        "draft = pathlib.Path('draft')\n"
        "draft.mkdir()\n"
        "for step in (1, 2, 3): (draft / f'ckpt_{step}.pt').write_bytes(b'state')\n"
        "draft.rename('out')\n"
        "while not pathlib.Path('end').exists(): time.sleep(0.01)\n"
    )
    source = written(tmp_path, script)
    with session(tmp_path / "s", "train.py", source=source, watch="out/ckpt_{step}.pt") as stay:
        stay.start(SETTLING)
        wait_until(lambda: newest(stay).ref.step == 3, "the newest one")
        beats = stay.wait_for(lambda status: status.heartbeat > 3, "time to pass").heartbeat
        stay.wait_for(lambda status: status.heartbeat > beats + 20, "time to pass")
        (tmp_path / "s" / "work" / "source" / "end").touch()
        assert stay.end().step == 3
        assert "committed 0000000001" not in stay.log()
        assert stay.status().warnings == ()  # type: ignore[union-attr]


def test_what_is_watched_in_the_checkpoint_folder_is_no_output(tmp_path: Path) -> None:
    script = (
        "import os, pathlib\n"
        "folder = pathlib.Path(os.environ['ORCHESTRATOR_CHECKPOINT_DIR'])\n"
        "(folder / 'model_5.bin').write_bytes(b'state')\n"
        "(folder / 'note.txt').write_text('for people')\n"
    )
    source = written(tmp_path, script)
    with session(tmp_path / "s", "train.py", source=source, watch="{checkpoints}/model_{step}.bin") as stay:
        assert stay.live(SETTLING).step == 5
        assert list(stay.outputs()) == [".orchestrator/checkpoints/note.txt"]


@pytest.mark.parametrize(("saves_when_asked", "outcome"), [(True, Outcome.STOPPED), (False, Outcome.CRASHED)])
def test_only_what_was_saved_when_asked_makes_a_failure_a_good_stop(
    tmp_path: Path, saves_when_asked: bool, outcome: Outcome
) -> None:
    """The save before it is taken only at the end, because the next copy is not due yet."""
    script = (
        "import pathlib, signal, time\n"
        "def leave(*_):\n"
        f"    if {saves_when_asked}: pathlib.Path('ckpt_3.pt').write_bytes(b'state')\n"
        "    raise ValueError('in the middle of a step')\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "pathlib.Path('ckpt_1.pt').write_bytes(b'state')\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.01)\n"
        "pathlib.Path('ckpt_2.pt').write_bytes(b'state')\n"
        "pathlib.Path('gone').touch()\n"
        "while True: time.sleep(0.01)\n"
    )
    source = written(tmp_path, script)
    with session(
        tmp_path / "s", "train.py", source=source, watch="ckpt_{step}.pt", interval_seconds=3600.0
    ) as stay:
        agent = stay.start(replace(SETTLING, save_ceiling=3600.0))
        work = tmp_path / "s" / "work" / "source"
        assert newest(stay).ref.step == 1
        (work / "go").touch()
        wait_until((work / "gone").exists, "the second save")
        agent.send_signal(signal.SIGTERM)
        result = stay.end()
        assert (result.outcome, result.step) == (outcome, 3 if saves_when_asked else 2), result


def test_what_the_source_brought_is_no_checkpoint(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "checkpoints").mkdir(parents=True)
    (source / "checkpoints" / "ckpt_900.pt").write_bytes(b"from another day")
    (source / "train.py").write_text("print('nothing')\n")
    with session(tmp_path / "s", "train.py", source=source, watch=WATCH) as stay:
        assert stay.live(SETTLING).step is None
        assert stay.manifests() == []


def test_a_script_that_does_not_resume_is_told(tmp_path: Path) -> None:
    with session(tmp_path / "1", "saver.py", watch=WATCH) as first:
        assert first.live(SETTLING).step == 20
        saved = first.manifests()[-1]
    with session(
        tmp_path / "2", "saver.py", *ENDLESS, watch=WATCH, generation=2, staged=tmp_path / "1" / "outbox",
        resume=saved.name, resume_step=saved.ref.step,
    ) as second:  # fmt: skip
        second.start(SETTLING)
        told = second.wait_for(lambda status: status.warnings, "a warning")
        assert "although it was to resume at step 20: does the command load {resume}?" in told.warnings[0]


@pytest.mark.parametrize(
    ("to", "flags", "line"),
    [
        ("checkpoints/ckpt_{step}.pt", (), 'watch: "checkpoints/ckpt_{step}.pt"'),
        ("out/checkpoint-{step}", ("--folder",), 'watch: "out/checkpoint-{step}"'),
        ("{dir}/checkpoint-{step}", ("--folder",), 'watch: "{checkpoints}/checkpoint-{step}"'),
        ("{dir}/step-{step}", (), 'watch: "{checkpoints}/step-{step}"'),
    ],
)
def test_a_near_miss_is_told_with_the_line_to_add(
    tmp_path: Path, to: str, flags: tuple[str, ...], line: str
) -> None:
    to = to.replace("{dir}", str(tmp_path / "s" / "work" / "checkpoints"))
    with session(tmp_path / "s", "saver.py", *ENDLESS, "--to", to, *flags) as stay:
        agent = stay.start(SETTLING)
        told = stay.wait_for(lambda status: status.warnings, "a warning").warnings
        assert line in told[0]
        agent.send_signal(signal.SIGTERM)
        stay.end()
    with session(tmp_path / "t", "saver.py", "--to", to.replace("/s/", "/t/"), *flags) as stay:
        result = stay.live(SETTLING)
        assert result.outcome is Outcome.COMPLETED
        status = stay.status()
        assert status is not None
        assert line in status.warnings[0]
        assert stay.outputs()


def test_checkpoints_of_another_unit_than_the_jobs_are_told(tmp_path: Path) -> None:
    """Lightning numbers them by the optimizer's steps, and its job may count epochs."""
    with session(tmp_path, "saver.py", watch=WATCH, steps_total=4) as stay:
        assert stay.live(SETTLING).outcome is Outcome.COMPLETED
        status = stay.status()
        assert status is not None
        assert "its checkpoints go beyond work.total (4): count both in the same unit" in status.warnings[0]


def test_a_pattern_that_matches_nothing_is_told(tmp_path: Path) -> None:
    with session(tmp_path, "saver.py", watch="ckpts/{step}.pt") as stay:
        stay.live(SETTLING)
        status = stay.status()
        assert status is not None
        assert "nothing matches checkpoint.watch 'ckpts/{step}.pt'; " in status.warnings[0]
        assert 'watch: "checkpoints/ckpt_{step}.pt"' in status.warnings[0]


@pytest.mark.parametrize(
    "command",
    [
        ("sh", "-c", "python saver.py --steps 1000000 --pause 0.01 --listen | cat"),
        ("bash", "-o", "pipefail", "-c",
         "cd . && python saver.py --steps 1000000 --pause 0.01 --listen | tee x"),
        ("env", "A=1", "sh", "-c", "true; (python saver.py --steps 1000000 --pause 0.01 --listen)"),
    ],
)  # fmt: skip
def test_a_shell_passes_the_request_to_leave_on(tmp_path: Path, command: tuple[str, ...]) -> None:
    with session(tmp_path, command=command, watch=WATCH, steps_total=10**6) as stay:
        agent = stay.start(replace(SETTLING, save_floor=600.0, save_ceiling=600.0))
        newest(stay)
        agent.send_signal(signal.SIGTERM)
        result = stay.end()
        assert result.outcome is Outcome.STOPPED, result
        assert result.step == stay.manifests()[-1].ref.step
        assert result.exit_code in (0, 75)


@pytest.mark.parametrize(
    ("command", "filled"),
    [
        (("t.py", "--resume", "{resume}"), ("t.py", "--resume", "a/c 1.pt")),
        (("t.py", "--resume={resume}"), ("t.py", "--resume=a/c 1.pt")),
        (("t.py", "{resume}"), ("t.py", "a/c 1.pt")),
        (("sh", "-c", "t.py --resume {resume} --x 1 | tee log"),
         ("sh", "-c", "t.py --resume 'a/c 1.pt' --x 1 | tee log")),
        (("sh", "-c", 't.py --resume="{resume}"'), ("sh", "-c", "t.py --resume='a/c 1.pt'")),
        (("t.py", "--x"), ("t.py", "--x")),
    ],
)  # fmt: skip
def test_the_command_gets_the_path(command: tuple[str, ...], filled: tuple[str, ...]) -> None:
    assert with_resume(command, "a/c 1.pt") == filled
    without = with_resume(command, None)
    assert not any("resume" in word for word in without)
    assert all(word in command or word in ("t.py", "t.py  --x 1 | tee log", "t.py ") for word in without)
