"""Where tests find a Python for Colab's command line: also what scripts/newer_python.py unpacked.

A pytest plugin. The orchestrator looks on the PATH, so this puts it there.
"""

from __future__ import annotations

import os

import pytest

from orchestrator.errors import AccessDenied
from orchestrator.platforms.colab.environment import Environment
from orchestrator.platforms.colab.installing import find_python
from scripts import newer_python


def pytest_configure() -> None:
    os.environ["PATH"] += f"{os.pathsep}{newer_python.folder() / 'usr' / 'bin'}"


@pytest.fixture(scope="session")
def colab_python(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips the test if there is no Python for the command line. Installs the command line once, because
    errands do not wait for it long enough."""
    try:
        find_python()
    except AccessDenied as missing:
        pytest.skip(f"{missing}. For tests:  python scripts/newer_python.py")
    Environment(tmp_path_factory.mktemp("account"), proxy="http://127.0.0.1:9").ready()
