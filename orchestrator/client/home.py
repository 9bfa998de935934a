"""This user's home and its ledger. The only place that resolves `$ORCHESTRATOR_HOME`.

Parses the config only if it may name a database. So listings start fast, and work even if the config is
wrong. Must never know platforms or stores.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import user
from orchestrator.errors import DiskFull, InputError
from orchestrator.home import CONFIG, LEDGER, UPLINK, Folders

if TYPE_CHECKING:
    from orchestrator.config import Config
    from orchestrator.ledger import Ledger

VARIABLE = "ORCHESTRATOR_HOME"
DATABASE = "ORCHESTRATOR_DATABASE"
CONFIG_BYTES_MAX = 1 << 20  # what is larger is no config, and `config.load` says so
_MAY_NAME_A_DATABASE = re.compile(r"^[^#\n]*(database|\\)", re.MULTILINE)


def default() -> Path:
    """The home of somebody who names none. Raises NoHome."""
    try:
        return user.data("orchestrator")
    except user.NoHome as error:
        raise user.NoHome(f"no home folder is known: {error}; set HOME, {VARIABLE} or --home") from None


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
        path = user.expanded(Path(text)).absolute() if text else default()
        if os.path.lexists(path) and not path.is_dir():
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
        from orchestrator.files import read_own

        try:
            text = read_own(self.folders.config, CONFIG_BYTES_MAX).decode("utf-8")
        except FileNotFoundError:
            text = ""
        except (InputError, ValueError):  # broken, and config.load says how
            text = "database"
        found: Config | None = None
        if _MAY_NAME_A_DATABASE.search(text):
            from orchestrator import config

            found = config.load(self.path)
        return self.database_by(found)

    def database_by(self, found: Config | None) -> str:
        """The ledger's URL if this is the config. None: one that names no database. Raises InputError if
        something else than a file has the name of the home's own ledger."""
        from orchestrator.files import own_trouble

        if found is not None and found.names_database:
            return found.database
        if given := os.environ.get(DATABASE):
            return given
        own = self.path / LEDGER
        if wrong := own_trouble(own):
            raise InputError(f"{own} {wrong}: move it away, and put the ledger back")
        return f"sqlite:///{own}"

    def reads_variable(self) -> bool:
        """Whether `$ORCHESTRATOR_DATABASE` may say where the ledger is. Works if the config has mistakes."""
        from orchestrator.files import read_own
        from orchestrator.spec.document import read

        try:
            tree = read(read_own(self.folders.config, CONFIG_BYTES_MAX), CONFIG).tree
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
        if url == f"sqlite:///{own}" and not os.path.lexists(own):
            return None
        from orchestrator.ledger import Ledger

        try:
            return Ledger.open(url, alone=alone)
        except DiskFull:
            if not self._gives_way(own):
                raise
        return Ledger.open(url, alone=alone)

    def _gives_way(self, ledger: Path) -> bool:
        """On a disk without inodes, removes two files that the next controller makes again: SQLite needs two
        beside a database that is open. Returns whether that may help."""
        from orchestrator.files import lacks_inodes, remove_file

        spare = [path for path in (self.folders.agent, self.path / UPLINK) if path.is_file()]
        if not spare or not lacks_inodes(ledger):
            return False
        for path in spare:
            with contextlib.suppress(FileNotFoundError):
                remove_file(path)
        return True
