"""Writes the job file of a script that was read, with comments for the person who completes it. Pure.

Everything that was guessed is marked as such. Must never claim more than was seen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from orchestrator.core.save_pattern import SavePattern
from orchestrator.drafting.script import Argument, Framework, Script

_RESUME = (
    "resume", "resume_from_checkpoint", "resume_from", "ckpt_path", "checkpoint_path", "checkpoint", "ckpt",
    "load_from", "load",
)  # fmt: skip
_STEPS = (
    "steps",
    "max_steps",
    "num_steps",
    "total_steps",
    "train_steps",
    "iterations",
    "max_iters",
    "iters",
    "n_steps",
)
_EPOCHS = ("epochs", "num_epochs", "max_epochs", "num_train_epochs", "n_epochs", "epoch")
_SEED = ("seed", "random_seed", "manual_seed")
_BATCH = ("batch_size", "batch", "bs", "train_batch_size", "per_device_train_batch_size")
_OPTIMIZER = re.compile(r"optim|\bopt\b", re.IGNORECASE)
_STEPS_GUESSED = 1000
_WRAP = 100


@dataclass(frozen=True)
class Machine:
    """An accelerator that a profile is written for. `why`: where it was found."""

    accelerator: str
    precision: str
    why: str


def job_file(script: Script, name: str, source: str, entry: str, machines: Sequence[Machine]) -> str:
    """The YAML text. `source` is the folder of the code and `entry` the script in it."""
    lines = [
        f"# A job for {entry}, written by `orchestrator new`. What is marked with GUESSED is to be checked.",
        "# Try it here before it costs quota: orchestrator rehearse <this file>",
        f"name: {name}",
        f"source: {_text(source)}",
        *_command(script, entry),
        *_work(script),
        *_checkpoint(script),
        *_outputs(script),
        *_profiles(machines),
        *_comments(script),
    ]
    return "\n".join(lines) + "\n"


def lacking(script: Script) -> list[str]:
    """What is missing for a resume, or for an exact one, in sentences."""
    found: list[str] = []
    if script.uses_helper:
        return found
    if not script.saves:
        found.append("it does not seem to save a checkpoint: a session that is cut off starts over")
        return found
    if not script.loads or (_resume(script) is None and script.framework is Framework.PLAIN):
        found.append("no argument for a checkpoint to resume was found: add one, and pass {resume} to it")
    if script.framework is Framework.PLAIN:
        if script.keys is not None and not any(_OPTIMIZER.search(key) for key in script.keys):
            found.append("the checkpoint does not seem to hold the optimizer's state")
        if not script.random_states:
            found.append("the random states are not saved: dropout and augmentation differ after a resume")
        if not script.seeds:
            found.append("no seed is set: no two trainings are alike")
    if script.shuffles:
        found.append(
            "a DataLoader shuffles, and its place in the epoch is not saved: `training.loader(…)` does that"
        )
    return found


def _command(script: Script, entry: str) -> Iterator[str]:
    words = ["python", entry]
    for argument, word in (
        (_count(script), "{steps}"),
        (script.argument(*_SEED), "{seed}"),
        (_resume(script), "{resume}"),
    ):
        if argument is not None:
            words += [argument.flag, word] if argument.flag.startswith("-") else [word]
    if script.is_notebook:
        yield "# The notebook is executed cell by cell; the executed copy is among the outputs."
        words = [entry]
    for note in script.notes:
        yield f"# {note[0].upper()}{note[1:]}."
    yield f"command: {' '.join(words)}"
    if script.argument(*_SEED) is not None:
        yield "seed: 0"


def _work(script: Script) -> Iterator[str]:
    argument = _count(script)
    epochs = argument is not None and argument.name in _EPOCHS
    default = argument.default if argument is not None else None
    total = int(default) if default is not None and default.isdecimal() and int(default) else _STEPS_GUESSED
    what = "epochs, each counted as a step" if epochs else "optimizer steps"
    guessed = "" if total != _STEPS_GUESSED or default == str(_STEPS_GUESSED) else "  GUESSED"
    batch = script.argument(*_BATCH)
    size = batch.default if batch is not None and (batch.default or "").isdecimal() else None
    yield "work:"
    yield f"  total: {total}  # {what}{guessed}"
    yield f"  global_batch: {size or 1}  # samples per step{'' if size else '  GUESSED'}"


def _checkpoint(script: Script) -> Iterator[str]:
    if script.uses_helper:
        return
    if not script.saves:
        yield "# No checkpoint was found. If it saves some, say where:"
        yield '# checkpoint: {watch: "checkpoints/ckpt_{step}.pt"}'
        return
    best = max(script.saves, key=_numbered)
    yield f"checkpoint: {{watch: {_text(best)}}}  # where it saves, as it seems"
    for other in script.saves:
        if other != best:
            yield f"#   or: {{watch: {_text(other)}}}"


def _numbered(pattern: str) -> tuple[bool, bool]:
    return "{step}" in pattern, "{epoch}" in pattern


def _outputs(script: Script) -> Iterator[str]:
    saved = [SavePattern.parse(each) for each in script.saves]
    wanted = [each for each in script.outputs if not any(pattern.match(each) for pattern in saved)]
    if wanted:
        yield f"outputs: [{', '.join(map(_text, wanted))}]  # come home at the end of each session"


def _profiles(machines: Sequence[Machine]) -> Iterator[str]:
    yield "profiles:  # micro_batch: samples per device and forward pass"
    for each in machines:
        yield f"  {each.accelerator}: {{micro_batch: 1, precision: {each.precision}}}  # {each.why}"


def _comments(script: Script) -> Iterator[str]:
    missing = lacking(script)
    if missing:
        yield "# For an exact resume (docs/any-script.md):"
        for each in missing:
            yield f"# - {each}"
    if script.packages:
        yield f"# It imports: {', '.join(script.packages)}. Platforms without these need `requirements:`."


def _count(script: Script) -> Argument | None:
    return script.argument(*_STEPS) or script.argument(*_EPOCHS)


def _resume(script: Script) -> Argument | None:
    found = script.argument(*_RESUME)
    return found if found is not None and found.takes_value else None


def _text(text: str) -> str:
    """Text as YAML: quoted if it needs to be."""
    plain = re.fullmatch(r"[A-Za-z0-9_./-]+", text) is not None and PurePosixPath(text).name not in ("", "~")
    return text if plain else json.dumps(text, ensure_ascii=False)
