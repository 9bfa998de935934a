"""The options of a store in Google Drive, and the store they describe.

Decides what a user may write and whether the extra is installed. Touches neither the network nor the
credentials, and must never import PyDrive2 itself: without the extra, this module still has to explain.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from orchestrator import installation
from orchestrator.errors import InputError
from orchestrator.user import expanded

if TYPE_CHECKING:
    from orchestrator.stores.drive.store import DriveStore

CREDENTIALS = "drive-credentials.json"  # in the orchestrator's home
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


@dataclass(frozen=True)
class Options:
    """`folder`: the folder's id, or its address in a browser. `credentials`: a file with the user's consent.
    `service_account`: a key file instead, for a folder of a shared drive. Both are references, `file:PATH`;
    relative paths are below the orchestrator's home. `endpoint`: another server that speaks Drive's protocol,
    such as a local one in tests."""

    folder: str = Field(pattern=r"^(https://drive\.google\.com/\S*folders/)?[A-Za-z0-9_-]{3,200}([?#]\S*)?$")
    credentials: Path | None = None
    service_account: Path | None = None
    endpoint: str = ""

    @model_validator(mode="after")
    def _is_possible(self) -> Options:
        if self.credentials is not None and self.service_account is not None:
            raise ValueError("give `credentials` or `service_account`, not both")
        if self.endpoint:
            address = urlsplit(self.endpoint)
            if address.scheme != "https" and address.hostname not in _LOOPBACK:  # as in account.py
                raise ValueError("option 'endpoint': tokens go there, so it must begin with https://")
        return self


def configured(name: str, options: Options, home: Path) -> DriveStore:
    """The store as the user configured it. Raises InputError without the extra."""
    if find_spec("pydrive2") is None:
        raise InputError(f"PyDrive2 is not installed: {installation.found().adding('drive')}")
    from orchestrator.stores.drive.account import Account, Login
    from orchestrator.stores.drive.store import DriveStore

    service = options.service_account is not None
    given = options.service_account or options.credentials or Path(CREDENTIALS)
    path = Path(str(given).removeprefix("file:"))  # a config may only refer to a secret
    try:
        login = Login(home / expanded(path), is_service=service)
    except ValueError as error:
        raise InputError(f"store {name!r} (drive): {error} (given: {str(given)!r})") from None
    return DriveStore(Account(name, login, options.endpoint), folder_id(options.folder))


def folder_id(given: str) -> str:
    """The id in what a user pasted."""
    return re.split(r"[?#]", given)[0].rpartition("/")[2]
