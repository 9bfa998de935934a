"""`curves` as a user runs it: of a run that crashed once, and of one whose script reports nonsense."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from orchestrator.cli import pictures
from orchestrator.client.curves import Curve, Curves, Hop, Point
from orchestrator.core.event import Submitted
from tests.cli.calls import UNLIMITED, Caller, caller
from tests.cli.dialogue import dialogue
from tests.cli.test_any_script import SCRIPTS
from tests.client.homes import append, ledger_of
from tests.core.runs import NOW, RUN, job, running
from tests.training.events import tensorboard

JOB = """
name: falls
source: code
command: python fall.py {steps}
outputs: [tensorboard/]
work: {total: 12, global_batch: 8}
profiles:
  cpu: {micro_batch: 8, precision: fp32}
"""


@dataclass(frozen=True)
class Fallen:
    user: Caller
    run: str


@pytest.fixture(scope="module")
def fallen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fallen]:
    """A run whose first session crashed after step 8, and whose second one resumed from step 5."""
    folder = tmp_path_factory.mktemp("fallen")
    with caller(folder) as user:
        user.config(UNLIMITED)
        (folder / "code").mkdir()
        shutil.copy(SCRIPTS / "fall.py", folder / "code")
        (folder / "falls.yaml").write_text(JOB)
        run = user.submitted("falls.yaml")
        user.wait_for_phase(run, "done")
        yield Fallen(user, run)


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[Caller]:
    """A user with a run whose script reports nonsense."""
    with caller(tmp_path) as user:
        user.config()
        with ledger_of(user.home) as ledger:
            ledger.submit(Submitted(RUN, job(), NOW, store="home"))
        append(user.home, running())
        folder = user.home / "runs" / RUN / f"{RUN}-s01"
        folder.mkdir(parents=True)
        reports = [
            {"step": step, "metrics": {"<loss>&\x1b[31m$x$\u6f22": value, "nothing": float("nan")}}
            for step, value in enumerate((-1e308, 1e308, 3.0))
        ]
        text = "".join(f"{json.dumps(each)}\n" for each in reports)
        (folder / "progress.jsonl").write_text(f"{text}not json\n")
        yield user


def test_redone_steps_are_drawn_once(fallen: Fallen) -> None:
    found = fallen.user("curves", fallen.run, "--json").json
    loss, accuracy = found["metrics"]
    assert [(each["step"], each["session"][-3:]) for each in loss["points"]] == [
        *((step, "s01") for step in range(1, 6)), *((step, "s02") for step in range(6, 13)),
    ]  # fmt: skip
    assert all(each["value"] == 1 / each["step"] for each in loss["points"])
    assert [each["step"] for each in accuracy["points"]] == [3, 6, 9, 12]
    assert [each["from_step"] for each in found["sessions"]] == [0, 5]
    assert (found["missing"], found["notes"], found["file"]) == ([], [], None)


def test_the_event_files_of_both_sessions_come_home_as_one_curve(fallen: Fallen) -> None:
    fallen.user("pull", fallen.run, "--outputs", "-o", "outputs")
    found = tensorboard(fallen.user.folder / "outputs" / "tensorboard")
    assert [step for step, _ in found] == list(range(1, 13))
    assert [value for _, value in found] == pytest.approx([1 / step for step in range(1, 13)])


@pytest.mark.parametrize("encoding", ["utf-8", "iso-8859-1", "ascii"])
def test_a_plot_fits_into_60_columns(fallen: Fallen, encoding: str) -> None:
    answer = fallen.user(
        "curves", fallen.run, "--width", "60", PYTHONIOENCODING=f"{encoding}:strict", PYTHONUTF8="0"
    )
    assert answer.err == ""
    assert all(len(line) <= 60 for line in answer.out.splitlines())
    assert ("⠉" in answer.out or "⣀" in answer.out) == (encoding == "utf-8")
    assert "loss  last 0.0833 at step 12, lowest 0.0833, highest 1" in answer.out
    assert answer.out.count("s02") == 2


def test_only_what_is_asked_for_is_drawn(fallen: Fallen) -> None:
    answer = fallen.user("curves", fallen.run, "--metric", "accuracy", "--log")
    assert "accuracy  last 1 at step 12, lowest 0.25, highest 1, logarithmic" in answer.out
    assert "loss" not in answer.out
    error = fallen.user("curves", fallen.run, "--metric", "acuracy", code=2).err
    assert "no metric 'acuracy'" in error
    assert "accuracy" in error


def test_show_has_the_last_values(fallen: Fallen) -> None:
    lines = fallen.user("show", fallen.run).out.splitlines()
    [first] = [number for number, line in enumerate(lines) if line.startswith("metrics")]
    assert lines[first].split()[:3] == ["metrics", "loss", "0.0833"]
    assert lines[first + 1].split()[:2] == ["accuracy", "1"]
    assert f"curves {fallen.run}" in lines[first + 2]


def test_a_csv_has_one_row_for_each_step(fallen: Fallen) -> None:
    assert fallen.user("curves", fallen.run, "-o", "c.csv").out.startswith("c.csv: 2 metrics of falls-")
    rows = list(csv.DictReader(io.StringIO((fallen.user.folder / "c.csv").read_text())))
    assert list(rows[0]) == ["step", "time", "session", "metric", "value"]
    assert [int(row["step"]) for row in rows if row["metric"] == "loss"] == list(range(1, 13))
    assert {row["session"] for row in rows} == {f"{fallen.run}-s01", f"{fallen.run}-s02"}


@pytest.mark.parametrize("name", ["=cmd()", "+1", "-1", "@x", "\t=1", "＝1"])
def test_a_name_is_no_formula_in_a_spreadsheet(name: str) -> None:
    point = Point(1, -0.5, 1, -2.0)
    found = [Curve(each, (point,), 1, False, 0, point) for each in (name, "loss")]
    text = pictures.csv_of(Curves(RUN, tuple(found), (Hop(1, "s01", 0, True),)), found).decode()
    _, formula, loss = csv.reader(io.StringIO(text))
    assert formula == ["1", "-2.0", "s01", f"'{name}", "-0.5"]
    assert loss == ["1", "-2.0", "s01", "loss", "-0.5"]


def test_an_svg_needs_nothing_else(fallen: Fallen) -> None:
    fallen.user("curves", fallen.run, "-o", "c.svg", "--log")
    text = (fallen.user.folder / "c.svg").read_text()
    said = [each.text for each in ElementTree.fromstring(text).iter() if each.tag.endswith("text")]
    assert {fallen.run, "loss, logarithmic", "accuracy, logarithmic", "s02", "step 1", "12"} <= set(said)


def test_no_file_of_the_user_is_replaced_unasked(fallen: Fallen) -> None:
    kept = fallen.user.folder / "mine.csv"
    kept.write_text("mine")
    assert "mine.csv exists" in fallen.user("curves", fallen.run, "-o", "mine.csv", code=2).err
    assert kept.read_text() == "mine"
    fallen.user("curves", fallen.run, "-o", "mine.csv", "--force")
    assert kept.read_text() != "mine"
    assert "c.pdf" in fallen.user("curves", fallen.run, "-o", "c.pdf", code=2).err
    assert "no/c.csv" in fallen.user("curves", fallen.run, "-o", "no/c.csv", code=2).err
    assert "--width 7" in fallen.user("curves", fallen.run, "--width", "7", code=2).err


def test_what_a_hostile_script_reports_is_drawn_harmlessly(hostile: Caller) -> None:
    for words in (("curves", RUN), ("show", RUN)):
        answer = hostile(*words)
        assert "\x1b" not in answer.out
        assert "<loss>&$x$" in answer.out
    answer = hostile("curves", RUN, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert "<loss>&$x$?  last 3" in answer.out
    assert "nothing  3 reports, none finite" in answer.out
    assert "ignored 1 malformed line" in answer.err
    hostile("curves", RUN, "-o", "c.svg")
    assert "<loss>&$x$漢" in "".join(ElementTree.parse(hostile.folder / "c.svg").getroot().itertext())
    hostile("curves", RUN, "-o", "c.png")
    mask = os.umask(0o022)
    os.umask(mask)
    assert (hostile.folder / "c.svg").stat().st_mode & 0o777 == 0o644 & ~mask, "it is the user's file"
    assert (hostile.folder / "c.png").read_bytes().startswith(b"\x89PNG")
    hostile("curves", RUN, "-o", "c.csv")
    assert len((hostile.folder / "c.csv").read_text().splitlines()) == 4


def test_show_says_which_metrics_are_not_finite(hostile: Caller) -> None:
    told = hostile("show", RUN).out
    assert re.search(r"nothing +nan  none finite", told)
    with (hostile.home / "runs" / RUN / f"{RUN}-s01" / "progress.jsonl").open("a") as reports:
        reports.write('{"step": 3, "metrics": {"nothing": 1}}\n')
    assert re.search(r"nothing +1 .* not all finite", hostile("show", RUN).out)


def test_a_long_name_is_cut_so_that_show_keeps_its_lines(hostile: Caller) -> None:
    with (hostile.home / "runs" / RUN / f"{RUN}-s01" / "progress.jsonl").open("a") as reports:
        reports.write(json.dumps({"step": 3, "metrics": {"loss/" + "x" * 60: 1, "y" * 300: 1}}) + "\n")
    with dialogue(hostile, "show", RUN, COLUMNS="80") as seen:
        seen.expect(f"  loss/{'x' * 26}...         1  ")
        assert seen.ends() == 0
    assert "left out 1 metric with a name of more than" in hostile("curves", RUN).err


def test_remarks_stand_below_what_they_are_about(hostile: Caller) -> None:
    with dialogue(hostile, "curves", RUN, PYTHONUNBUFFERED="1") as seen:
        seen.expect("3 reports, none finite")
        seen.expect("ignored 1 malformed line")
        assert seen.ends() == 0


def test_many_metrics_that_are_not_drawn_take_one_line(hostile: Caller) -> None:
    report = {"step": 9, "metrics": {f"m{n}": n for n in range(10_000)}}
    with (hostile.home / "runs" / RUN / f"{RUN}-s01" / "progress.jsonl").open("a") as file:
        file.write(f"{json.dumps(report)}\n")
    [told] = [line for line in hostile("curves", RUN).err.splitlines() if "not drawn" in line]
    assert told.startswith("not drawn: m2, m3, ")
    assert told.endswith(" and 232 more (--metric draws one)")


def test_a_run_without_reports_says_so(hostile: Caller) -> None:
    shutil.rmtree(hostile.home / "runs" / RUN)
    answer = hostile("curves", RUN)
    assert "has reported no metrics" in answer.out
    assert "nothing that s01 reports has been collected yet" in answer.err
    assert "nothing to write" in hostile("curves", RUN, "-o", "c.csv", code=2).err
    assert "metrics" not in hostile("show", RUN).out
    assert hostile("curves", RUN, "--json").json["metrics"] == []
