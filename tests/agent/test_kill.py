"""kill -9 for the agent, the leader or a data-loader worker. No process of the training survives its session,
no committed checkpoint is lost, and a session runs only once."""

from __future__ import annotations

import fcntl
import os
import signal
from dataclasses import replace
from pathlib import Path

from orchestrator.core.order import Outcome
from tests.agent.sessions import PATIENCE, QUICK, Stay, is_alive, session
from tests.waiting import wait_until

ENDLESS = ("train.py", "--endless", "--pause", "0.01")
WORKERS = ("workers.py",)


def wait_for_the_lock(root: Path) -> None:
    """Returns once no process holds the session's lock. From then on the session counts as over."""
    with (root / "lock").open("rb") as file:

        def free() -> bool:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        wait_until(free, "the lock to be free")


def kill_agent(stay: Stay, pids: list[int]) -> None:
    assert all(is_alive(pid) for pid in pids)
    stay.agents[-1].kill()
    wait_for_the_lock(stay.root)
    assert [pid for pid in pids if is_alive(pid)] == []


def test_a_killed_agent_takes_leader_and_workers_with_it_and_keeps_its_checkpoints(tmp_path: Path) -> None:
    with session(tmp_path, *ENDLESS, "--child", "--escaped-child", interval_seconds=0.2) as stay:
        stay.start()
        pids = stay.pids(3)
        status = stay.wait_for(lambda s: s.checkpoint, "a checkpoint")
        kill_agent(stay, pids)
        assert status.checkpoint_step is not None
        assert stay.manifests()[-1].ref.step >= status.checkpoint_step
        assert not (tmp_path / "outbox" / "result.json").exists()


def test_a_killed_agent_takes_data_loader_workers_with_it(tmp_path: Path) -> None:
    with session(tmp_path, *WORKERS) as stay:
        stay.start()
        kill_agent(stay, stay.pids(3))


def test_a_platform_that_kills_the_agents_group_leaves_nothing_either(tmp_path: Path) -> None:
    with session(tmp_path, *ENDLESS, "--child", "--escaped-child") as stay:
        agent = stay.start(start_new_session=True)
        pids = stay.pids(3)
        os.killpg(agent.pid, signal.SIGKILL)
        wait_for_the_lock(tmp_path)
        assert [pid for pid in pids if is_alive(pid)] == []


def test_a_killed_leader_is_a_crash_and_its_children_go_too(tmp_path: Path) -> None:
    with session(tmp_path, *ENDLESS, "--child", "--escaped-child", "--save-every", "3") as stay:
        stay.start()
        pids = stay.pids(3)
        stay.wait_for(lambda s: s.checkpoint, "a checkpoint")
        os.kill(pids[0], signal.SIGKILL)
        result = stay.end()
        assert result.outcome is Outcome.CRASHED
        assert result.message == "killed by SIGKILL"
        assert result.step == stay.manifests()[-1].ref.step
        assert [pid for pid in pids if is_alive(pid)] == []


def test_a_killed_data_loader_worker_is_a_crash_with_its_last_words(tmp_path: Path) -> None:
    with session(tmp_path, *WORKERS) as stay:
        stay.start()
        pids = stay.pids(3)
        os.kill(pids[1], signal.SIGKILL)
        result = stay.end()
        assert result.outcome is Outcome.CRASHED
        # torch says it with a traceback, or, cut off while it fetches a batch, in a line without one.
        assert "Error" in result.tail
        assert [pid for pid in pids if is_alive(pid)] == []


def test_a_stop_signals_the_leader_alone_so_that_workers_feed_it_to_the_end(tmp_path: Path) -> None:
    with session(tmp_path / "1", *WORKERS) as stay:
        stay.start()
        pids = stay.pids(3)
        (stay.root / "stop").touch()
        result = stay.end()
        assert (result.outcome, result.exit_code) == (Outcome.STOPPED, 75), result.tail
        assert [pid for pid in pids if is_alive(pid)] == []
        saved = stay.manifests()[-1]
    with session(
        tmp_path / "2", *WORKERS, generation=2, budget_seconds=3600.0, staged=tmp_path / "1" / "outbox",
        resume=saved.name, resume_step=saved.ref.step,
    ) as stay:  # fmt: skip
        agent = stay.start()
        stay.wait_for(lambda s: (s.step or 0) > saved.ref.step, "steps beyond the checkpoint")
        agent.send_signal(signal.SIGTERM)
        result = stay.end()
        assert result.outcome is Outcome.STOPPED
        assert result.step is not None
        assert result.step > saved.ref.step


def test_a_killed_guardian_does_not_let_the_leader_outlive_the_agent(tmp_path: Path) -> None:
    with session(tmp_path, *ENDLESS) as stay:
        agent = stay.start()
        [leader] = stay.pids()
        children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
        [guardian] = [int(pid) for pid in children if int(pid) != leader]
        os.kill(guardian, signal.SIGKILL)
        agent.kill()
        wait_until(lambda: not is_alive(leader), "the leader to die with its parent")


def test_a_second_agent_leaves_at_once_while_the_first_lives_and_after_it(tmp_path: Path) -> None:
    with session(tmp_path, *ENDLESS) as stay:
        first = stay.start()
        stay.wait_for(lambda s: s.step, "the first step")
        second = stay.start()
        assert second.communicate(timeout=PATIENCE)[0] == "another agent holds the lock of this session\n"
        assert second.returncode == 4
        assert first.poll() is None
        (tmp_path / "stop").touch()
        first.communicate(timeout=PATIENCE)
        written = (tmp_path / "outbox" / "result.json").read_bytes()
        incarnation = (tmp_path / "outbox" / "incarnation").read_text().strip()
        third = stay.start()
        assert third.communicate(timeout=PATIENCE)[0] == f"agent {incarnation} already ran this session\n"
        assert third.returncode == 4
        assert (tmp_path / "outbox" / "result.json").read_bytes() == written


def test_of_agents_that_start_together_one_lives(tmp_path: Path) -> None:
    with session(tmp_path, "train.py") as stay:
        agents = [stay.start() for _ in range(4)]
        for agent in agents:
            agent.communicate(timeout=PATIENCE)
        assert sorted(agent.returncode for agent in agents) == [0, 4, 4, 4]
        assert [m.ref.step for m in stay.manifests()] == [20]


def test_the_launcher_may_take_the_lock_and_hand_it_over(tmp_path: Path) -> None:
    with session(tmp_path, "train.py") as stay, (tmp_path / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        number = lock.fileno()
        stranger = stay.start()
        stranger.communicate(timeout=PATIENCE)
        assert stranger.returncode == 4
        assert not (tmp_path / "outbox").exists()
        result = stay.live(
            replace(QUICK), environment={"ORCHESTRATOR_LOCK_FD": str(number)}, pass_fds=(number,)
        )
        assert result.outcome is Outcome.COMPLETED
