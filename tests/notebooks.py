"""Notebooks of Colab, opened on this machine: the generated cell in a real kernel process.

A kernel runs the cell each time it is told to. `google.colab.userdata` is a stand-in on its path. Each opened
notebook has a folder, as on a machine of its own. Must never know what the cell is to do.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import wait_until

NOT_SWITCHED_ON = "switched off"  # the text of a Secret that the notebook may not read
PATIENCE_SECONDS = 240.0  # on a machine that others use as well
_ENDED = "The cell has ended.\n"
_KERNEL = f"""
import sys
from pathlib import Path
for _ in sys.stdin:
    exec(compile(Path("cell.py").read_text(), "cell.py", "exec"), {{"__name__": "__main__"}})
    sys.stdout.write({_ENDED!r})
    sys.stdout.flush()
"""
_USERDATA = f"""
from pathlib import Path
class SecretNotFoundError(Exception): pass
class NotebookAccessError(Exception): pass
def get(name):
    path = Path(__file__).parents[3] / "secrets" / name
    if not path.exists():
        raise SecretNotFoundError(name)
    text = path.read_text()
    if text == {NOT_SWITCHED_ON!r}:
        raise NotebookAccessError(name)
    return text
"""


def cell_of(notebook: bytes) -> str:
    """The code of its one cell."""
    [source] = [each["source"] for each in json.loads(notebook)["cells"] if each["cell_type"] == "code"]
    return "".join(source)


@dataclass
class Notebook:
    """An opened notebook and its kernel."""

    folder: Path
    kernel: subprocess.Popen[bytes]
    ran: int = 0

    def run(self) -> None:
        """Runs its cell, once the one before has ended."""
        assert self.kernel.stdin is not None
        self.kernel.stdin.write(b"\n")
        self.kernel.stdin.flush()
        self.ran += 1

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text()

    def says(self, text: str, times: int = 1) -> None:
        """Waits until its cell has said this so often. Fails at once if the cell has ended without it."""

        def said() -> bool:
            ended, output = self.output.count(_ENDED) == self.ran, self.output
            assert not ended or output.count(text) >= times, output
            return output.count(text) >= times

        wait_until(said, lambda: f"{text!r} in {self.output}", PATIENCE_SECONDS)

    def ends(self) -> None:
        """Waits until the cell has ended as often as it was run."""
        self.says(_ENDED, self.ran)
        assert "Traceback" not in self.output, self.output

    def interrupt(self) -> None:
        self.kernel.send_signal(signal.SIGINT)

    @property
    def worker(self) -> int:
        """The pid of its worker."""
        children = Path(f"/proc/{self.kernel.pid}/task/{self.kernel.pid}/children")
        [pid] = wait_until(lambda: children.read_text().split(), "its worker", PATIENCE_SECONDS)
        return int(pid)


class Colab:
    """Where a person opens notebooks, and pastes Secrets. Its machines have the present environment, and
    nothing that is put there later."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environ = {**os.environ, "PYTHONPATH": str(folder / "path")}
        self.secrets = folder / "secrets"
        self.secrets.mkdir(parents=True)
        colab = folder / "path" / "google" / "colab"
        colab.mkdir(parents=True)
        for package in (colab.parent, colab):
            (package / "__init__.py").touch()
        (colab / "userdata.py").write_text(_USERDATA)
        self.opened: list[Notebook] = []

    def paste(self, name: str, text: str) -> None:
        (self.secrets / name).write_text(text)

    def open(
        self, code: str, *, machine: Path | None = None, pip: Mapping[str, str] | None = None
    ) -> Notebook:
        """Opens a notebook on a machine of its own, or on the given one, and runs its cell. The packages are
        there, as if pip had installed them, unless `pip` has its settings."""
        here = machine or self._folder / f"machine{len(self.opened)}"
        here.mkdir(exist_ok=True)
        (here / "cell.py").write_text(code)
        if pip is None:
            _equip(here, code)
        with (here / "output").open("ab") as output:
            kernel = subprocess.Popen(
                [sys.executable, "-u", "-c", _KERNEL],
                cwd=here,
                env={**self._environ, **(pip or {})},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.opened.append(Notebook(here, kernel))
        self.opened[-1].run()
        return self.opened[-1]

    def close(self) -> None:
        for notebook in self.opened:
            notebook.kernel.kill()
            notebook.kernel.communicate()


def _equip(machine: Path, code: str) -> None:
    packages = ast.literal_eval(
        next(line for line in code.splitlines() if line.startswith("PACKAGES = ")).removeprefix("PACKAGES = ")
    )
    site = machine / f".orchestrator-book/site-{hashlib.sha256(packages.encode()).hexdigest()[:16]}"
    site.parent.mkdir(mode=0o700, exist_ok=True)
    if packages and not site.exists():
        site.symlink_to(sysconfig.get_path("purelib"))
