"""The job's requirements: the real pip, offline, on a platform that has its own torch."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import threading
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent.requirements import Site, constraints, masked, without_other_back_end
from orchestrator.core import wire
from orchestrator.core.order import Outcome
from tests.agent.sessions import PATIENCE, QUICK, Stay, is_alive, session
from tests.waiting import wait_until

INSTALLING = replace(QUICK, requirements=True)
USES = """
import json, os, shutil
from pathlib import Path
import greeting, torch
Path("seen").write_text(json.dumps({
    "greeting": greeting.__file__, "torch": torch.__version__, "script": shutil.which("greet")}))
saved = Path(os.environ["ORCHESTRATOR_CHECKPOINT_DIR"], ".tmp-step-20")
saved.mkdir()
(saved / "weights").write_text("w")
saved.rename(saved.parent / "step-20")
"""


def wheel(name: str, version: str, module: str) -> bytes:
    """A wheel with one module and the command `greet`."""
    buffer = BytesIO()
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": module,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\ngreet = {name}:main\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return buffer.getvalue()


@pytest.fixture
def offline(tmp_path: Path) -> dict[str, str]:
    """The agent's environment: a platform with torch 9.9, and pip with wheels of greeting and torch 99."""
    platform, links = tmp_path / "platform", tmp_path / "links"
    links.mkdir()
    with zipfile.ZipFile(BytesIO(wheel("torch", "9.9+cu1", "__version__ = '9.9'\n"))) as archive:
        archive.extractall(platform)
    (links / "greeting-1.0-py3-none-any.whl").write_bytes(wheel("greeting", "1.0", "def main(): ...\n"))
    (links / "torch-99.0-py3-none-any.whl").write_bytes(wheel("torch", "99.0", "__version__ = '99.0'\n"))
    return {
        "PYTHONPATH": str(platform),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(links),
    }


@contextmanager
def ordered(root: Path, *lines: str, **changes: Any) -> Iterator[Stay]:
    """A session that runs USES, with these lines as its requirements."""
    source = root / "job"
    (source / "needs").mkdir(parents=True)
    (source / "uses.py").write_text(USES)
    (source / "pip.py").write_text("raise SystemExit('the job hides pip')\n")
    (source / "needs" / "requirements.txt").write_text("".join(f"{line}\n" for line in lines))
    with session(
        root / "1", "uses.py", source=source, requirements="needs/requirements.txt", **changes
    ) as stay:
        yield stay


