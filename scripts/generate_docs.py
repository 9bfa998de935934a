"""Writes the pages of docs/ that are generated from code; tests/test_docs.py fails if one is out of date."""

from __future__ import annotations

import sys
from pathlib import Path

from orchestrator.core import bounds, lifecycle

DOCS = Path(__file__).resolve().parent.parent / "docs"


def pages() -> dict[str, str]:
    """File name in docs/ → its whole text."""
    return {"bounds.md": bounds_page(), "lifecycle.md": lifecycle_page()}


def bounds_page() -> str:
    rows = "\n".join(f"| {what} | {limit} | {beyond} |" for what, limit, beyond in bounds.TABLE)
    return f"""# Bounds

Generated from the table in `orchestrator/core/bounds.py` by `make docs`; do not edit.

What a session, a platform or a store says is checked against limits where it enters: first by the agent, then
again by the controller, because a training script can write into the session's folder too. If something is
outside its limit, only that one thing is lost, and a note in `show` and `why` names it. The rest of the
session is used, and other runs are not affected.

| what | limit | outside it |
|---|---|---|
{rows}

A session's file is read only if it is a plain file and no part of its path is a link. A folder, a link, a
FIFO, a socket, a device or an unreadable file is skipped, with a note. Reading never waits for any of them.

## Disk and log

| option of a platform | default | meaning |
|---|---|---|
| `disk_gb` | 50 | disk space for a session's `work/` and `outbox/`; `needs.disk_gb` if that is more |
| `log_gb` | 0.064 | how much of its log a session keeps: the beginning and the newest part |
| `image_disk_gb` | not bounded | Docker only: what a container writes outside its session folder |

The agent measures every ten seconds what is really on the disk. A session that takes more than its limit is
asked to save and leave; one that takes twice its limit is killed at once. `disk_gb: null` turns this off.

Docker supports `image_disk_gb` on some storage drivers only, such as overlay2 on XFS with `pquota`. With
other drivers the engine refuses to create the container, and the session does not start. Docker keeps up to
20 MB of what a container's agent itself prints. On Kaggle, Kaggle's own limit on output applies.
"""


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

A run is over when it is {final}. These events do not change the phase, so they are not drawn:

| phase | events |
|---|---|
{chr(10).join(rows)}

Possible in every phase: {staying}. Any other event is a bug and raises `IllegalTransition`.
"""


def main() -> int:
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
        print(f"docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
