"""Writes the pages of docs/ that are drawn from code; tests/test_docs.py fails where one is out of date."""

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

What a session, a platform or a store says is bounded where it enters, by its agent and again by the
controller: a training script may write into the session's folder, too. What is beyond a bound costs that one
thing and a note in `show` and `why` that names it. The rest of the session is used, and no other run notices.

| what | limit | beyond it |
|---|---|---|
{rows}

A file of a session is read only where it is a plain file, reached through no link. A folder, a link, a FIFO,
a socket, a device, or a file that may not be read is left alone, with a note. Nothing is waited for.

## Disk and log

| option of a platform | default | meaning |
|---|---|---|
| `disk_gb` | 50 | disk that `work/` and `outbox/` of a session may take; `needs.disk_gb` where that is more |
| `log_gb` | 0.064 | what a session keeps of its log: how it began, and the newest |
| `image_disk_gb` | not bounded | Docker only: what a container writes outside its session folder |

The agent looks every ten seconds at what is really on the disk. A session that takes more than it may is
asked to save and leave, and is killed at once where it takes twice that. `disk_gb: null` turns this off.
Docker bounds `image_disk_gb` on some storage drivers only, as overlay2 where its folder is on XFS with
`pquota`. On the others the engine refuses to make the container, and the session does not start.
What a container's agent itself prints is kept up to 20 MB. A Kaggle kernel has Kaggle's own limit on output.
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
