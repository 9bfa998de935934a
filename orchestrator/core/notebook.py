"""What a notebook is: its cells, its language and its parameters. Pure: reads no file and runs nothing.

Checks no more than what running it needs. Where the executed copy of a notebook lies is decided here too,
because the session keeps it and the runner writes it.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

SUFFIX = ".ipynb"
FORMAT = 4
PARAMETERS, INJECTED = "parameters", "injected-parameters"  # papermill's tags
RUNNER = "orchestrator.notebook"
_PYTHON = "python"
_IPYTHON = re.compile(r"^(\s*)(?:[\w, ]+=\s*)?[%!?].*$|^(\s*)[\w.]+\?{1,2}\s*$", re.MULTILINE)


def executed_copy(path: str) -> str:
    """`notes/train.ipynb` → `notes/train.executed.ipynb`."""
    return f"{path.removeprefix('./').removesuffix(SUFFIX)}.executed{SUFFIX}"


def of_command(command: Sequence[str], *, shell: bool = False) -> str | None:
    """The notebook that a command runs; None if it runs something else."""
    return command[0] if not shell and command and command[0].endswith(SUFFIX) else None


@dataclass(frozen=True)
class Notebook:
    """A notebook that can be run. `tree` is the file's content."""

    tree: dict[str, Any]

    @classmethod
    def parse(cls, data: bytes) -> Notebook:
        """Raises ValueError that says why it cannot be run."""
        try:
            tree = json.loads(data.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not a notebook: it is not JSON ({error})") from error
        if not isinstance(tree, dict) or not isinstance(tree.get("nbformat"), int):
            raise ValueError("not a notebook: it does not name its `nbformat`")
        if tree["nbformat"] != FORMAT:
            raise ValueError(
                f"its notebook format is {tree['nbformat']}, and only {FORMAT} can be run: "
                "open it in Jupyter and save it"
            )
        cells = tree.get("cells")
        if not isinstance(cells, list) or not all(_is_cell(each) for each in cells):
            raise ValueError("not a notebook: its `cells` are not a list of cells with a type and a source")
        found = cls(tree)
        _check_language(tree.get("metadata"))
        if not any(source.strip() for source in found.sources):
            raise ValueError("it has no code cell")
        return found

    @property
    def cells(self) -> list[dict[str, Any]]:
        """The code cells."""
        return [each for each in self.tree["cells"] if each["cell_type"] == "code"]

    @property
    def sources(self) -> list[str]:
        return [source_of(each) for each in self.cells]

    @property
    def parameters(self) -> dict[str, ast.expr] | None:
        """The names that the cell tagged `parameters` assigns, with their defaults; None: there is no such
        cell."""
        tagged = next((each for each in self.cells if PARAMETERS in tags_of(each)), None)
        if tagged is None:
            return None
        body = _body(source_of(tagged))
        found: dict[str, ast.expr] = {}
        for node in body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target, value = node.targets[0], node.value
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                target, value = node.target, node.value
            else:
                continue
            if isinstance(target, ast.Name):
                found[target.id] = value
        return found


def python_of(source: str) -> str:
    """A cell with `pass` in place of each line that only IPython understands."""
    plain = _IPYTHON.sub(lambda found: f"{found[1] or found[2] or ''}pass", source)
    return textwrap.dedent(plain)


def _body(source: str) -> list[ast.stmt]:
    """The statements of a cell; none if it cannot be read."""
    for text in (source, python_of(source)):
        with suppress(SyntaxError, ValueError, RecursionError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text).body
    return []


def source_of(cell: Mapping[str, Any]) -> str:
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


def tags_of(cell: Mapping[str, Any]) -> list[str]:
    metadata = cell.get("metadata")
    tags = metadata.get("tags") if isinstance(metadata, dict) else None
    return [each for each in tags if isinstance(each, str)] if isinstance(tags, list) else []


# --- Parameters -----------------------------------------------------------------------------------------


def given(words: Sequence[str], parameters: Mapping[str, ast.expr]) -> dict[str, Any]:
    """The values of `--name value` and `--name=value`, in the kind of their defaults.

    Raises ValueError that names every word which is no parameter.
    """
    found: dict[str, Any] = {}
    wrong: list[str] = []
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        name, equals, text = word.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if not word.startswith("--") or name not in parameters:
            wrong.append(word)
            continue
        if not equals and (not waiting or waiting[0].startswith("--")):
            found[name] = True
            continue
        found[name] = _value(text if equals else waiting.pop(0), parameters[name])
    if wrong:
        valid = ", ".join(f"--{name}" for name in parameters) or "none"
        raise ValueError(f"no parameter of the notebook: {' '.join(wrong)}; its parameters: {valid}")
    return found


def _value(text: str, default: ast.expr) -> Any:
    """A word as a value: text if the default is text, else what Python or YAML would make of it."""
    if isinstance(default, ast.Constant) and isinstance(default.value, str):
        return text
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return text
    return value if isinstance(value, int | float | None) else text


# --- What is in the file --------------------------------------------------------------------------------


def _is_cell(cell: object) -> bool:
    if not isinstance(cell, dict) or not isinstance(cell.get("cell_type"), str):
        return False
    source = cell.get("source")
    return isinstance(source, str) or (
        isinstance(source, list) and all(isinstance(line, str) for line in source)
    )


def _check_language(metadata: object) -> None:
    kernel, info = _section(metadata, "kernelspec"), _section(metadata, "language_info")
    language = kernel.get("language") or info.get("name")
    name = str(kernel.get("name") or "")
    if language is None and _PYTHON in name:  # such as python3, of Colab
        return
    if language is None:
        told = f"its kernel is {name!r}" if name else "it names no kernel"
        raise ValueError(
            f"its language is unknown ({told}): open it in Jupyter, choose a Python kernel and save it"
        )
    if not str(language).lower().startswith((_PYTHON, "ipython")):
        raise ValueError(f"its language is {str(language)[:60]}, and only Python can be run")


def _section(metadata: object, name: str) -> dict[str, Any]:
    section = metadata.get(name) if isinstance(metadata, dict) else None
    return section if isinstance(section, dict) else {}
