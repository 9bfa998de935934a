"""Requirements on the user's own machine: real sessions, the real pip, and an index on loopback."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import venv
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pip
import pytest

from orchestrator.agent.environments import GIVEN, given, logins
from orchestrator.core.order import Outcome
from orchestrator.errors import Transient
from orchestrator.freeze.requirements import lock
from orchestrator.platforms import environments
from tests.agent.sessions import QUICK, Stay, session
from tests.package_index import Index, package_index
from tests.waiting import wait_until

TRAIN = """
import importlib.util, json, os, shutil, sys
from pathlib import Path
names = ("greeting", "words", "torch")
found = {name: importlib.util.find_spec(name) for name in names}
told = {name: None if spec is None else spec.origin for name, spec in found.items()}
told["variables"] = sorted(os.environ)
Path("seen").write_text(json.dumps(told))
saved = Path(os.environ["ORCHESTRATOR_CHECKPOINT_DIR"], ".tmp-step-20")
saved.mkdir()
(saved / "weights").write_text("w")
saved.rename(saved.parent / "step-20")
"""
NOW = 2e9


@dataclass
class Ground:
    """A user's environment with pip and torch 9.9, an index, and a job with these requirements."""

    root: Path
    python: Path
    index: Index
    stack: ExitStack
    count: int = 0

    @property
    def kept(self) -> Path:
        return self.root / "environments"

    def job(self, *lines: str, locked: bool = True) -> Path:
        source = self.root / "job"
        source.mkdir(exist_ok=True)
        (source / "train.py").write_text(TRAIN)
        wanted = source / "requirements.txt"
        wanted.write_text("".join(f"{line}\n" for line in lines))
        (source / "requirements.lock").unlink(missing_ok=True)
        if locked:
            (source / "requirements.lock").write_text(lock(wanted, self.index.variables) or "")
        return source

    def session(self, source: Path) -> Stay:
        self.count += 1
        has_lock = (source / "requirements.lock").exists()
        return self.stack.enter_context(
            session(
                self.root / f"s{self.count}", "train.py", source=source, requirements="requirements.txt",
                requirements_lock="requirements.lock" if has_lock else None,
            )
        )  # fmt: skip

    def start(self, stay: Stay, **more: str) -> None:
        settings = replace(QUICK, requirements=True, python=str(self.python), environments=str(self.kept))
        variables = {f"{GIVEN}{name}": value for name, value in {**self.index.variables, **more}.items()}
        path = f"{self.python.parent}:{os.environ['PATH']}"
        stay.start(settings, environment={**variables, "PATH": path, "PIP_CONFIG_FILE": os.devnull})

    def environments(self) -> list[str]:
        return sorted(path.name for path in self.kept.iterdir() if path.is_dir())


def seen(stay: Stay) -> dict[str, str]:
    found: dict[str, str] = json.loads((stay.root / "work" / "source" / "seen").read_text())
    return found


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    own = tmp_path / "own"
    venv.EnvBuilder(symlinks=True).create(own)
    packages = next(own.glob("lib/python3*/site-packages"))
    ours = Path(pip.__file__).parent
    (packages / "pip").symlink_to(ours)
    for name, version in (("torch", "9.9"), ("pip", pip.__version__)):
        info = packages / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (packages / "torch.py").write_text("")
    with ExitStack() as stack:
        index = stack.enter_context(package_index(tmp_path / "index"))
        index.release("torch", "99.0")
        yield Ground(tmp_path, own / "bin" / "python", index, stack)


def test_it_is_made_once_a_crash_leaves_nothing_and_later_sessions_need_no_index(
    ground: Ground,
) -> None:
    """The user's torch stays."""
    source = ground.job("greeting", "torch")
    both = [ground.session(source) for _ in range(2)]
    for stay in both:
        ground.start(stay)
    for stay in both:
        result = stay.end()
        assert result.outcome is Outcome.COMPLETED, stay.log()
    [name] = [name for name in ground.environments() if not name.startswith(".")]
    kept = ground.kept / name
    for stay in both:
        found = seen(stay)
        assert Path(found["greeting"]).is_relative_to(kept)
        assert Path(found["words"]).is_relative_to(kept)
        assert found["torch"] == str(ground.python.parent.parent / "lib" / _lib() / "torch.py")
    logs = [stay.log() for stay in both]
    assert sum("for later sessions too" in log for log in logs) == 1
    assert sum("installed before, in" in log for log in logs) == 1
    kept.rename(ground.kept / f".draft-{name}")  # as if its maker had died
    (ground.kept / f".draft-{name}" / "pyvenv.cfg").unlink()
    again = ground.session(source)
    ground.start(again)
    assert again.end().outcome is Outcome.COMPLETED, again.log()
    assert "for later sessions too" in again.log()
    assert (kept / "pyvenv.cfg").exists()
    assert not (ground.kept / f".draft-{name}").exists()
    shutil.rmtree(ground.index.folder)
    later = ground.session(source)
    ground.start(later)
    assert later.end().outcome is Outcome.COMPLETED, later.log()


