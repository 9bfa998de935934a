"""What pyproject.toml cannot say: the wheel holds examples and pages, and an index shows no dead links.

docs/ stays the only place where they are written. `orchestrator examples` and `orchestrator help TOPIC` read
the wheel's copies.
"""

import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
DOCS = ROOT / "docs"


class WithDocs(build_py):
    """Copies examples and pages beside the modules. An editable install reads them where they are."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            self._copy(DOCS / "examples", "examples", (".py", ".yaml"))
            self._copy(DOCS, "docs", (".md",))

    def _copy(self, folder: Path, name: str, endings: tuple[str, ...]) -> None:
        target = Path(self.build_lib, "orchestrator", name)
        shutil.rmtree(target, ignore_errors=True)  # an older build may have left some there
        target.mkdir(parents=True)
        for path in sorted(folder.iterdir()):
            if path.suffix in endings:
                self.copy_file(str(path), str(target / path.name), preserve_mode=False)


def readme() -> str:
    """The README without its links to files of the repository, which lead nowhere on a page of an index."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(r"\[([^\]]+)\]\((?!https?://)[^)\s]*\)", r"\1", text)


setup(
    cmdclass={"build_py": WithDocs},
    long_description=readme(),
    long_description_content_type="text/markdown",
)
