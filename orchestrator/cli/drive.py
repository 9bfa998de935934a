"""`init drive`: shows the address where a person agrees, waits for them, and has the store set up."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path

from orchestrator.cli import asking
from orchestrator.cli.call import Call
from orchestrator.client import consenting, drive_login, home_store
from orchestrator.client.consenting import AUDIENCE, CONSOLE, Application
from orchestrator.client.drive_login import Key
from orchestrator.client.home_store import Credentials, HomeStore, Wanted
from orchestrator.errors import InputError

TIMEOUT_SECONDS = 300.0
TIMEOUT_SECONDS_MAX = 86400
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
_CLIENT = f"""\
Drive needs an OAuth client of your own, once. In the Google Cloud console, enable the Google Drive API, make
a client of the type `Desktop app` at {CONSOLE}, download its JSON file, and
publish the app at {AUDIENCE}: an app in Testing has to be allowed again every 7 days."""
_OPEN = """\
Open this address in a browser and agree:

{}

Waiting for you. If the browser is on another machine, its last page cannot load: paste its address here."""


def init_drive(call: Call, wanted: Wanted) -> HomeStore:
    """A store that the config has is tested, and logged in again if its consent is over. Raises AccessDenied
    if the person does not agree."""
    limit = call.options.timeout
    if limit is not None and not 0 < limit <= TIMEOUT_SECONDS_MAX:
        raise InputError(f"--timeout: seconds, at most {TIMEOUT_SECONDS_MAX} (given: {limit:g})")
    drive_login.check_extra(call.home)
    there = home_store.known(call.home, wanted)
    options = call.options
    if there is None:
        key = _key(call, None)
        title = options.folder or drive_login.TITLE
        return drive_login.set_up(
            call.home, call.clock, wanted, key, asking.tell, title=title, parent=options.shared_drive
        )
    if "service_account" not in there.options:
        given = options.client_secrets
        application = _application(given) if given else drive_login.over(call.home, there)
        if application is not None:
            asking.tell("The consent for this store is over, or is to be given anew.")
            key = _key(call, application)
            return drive_login.renew(call.home, call.clock, wanted, there, key, asking.tell)
    return home_store.set_up(call.home, call.clock, wanted, Credentials(), asking.tell)


def _key(call: Call, application: Application | None) -> Key:
    options = call.options
    if options.service_account:
        if not options.shared_drive:
            raise InputError(
                "--shared-drive is missing: a service account has no space of its own, so give the id of a "
                "shared drive (the end of its address in a browser) of which the account is a Manager"
            )
        return drive_login.of_service(Path(options.service_account))
    application = application or _application(options.client_secrets)
    return drive_login.of_grant(application, _consent(call, application))


def _application(file: str | None) -> Application:
    if file is None:
        if not asking.is_possible():
            raise InputError(f"--client-secrets is missing: the JSON file of an OAuth client\n{_CLIENT}")
        asking.tell(_CLIENT)
        file = asking.ask("Path of the client's JSON file, or the client id")
        if file.endswith(".apps.googleusercontent.com"):
            return Application(file, asking.ask_secret("Client secret"))
    return Application.from_json(drive_login.text_of(Path(file)), file)


def _consent(call: Call, application: Application) -> consenting.Grant:
    grant = consenting.consent(
        application,
        call.clock,
        _show,
        seconds=call.options.timeout or TIMEOUT_SECONDS,
        pasted=sys.stdin.fileno() if sys.stdin.isatty() or call.options.stdin else None,
        wrong=asking.tell,
    )
    if grant.lasts_seconds is not None:
        days = f"{grant.lasts_seconds / 86400:.0f} days"
        asking.tell(
            f"This login ends in {days}, because the OAuth app is in Testing. Publish "
            f"it at {AUDIENCE}, then run this command again with --client-secrets."
        )
    return grant


def _show(address: str) -> None:
    asking.tell(_OPEN.format(address))
    if sys.stderr.isatty() and (sys.platform == "darwin" or any(os.environ.get(name) for name in _DISPLAYS)):
        webbrowser.open(address)
