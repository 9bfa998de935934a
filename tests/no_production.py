"""No test reaches a real service through one of our clients: only loopback endpoints, in child processes too.

A pytest plugin. It also hides account settings of the developer's shell from the suite.
"""

from __future__ import annotations

import os

VARIABLE = "ORCHESTRATOR_NO_PRODUCTION"
# Google's would log its clients in, Colab's too.
HIDDEN = ("KAGGLE_", "COLAB_", "GOOGLE_", "CLOUDSDK_")


def pytest_configure() -> None:
    os.environ[VARIABLE] = "1"
    for name in [name for name in os.environ if name.startswith(HIDDEN)]:
        del os.environ[name]
