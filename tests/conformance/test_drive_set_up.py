"""Setting up a store in Drive: its options, what a session gets, the extra. Consent: test_init_drive.py."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.errors import AccessDenied, InputError, Rejected
from orchestrator.installation import found
from orchestrator.stores import catalog
from orchestrator.stores.drive.opening import carried
from orchestrator.stores.portable import Portability, Portable
from tests.conformance.drives import configured, drive, home
from tests.conformance.store_suite import KEY, Source, sha256, source
from tests.stand_ins.drive import LocalDrive
from tests.stand_ins.drive.tokens import REFRESH

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
    assert f"PyDrive2 is not installed: {found().adding('drive')}" in done.stdout


def test_a_session_opens_the_store_with_what_it_is_given(
    drive: LocalDrive, home: Path, tmp_path: Path, source: Source
) -> None:
    store = configured(drive, home)
    store.put(KEY, *source(b"bytes"))
    assert isinstance(store, Portability)
    given = store.portable()
    assert REFRESH not in repr(given)
    assert (given.packages, given.this_machine) == (("drive",), True)
    (home / "drive-credentials.json").unlink()
    carried(given).get(KEY, tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"bytes"
    with pytest.raises(AccessDenied):
        store.portable()
    with pytest.raises(Rejected):
        carried(Portable("drive"))


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
