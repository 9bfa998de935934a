"""Notebooks for tests, made of the sources of their cells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PYTHON = {"kernelspec": {"name": "python3", "language": "python", "display_name": "Python 3"}}


def notebook(*sources: str, tags: dict[int, list[str]] | None = None, **changes: Any) -> dict[str, Any]:
    """`tags` by the number of the cell; `changes` replace keys of the whole."""
    cells: list[dict[str, Any]] = [
        {
            "cell_type": "code", "id": f"cell-{number}", "metadata": {"tags": (tags or {}).get(number, [])},
            "source": source, "outputs": [], "execution_count": None,
        }
        for number, source in enumerate(sources)
    ]  # fmt: skip
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": PYTHON, "cells": cells} | changes


def write(path: Path, *sources: str, **changes: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(notebook(*sources, **changes)))


def texts(executed: bytes) -> list[str]:
    """What each cell of an executed copy wrote."""
    cells = json.loads(executed)["cells"]
    return ["".join(each.get("text", "") for each in cell["outputs"]) for cell in cells]
