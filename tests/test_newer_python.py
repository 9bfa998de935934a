"""The newer Python that is unpacked beside an older system, for programs that need one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from scripts import newer_python


def libraries(program: str) -> list[Path]:
    """The shared libraries of a program of this system, its loader included."""
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return [Path(word) for line in said.splitlines() for word in line.split() if word.startswith("/")]


def test_it_runs_with_the_libraries_beside_it_and_its_children_with_the_systems(tmp_path: Path) -> None:
    """A shell plays the interpreter."""
    root, place = tmp_path / "root", tmp_path / "a place with spaces"
    libs = root / "usr" / "lib" / "x86_64-linux-gnu"
    libs.mkdir(parents=True)
    (root / "usr" / "bin").mkdir()
    for each in libraries("/bin/sh"):
        shutil.copy(each, libs)
    binary = root / "usr" / "bin" / f"python{newer_python.VERSION}"
    shutil.copy("/bin/sh", binary)
    newer_python.link(root, place)
    root.rename(place)
    asked = 'echo "$0"; echo "$2"; grep -o "/.*/libc[.]so[^ ]*" /proc/$$/maps; env; cat /proc/self/maps'
    python = place / "usr" / "bin" / binary.name
    done = subprocess.run([python, "-c", asked, "zero", "1", "two words"], capture_output=True, text=True)
    ours, _, childs = done.stdout.partition("PATH=")
    assert ours.startswith("zero\ntwo words\n"), done.stderr
    assert str(place / libs.relative_to(root)) in ours
    assert "LD_LIBRARY_PATH" not in done.stdout
    assert "libc" in childs
    assert str(place) not in childs


def test_where_it_cannot_be_unpacked_the_reason_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert newer_python.main([]) == 1
    assert "apt-get, dpkg-deb is missing" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_start_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    python = newer_python.folder() / "usr" / "bin" / f"python{newer_python.VERSION}"
    python.parent.mkdir(parents=True)
    for text in ("no program", "#!/bin/sh\nexit 1\n"):
        python.write_text(text)
        python.chmod(0o755)
        assert newer_python.found() is None
    python.write_text("#!/bin/sh\nexit 0\n")
    assert newer_python.found() == python
    assert newer_python.main(["--check"]) == 0


@pytest.mark.soak
def test_debians_python_is_unpacked_and_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloads 15 MB with apt."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert newer_python.main([]) == 0
    python = newer_python.found()
    assert python is not None
    assert newer_python.main([]) == 0  # once is enough
    made = tmp_path / "environment"
    subprocess.run([python, "-m", "venv", "--without-pip", made], check=True)
    assert newer_python.starts(made / "bin" / "python")
