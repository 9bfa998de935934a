"""How a session opens a store in Drive, without a config: the login stays in memory.

Must never import pydantic, which no session has.
"""

from __future__ import annotations

from orchestrator.errors import Rejected
from orchestrator.stores.drive.account import Account, Login
from orchestrator.stores.drive.store import DriveStore
from orchestrator.stores.portable import Portable


def carried(portable: Portable) -> DriveStore:
    """The store of a `Portable`."""
    is_service = "service_account" in portable.secret
    text = portable.secret.get("service_account") or portable.secret.get("credentials")
    if text is None or "folder" not in portable.options:
        raise Rejected("a store in Drive needs a folder and a login")
    login = Login(is_service=is_service, text=text)
    account = Account("home store", login, portable.options.get("endpoint", ""))
    return DriveStore(account, portable.options["folder"])
