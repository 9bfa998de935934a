"""The code of a script or notebook as a syntax tree. Reads bytes; runs and imports nothing.

A notebook's cells may hold what only IPython understands. Each such line becomes a `pass`, so the rest of its
cell can be read.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orchestrator.core.notebook import Notebook, python_of

_PYTHON_CELLS = frozenset({"time", "timeit", "capture", "prun", "python", "python3", "py"})
_PYTHON_2 = re.compile(
    r"Missing parentheses in call to '(?:print|exec)'|leading zeros|multiple exception types"
)


@dataclass(frozen=True)
class Code:
    """`unread`: what could not be read, in sentences. `parameters`: those of a notebook that has a cell for
    them."""

    tree: ast.Module
    unread: tuple[str, ...] = ()
    parameters: Mapping[str, ast.expr] | None = None


def of_script(data: bytes) -> Code:
    """Raises ValueError, in words, for what this Python could not run."""
    if not data.strip():
        raise ValueError("it is empty")
    return Code(_parsed(data))


def of_notebook(data: bytes) -> Code:
    """Raises ValueError, in words, for what is no notebook that can be run."""
    found = Notebook.parse(data)
    body: list[ast.stmt] = []
    unread = []
    for number, source in enumerate(found.sources, 1):
        try:
            body += _cell(source)
        except ValueError as error:
            unread.append(f"code cell {number} was not read: {error}")
    return Code(ast.Module(body, []), tuple(unread), found.parameters)


def _cell(source: str) -> Iterable[ast.stmt]:
    first, _, rest = source.lstrip().partition("\n")
    if first.startswith("%%"):
        if first[2:].split()[:1] and first[2:].split()[0] not in _PYTHON_CELLS:
            return ()
        source = rest
    try:
        return _parsed(source.encode()).body
    except ValueError:
        return _parsed(python_of(source).encode()).body


def _parsed(data: bytes) -> ast.Module:
    try:
        with warnings.catch_warnings(action="ignore"):  # "\d" in a string is the author's matter
            return ast.parse(data)
    except SyntaxError as error:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        old = "; it looks like Python 2" if _PYTHON_2.search(error.msg or "") else ""
        where = f"line {error.lineno}: " if error.lineno else ""
        raise ValueError(f"{where}not valid in Python {version}: {error.msg}{old}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"it cannot be read: {str(error) or 'too deeply nested'}") from error
