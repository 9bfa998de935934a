"""A run in notebooks that a person opens: the generated cell as real processes, over a real S3 service.

`google.colab.userdata` is a stand-in on the path. Each notebook has a folder, as on a machine of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.core.event import Assigned
from orchestrator.core.lifecycle import Phase
from orchestrator.core.run import RunRecord
from tests.end_to_end.user import User, fingerprints, train_in_one_piece, wait_until
from tests.leaks import Leaks
from tests.stand_ins.seaweed import ACCESS_KEY, BUCKET, SECRET_KEY, Seaweed

pytestmark = pytest.mark.timeout(900)
STEPS = 60
BOOK = {
    "type": "notebook", "accelerator": "cpu", "this_machine": True, "threads": 1, "poll_seconds": 0.5,
    "uplink_seconds": 1, "uplink_silence_seconds": 5, "setup_seconds": 30, "slack_seconds": 5,
    "link": "https://colab.research.google.com/drive/1-of-a-test",
}  # fmt: skip
LEAKS = Leaks({"key id": ACCESS_KEY, "key": SECRET_KEY})
USERDATA = """
import os
class SecretNotFoundError(Exception): pass
def get(name):
    if name != "ORCHESTRATOR_BOOK" or "FAKE_SECRET" not in os.environ:
        raise SecretNotFoundError(name)
    return open(os.environ["FAKE_SECRET"]).read()
