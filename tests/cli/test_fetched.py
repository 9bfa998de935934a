"""A job whose inputs come from the network, from the dry run to the training that reads them."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.cli.fetching import _Bars
from tests.cli.calls import CONFIG, Caller
from tests.fetching.servers import Site, site

DATA = b"words\n" * 1000
READS = (
    "import os, pathlib, sys\n"
    "given = pathlib.Path(os.environ['ORCHESTRATOR_INPUTS'], 'corpus').read_bytes()\n"
    "print('READ', len(given), flush=True)\n"
    "exec(open('train.py').read())\n"
)


@pytest.fixture
def server() -> Iterator[Site]:
    with site() as made:
        made.files["/corpus.txt"] = DATA
        yield made


def job(user: Caller, server: Site, more: str = "") -> str:
    (user.folder / "source" / "reads.py").write_text(READS)
    user.config(f"{CONFIG}inputs: {{allow_private: [127.0.0.1]}}\n")
    name = user.job(total=3, pace=0.01)
    text = (user.folder / name).read_text().replace("train.py", "reads.py")
    given = f"{{name: corpus, from: '{server.url}/corpus.txt?sig=sesame'{more}}}"
    (user.folder / name).write_text(f"{text}inputs: [{given}]\n")
    return name


def cache(user: Caller) -> Path:
    return user.folder / ".cache" / "orchestrator" / "inputs"


def test_an_input_of_the_network_is_looked_at_fetched_once_and_read_by_the_training(
    user: Caller, server: Site
) -> None:
    name = job(user, server)
    dry = user("submit", name, "--dry-run")
    row = next(line.split() for line in dry.out.splitlines() if line.startswith("corpus"))
    assert row == ["corpus", f"{server.url}/corpus.txt?…", "1", "6.0", "kB", "a", "submit", "fetches", "it",
                   "not", "known", "yet"]  # fmt: skip
    assert server.sent == 0
    sha256 = hashlib.sha256(DATA).hexdigest()
    given = user("submit", name, "--json").json
    assert given["leaves"]["fetched"] == [
        {"name": "corpus", "from": f"{server.url}/corpus.txt?…", "bytes": 6000, "files": 1, "sha256": sha256,
         "cached": True}
    ]  # fmt: skip
    run = given["run"]
    user.wait_for_phase(run, "done")
    assert "READ 6000" in user("logs", run).out
    assert user.record(run).job.inputs[0].sha256 == sha256
    assert user.record(run).job.inputs[0].size == 6000
    seen = [*user.home.rglob("*"), *cache(user).rglob("*")]
    assert not any(
        b"sesame" in path.read_bytes() for path in seen if path.is_file() and path.parent.name != "source"
    )
    server.closing.set()
    assert "in the cache" in user("submit", name, "--dry-run").out
    assert server.sent == len(DATA)


def test_what_cannot_be_fetched_is_no_run_and_the_message_has_its_line(user: Caller, server: Site) -> None:
    name = job(user, server)
    user.config(CONFIG)
    told = user("submit", name, code=2).err
    assert re.search(r"job.yaml:\d+: inputs: input .corpus.: .*without https", told)
    assert "without https anybody on the way can change it" in told
    assert "sesame" not in told
    user.config(f"{CONFIG}inputs: {{allow_private: ['http://127.0.0.1/']}}\n")
    assert "inputs.allow_private[0]" in user("submit", name, code=2).err
    name = job(user, server, f", sha256: {'0' * 64}")
    assert "the job's sha256 is wrong" in user("submit", name, code=2).err
    name = job(user, server, ", max_gb: 0.000001")
    assert "6.0 kB is more than the limit of 1.0 kB" in user("submit", name, code=2).err
    name = job(user, server, ", token: 'env:AWS_SECRET_ACCESS_KEY'")
    assert "looks like your own login" in user("submit", name, code=2, AWS_SECRET_ACCESS_KEY="a").err
    name = job(user, server, ", token: 'env:MINE'")
    assert "export MINE=" in user("submit", name, code=3).err
    assert all("Authorization" not in headers for _, _, headers in server.asked)
    assert user("ps", "--all", "--json").json == {"runs": []}


def test_the_bar_of_a_file_that_is_here_is_gone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with contextlib.ExitStack() as stack:
        bars = _Bars(stack)
        bars("on-its-way", 10, 5_000_000)
        for number in range(50):
            bars(f"done-{number}", 0, 5_000_000)
            bars(f"done-{number}", 5_000_000, 5_000_000)
    shown = capsys.readouterr().err
    assert "on-its-way" in shown
    assert "done-" not in shown[shown.rindex("on-its-way") :]
