"""A pause that a wrong clock set ends early: no run waits for the days that the clock was ahead."""

from __future__ import annotations

import pytest

from orchestrator.core.pause import pausing

DAY = 86400.0
NOW = 1_790_000_000.0


@pytest.mark.parametrize(
    ("now", "since", "until", "expected"),
    [
        (NOW, NOW - 5.0, NOW + 5.0, True),
        (NOW, NOW - 9.0, NOW - 1.0, False),
        (NOW, NOW - 5.0, None, True),
        (NOW, NOW + 10 * DAY, NOW + 10 * DAY + 5.0, False),  # set while the clock was ten days ahead
        (NOW, NOW + 1.0, NOW + 5.0, True),  # set back by a second: believed
        (NOW - 10 * DAY, NOW, NOW + 5.0, False),  # and now it is ten days behind
        (NOW, 0.0, NOW + 5.0, True),  # from a version that did not record when
    ],
)
def test_pausing(now: float, since: float, until: float | None, expected: bool) -> None:
    assert pausing(now, since, until) is expected
