"""Writes the pages of docs/ that are drawn from code; tests/test_docs.py fails where one is out of date."""

from __future__ import annotations

import sys
from pathlib import Path

from orchestrator.core import lifecycle

DOCS = Path(__file__).resolve().parent.parent / "docs"


def pages() -> dict[str, str]:
    """File name in docs/ → its whole text."""
    return {"lifecycle.md": lifecycle_page()}


def lifecycle_page() -> str:
    final = ", ".join(f"*{phase.value}*" for phase in lifecycle.Phase if phase.final)
    staying = ", ".join(f"`{kind.value}`" for kind in lifecycle.EVERYWHERE)
    rows = [
        f"| {phase.value} | {', '.join(f'`{k.value}`' for k in kinds) or '–'} |"
        for phase, row in lifecycle.TABLE.items()
        for kinds in [[k for k, after in row.items() if after is phase and k not in lifecycle.EVERYWHERE]]
    ]
    return f"""# The lifecycle of a run

Generated from the table in `orchestrator/core/lifecycle.py` by `make docs`; do not edit.

```mermaid
{lifecycle.diagram()}```

A run is over when it is {final}. Events that leave the phase as it is, and so are not drawn:

| phase | events |
|---|---|
{chr(10).join(rows)}

In every phase: {staying}. Any other event is a bug and raises `IllegalTransition`.
"""


def main() -> int:
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
        print(f"docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
