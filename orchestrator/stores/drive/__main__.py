"""Logs in to Google Drive in the browser, makes a folder there, and prints the lines for the config."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from orchestrator.errors import OrchestratorError
from orchestrator.stores.drive.account import Account, Login
from orchestrator.stores.drive.consent import log_in, make_folder


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m orchestrator.stores.drive", description=__doc__)
    parser.add_argument("client_file", type=Path, help="the JSON file of your OAuth app")
    parser.add_argument(
        "login_file", type=Path, help="where to write the login: drive-credentials.json in the home"
    )
    parser.add_argument("--folder", default="orchestrator", help="the new folder's title")
    parser.add_argument("--endpoint", default="", help=argparse.SUPPRESS)
    parser.add_argument(
        "--port", type=int, action="append", help="for the browser's answer; default 8080, 8090"
    )
    parser.add_argument("--no-browser", action="store_true", help="print the address, do not open it")
    given = parser.parse_args()
    try:
        ports = given.port or (8080, 8090)
        log_in(given.client_file, given.login_file, ports=ports, browser=not given.no_browser)
        account = Account("drive", Login(given.login_file), given.endpoint)
        folder = make_folder(account, given.folder)
    except (OrchestratorError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(
        f"stores:\n  drive: {{type: drive, folder: {folder}, credentials: {given.login_file}}}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
