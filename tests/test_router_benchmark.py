"""The order of the policies on a few months of benchmarks/router.py; the figures are the benchmark's own."""

from __future__ import annotations

import pytest

from benchmarks import router


@pytest.fixture(scope="module")
def results() -> list[router.Result]:
    return [router.play(seed) for seed in (2, 3)]  # a stream and a campaign


def test_the_plan_finishes_runs_earlier_than_what_it_is_compared_with(results: list[router.Result]) -> None:
    for found in results:
        means = {name: played.finish_mean for name, played in found.played.items()}
        assert min(means, key=means.__getitem__) == "planned", found.seed


def test_no_policy_beats_the_bound(results: list[router.Result]) -> None:
    for found in results:
        assert min(found.ratio(name) for name in found.played) >= 1.0 - 1e-6, found.seed


def test_every_run_ends_and_no_quota_is_overspent(results: list[router.Result]) -> None:
    for found in results:
        for name, played in found.played.items():
            assert (played.unfinished, played.overspent) == (0, 0.0), (found.seed, name)


def test_every_aim_has_a_figure(results: list[router.Result]) -> None:
    found = router.aims(results)
    assert len({aim.name for aim in found}) == len(found) > 10
    assert all(aim.found for aim in found)
