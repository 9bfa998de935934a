"""What a script saved that looks like a checkpoint and is not taken as one, with the line that would help.

Reads names and times only. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from orchestrator.agent.folder import Folder
from orchestrator.agent.gathering import USELESS, Stamp, files_in
from orchestrator.core import save_pattern
from orchestrator.session.committing import step_of


def overlooked(folder: Folder, before: Mapping[str, Stamp], watch: str | None) -> str:
    """A sentence with the line to add; empty if nothing looks like a checkpoint. `before`: the working
    directory when the command started."""
    saved = _written(folder.checkpoints, {})
    pattern = save_pattern.guess([each for each in saved if not _is_step(folder, each)], in_checkpoints=True)
    if pattern is None:
        saved = _written(folder.source, before)
        pattern = save_pattern.guess(saved)
    if pattern is None or pattern == watch:
        return ""
    found = save_pattern.SavePattern.parse(pattern)
    name = next((each.rstrip("/") for each in reversed(saved) if found.match(each.rstrip("/"))), None)
    if name is None:
        return ""  # its number is too large for a step
    told = f"nothing matches checkpoint.watch {watch!r}; " if watch is not None else ""
    return (
        f"{told}{name!a} is not taken as a checkpoint: to resume from such files, add "
        f'`checkpoint: {{watch: "{pattern}"}}` to the job, and {{resume}} to its command'
    )


def _is_step(folder: Folder, name: str) -> bool:
    """Whether this is, or lies in, a checkpoint by the contract."""
    return step_of(folder.checkpoints / name.split("/")[0]) is not None


def _written(root: Path, before: Mapping[str, Stamp]) -> list[str]:
    """The files that are new or changed, and their folders with a `/` at the end, oldest first. A folder
    comes after what is in it: `checkpoint-500/` says more than a file there."""
    times: dict[str, int] = {}
    for name, stamp in files_in(root, USELESS):
        if before.get(name) != stamp:
            pieces = name.split("/")
            for count in range(1, len(pieces)):
                above = "/".join(pieces[:count]) + "/"
                times[above] = max(times.get(above, 0), stamp[1])
            times[name] = stamp[1]
    return sorted(times, key=lambda name: (times[name], name.endswith("/"), -name.count("/"), name))