def _lib() -> str:
    return f"python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


def test_a_login_reaches_pip_and_neither_the_log_nor_the_training(ground: Ground) -> None:
    login = ground.index.address.replace("://", "://me:tops3cret@")
    stay = ground.session(ground.job("greeting"))
    ground.start(
        stay,
        PIP_INDEX_URL="",
        UV_INDEX_URL=login,
        HTTPS_PROXY="http://you:hidd3n@127.0.0.1:9",
        NO_PROXY="127.0.0.1",
    )
    result = stay.end()
    assert result.outcome is Outcome.COMPLETED, stay.log()
    assert not {"PIP_INDEX_URL", "UV_INDEX_URL", "HTTPS_PROXY"} & set(seen(stay)["variables"])
    for path in (stay.root / "outbox").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert b"tops3cret" not in content, path
            assert b"hidd3n" not in content, path
    assert logins({"A": login, "B": "https://example.org/simple"}) == (login,)
    assert (
        given({f"{GIVEN}UV_INDEX": "mine=https://a,https://b"})["PIP_EXTRA_INDEX_URL"]
        == "https://a https://b"
    )


def test_what_cannot_be_installed_is_told_and_not_tried_again(ground: Ground) -> None:
    source = ground.job("greeting")
    path = source / "requirements.lock"
    path.write_text(path.read_text().replace(ground.index.sha256("words", "1.0"), "0" * 64))
    stay = ground.session(source)
    ground.start(stay)
    result = stay.end()
    assert (result.outcome, result.hopeless) == (Outcome.CRASHED, True), stay.log()
    assert "the requirements failed to install: " in result.message
    assert "words" in result.tail
    assert ground.environments() == []


def test_a_full_disk_is_told_and_may_have_room_again(ground: Ground) -> None:
    info = next(ground.python.parent.parent.glob("lib/python3*/site-packages"))
    (info / "pip").unlink()
    (info / "pip").mkdir()
    (info / "pip" / "__main__.py").write_text("""import sys
print("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device")
sys.exit(1)
""")
    stay = ground.session(ground.job("greeting"))
    ground.start(stay)
    result = stay.end()
    assert (result.outcome, result.hopeless) == (Outcome.CRASHED, False), stay.log()
    assert "No space left on device; the disk /" in result.message
    assert ground.environments() == []


def test_nothing_is_made_if_the_users_python_has_it_and_nothing_kept_without_a_lock(ground: Ground) -> None:
    stay = ground.session(ground.job("torch>=9", locked=False))
    ground.start(stay)
    assert stay.end().outcome is Outcome.COMPLETED, stay.log()
    assert "has everything" in stay.log()
    assert not ground.kept.exists()
    stay = ground.session(ground.job("words", locked=False))
    ground.start(stay)
    assert stay.end().outcome is Outcome.COMPLETED, stay.log()
    assert Path(seen(stay)["words"]).is_relative_to(stay.root / "work" / "site")
    assert not ground.kept.exists()


def test_an_unused_one_is_left_over_unless_a_session_uses_it(tmp_path: Path) -> None:
    for name in ("old", "young", ".draft-broken"):
        (tmp_path / name / "bin").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "old")
    os.utime(tmp_path / "old", (NOW - 31 * 86400, NOW - 31 * 86400))
    os.utime(tmp_path / "young", (NOW, NOW))
    with (tmp_path / "old.lock").open("w") as used:
        fcntl.flock(used, fcntl.LOCK_SH)
        assert [each.name for each in environments.unused(tmp_path, NOW)] == [".draft-broken"]
        with pytest.raises(Transient, match="in use"):
            environments.remove(tmp_path, "old", "here")
    found = [(each.name, each.state) for each in environments.unused(tmp_path, NOW)]
    assert found == [(".draft-broken", "broken off"), ("old", "unused")]
    for name, _ in found:
        environments.remove(tmp_path, name, "here")
    environments.remove(tmp_path, "../elsewhere", "here")
    environments.remove(tmp_path, "link", "here")
    wait_until(lambda: not (tmp_path / "old").exists(), "the removal")
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")) == [
        "link",
        "young",
    ]
