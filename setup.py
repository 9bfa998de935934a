"""What pyproject.toml cannot say: the wheel holds the examples, and an index shows no dead links.

docs/examples stays the only place where an example is written. `orchestrator examples` reads the wheel's
copy.
"""

import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
EXAMPLES = ROOT / "docs" / "examples"


class WithExamples(build_py):
    """Copies the examples beside the package's modules. An editable install reads them where they are."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib, "orchestrator", "examples")
            shutil.rmtree(target, ignore_errors=True)  # an older build may have left some there
            target.mkdir(parents=True)
            for path in sorted(EXAMPLES.iterdir()):
                if path.suffix in (".py", ".yaml"):
                    self.copy_file(str(path), str(target / path.name), preserve_mode=False)


def readme() -> str:
    """The README without its links to files of the repository, which lead nowhere on a page of an index."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(r"\[([^\]]+)\]\((?!https?://)[^)\s]*\)", r"\1", text)


setup(
    cmdclass={"build_py": WithExamples},
    long_description=readme(),
    long_description_content_type="text/markdown",
)
