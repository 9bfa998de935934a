"""A disk without inodes: it is named as that, with who took them, and a session that took them makes room for
its own log, last save and outputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.calls import UNLIMITED, Caller
from tests.disks import MB, mounted
from tests.waiting import wait_until

INODES = 600
WRITES = "import os, pathlib, sys\nprint('it begins')\npathlib.Path('results.csv').write_text('a,b')\n"
MANY = WRITES + "os.mkdir('cache')\nfor i in range(9999): open(f'cache/{i}.txt', 'w').write('x')\n"
# Each in a folder of its own, as the caches of downloads are; the last save is not taken yet.
DEEP = (
    WRITES
    + """
try:
    for i in range(9999):
        if i == 50:
            pathlib.Path('ckpt_7.bin').write_bytes(b'w' * 1000)
        os.makedirs(f'.cache/hub/{i:04}')
        open(f'.cache/hub/{i:04}/x.json', 'w').close()
except OSError as error:
    sys.exit(f'the cache is broken: {error}')
"""
)
FLAT = WRITES + "for i in range(9999): open(f'sample-{i}.npy', 'w').write(str(i))\n"
WATCH = "checkpoint: {watch: 'ckpt_*.bin'}\n"


@pytest.fixture
def user(tmp_path: Path, user: Caller) -> Iterator[Caller]:
    with mounted(tmp_path, 64 * MB, INODES) as disk:
        user.home = disk / "home"
        user.config(UNLIMITED)
        yield user
        user("down")


def job(user: Caller, script: str, more: str = "") -> str:
    (user.folder / "job").mkdir()
    (user.folder / "job" / "train.py").write_text(script)
    (user.folder / "many.yaml").write_text(
        "name: many\nsource: job\ncommand: python train.py\nwork: {total: 9, global_batch: 1}\n"
        f"profiles: {{cpu: {{micro_batch: 1, precision: fp32}}}}\n{more}"
    )
    return "many.yaml"


@pytest.mark.parametrize(
    ("script", "more", "where"),
    [(MANY, "", "work/source/cache"), (FLAT, "outputs: [results.csv]\n", "work/source")],
)  # fmt: skip
def test_a_session_that_took_all_inodes_comes_home(user: Caller, script: str, more: str, where: str) -> None:
    run = user.submitted(job(user, script, more))
    wait_until(lambda: user.record(run).standing in ("failed", "held"), "the run to be over")
    said = user("show", run).out
    assert f"has no inodes left (it takes {INODES} files)" in said
    assert f"of them are in {user.home}/platforms/here/{run}-s01/{where}, which this session wrote" in said
    assert "is full" not in said
    assert "it begins" in user("logs", run).out
    user("pull", run, "--outputs", "-o", "mine")
    assert (user.folder / "mine" / "results.csv").read_text() == "a,b"
    assert not list(user.home.glob("platforms/here/*-s01"))


def test_its_last_save_comes_home_too_and_the_run_goes_on(user: Caller) -> None:
    run = user.submitted(job(user, DEEP, WATCH))
    wait_until(lambda: bool(user.record(run).closed), "its first session to be over")
    assert user.record(run).accepted
    user("cancel", run)
    wait_until(lambda: user.record(run).standing == "cancelled", "the run to be over")
    said = user("why", run).out
    assert (
        f"of them are in {user.home}/platforms/here/{run}-s01/work/source/.cache, which this session" in said
    )
    assert "removed to make room, because the disk had no inodes left: .cache/ (" in said


def take_all(folder: Path) -> int:
    """Fills the disk with empty files here, and says how many."""
    with suppress(OSError):
        for at in range(INODES):
            (folder / str(at)).touch()
    return sum(1 for _ in folder.iterdir())


def test_files_of_others_are_named_and_commands_still_work(user: Caller) -> None:
    others = user.home / "runs" / "other" / "other-s01"
    others.mkdir(parents=True)
    count = take_all(others) + 1
    said = user("submit", job(user, "print('ok')"), code=4).err
    assert f"has no inodes left (it takes {INODES} files): {count} of them are in {others}; remove" in said
    for each in others.iterdir():
        each.unlink()
    run = user.submitted("many.yaml")
    wait_until(
        lambda: user.record(run).standing == "done" and not user.record(run).strays, "the run to be done"
    )
    user("down")
    take_all(others)
    assert run in user("ps", "--all").out
    user("rm", run, "--yes")
    assert run not in user("ps", "--all").out
