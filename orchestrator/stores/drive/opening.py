"""How a session opens a store in Drive, without a config.

Decides where the login lies meanwhile: in a file that only this user can read. Must never import pydantic,
which no session has.
"""

from __future__ import annotations

from pathlib import Path

from orchestrator.errors import Rejected
from orchestrator.files import write_whole
from orchestrator.stores.drive.account import Account, Login
from orchestrator.stores.drive.store import DriveStore
from orchestrator.stores.portable import Portable

_LOGIN = "drive-login.json"


def carried(portable: Portable, scratch: Path) -> DriveStore:
    """The store of a `Portable`. Keeps the login in `scratch`, with mode 0600, and only reads it."""
    is_service = "service_account" in portable.secret
    text = portable.secret.get("service_account") or portable.secret.get("credentials")
    if text is None or "folder" not in portable.options:
        raise Rejected("a store in Drive needs a folder and a login")
    path = scratch / _LOGIN
    write_whole(path, text.encode())
    account = Account("home store", Login(path, is_service=is_service), portable.options.get("endpoint", ""))
    return DriveStore(account, portable.options["folder"])
