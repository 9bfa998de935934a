"""The examples that come with the orchestrator: which there are, and how one gets into the user's folder.

Decides where they lie: a wheel has them beside the package's modules, a checkout in docs/examples, where they
are written. Replaces nothing of the user's. Knows no home, no platform and no run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import orchestrator
from orchestrator.core.wording import did_you_mean
from orchestrator.errors import InputError
from orchestrator.files import write_whole


@dataclass(frozen=True)
class Example:
    """A script and its job file. `needs`: what the Python of its sessions must have."""

    name: str
    summary: str
    job: str
    script: str
    needs: str

    @property
    def files(self) -> tuple[str, str]:
        return self.job, self.script


@dataclass(frozen=True)
class Copied:
    """`folder` has the example's files now; `job` is the one to submit."""

    example: Example
    folder: Path
    job: Path


EXAMPLES = (
    Example("first", "the first job: a loop in PyTorch that saves and resumes by itself",
            "first.yaml", "plain_pytorch.py", "torch"),
    Example("plain-python", "the same without PyTorch or any other package",
            "plain_python.yaml", "plain_python.py", "nothing"),
    Example("five-lines", "PyTorch with the helper for training scripts: an exact resume in five lines",
            "five_lines.yaml", "five_lines.py", "torch, safetensors"),
    Example("huggingface", "the Trainer of Hugging Face",
            "huggingface_trainer.yaml", "huggingface_trainer.py", "torch, transformers, accelerate"),
    Example("lightning", "the Trainer of Lightning",
            "lightning_trainer.yaml", "lightning_trainer.py", "torch, lightning"),
)  # fmt: skip


def named(name: str) -> Example:
    """The example of this name. Raises InputError that lists them."""
    for each in EXAMPLES:
        if each.name == name:
            return each
    names = [each.name for each in EXAMPLES]
    raise InputError(f"there is no example {name!r}; {did_you_mean(name, names)}valid: {', '.join(names)}")


def copy(name: str, target: Path | None = None) -> Copied:
    """Copies an example into `target` (default: a folder of its name, here), and makes the folder.

    Files that are there already and the same stay. Raises InputError for an unknown name, and if a file is in
    the way; then nothing was copied.
    """
    example = named(name)
    folder = target or Path(example.name)
    contents = {file: _content(file) for file in example.files}
    try:
        for file, content in contents.items():
            _refuse_another(folder / file, content)
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in contents.items():
            if not (folder / file).exists():
                write_whole(folder / file, content, mode=0o644)
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"{folder} cannot be written ({why}): give another folder with -o") from error
    return Copied(example, folder, folder / example.job)


def _refuse_another(path: Path, content: bytes) -> None:
    if path.is_symlink() or path.exists():
        if path.is_file() and path.read_bytes() == content:
            return
        raise InputError(f"{path} exists and is not the example's: give another folder with -o")


def _content(file: str) -> bytes:
    try:
        return (_place() / file).read_bytes()
    except OSError as error:
        raise InputError(
            f"this installation lacks its examples ({error.filename}: {error.strerror}); install it again"
        ) from error


def _place() -> Path:
    package = Path(orchestrator.__file__).resolve().parent
    shipped = package / "examples"
    return shipped if shipped.is_dir() else package.parent / "docs" / "examples"
