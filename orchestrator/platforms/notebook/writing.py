"""The notebook as a file: one page of words, and one cell. Holds no secret.

The same options and program give the same bytes. Must never know how the notebook is delivered.
"""

from __future__ import annotations

import base64
import hashlib
import json
import pkgutil
import textwrap

from orchestrator.platforms.notebook.options import NotebookOptions

# What Colab calls the machines, in a notebook's metadata.
_TYPES = {
    "T4": ("GPU", "T4"),
    "L4": ("GPU", "L4"),
    "A100": ("GPU", "A100"),
    "H100": ("GPU", "H100"),
    "TPUv5e-1": ("TPU", "V5E1"),
    "TPUv6e-1": ("TPU", "V6E1"),
}
_MARK = "orchestrator"  # in a notebook's metadata
_LINE = 4096  # characters of base64: editors choke on one long line

_PAGE = """\
# The orchestrator's notebook `{name}`

1. Click the key on the left, add a Secret with the name `{secret}`, paste what
   `orchestrator colab notebook {name}` printed, and switch on "Notebook access".
2. Run the cell below (Runtime > Run all), and keep this tab open. It takes one session after the other.
3. Interrupt the cell to stop: the running session saves and leaves.

This notebook holds no credential, so you may keep it in Drive. The Secret opens your store of checkpoints:
share the notebook with nobody who should not read and write there."""


def secret_name(name: str) -> str:
    """What the Colab Secret of this platform is called."""
    return f"ORCHESTRATOR_{name.upper().replace('-', '_')}"


def written(name: str, options: NotebookOptions, program: bytes, packages: str, place: str) -> bytes:
    """The notebook's bytes. `program` is the worker as one zip application, `packages` the locked list of
    what it needs, and `place` a name of the home store, which the Secret must open."""
    secret = secret_name(name)
    kind, machine = _TYPES.get(options.accelerator, ("", ""))
    metadata: dict[str, object] = {
        "colab": {"name": f"{name}.ipynb", **({"gpuType": machine} if machine else {})},
        **({"accelerator": kind} if kind else {}),
        "kernelspec": {"name": "python3", "display_name": "Python 3"},
        "language_info": {"name": "python"},
    }
    cells: list[dict[str, object]] = [
        {
            "cell_type": "markdown",
            "metadata": {},
            "id": "words",
            "source": _lines(_PAGE.format(name=name, secret=secret)),
        },
        {
            "cell_type": "code",
            "id": "worker",
            "metadata": {"cellView": "form"},
            "execution_count": None,
            "outputs": [],
            "source": _lines(_code(name, options.accelerator, secret, program, packages, place)),
        },
    ]
    metadata[_MARK] = _mark(name, cells)
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": cells}
    return json.dumps(notebook, indent=1, ensure_ascii=False).encode() + b"\n"


def is_ours(name: str, found: bytes) -> bool:
    """Whether this is a notebook of the mailbox `name` that `written` has made, and nobody has edited it."""
    try:
        notebook = json.loads(found)
        return bool(notebook["metadata"][_MARK] == _mark(name, notebook["cells"]))
    except (ValueError, LookupError, TypeError, RecursionError):
        return False


def _mark(name: str, cells: list[dict[str, object]]) -> dict[str, str]:
    """Says whose notebook it is, and what is in its cells. Outputs do not count."""
    text = json.dumps([(cell["cell_type"], "".join(cell["source"])) for cell in cells])  # type: ignore[arg-type]
    return {"mailbox": name, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def _code(name: str, accelerator: str, secret: str, program: bytes, packages: str, place: str) -> str:
    cell = pkgutil.get_data(__package__, "cell.py")
    assert cell is not None
    packed = textwrap.wrap(base64.b64encode(program).decode(), _LINE)
    literal = "\n".join(f"    {part!r}" for part in packed)
    return (
        f"#@title Attend to the mailbox {name}\n{cell.decode()}\n\n"
        f"PROGRAM = (\n{literal}\n)\n"
        f"PACKAGES = {packages!r}\n"
        f"main({{'mailbox': {name!r}, 'accelerator': {accelerator!r}, 'secret': {secret!r},\n"
        f"      'place': {place!r}, 'program': PROGRAM, 'packages': PACKAGES}})\n"
    )


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)