def marked(incarnation: str) -> list[int]:
    """The processes of this incarnation: its training and its installation."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            variables = (path / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"ORCHESTRATOR_INCARNATION={incarnation}".encode() in variables and is_alive(int(path.name)):
            found.append(int(path.name))
    return found


@dataclass
class Index:
    """A package index that accepts requests, and answers only if it is given a reply."""

    requests: list[bytes] = field(default_factory=list)
    reply: bytes = b""
    wheel: bytes = b""
    port: int = 0

    def variables(self, credentials: str = "") -> dict[str, str]:
        return {
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_FIND_LINKS": "",
            "PIP_INDEX_URL": f"http://{credentials}127.0.0.1:{self.port}/simple",
            "NO_PROXY": "127.0.0.1",
        }


@pytest.fixture
def index() -> Iterator[Index]:
    found = Index()
    open_ones = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        found.port = server.getsockname()[1]

        def take() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                open_ones.append(connection)
                with suppress(ConnectionError):  # pip was killed
                    found.requests.append(connection.recv(65536))
                    reply = found.wheel if b".whl" in found.requests[-1] else found.reply
                    if reply:
                        connection.sendall(reply)
                        connection.close()

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        yield found
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)
    for connection in open_ones:
        connection.close()


def test_the_training_imports_what_was_installed_and_the_platforms_torch(
    tmp_path: Path, offline: dict[str, str]
) -> None:
    before = sorted(path.name for path in (tmp_path / "platform").rglob("*"))
    with ordered(tmp_path, "greeting", "torch") as stay:
        result = stay.live(INSTALLING, environment=offline)
        assert (result.outcome, result.tail) == (Outcome.COMPLETED, ""), stay.log()
        seen = json.loads((stay.root / "work" / "source" / "seen").read_text())
        site = Site(stay.root / "work" / "site")
        assert seen == {
            "greeting": str(site.packages / "greeting.py"),
            "torch": "9.9",
            "script": str(site.scripts / "greet"),
        }
        assert "kept from the platform: " in stay.log()
        assert "torch==9.9+cu1" in stay.log()
        assert "pip: Successfully installed greeting-1.0" in stay.log()
    after = {path.name for path in (tmp_path / "platform").rglob("*") if "__pycache__" not in path.parts}
    assert after - {"__pycache__"} == set(before)


def test_another_version_of_what_the_platform_has_comes_before_it_and_removes_nothing(
    tmp_path: Path, offline: dict[str, str]
) -> None:
    with zipfile.ZipFile(BytesIO(wheel("greeting", "0.5", "def main(): ...\n"))) as archive:
        archive.extractall(tmp_path / "platform")
    with ordered(tmp_path, "greeting==1.0") as stay:
        stay.live(INSTALLING, environment=offline)
        seen = json.loads((stay.root / "work" / "source" / "seen").read_text())
        assert seen["greeting"] == str(Site(stay.root / "work" / "site").packages / "greeting.py")
        assert (tmp_path / "platform" / "greeting.py").exists()
        assert (tmp_path / "platform" / "greeting-0.5.dist-info" / "METADATA").exists()


@pytest.mark.parametrize(
    "module", ["types", *(pytest.param(each, marks=pytest.mark.soak) for each in ("queue", "enum"))]
)
def test_a_requirement_hides_no_module_of_the_standard_library(
    tmp_path: Path, offline: dict[str, str], module: str
) -> None:
    """As enum34 would, although by hand its module is never found."""
    backport = tmp_path / "links" / f"{module}-9.0-py3-none-any.whl"
    backport.write_bytes(wheel(module, "9.0", "raise SystemExit('hidden')\n"))
    with ordered(tmp_path, f"{module}==9.0", "greeting") as stay:
        assert stay.live(INSTALLING, environment=offline).outcome is Outcome.COMPLETED, stay.log()
        site = tmp_path / "1" / "work" / "site" / "lib"
        assert list(site.rglob(f"{module}-9.0.dist-info"))
        assert not list(site.rglob(f"site-packages/{module}.py"))


def test_a_torch_that_is_itself_a_requirement_is_in_the_manifest(
    tmp_path: Path, offline: dict[str, str]
) -> None:
    """The platform has no torch, and is a virtual environment itself."""
    venv.create(tmp_path / "bare", with_pip=True, symlinks=True)
    with ordered(tmp_path, "greeting", "torch") as stay:
        python = tmp_path / "bare" / "bin" / "python"
        command = [str(python), str(stay.root / "agent.pyz"), str(stay.root), "--settings"]
        answer = subprocess.run(
            [*command, wire.encode(INSTALLING).decode()],
            env={**os.environ, **offline, "PYTHONPATH": ""},
            check=False,
            timeout=PATIENCE,
        )
        assert answer.returncode == 0, stay.log()
        assert stay.manifests()[-1].environment["torch"] == "99.0"


@pytest.mark.parametrize(
    ("line", "message", "tail"),
    [
        ("torch==99.0", "ResolutionImpossible", "The user requested (constraint) torch==9.9+cu1"),
        ("absent", "No matching distribution found for absent", "from versions: none"),
        ("not a requirement", "Invalid requirement", "not a requirement"),
    ],
)
def test_requirements_that_cannot_be_had_are_the_jobs_fault(
    tmp_path: Path, offline: dict[str, str], line: str, message: str, tail: str
) -> None:
    with ordered(tmp_path, line) as stay:
        result = stay.live(INSTALLING, environment=offline)
        assert (result.outcome, result.exit_code) == (Outcome.CRASHED, None)
        assert result.message.startswith("the requirements failed to install: ")
        assert message in result.message
        assert tail in result.tail
        assert not (stay.root / "work" / "source" / "seen").exists()


def test_every_line_of_a_secret_is_masked_in_pips_output(tmp_path: Path, offline: dict[str, str]) -> None:
    lines = ("MIIEvQIBADANBgkqhkiG9w0B", "AQEFAASCBKcwggSj")
    key = "\n".join(["-----BEGIN PRIVATE KEY-----", *lines, "-----END PRIVATE KEY-----", ""])
    with ordered(tmp_path, " ".join(lines), secrets=("KEY",), values={"KEY": key}) as stay:
        result = stay.live(INSTALLING, environment=offline)
        said = stay.log() + result.tail + result.message
        assert "Invalid requirement: '*** ***'" in said
        assert not [line for line in lines if line in said]


def test_a_missing_requirements_file_is_named(tmp_path: Path, offline: dict[str, str]) -> None:
    with session(tmp_path / "1", "train.py", requirements="gone.txt") as stay:
        result = stay.live(INSTALLING, environment=offline)
        assert result.outcome is Outcome.CRASHED
        assert "the source has no gone.txt" in result.message


@pytest.mark.parametrize(("internet", "hint"), [(True, False), (False, True)])
def test_no_network_is_this_places_loss(tmp_path: Path, internet: bool, hint: bool) -> None:
    with socket.socket() as closed, ordered(tmp_path, "greeting", internet=internet) as stay:
        closed.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else can
        there = Index(port=closed.getsockname()[1]).variables("reader:t0ken@") | {"PIP_RETRIES": "1"}
        result = stay.live(INSTALLING, environment=there)
        assert result.outcome is Outcome.LOST, stay.log()
        assert result.message.startswith("the requirements could not be fetched")
        assert ("needs.internet" in result.message) is hint
        assert "NewConnectionError" in result.tail
        assert "t0ken" not in stay.log() + result.tail + result.message


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (b"", Outcome.LOST),
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", Outcome.LOST),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", Outcome.CRASHED),
    ],
)
def test_an_index_that_fails_is_told_from_one_that_has_no_such_package(
    tmp_path: Path, index: Index, reply: bytes, outcome: Outcome
) -> None:
    index.reply = reply
    seconds = PATIENCE if reply else 1
    there = index.variables() | {"PIP_RETRIES": "0", "PIP_DEFAULT_TIMEOUT": f"{seconds:.0f}"}
    with ordered(tmp_path, "greeting") as stay:
        assert stay.live(INSTALLING, environment=there).outcome is outcome, stay.log()


def test_a_download_that_is_cut_is_this_places_loss(tmp_path: Path, index: Index) -> None:
    page = (
        b"<html><body><a href='greeting-1.0-py3-none-any.whl'>greeting-1.0-py3-none-any.whl</a></body></html>"
    )
    html = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
    index.reply = html % (len(page), page)
    index.wheel = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nPK"
    with ordered(tmp_path, "greeting") as stay:
        result = stay.live(INSTALLING, environment=index.variables() | {"PIP_RETRIES": "0"})
        assert result.outcome is Outcome.LOST, stay.log()


def begin_to_install(stay: Stay, index: Index) -> str:
    """Starts an installation that never ends, and returns its incarnation."""
    stay.start(INSTALLING, environment=index.variables())
    status = stay.wait_for(lambda s: s.state == "installing", "the installation")
    wait_until(lambda: index.requests, "pip to ask its index")
    stay.wait_for(lambda s: s.heartbeat > status.heartbeat + 2, "the heartbeat to go on")
    assert marked(status.incarnation)
    return status.incarnation


def test_a_stop_breaks_the_installation_off(tmp_path: Path, index: Index) -> None:
    with ordered(tmp_path, "greeting") as stay:
        incarnation = begin_to_install(stay, index)
        (stay.root / "stop").touch()
        result = stay.end()
        assert (result.outcome, result.step) == (Outcome.STOPPED, None)
        assert marked(incarnation) == []


def test_the_budgets_end_breaks_the_installation_off(tmp_path: Path, index: Index) -> None:
    with ordered(tmp_path, "greeting", budget_seconds=6.0) as stay:
        stay.start(INSTALLING, environment=index.variables())
        result = stay.end()
        assert (result.outcome, result.message) == (
            Outcome.STOPPED,
            "the session's time was over before the training began",
        )
        assert marked(result.incarnation) == []


def test_pip_dies_with_a_killed_agent(tmp_path: Path, index: Index) -> None:
    with ordered(tmp_path, "greeting") as stay:
        incarnation = begin_to_install(stay, index)
        stay.agents[-1].send_signal(signal.SIGKILL)
        wait_until(lambda: not marked(incarnation), "the guardian to kill pip")


def test_a_private_index_is_a_secret_that_shows_nowhere(tmp_path: Path, index: Index) -> None:
    url = index.variables("reader:t0ken@")["PIP_INDEX_URL"]
    with ordered(tmp_path, "greeting", secrets=("PIP_INDEX_URL",), values={"PIP_INDEX_URL": url}) as stay:
        begin_to_install(stay, index)
        (stay.root / "stop").touch()
        result = stay.end()
        asked = base64.b64encode(b"reader:t0ken")
        assert asked in index.requests[0]
        assert "127.0.0.1" not in stay.log() + result.tail + result.message


def test_only_a_platform_that_asks_installs(tmp_path: Path, offline: dict[str, str]) -> None:
    with ordered(tmp_path, "greeting") as stay:
        result = stay.live(QUICK, environment=offline)
        assert result.message == "exit code 1: ModuleNotFoundError: No module named 'greeting'"
        assert not (stay.root / "work" / "site").exists()


def test_what_the_platform_has_of_torch_and_its_kin_keeps_its_version() -> None:
    installed = [
        ("torch", "2.6.0+cu124"), ("torch_xla", "2.6.0"), ("nvidia-cublas-cu12", "12.4.5.8"),
        ("jax-cuda12-plugin", "0.5.2"), ("Triton", "3.2.0"), ("numpy", "2.0.2"), ("pandas", "2.2.2"),
        ("torch", "1.0"), ("torchmetrics", "1.0"),
    ]  # fmt: skip
    assert constraints(installed) == [
        "jax-cuda12-plugin==0.5.2",
        "numpy>=2.0.2,<3",
        "nvidia-cublas-cu12==12.4.5.8",
        "torch==2.6.0+cu124",
        "torch-xla==2.6.0",
        "triton==3.2.0",
    ]


@pytest.mark.parametrize(
    ("lock", "there", "kept"),
    [
        ("greeting==1.0\n", ["torch==2.11.0"], ["torch==2.11.0"]),
        ("torch-xla==2.9.0\ntorch==2.9.0\n", ["torch==2.9.0+cpu", "torch_xla==2.9.0"],
         ["torch==2.9.0+cpu", "torch-xla==2.9.0"]),
        ("torch-xla==2.9.0\n", ["torch==2.11.0", "numpy==2.1.3", "libtpu==0.0.50", "jax==0.7.2"],
         ["jax==0.7.2", "numpy>=2.1.3,<3"]),
        ("torch-tpu==0.2.0\n", ["torch==2.9.0+cpu", "torch-xla==2.9.0", "libtpu==0.0.21"], []),
        ("torch-tpu==0.2.0\n", ["torch-tpu==0.3.0", "torch==2.13.0"], []),
    ],
)  # fmt: skip
def test_on_a_tpu_the_lock_may_bring_another_back_end_and_all_that_goes_with_it(
    lock: str, there: list[str], kept: list[str]
) -> None:
    installed = [(name, version) for name, _, version in (each.partition("==") for each in there)]
    assert constraints(without_other_back_end(lock, installed)) == kept


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("Looking in indexes: https://pypi.org/simple", ""),
        ("  --extra-index-url https://index/simple", ""),
        ("Downloading https://me:pass@host/a.whl (3 kB)", "Downloading https://***@host/a.whl (3 kB)"),
        ("Downloading https://host/a.whl?sig=abc (3 kB)", "Downloading https://host/a.whl?*** (3 kB)"),
        ("Collecting greeting", "Collecting greeting"),
    ],
)
def test_credentials_in_pips_words_are_masked(line: str, shown: str) -> None:
    assert masked(line) == shown
