"""No test reaches a service of the world by a client of ours: only loopback endpoints, in children, too.

A pytest plugin. What the developer's own shell says about an account is not there for the suite either.
"""

from __future__ import annotations

import os

VARIABLE = "ORCHESTRATOR_NO_PRODUCTION"


def pytest_configure() -> None:
    os.environ[VARIABLE] = "1"
    for name in [name for name in os.environ if name.startswith("KAGGLE_")]:
        del os.environ[name]
