"""This user's home and its ledger. The only place that resolves `$ORCHESTRATOR_HOME`.

Parses the config only if it may name a database. So listings start fast, and work even if the config is
wrong. Must never know platforms or stores.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import DiskFull, InputError
from orchestrator.home import CONFIG, LEDGER, Folders

if TYPE_CHECKING:
    from orchestrator.config import Config
    from orchestrator.ledger import Ledger

VARIABLE = "ORCHESTRATOR_HOME"
DATABASE = "ORCHESTRATOR_DATABASE"
_MAY_NAME_A_DATABASE = re.compile(r"^[^#\n]*(database|\\)", re.MULTILINE)


@dataclass(frozen=True)
class Home:
    """One home folder, which need not exist. `given`: the name that the user gave on the command line."""

    path: Path
    given: str | None = None

    @classmethod
    def of(cls, given: str | None) -> Home:
        """`--home`, else `$ORCHESTRATOR_HOME`, else the user's data folder. Raises InputError for a file.

        It may lie behind a link, which is followed here, once.
        """
        from orchestrator.files import guard

        text = given or os.environ.get(VARIABLE)
        if text:
            try:
                path = Path(text).expanduser().absolute()
            except RuntimeError:
                raise InputError(f"the home folder in {text!r} is not known: write the whole path") from None
        else:
            from platformdirs import user_data_path

            path = user_data_path("orchestrator", appauthor=False)
        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is not a folder: set {'--home' if given else VARIABLE} to a folder")
        return cls(guard(path), given)

    @property
    def folders(self) -> Folders:
        return Folders(self.path)

    def tighten(self) -> str:
        """Makes the home and its contents private to this user. Returns a sentence for the user, empty if it
        was private already or is not ours to change."""
        from orchestrator.files import tighten

        mode = stat.S_IMODE(self.path.stat().st_mode) if self.path.is_dir() else 0
        folders = self.folders
        for path in (folders.config, folders.crash_log, folders.controller_log, folders.tick):
            tighten(path)
        if not tighten(self.path):
            return ""
        return f"{self.path} was open to other users ({mode:04o}) and is now private ({mode & 0o700:04o})"

    def database(self) -> str:
        """The ledger's URL: from the config, else `$ORCHESTRATOR_DATABASE`, else a file in this home.

        If the config may name one, it raises the same errors as reading the config.
        """
        try:
            text = self.folders.config.read_text("utf-8")
        except (OSError, ValueError):  # missing; or broken, and config.load says how
            text = "database" if self.folders.config.exists() else ""
        found: Config | None = None
        if _MAY_NAME_A_DATABASE.search(text):
            from orchestrator import config

            found = config.load(self.path)
        return self.database_by(found)

    def database_by(self, found: Config | None) -> str:
        """The ledger's URL if this is the config. None: one that names no database."""
        if found is not None and found.names_database:
            return found.database
        return os.environ.get(DATABASE) or f"sqlite:///{self.path / LEDGER}"

    def reads_variable(self) -> bool:
        """Whether `$ORCHESTRATOR_DATABASE` may say where the ledger is. Works if the config has mistakes."""
        from orchestrator.spec.document import read

        try:
            tree = read(self.folders.config.read_bytes(), CONFIG).tree
        except (OSError, InputError):
            return True
        return not isinstance(tree, dict) or tree.get("database") in (None, f"env:{DATABASE}")

    def ledger_beside(self) -> str:
        """Why runs of another ledger may live here: the home has a ledger, but another is configured."""
        own = self.path / LEDGER
        beside = own.exists() and self.database() != f"sqlite:///{own}"
        return f"{own} exists beside the configured one" if beside else ""

    def ledger(self) -> Ledger:
        """Opens the ledger, and creates it if there is none yet."""
        from orchestrator.ledger import Ledger

        return Ledger.open(self.database())

    def runs(self) -> Ledger:
        """Opens the ledger for a question about a run. Raises InputError if there is none yet."""
        ledger = self.existing_ledger()
        if ledger is None:
            raise InputError(f"there are no runs in {self.path} yet; --home or {VARIABLE} sets another home")
        return ledger

    def existing_ledger(self) -> Ledger | None:
        """Opens the ledger; None if there is none yet, because reading must create nothing."""
        return self._existing(alone=False)

    def ledger_on_a_full_disk(self) -> Ledger | None:
        """Like `existing_ledger`, but works on a full disk, too. Close it soon."""
        try:
            return self._existing(alone=False)
        except DiskFull:
            return self._existing(alone=True)

    def _existing(self, *, alone: bool) -> Ledger | None:
        url = self.database()
        own = self.path / LEDGER
        if url == f"sqlite:///{own}" and not own.exists():
            return None
        from orchestrator.ledger import Ledger

        return Ledger.open(url, alone=alone)
