"""The user's platforms, stores and rules: `config.yaml` in the orchestrator's home, or the defaults.

config.py     what a config says, as values
accelerators.py  the accelerators that the catalogue lacks
reading.py    the file's sections, and every problem with them
database.py   the URL of the ledger's database
writing.py    the file that `init` writes
yaml_text.py  tables as lines of YAML
"""

from __future__ import annotations

from orchestrator.config.config import (
    DEFAULT_PLATFORMS,
    DEFAULT_STORES,
    Config,
    MetricsConfig,
    PlatformConfig,
    StoreConfig,
)
from orchestrator.config.reading import TARGETS_MAX, load, machine_timezone, parsed
from orchestrator.config.writing import write_default
from orchestrator.config.yaml_text import as_block, as_flow

__all__ = [
    "DEFAULT_PLATFORMS", "DEFAULT_STORES", "TARGETS_MAX", "Config", "MetricsConfig", "PlatformConfig",
    "StoreConfig", "as_block", "as_flow", "load", "machine_timezone", "parsed", "write_default",
]  # fmt: skip
