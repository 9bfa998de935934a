"""Unpacks Python 3.13 next to an older system: `python scripts/newer_python.py` prints where it is. With
`--check` it changes nothing and exits with 0 if there is a newer Python, here or elsewhere.

Some programs that we run need a newer Python than Debian 12 has. This takes Debian 13's, with the C library
and the others that it was built for, into a folder of the user's cache, with a script that starts it with
those. So it starts like any other interpreter and changes nothing on the system; it needs no root. apt
checks the signatures. Needs a Debian with dpkg, apt-get and its archive's keys. Does nothing if it was done
before.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "3.13"
SUITE = "trixie"
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
PACKAGES = (
    f"python{VERSION}-minimal", f"libpython{VERSION}-minimal", f"libpython{VERSION}-stdlib", "libc6",
    "libbz2-1.0", "libexpat1", "libffi8", "libgcc-s1", "liblzma5", "libncursesw6", "libreadline8t64",
    "libsqlite3-0", "libssl3t64", "libstdc++6", "libtinfo6", "libuuid1", "libzstd1", "zlib1g",
)  # fmt: skip
# It starts, with its own certificates' module, compression, and what makes environments.
PROOF = "import ctypes, lzma, sqlite3, ssl, sys, zlib; assert sys.version_info >= (3, 12)"
SECONDS_MAX = 300


def folder() -> Path:
    """Where it is, whether or not it is there yet."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "accelerator-orchestrator" / f"debian-python{VERSION}"


def found() -> Path | None:
    """The interpreter, if it was unpacked here and starts."""
    python = folder() / "usr" / "bin" / f"python{VERSION}"
    return python if python.exists() and starts(python) else None


def is_there_another() -> bool:
    """Whether the orchestrator finds one on this system."""
    from orchestrator.errors import AccessDenied
    from orchestrator.platforms.colab.installing import find_python

    try:
        find_python()
    except AccessDenied:
        return False
    return True


def starts(python: Path) -> bool:
    try:
        return not subprocess.run([python, "-I", "-c", PROOF], capture_output=True, check=False).returncode
    except OSError:
        return False


def main(words: list[str]) -> int:
    python = found()
    if words == ["--check"]:
        return 0 if python is not None or is_there_another() else 1
    if python is None:
        missing = [each for each in ("apt-get", "dpkg-deb") if shutil.which(each) is None]
        if missing or not KEYS.exists():
            print(f"cannot unpack Debian's Python: {', '.join(missing) or KEYS} is missing", file=sys.stderr)
            return 1
        place = folder()
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".tmp-") as temporary:
            try:
                unpack(Path(temporary), place)
            except subprocess.SubprocessError as error:
                print(f"cannot unpack Debian's Python: {error}", file=sys.stderr)
                return 1
        python = found()
    if python is None:
        print(f"Debian's Python in {folder()} does not start", file=sys.stderr)
        return 1
    print(python)
    return 0


def unpack(temporary: Path, place: Path) -> None:
    """Fetches the packages, unpacks them and moves the tree to its place. Another process may do the same:
    the first one wins."""
    root = temporary / "root"
    for package in fetch(temporary):
        call(["dpkg-deb", "-x", str(package), str(root)])
    for name in ("lib", "lib64"):  # packages of before Debian merged them with /usr
        old = root / name
        if old.is_dir() and not old.is_symlink():
            shutil.copytree(old, root / "usr" / name, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(old)
    link(root, place)
    if place.exists() and found() is None:
        shutil.rmtree(place)
    try:
        root.rename(place)
    except OSError:
        if found() is None:
            raise


def fetch(temporary: Path) -> list[Path]:
    """The packages' files. apt works in this folder only, and ignores the system's sources."""
    source = temporary / "debian.list"
    source.write_text(f"deb [signed-by={KEYS}] {MIRROR} {SUITE} main\n", encoding="utf-8")
    for name in ("lists/partial", "cache/archives/partial"):
        (temporary / name).mkdir(parents=True)
    options = {
        "Dir::Etc::sourcelist": source,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": temporary / "lists",
        "Dir::Cache": temporary / "cache",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
        "APT::Sandbox::User": "root",  # our folder is ours alone; without root it has no effect
    }
    apt = ["apt-get", "-qq", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
    call([*apt, "update"])
    call([*apt, "download", *PACKAGES], cwd=temporary)
    return sorted(temporary.glob("*.deb"))


def link(root: Path, place: Path) -> None:
    """Puts a script before the interpreter that starts it with the libraries beside it, as they will be in
    `place`. Its own children get the system's libraries again, which a variable would not allow. Rewriting
    the program itself (patchelf) breaks it, because Debian links it to fixed addresses."""
    binary = root / "usr" / "bin" / f"python{VERSION}"
    loader = next(path for path in sorted((root / "usr").glob("lib*/**/ld-linux-*.so.*")) if path.is_file())
    libraries = next((root / "usr").glob("lib/**/libc.so.6")).parent
    real = binary.rename(binary.with_name(f"{binary.name}.real"))
    words = [place / loader.relative_to(root), "--library-path", place / libraries.relative_to(root)]
    program = [*words, "--argv0", "$0", place / real.relative_to(root), "$@"]
    quoted = " ".join(f'"{word}"' for word in program)
    binary.write_text(f"#!/bin/sh\nexec {quoted}\n", encoding="utf-8")
    binary.chmod(0o755)


def call(command: list[str], cwd: Path | None = None) -> None:
    subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL, timeout=SECONDS_MAX)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