"""


@dataclass
class Notebook:
    """One opened notebook: its kernel is a process that runs the cell."""

    folder: Path
    kernel: subprocess.Popen[bytes]

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text()

    def says(self, text: str) -> None:
        wait_until(lambda: text in self.output, lambda: f"{text!r} in {self.output!r}")

    def interrupt(self) -> None:
        self.kernel.send_signal(signal.SIGINT)
        assert self.kernel.wait(120) == 0, self.output

    @property
    def worker(self) -> int:
        """The pid of its worker."""
        children = Path(f"/proc/{self.kernel.pid}/task/{self.kernel.pid}/children")
        [pid] = wait_until(lambda: children.read_text().split(), "its worker")
        return int(pid)


class Colab:
    """Where notebooks are opened."""

    def __init__(self, user: User, folder: Path) -> None:
        self.user = user
        self.folder = folder
        self.secret = folder / "secret"
        colab = folder / "path" / "google" / "colab"
        colab.mkdir(parents=True)
        for package in (colab.parent, colab):
            (package / "__init__.py").touch()
        (colab / "userdata.py").write_text(USERDATA)
        self.opened: list[Notebook] = []

    def write(self) -> str:
        """Makes the notebook and its Secret anew; returns the code of its cell."""
        self.user.run("colab", "notebook", "book", "--secret-file", str(self.secret))
        return self.code()

    def code(self) -> str:
        cells = json.loads((self.user.folder / "book.ipynb").read_text())["cells"]
        return "".join(next(cell for cell in cells if cell["cell_type"] == "code")["source"])

    def open(self, *, secret: Path | None = None, replaced: tuple[str, str] = ("", "")) -> Notebook:
        """Opens it, and runs its cell. The packages are there, as if pip had installed them."""
        folder = self.folder / f"machine{len(self.opened)}"
        folder.mkdir()
        code = self.code().replace(*replaced)
        (folder / "cell.py").write_text(code)
        packages = eval(next(line for line in code.splitlines() if line.startswith("PACKAGES = "))[11:])
        if packages:
            here = folder / ".orchestrator-book"
            here.mkdir()
            name = f"site-{hashlib.sha256(packages.encode()).hexdigest()[:16]}"
            (here / name).symlink_to(sysconfig.get_path("purelib"))
        variables = {**os.environ, "PYTHONPATH": str(self.folder / "path")}
        if secret is not None:
            variables["FAKE_SECRET"] = str(secret)
        with (folder / "output").open("wb") as output:
            kernel = subprocess.Popen(
                [sys.executable, "-u", "cell.py"], cwd=folder, env=variables, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.opened.append(Notebook(folder, kernel))
        return self.opened[-1]

    def close(self) -> None:
        for notebook in self.opened:
            notebook.kernel.kill()
            notebook.kernel.wait()


@pytest.fixture
def colab(new_user: Callable[..., User], seaweedfs: Seaweed, tmp_path: Path) -> Iterator[Colab]:
    user = new_user()
    store = {
        "type": "s3", "preset": "seaweedfs", "endpoint": seaweedfs.endpoint, "bucket": BUCKET,
        "prefix": seaweedfs.prefix(), "access_key": "file:access", "secret_key": "file:secret",
    }  # fmt: skip
    user.configure({"platforms": {"book": BOOK}, "stores": {"home": store}})
    for name, text in {"access": ACCESS_KEY, "secret": SECRET_KEY}.items():
        (user.home / name).write_text(text)
    made = Colab(user, tmp_path / "colab")
    yield made
    made.close()


def submit(user: User) -> str:
    return user.submit(
        command="python train.py {steps} --pause 0.25", work={"total": STEPS, "global_batch": 8}
    )


def trains(record: RunRecord) -> bool:
    return bool(record.accepted) and record.phase is Phase.RUNNING


def test_of_two_notebooks_one_trains_and_when_it_dies_the_other_goes_on(colab: Colab) -> None:
    user = colab.user
    colab.write()
    run = submit(user)  # before any notebook is opened
    waiting = user.wait_for(run, lambda r: r.deferred, "what it waits for")
    assert waiting.phase is Phase.QUEUED
    for words in (("ps",), ("show", run), ("why", run)):
        assert f"waiting for the notebook to be opened: {BOOK['link']}" in user.run(*words)
    both = [colab.open(secret=colab.secret) for _ in range(2)]
    user.wait_for(run, trains, "a checkpoint")
    [winner] = [each for each in both if "begins" in each.output]
    [other] = [each for each in both if each is not winner]
    assert "Another notebook attends to this mailbox" in other.output
    assert LEAKS.in_folder(winner.folder) == []
    os.kill(winner.worker, signal.SIGKILL)
    wait_until(
        lambda: "begins" in other.output, lambda: f"the other to go on: {other.output}\n{user.story(run)}"
    )
    user.wait_for_end(run)
    history = [each.event for each in user.history(run)]
    first, *later = [e.order for e in history if isinstance(e, Assigned)]
    assert first.resume is None
    assert later[-1].resume_step > 0
    assert len(re.findall("begins", winner.output)) == 1
    user.run("pull", run, "-o", str(user.folder / "final"))
    expected = train_in_one_piece(user.folder / "one-piece", "train.py", STEPS)
    assert fingerprints(user.folder / "final") == expected
    other.interrupt()
    assert "left its mailbox" in other.output
    for notebook in both:
        assert LEAKS.in_folder(notebook.folder) == []
    assert LEAKS.in_folder(user.folder / "source") == []
    assert LEAKS.in_data("notebook", (user.folder / "book.ipynb").read_bytes()) == []
    assert LEAKS.in_data("secret", colab.secret.read_bytes()) != [], "the scanner looks there"
    assert colab.secret.stat().st_mode & 0o777 == 0o600


def test_an_interrupted_notebook_saves_and_opened_again_goes_on(colab: Colab) -> None:
    user = colab.user
    colab.write()
    first = colab.open(secret=colab.secret)  # before there is a run
    first.says("Waiting for a session.")
    run = submit(user)
    user.wait_for(run, trains, "a checkpoint")
    first.interrupt()
    assert "saves and leaves" in first.output
    user.wait_for(run, lambda r: r.phase is Phase.QUEUED and bool(r.start), "the person to be asked")
    saved = user.record(run).accepted[-1].ref.step
    colab.open(secret=colab.secret)
    user.wait_for_end(run)
    orders = [each.event.order for each in user.history(run) if isinstance(each.event, Assigned)]
    begun = {order.session: order.resume_step for order in orders}  # one may be turned away, and come again
    assert list(begun.values()) == [0, saved]
