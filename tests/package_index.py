"""A package index on loopback for tests that install. Its wheels have only a name, a version and needs."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from tests.docker_images import serving


def wheel(name: str, version: str, *requires: str) -> bytes:
    buffer, info = BytesIO(), f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, content in files.items():  # an info without a time: the same bytes at each call
            archive.writestr(zipfile.ZipInfo(path), content)
    return buffer.getvalue()


@dataclass
class Index:
    """A package index that serves files on loopback."""

    folder: Path
    address: str = ""

    def release(self, name: str, version: str, *requires: str) -> None:
        place = self.folder / name.replace("_", "-")
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{name}-{version}-py3-none-any.whl").write_bytes(wheel(name, version, *requires))
        files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in place.glob("*.whl")}
        links = "".join(f'<a href="{file}#sha256={sha256}">{file}</a>\n' for file, sha256 in files.items())
        (place / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")

    def sha256(self, name: str, version: str) -> str:
        return hashlib.sha256(
            (self.folder / name / f"{name}-{version}-py3-none-any.whl").read_bytes()
        ).hexdigest()

    @property
    def variables(self) -> dict[str, str]:
        """pip's settings, for a home without any of its own."""
        return {
            "PATH": os.environ["PATH"], "HOME": str(self.folder), "NO_PROXY": "127.0.0.1",
            "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_INDEX_URL": self.address,
        }  # fmt: skip


@contextmanager
def package_index(folder: Path) -> Iterator[Index]:
    """An index with greeting 1.0, which needs words, and words 1.0."""
    found = Index(folder)
    found.release("words", "1.0")
    found.release("greeting", "1.0", "words")
    with serving(folder) as found.address:
        yield found
