"""Sessions that put links in the place of our folders: nothing that the links point at is touched.

Everything runs confined, once, in a few homes (tests/end_to_end/linked_homes.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import confined
from tests.end_to_end.linked_homes import GROUPS

PLACES = [place for group in GROUPS for place in group]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("linked")
    return json.loads(confined.run(folder, ["tests.end_to_end.linked_homes", str(folder), "3"], 600.0))


@pytest.mark.parametrize("place", PLACES)
def test_what_a_session_links_is_untouched_and_its_run_can_be_removed(told: Any, place: str) -> None:
    assert told[place] == {"changes": [], "left": ""}


def test_links_that_are_swapped_all_the_time_reach_nothing(told: Any) -> None:
    swapped = told["swaps"]
    assert swapped.pop("swaps") > 1000
    assert swapped == {"changes": [], "left": ""}


@pytest.mark.soak
def test_links_that_are_swapped_for_a_minute_reach_nothing(tmp_path: Path) -> None:
    said = confined.run(tmp_path, ["tests.end_to_end.linked_homes", str(tmp_path), "60"], 1200.0)
    assert json.loads(said)["swaps"]["changes"] == []
