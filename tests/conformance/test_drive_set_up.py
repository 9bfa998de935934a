"""Setting up a store in Drive: its options, a person's consent, the extra."""

from __future__ import annotations

import json
import random
import re
import socket
import stat
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from orchestrator.errors import AccessDenied, InputError, Rejected
from orchestrator.stores import catalog
from orchestrator.stores.drive.opening import carried
from orchestrator.stores.portable import Portability, Portable
from tests.conformance.drives import configured, drive, home
from tests.conformance.store_suite import KEY, Source, sha256, source
from tests.stand_ins.drive import LocalDrive
from tests.stand_ins.drive.tokens import CODE, REFRESH

__all__ = ["drive", "home", "source"]  # fixtures


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "'folder'"),
        ({"folder": "../x"}, "'folder'"),
        ({"folder": "1abc", "credentials": "a", "service_account": "b"}, "not both"),
        ({"folder": "1abc", "endpoint": "http://example.com"}, "https"),
        ({"folder": "1abc", "token": "x"}, "token"),
    ],
)
def test_wrong_options_are_told(tmp_path: Path, options: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        catalog.build("mine", "drive", options, tmp_path)


def test_a_folder_may_be_pasted_from_the_browser(drive: LocalDrive, home: Path, source: Source) -> None:
    address = f"https://drive.google.com/drive/u/0/folders/{drive.disk.folder}?usp=sharing"
    configured(drive, home, folder=address).put(KEY, *source(b"bytes"))
    assert configured(drive, home).stat(KEY) is not None


def test_without_the_extra_one_is_told_how_to_install_it(tmp_path: Path) -> None:
    """In an interpreter that has no PyDrive2: the others are there."""
    code = """
import sys
from importlib.abc import MetaPathFinder
class Without(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] == "pydrive2":
            raise ModuleNotFoundError(name)
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "pydrive2" else find(name, *rest)
sys.meta_path.insert(0, Without())
from pathlib import Path
from orchestrator.stores import catalog
try:
    catalog.build("mine", "drive", {"folder": "1abc"}, Path(sys.argv[1]))
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert "InputError" in done.stdout
    assert 'pip install "accelerator-orchestrator[drive]"' in done.stdout


def test_a_session_opens_the_store_with_what_it_is_given(
    drive: LocalDrive, home: Path, tmp_path: Path, source: Source
) -> None:
    store = configured(drive, home)
    store.put(KEY, *source(b"bytes"))
    assert isinstance(store, Portability)
    given = store.portable()
    assert REFRESH not in repr(given)
    assert (given.packages, given.this_machine) == (("drive",), True)
    (tmp_path / "scratch").mkdir()
    opened = carried(given, tmp_path / "scratch")
    opened.get(KEY, tmp_path / "target")
    (login,) = (tmp_path / "scratch").iterdir()
    assert stat.S_IMODE(login.stat().st_mode) == 0o600
    (home / "drive-credentials.json").unlink()
    with pytest.raises(AccessDenied):
        store.portable()
    with pytest.raises(Rejected):
        carried(Portable("drive"), tmp_path / "scratch")


def test_what_a_session_imports_is_there() -> None:
    """Sessions have no pydantic."""
    code = "import sys, orchestrator.stores.drive.opening; print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


MEASURED = """
import sys
from pathlib import Path
from orchestrator.stores import catalog
def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
options = {"folder": sys.argv[1], "endpoint": sys.argv[2]}
home, digest = Path(sys.argv[3]), sys.argv[4]
store = catalog.build("mine", "drive", options, home)
store.stat("a")
before = peak()
store.put("a", home / "large", digest)
store.get("a", home / "copy", digest)
print(peak() - before)
"""


def test_a_large_file_takes_little_memory(drive: LocalDrive, home: Path) -> None:
    data = random.Random(1).randbytes(1024 * 1024) * 48
    (home / "large").write_bytes(data)
    command = [sys.executable, "-c", MEASURED, drive.disk.folder, drive.url, str(home), sha256(data)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 32 * 1024  # docs/stores-drive.md#how-it-works
    assert (home / "copy").read_bytes() == data


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def client_file(folder: Path, drive: LocalDrive) -> Path:
    """As Google Cloud gives it for a Desktop app."""
    path = folder / "client.json"
    client = {
        "client_id": "local-client", "client_secret": "client-secret", "redirect_uris": ["http://localhost"],
        "auth_uri": "https://accounts.google.com/o/oauth2/auth", "token_uri": f"{drive.url}/token",
    }  # fmt: skip
    path.write_text(json.dumps({"installed": client}))
    return path


def answered(folder: Path, drive: LocalDrive, answer: str) -> tuple[int, str, str]:
    """Runs the command, and answers as Google's page does after the person has clicked."""
    port = free_port()
    command = [
        sys.executable, "-u", "-m", "orchestrator.stores.drive", str(client_file(folder, drive)),
        str(folder / "login.json"), "--endpoint", drive.url, "--port", str(port), "--no-browser",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if "https://" in line:
                break
        asked = parse_qs(urlsplit(line.strip()).query)
        assert asked["scope"] == ["https://www.googleapis.com/auth/drive.file"]
        assert asked["access_type"] == ["offline"]
        assert urlsplit(asked["redirect_uri"][0]).port == port
        with urllib.request.urlopen(f"http://localhost:{port}/?{answer}", timeout=10) as page:
            page.read()
        output, errors = child.communicate(timeout=60)
    return child.returncode, output, errors


def test_a_consent_makes_a_login_and_a_folder_of_our_own(
    drive: LocalDrive, tmp_path: Path, source: Source
) -> None:
    code, output, errors = answered(tmp_path, drive, f"code={CODE}")
    assert (code, errors) == (0, "")
    assert stat.S_IMODE((tmp_path / "login.json").stat().st_mode) == 0o600
    assert REFRESH not in output
    (folder,) = re.findall(r"type: drive, folder: ([\w-]+)", output)
    store = configured(drive, tmp_path, folder=folder, credentials="login.json")
    store.put(KEY, *source(b"bytes"))
    assert store.stat(KEY) is not None


@pytest.mark.parametrize("case", ["refused", "wrong code", "no lasting login"])
def test_without_a_consent_nothing_is_written(drive: LocalDrive, tmp_path: Path, case: str) -> None:
    drive.tokens.gives_refresh = case != "no lasting login"
    answer = {"refused": "error=access_denied", "wrong code": "code=4/other"}.get(case, f"code={CODE}")
    code, _, errors = answered(tmp_path, drive, answer)
    assert code == 1
    assert "try again" in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "login.json").exists()


def test_a_wrong_client_file_is_told(drive: LocalDrive, tmp_path: Path) -> None:
    path = client_file(tmp_path, drive)
    path.write_text("{}")
    command = [sys.executable, "-m", "orchestrator.stores.drive", str(path), str(tmp_path / "login.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Desktop app" in done.stderr
