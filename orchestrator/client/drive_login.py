"""The login of a store in Drive, from a person's consent or a service account's key, and its new folder.

Decides what the file of a login holds, and when a person must agree again. Must never ask a person itself,
nor leave a folder behind if the set-up fails. Needs the extra `drive` for making the folder.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.client import home_store
from orchestrator.client.consenting import SCOPE, Application, ConsentOver, Grant, refresh
from orchestrator.client.home import Home
from orchestrator.client.home_store import Credentials, HomeStore, Wanted
from orchestrator.clock import Clock
from orchestrator.config import StoreConfig
from orchestrator.errors import AccessDenied, InputError, OrchestratorError, Transient
from orchestrator.files import read_own, write_whole
from orchestrator.stores import catalog
from orchestrator.stores.drive.configured import CREDENTIALS
from orchestrator.user import expanded

if TYPE_CHECKING:
    from orchestrator.stores.drive.account import Account

TITLE = "orchestrator"
_FOLDER_TYPE = "application/vnd.google-apps.folder"
_FILE_BYTES_MAX = 100_000


@dataclass(frozen=True)
class Key:
    """What the store logs in with: the text of its file."""

    text: str = field(repr=False)
    is_service: bool = False

    @property
    def option(self) -> str:
        return "service_account" if self.is_service else "credentials"


def of_grant(application: Application, grant: Grant) -> Key:
    """A login in the form in which PyDrive2 reads one. It holds no access token: the store gets its own."""
    told = {
        "_class": "OAuth2Credentials",
        "_module": "oauth2client.client",
        "access_token": None,
        "client_id": application.id,
        "client_secret": application.secret,
        "refresh_token": grant.refresh_token,
        "token_expiry": "2000-01-01T00:00:00Z",
        "token_uri": application.tokens,
        "user_agent": None,
        "revoke_uri": None,
        "id_token": None,
        "id_token_jwt": None,
        "token_response": None,
        "scopes": [SCOPE],
        "token_info_uri": None,
        "invalid": False,
    }
    return Key(json.dumps(told))


def of_service(file: Path) -> Key:
    """The key of a service account. Raises InputError for any other file."""
    text = text_of(file)
    try:
        tree = json.loads(text)
    except ValueError:
        tree = None
    if not isinstance(tree, dict) or tree.get("type") != "service_account" or "private_key" not in tree:
        raise InputError(f"{file} is not the key of a service account: download one as JSON")
    return Key(text, is_service=True)


def text_of(file: Path) -> str:
    """The text of a small file. Raises InputError if it cannot be read."""
    place = expanded(file)
    try:
        return read_own(place, _FILE_BYTES_MAX).decode("utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise InputError(f"{file} cannot be read ({reason})") from None


def check_extra(home: Home) -> None:
    """Raises InputError if PyDrive2 is not installed, before anybody has to agree to anything."""
    catalog.build("drive", "drive", {"folder": "none"}, home.path)


def set_up(
    home: Home,
    clock: Clock,
    wanted: Wanted,
    key: Key,
    tell: Callable[[str], None],
    *,
    title: str = TITLE,
    parent: str | None = None,
) -> HomeStore:
    """Makes a folder and sets up a store in it. `parent`: the shared drive or folder that it is made in.
    Raises the same errors as `home_store.set_up`, and then removes the folder again."""
    body: dict[str, Any] = {"title": title, "mimeType": _FOLDER_TYPE}
    if parent is not None:
        body["parents"] = [{"id": parent}]
    with _account(key, wanted.options.get("endpoint", "")) as account:
        id = account.new_id()
        try:
            _insert(account, {**body, "id": id})
            ready = replace(wanted, options={"folder": id, **wanted.options})
            return home_store.set_up(home, clock, ready, Credentials({key.option: key.text}), tell)
        except BaseException as error:
            if not home_store.is_needed(home, error, "folder", id):
                with suppress(OrchestratorError):
                    account.call("delete", lambda files: files.delete(fileId=id, supportsAllDrives=True))
            raise


def over(home: Home, there: StoreConfig) -> Application | None:
    """The OAuth client of a store whose consent is over, so that the person can agree again; None if it is
    not. Raises InputError if the login does not say its client, AccessDenied if Google does not know that
    client, and Transient if it does not answer."""
    try:
        told = json.loads(text_of(_path(home, there)))
        application = Application(told["client_id"], told["client_secret"], tokens=told["token_uri"])
        token = told["refresh_token"]
    except InputError as error:
        raise InputError(f"{error}; to log in again, give --client-secrets") from None
    except (ValueError, KeyError, TypeError):
        told = f"{_path(home, there)} is not a login"
        raise InputError(f"{told}; to log in again, give --client-secrets") from None
    try:
        refresh(application, token)
    except ConsentOver:
        return application
    except AccessDenied as error:
        raise AccessDenied(f"{error}; then give its file as --client-secrets") from None
    return None


def renew(
    home: Home, clock: Clock, wanted: Wanted, there: StoreConfig, key: Key, tell: Callable[[str], None]
) -> HomeStore:
    """Replaces the login of a store that the config has. If the test fails, the old login comes back."""
    path = _path(home, there)
    before = read_own(path, _FILE_BYTES_MAX) if path.exists() else None
    write_whole(path, key.text.encode())
    try:
        return home_store.set_up(home, clock, wanted, Credentials(), tell)
    except BaseException:
        if before is None:
            path.unlink(missing_ok=True)
        else:
            write_whole(path, before)
        raise


def _path(home: Home, there: StoreConfig) -> Path:
    given = str(there.options.get("credentials") or CREDENTIALS).removeprefix("file:")
    return home.path / expanded(Path(given))


@contextmanager
def _account(key: Key, endpoint: str) -> Iterator[Account]:
    """Drive with this login, before the login has its place."""
    from orchestrator.stores.drive.account import Account, Login

    with tempfile.TemporaryDirectory(prefix="orchestrator-") as place:
        path = Path(place) / "login"
        write_whole(path, key.text.encode(), sync=False)
        yield Account("drive", Login(path, is_service=key.is_service), endpoint)


def _insert(account: Account, body: dict[str, Any]) -> None:
    """Makes a file of Drive. Its id is given, so that a second try does no harm."""
    from orchestrator.stores.drive.faults import Exists

    def insert() -> None:
        account.call("insert", lambda files: files.insert(body=body, supportsAllDrives=True))

    try:
        insert()
    except Transient:
        with suppress(Exists):  # the first try was received, but its answer was lost
            insert()
