"""Makes a login and a folder: a person's consent in a browser, once.

Decides what is asked for: the scope `drive.file`, so that we see only files that we made. Must never print or
return a token. `python -m orchestrator.stores.drive` runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from oauth2client.client import FlowExchangeError  # type: ignore[import-untyped]
from pydrive2.auth import AuthError, GoogleAuth  # type: ignore[import-untyped]
from pydrive2.settings import InvalidConfigError  # type: ignore[import-untyped]

from orchestrator.errors import AccessDenied, InputError
from orchestrator.files import write_whole
from orchestrator.stores.drive import faults
from orchestrator.stores.drive.account import SCOPE_FILE, TIMEOUT_SECONDS, Account
from orchestrator.stores.drive.copies import FOLDER_TYPE

PORTS = (8080, 8090)  # where the browser brings the answer, on this machine


def log_in(
    client_secrets: Path, credentials: Path, *, ports: Sequence[int] = PORTS, browser: bool = True
) -> None:
    """Asks for consent in the browser and writes the login, with mode 0600. `browser=False`: prints the
    address only. Blocks until the person has answered.

    Raises InputError for a wrong client file, AccessDenied if there is no consent.
    """
    auth = GoogleAuth(
        settings={
            "client_config_backend": "file",
            "client_config_file": str(client_secrets),
            "save_credentials": False,
            "get_refresh_token": True,
            "oauth_scope": [SCOPE_FILE],
        },
        http_timeout=TIMEOUT_SECONDS,
    )
    try:
        auth.LocalWebserverAuth(port_numbers=list(ports), launch_browser=browser)
    except InvalidConfigError:
        message = f"{client_secrets} is not the client file of an OAuth app of the type Desktop app"
        raise InputError(f"{message}: download it again from Google Cloud") from None
    except (*faults.FOREIGN, FlowExchangeError) as error:
        said = f" ({error})" if isinstance(error, AuthError) else ""
        raise AccessDenied(f"there is no consent{said}; try again", operation="log in") from None
    if not auth.credentials.refresh_token:
        message = "Google gave no lasting login: remove the app at myaccount.google.com/connections"
        raise AccessDenied(f"{message}, and try again", operation="log in")
    write_whole(credentials, auth.credentials.to_json().encode())


def make_folder(account: Account, title: str) -> str:
    """A new folder at the top of My Drive; returns its id."""
    id = account.new_id()
    body = {"id": id, "title": title, "mimeType": FOLDER_TYPE}
    try:
        account.call("make the folder", lambda files: files.insert(body=body, fields="id"))
    except faults.Exists:  # sent twice, because an answer was lost
        pass
    return id
