"""The `kaggle` package, imported without the side effects of its import.

`import kaggle` logs in, with a network call or help on standard output. Importing its API class makes a
folder in the user's home and, with VERBOSE set, turns on logs with signed URLs
(docs/references/kaggle.md#importing-the-package). This module prevents all of that. The import takes most of
a second, so import this module only where a platform is built.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib import metadata
from types import ModuleType
from typing import Any

# Read by the class's body on import. It makes the folder KAGGLE_CONFIG_DIR, and "/" exists already.
_READ_AT_IMPORT = {
    "KAGGLE_CONFIG_DIR": os.sep,
    "KAGGLE_API_ENVIRONMENT": None,
    "VERBOSE": None,
    "VERBOSE_OUTPUT": None,
}


def _set(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _package() -> ModuleType:
    """The package without its `__init__`, which is the part that logs in."""
    spec = importlib.util.find_spec("kaggle")
    assert spec is not None, "it is a dependency"
    package = importlib.util.module_from_spec(spec)
    package.__version__ = metadata.version("kaggle")  # type: ignore[attr-defined]
    return package


def _import() -> ModuleType:
    if "kaggle" not in sys.modules:
        sys.modules["kaggle"] = _package()
    kept = {name: os.environ.get(name) for name in _READ_AT_IMPORT}
    _set(_READ_AT_IMPORT)
    try:
        return importlib.import_module("kaggle.api.kaggle_api_extended")
    finally:
        _set(kept)


KaggleApi: Any = _import().KaggleApi
kagglesdk: Any = importlib.import_module("kagglesdk")
blobs: Any = importlib.import_module("kagglesdk.blobs.types.blob_api_service")
datasets: Any = importlib.import_module("kagglesdk.datasets.types.dataset_api_service")
dataset_enums: Any = importlib.import_module("kagglesdk.datasets.types.dataset_enums")
kernels: Any = importlib.import_module("kagglesdk.kernels.types.kernels_api_service")
kernel_enums: Any = importlib.import_module("kagglesdk.kernels.types.kernels_enums")
http_client: Any = importlib.import_module("kagglesdk.kaggle_http_client")
oauth: Any = importlib.import_module("kagglesdk.security.types.oauth_service")
