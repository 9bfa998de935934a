"""Which reports of a run count, and what is kept of very many."""

from __future__ import annotations

import json
import math
import tracemalloc

import pytest

from orchestrator.core import bounds
from orchestrator.core import curves as core_curves
from orchestrator.core.curves import METRICS_MAX, Curve, Merging, last_steps, report

Told = tuple[int, dict[str, object]]


def line(step: object, **metrics: object) -> bytes:
    return json.dumps({"step": step, "metrics": metrics}).encode()


def merged(*told: tuple[int, int | None, list[Told]], names: tuple[str, ...] = ()) -> dict[str, Curve]:
    """The curves of sessions, each its number, its last step that counts, and what it reported."""
    merging = Merging(names)
    for session, last_step, reports in told:
        for step, metrics in reports:
            merging.take(line(step, **metrics), session, last_step)
    return {curve.name: curve for curve in merging.curves()}


def drawn(curve: Curve) -> list[tuple[int, float, int]]:
    return [(point.step, point.value, point.session) for point in curve.points]


@pytest.mark.parametrize(
    ("resumed", "counts"),
    [
        ([], {}),
        ([(1, 0)], {1: None}),
        ([(1, 0), (2, 10), (3, 25)], {1: 10, 2: 25, 3: None}),
        ([(3, 25), (1, 0), (2, 10)], {1: 10, 2: 25, 3: None}),
        ([(1, 0), (2, 10), (3, 4)], {1: 4, 2: 4, 3: None}),  # the newer checkpoint was damaged
        ([(1, 0), (2, 0), (3, 0)], {1: 0, 2: 0, 3: None}),  # killed twice before the first save
        ([(1, 0), (7, 30)], {1: 30, 7: None}),
    ],
)
def test_the_step_that_a_later_session_resumed_from_ends_what_counts(
    resumed: list[tuple[int, int]], counts: dict[int, int | None]
) -> None:
    assert last_steps(resumed) == counts


def test_a_step_that_was_trained_again_counts_once() -> None:
    found = merged(
        (1, 2, [(1, {"loss": 1.0}), (2, {"loss": 0.9}), (3, {"loss": 66.0}), (4, {"loss": 66.0})]),
        (2, None, [(3, {"loss": 0.8}), (5, {"loss": 0.7})]),
    )
    assert drawn(found["loss"]) == [(1, 1.0, 1), (2, 0.9, 1), (3, 0.8, 2), (5, 0.7, 2)]


def test_what_an_old_session_reports_late_does_not_count() -> None:
    """It was given up, came back and trained on; its last step was known when its successor began."""
    late: list[Told] = [(step, {"loss": 66.0}) for step in range(3, 50)]
    found = merged((1, 2, [(2, {"loss": 0.9}), *late]), (2, None, [(3, {"loss": 0.8})]))
    assert drawn(found["loss"]) == [(2, 0.9, 1), (3, 0.8, 2)]


def test_metrics_at_different_steps_each_have_their_own_series() -> None:
    found = merged(
        (1, 4, [(1, {"loss": 1.0}), (2, {"loss": 0.9, "mrr": 0.1}), (6, {"mrr": 66.0})]),
        (2, None, [(4, {"loss": 0.7}), (6, {"mrr": 0.3})]),
    )
    assert drawn(found["loss"]) == [(1, 1.0, 1), (2, 0.9, 1), (4, 0.7, 2)]
    assert drawn(found["mrr"]) == [(2, 0.1, 1), (6, 0.3, 2)]
    assert list(found) == ["loss", "mrr"]


def test_of_the_same_step_the_newest_report_counts() -> None:
    found = merged(
        (1, None, [(4, {"loss": 66.0}), (5, {"loss": 0.5}), (3, {"loss": 0.8}), (4, {"loss": 0.6})])
    )
    assert drawn(found["loss"]) == [(3, 0.8, 1), (4, 0.6, 1), (5, 0.5, 1)]
    assert found["loss"].last is not None
    assert found["loss"].last.step == 4
    assert found["loss"].reports == 4


