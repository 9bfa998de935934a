"""Runs the slowest test files first, so that no worker is left alone with one at the end.

Only the files change their order. The tests of a file keep theirs.
"""

from __future__ import annotations

import pytest

LONG = (  # slowest first, by the durations of a whole run
    "tests/end_to_end/test_docker.py",
    "tests/first_hour/test_first_hour.py",
    "tests/end_to_end/test_notebook.py",
    "tests/rehearsal/test_rehearsing.py",
    "tests/end_to_end/test_demo.py",
    "tests/end_to_end/test_uplink_docker.py",
    "tests/end_to_end/test_own_image.py",
    "tests/simulation/test_simulation.py",
    "tests/end_to_end/test_kaggle.py",
    "tests/end_to_end/test_colab_story.py",
    "tests/conformance/test_platforms.py",
    "tests/end_to_end/test_kaggle_uplink.py",
    "tests/end_to_end/test_fetching.py",
    "tests/end_to_end/test_failures.py",
    "tests/platforms/test_colab.py",
    "tests/platforms/test_colab_trial.py",
    "tests/cli/test_colab_live.py",
    "tests/end_to_end/test_colab.py",
    "tests/end_to_end/test_standby.py",
    "tests/conformance/test_notebook.py",
    "tests/test_notebook_cell.py",
    "tests/simulation/test_planted_bugs.py",
    "tests/jobs/test_graphmer.py",
    "tests/end_to_end/test_torture.py",
    "tests/simulation/test_year.py",
    "tests/cli/test_backup.py",
    "tests/cli/test_notebook_jobs.py",
    "tests/cli/test_docker.py",
    "tests/cli/test_taken_out.py",
    "tests/cli/test_running.py",
    "tests/jobs/test_graphmer_bench.py",
    "tests/training/test_huggingface.py",
    "tests/training/test_lightning.py",
    "tests/training/test_exact.py",
    "tests/test_requirements.py",
    "tests/platforms/test_docker.py",
    "tests/test_failover.py",
    "tests/test_site.py",
    "tests/test_hindsight.py",
    "tests/test_late_output.py",
    "tests/test_losses.py",
    "tests/test_ledger_upgrade.py",
    "tests/training/test_values.py",
    "tests/training/test_loading.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {path: number for number, path in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(item.nodeid.partition("::")[0], len(LONG)))
