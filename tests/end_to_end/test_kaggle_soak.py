"""A fixed share of the soak. More by hand: `python -m tests.end_to_end.kaggle_soak --minutes 30`."""

from __future__ import annotations

import sys
import time
from dataclasses import fields
from pathlib import Path

import pytest

from tests.end_to_end import kaggle_weather
from tests.end_to_end.kaggle_soak import Figures, Plan, soak
from tests.stand_ins.kaggle import Warts


@pytest.mark.timeout(600)
def test_bad_weather_on_kaggle_loses_repeats_and_holds_nothing(tmp_path: Path) -> None:
    figures = Figures()
    assert soak(tmp_path, "ci", Plan(runs=2, steps=70, storm_seconds=10.0), figures) == []
    assert figures.counts["sessions"] >= 4, f"a run needs two sessions or more: {figures}"
    assert figures.counts["faults"] > 0, figures


def test_each_wart_is_drawn_or_known_to_stop_a_run() -> None:
    drawn, never = kaggle_weather.WARTS.keys(), kaggle_weather.NEVER_DRAWN
    assert drawn | never == {each.name for each in fields(Warts)}
    assert not drawn & never


@pytest.mark.soak
def test_bad_weather_on_kaggle_for_half_an_hour(tmp_path: Path) -> None:
    """Starts from the current time as seed; a failure prints the seed."""
    figures = Figures()
    assert soak(tmp_path, str(int(time.time())), Plan(), figures, minutes=30.0) == []
    sys.stdout.write(f"{figures}\n")