@pytest.mark.parametrize(
    "written",
    [
        b"{", b"7", b"[]", b"null", b'"step"', b"{}", b'{"step": "3"}', b'{"step": 3.5}', b'{"step": true}',
        b'{"step": -1}', b'{"step": 9223372036854775808}', b'{"step": null}', b"\xff\xfe", b"[" * 100_000,
        b'{"step": 1, "metrics": {}}' + b" " * bounds.PROGRESS_LINE_BYTES_MAX,
        b'{"step": ' + b"1" * 5000 + b"}",
    ],
    ids=range(16),
)  # fmt: skip
def test_what_is_no_report_is_counted(written: bytes) -> None:
    merging = Merging()
    merging.take(written, 1, None)
    assert (merging.malformed, merging.curves()) == (1, ())


def test_only_finite_numbers_are_points() -> None:
    values = b'"loss": NaN, "lr": Infinity, "big": 1%s, "name": "x", "none": null, "yes": true'
    odd = b'{"step": 2, "metrics": {' + values + b"}}"
    merging = Merging()
    for each in (line(1, loss=0.5), odd % (b"0" * 400), b'{"step": 3, "metrics": [1]}', b'{"step": 4}'):
        merging.take(each, 1, None)
    assert merging.malformed == 0
    found = {curve.name: curve for curve in merging.curves()}
    assert {name: (len(curve.points), curve.not_finite) for name, curve in found.items()} == {
        "loss": (1, 1), "lr": (0, 1), "big": (0, 1),
    }  # fmt: skip


def test_a_report_may_say_when_it_was_made() -> None:
    assert report(b'{"step": 1, "metrics": {}, "time": 1790000000.5}') == (1, {}, 1790000000.5)
    assert report(b'{"step": 1, "metrics": {}, "time": "noon"}') == (1, {}, None)
    assert report(b'{"step": 1, "metrics": {}, "time": NaN}') == (1, {}, None)
    assert report(b'{"step": 1, "metrics": {}, "time": 1e300}') == (1, {}, None)


def test_of_very_many_reports_the_lowest_and_the_highest_stay() -> None:
    merging = Merging(points=100)
    for step in range(1, 20_001):
        merging.take(line(step, loss={7_777: -5.0, 13_333: 9.0}.get(step, math.sin(step))), 1, None)
    [curve] = merging.curves()
    assert curve.thinned
    assert 40 <= len(curve.points) <= 104
    assert curve.reports == 20_000
    assert min(curve.points, key=lambda point: point.value)[:2] == (7_777, -5.0)
    assert max(curve.points, key=lambda point: point.value)[:2] == (13_333, 9.0)
    assert curve.last == curve.points[-1]
    assert curve.points[-1].step == 20_000
    gaps = [after.step - before.step for before, after in zip(curve.points, curve.points[1:], strict=False)]
    assert max(gaps) < 1500, "all over the series"


def test_up_to_the_limit_every_report_is_kept() -> None:
    merging = Merging(points=100)
    for step in range(99):
        merging.take(line(step, loss=step * 7 % 11), 1, None)
    [curve] = merging.curves()
    assert not curve.thinned
    assert [point.step for point in curve.points] == list(range(99))


def test_thousands_of_metrics_take_a_bounded_room() -> None:
    tracemalloc.start()
    merging = Merging()
    merging.take(line(0, **{f"metric-{number}": number for number in range(5000)}), 1, None)
    for step in range(1, 40):
        merging.take(line(step, **{f"other-{step}-{number}": 1 for number in range(500)}), 1, None)
        merging.take(line(step, **{f"metric-{number}": number for number in range(300)}), 1, None)
    merging.take(line(1, **{"x" * 300: 1}), 1, None)
    curves = merging.curves()
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(curves) == METRICS_MAX
    assert len(merging.left_out) == bounds.METRICS_MAX
    assert all(len(curve.points) == 40 for curve in curves)
    assert used < 30e6


def test_many_metrics_share_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_curves, "POINTS_TOTAL_MAX", 10_000)
    merging = Merging(points=100_000)
    for step in range(1500):
        merging.take(line(step, **{f"metric-{number}": step for number in range(20)}), 1, None)
    curves = merging.curves()
    assert 5000 < sum(len(curve.points) for curve in curves) <= 10_000
    assert {len(curve.points) for curve in curves} == {len(curves[0].points)}


def test_a_metric_that_is_asked_for_is_found_among_thousands() -> None:
    many: list[Told] = [(1, {f"metric-{number}": number for number in range(2000)}), (2, {"loss": 0.5})]
    assert drawn(merged((1, None, many), names=("loss",))["loss"]) == [(2, 0.5, 1)]
