"""Hides the developer's credentials, proxies and upload state from every test here."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from platformdirs import user_cache_path

CACHE = str(user_cache_path())  # has no secrets, and what is installed there once


@pytest.fixture(autouse=True)
def _nobodys_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith("KAGGLE_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", CACHE)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
