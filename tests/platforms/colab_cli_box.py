"""The real command line of Colab on a local Colab, for tests of what it does and of what goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.files.drafts import write_whole
from orchestrator.platforms.colab.environment import Environment
from orchestrator.platforms.colab.runner import MARKER, Cli, Patience
from tests.stand_ins.colab import LocalColab, Settings, local_colab
from tests.stand_ins.colab.machine import Machine

FIRST, SECOND = "demo-7f3kq2vd-s01", "demo-7f3kq2vd-s02"
HASTY = Patience(request=60.0, file=60.0, call=200.0, new=200.0, upload=200.0, attempts=1, pause=0.01)


class Box:
    """One account that is logged in."""

    def __init__(self, folder: Path, colab: LocalColab) -> None:
        self.folder = folder
        self.colab = colab
        self.environment = Environment(folder / "account", proxy=colab.url, ca_file=colab.ca)
        self.cli = Cli(self.environment, backend="colab", patience=HASTY)
        self.cli.ready()
        self.log_in()

    def log_in(self) -> None:
        write_whole(self.environment.token, self.colab.login().encode())

    def patient(self, **changes: float) -> Cli:
        return Cli(self.environment, backend="colab", patience=replace(HASTY, **changes))  # type: ignore[arg-type]

    def allocate(self, session: str = FIRST, accelerator: str = "T4") -> Machine:
        """A machine for the session, without asking the command line for it."""
        from orchestrator.platforms.colab.values import notebook

        name = str(notebook(session)).replace("-", "_")
        return self.colab.account.allocate(name + "." * (44 - len(name)), accelerator)

    def machine(self) -> Machine:
        """The only one there is."""
        [machine] = self.colab.account.living()
        return machine

    def cell(self, text: str, session: str = FIRST) -> Path:
        """A cell that does this after it has said that it started."""
        return self.silent_cell(f"print({MARKER.format(session=session)!r}, flush=True)\n{text}")

    def silent_cell(self, text: str) -> Path:
        path = self.folder / "cell.py"
        path.write_text(text)
        return path

    def clients(self) -> int:
        """How many processes of the command line are running: each works in a folder of this account."""
        found = 0
        for each in Path("/proc").glob("[0-9]*/cwd"):
            with suppress(OSError):
                found += each.readlink().is_relative_to(self.environment.folder)
        return found


Boxes = Callable[..., Box]


@pytest.fixture
def boxes(tmp_path: Path, colab_python: None) -> Iterator[Boxes]:  # noqa: ARG001
    """Makes a box; its arguments are those of Settings."""
    with ExitStack() as stack:

        def make(**settings: object) -> Box:
            given = Settings(**settings)  # type: ignore[arg-type]
            colab = stack.enter_context(local_colab(tmp_path / "colab", given))
            return Box(tmp_path, colab)

        yield make


@pytest.fixture
def box(boxes: Boxes) -> Box:
    return boxes()
