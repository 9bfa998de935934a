"""A training that misses what submit left at home fails after one session, and the reason says what to do."""

from __future__ import annotations

import pytest

from tests.cli.calls import UNLIMITED, Caller
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("missed", "told"),
    [
        ("config.json", ("config.json stayed at home (.gitignore: *.json)", "the line `!config.json`")),
        ("../outside.yaml", ("../outside.yaml lies outside `source`", "a folder that holds both")),
    ],
)
def test_a_file_left_at_home_is_named_after_one_session(
    user: Caller, missed: str, told: tuple[str, ...]
) -> None:
    user.config(UNLIMITED)
    source = user.folder / "job"
    source.mkdir()
    (source / ".gitignore").write_text("*.json\n")
    (source / missed).write_text("{}\n")
    (source / "train.py").write_text(f"print(open({missed!r}).read())\n")
    (user.folder / "misses.yaml").write_text(
        "name: misses\nsource: job\ncommand: python train.py\nwork: {total: 1, global_batch: 1}\n"
        "profiles: {cpu: {micro_batch: 1, precision: fp32}}\n"
    )
    run = user.submitted("misses.yaml")
    wait_until(lambda: user.record(run).standing == "failed", "the run to fail")
    assert user.record(run).generation == 1
    for view in ("show", "why"):
        said = user(view, run).out
        assert all(each in said for each in (*told, "under `inputs`")), said
