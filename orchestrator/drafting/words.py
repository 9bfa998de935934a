"""Writes the job file of a script that was read, with comments for the person who completes it. Pure.

Everything that was guessed is marked as such. Must never claim more than was seen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import lcm

from orchestrator.core.save_pattern import SavePattern
from orchestrator.core.wording import help_page
from orchestrator.drafting.arguments import Argument
from orchestrator.drafting.script import BATCH, EPOCHS, STEPS, Framework, Script

FILL_IN = "FILL-IN"
_RESUME = (
    "resume", "resume_from_checkpoint", "resume_from", "resume_path", "ckpt_path", "checkpoint_path",
    "checkpoint", "ckpt", "load_from", "load", "load_checkpoint", "restore",
)  # fmt: skip
_SEED = ("seed", "random_seed", "manual_seed")
_MICRO = ("micro_batch", "micro_batch_size", "per_device_train_batch_size")
_ACCUMULATE = ("gradient_accumulation_steps", "grad_accum", "accumulate", "accumulation_steps", "accum_steps")
_STEPS_GUESSED = 1000
_PLAIN = re.compile(r"[A-Za-z0-9_./=:@%+,{}-]+")
_YAML_PLAIN = re.compile(r"-{0,2}[A-Za-z][A-Za-z0-9_./-]*|\.(?:/[A-Za-z0-9_./-]*)?")
_YAML_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


@dataclass(frozen=True)
class Machine:
    """An accelerator that a profile is written for, with its devices. `why`: where it was found."""

    accelerator: str
    devices: int
    precision: str
    why: str


def job_file(
    script: Script,
    name: str,
    source: str,
    entry: str,
    machines: Sequence[Machine],
    python: str | None = None,
) -> str:
    """The YAML text. `source` is the folder of the code and `entry` the script in it. `python`: an
    environment that is not active."""
    lines = [
        f"# A job for {_comment(entry)}, written by `orchestrator new`, which read it and did not run it.",
        "# Check what is marked GUESSED. Then try it here, before it costs quota:",
        "#   orchestrator rehearse THIS-FILE",
        f"name: {text(name)}",
        f"source: {text(source)}  # goes along, except environments, caches and what .gitignore names",
        *_python(python),
        *_requirements(script),
        *_command(script, entry),
        *_work(script, machines),
        *_checkpoint(script),
        *_outputs(script),
        *_profiles(script, machines),
        *_comments(script),
    ]
    return "\n".join(lines) + "\n"


def _python(environment: str | None) -> list[str]:
    if environment is None:
        return []
    return [f"python: {text(environment)}  # GUESSED: beside the script, not active; only for this machine"]


def lacking(script: Script) -> list[str]:
    """What is missing for a resume, or for an exact one, in sentences."""
    found: list[str] = list(script.warnings)
    found += [
        f"it writes to {each}: only what is at a relative path, without ~ or $, is kept"
        for each in script.saves.elsewhere[:3]
    ]
    if script.uses_helper:
        return found
    if not script.saves.checkpoints:
        found.append("it does not seem to save checkpoints: a session that is cut off starts over")
        return found
    if _resume(script) is None:
        found.append(_how_to_resume(script))
    if script.framework is Framework.PLAIN:
        if script.saves.optimizer is False:
            found.append("the checkpoint does not seem to hold the optimizer's state")
        if not script.random_states:
            found.append(
                "the random states do not seem to be saved: dropout and augmentation differ after a resume"
            )
        if not script.seeds:
            found.append("no seed is set: no two trainings are alike")
        if script.shuffles:
            found.append(
                "a DataLoader shuffles, and its place in the epoch is not saved: `training.loader(…)` does"
            )
    return found


def _how_to_resume(script: Script) -> str:
    match script.framework:
        case Framework.HUGGING_FACE:
            return (
                "it does not take a checkpoint to resume: add an argument for its path, and call "
                "`trainer.train(resume_from_checkpoint=path)`"
            )
        case Framework.LIGHTNING:
            return (
                "it does not take a checkpoint to resume: add an argument for its path, and call "
                "`trainer.fit(…, ckpt_path=path)`"
            )
    where = "a variable in a cell tagged `parameters`" if script.is_notebook else "an argument like --resume"
    lack = "takes no path of a checkpoint" if script.loads else "does not seem to load a checkpoint"
    unless = ", unless it finds its newest by itself" if script.loads and script.looks else ""
    return f"it {lack}: add {where}, and pass {{resume}} to it{unless}"


# --- The lines of the file --------------------------------------------------------------------------------


def _requirements(script: Script) -> Iterator[str]:
    if script.requirements is not None:
        yield f"requirements: {text(script.requirements)}  # for platforms that do not run an image of yours"


def _command(script: Script, entry: str) -> Iterator[str]:
    if script.is_notebook:
        yield "# Its cells are executed one after another; the executed copy is among the outputs."
    for note in script.notes:
        yield f"# {note[0].upper()}{_comment(note[1:])}."
    words = _words(script, f"./{entry}" if entry.startswith("-") else entry)
    if FILL_IN in words:
        yield f"# {FILL_IN}: the script does not start without this value."
    if all(_PLAIN.fullmatch(word) for word in words) and not words[0].startswith("{"):
        yield f"command: {' '.join(words)}"
    else:
        yield f"command: [{', '.join(text(word) for word in words)}]"
    if script.argument(*_SEED) is not None:
        yield "seed: 0"


def _words(script: Script, entry: str) -> list[str]:
    filled: dict[str, str] = {}  # in this order in the command
    pairs = [
        (_course(script).argument, "{steps}"),
        (script.argument(*_SEED), "{seed}"),
        (_resume(script), "{resume}"),
    ]
    if script.argument(*_MICRO) is not None and script.argument(*_ACCUMULATE) is not None:
        pairs += [
            (script.argument(*_MICRO), "{micro_batch}"),
            (script.argument(*_ACCUMULATE), "{accumulate}"),
        ]
    for argument, word in pairs:
        if argument is not None and argument.takes_value:
            filled.setdefault(argument.flag, word)
    words = [] if script.is_notebook else ["python"]
    words.append(entry.replace("{", "{{").replace("}", "}}"))
    for argument in script.arguments:  # positional ones in the script's order
        if not argument.flag.startswith("-") and (argument.required or argument.flag in filled):
            words.append(filled.pop(argument.flag, FILL_IN))
    for flag, word in filled.items():
        words += [flag, word]
    for argument in script.arguments:
        if argument.flag.startswith("-") and argument.required and argument.flag not in filled:
            words += [argument.flag, FILL_IN]
    return words


def _work(script: Script, machines: Sequence[Machine]) -> Iterator[str]:
    course = _course(script)
    total, what = course.total, "epochs, each counted as a step" if course.epochs else "optimizer steps"
    batch = _batch(script)
    yield "work:"
    yield f"  total: {total or _STEPS_GUESSED}  # {what}{'' if total else '; GUESSED'}"
    size = batch or lcm(*(each.devices for each in machines), 1)
    yield f"  global_batch: {size}  # samples per step{'' if batch else '; GUESSED'}"


@dataclass(frozen=True)
class _Course:
    """How the training is counted: in steps or `epochs`, as its checkpoints are. `watch` is their pattern."""

    argument: Argument | None
    total: int | None
    epochs: bool
    watch: str | None = None


def _course(script: Script) -> _Course:
    steps, epochs = script.argument(*STEPS), script.argument(*EPOCHS, "epoch")
    by_steps = _Course(steps, script.steps if steps is None else _natural(steps.default), False)
    by_epochs = _Course(epochs, script.epochs if epochs is None else _natural(epochs.default), True)
    knows_steps, knows_epochs = (each.argument or each.total for each in (by_steps, by_epochs))
    watch = max(script.saves.checkpoints, key=_fitness, default=None)
    if watch is None or ("{step}" not in watch and "{epoch}" not in watch):
        return replace(by_epochs if knows_epochs and not knows_steps else by_steps, watch=watch)
    if "{epoch}" in watch and knows_epochs and not knows_steps:
        return replace(by_epochs, watch=watch.replace("{step}", "*"))
    return replace(by_steps if "{step}" in watch else by_epochs, watch=watch)


def _fitness(watch: str) -> tuple[bool, bool, bool]:
    """How well a training resumes from such files: the best one so far may be far behind."""
    return "{step}" in watch, "{epoch}" in watch, "best" not in watch.lower()


def _batch(script: Script) -> int | None:
    argument = script.argument(*BATCH)
    return script.batch if argument is None else _natural(argument.default)


def _natural(value: str | None) -> int | None:
    if value is None or not value.isascii() or not value.isdecimal() or not 0 < len(value) < 13:
        return None
    return int(value) or None


def _checkpoint(script: Script) -> Iterator[str]:
    if script.uses_helper:
        return
    if not script.saves.checkpoints:
        yield "# No checkpoint was found. If it saves some, say where:"
        yield '# checkpoint: {watch: "checkpoints/ckpt_{step}.pt"}'
        return
    best = _course(script).watch or ""
    yield f"checkpoint: {{watch: {text(best)}}}  # where it saves, as it seems"
    for other in script.saves.checkpoints:
        if other.replace("{step}", "*") != best.replace("{step}", "*"):
            yield f"#   or: {{watch: {text(other)}}}"


def _outputs(script: Script) -> Iterator[str]:
    """What is written for people, and the files that are replaced and not resumed from, such as best.pt."""
    watched = None if script.uses_helper else _course(script).watch
    others = [each for each in script.saves.checkpoints if each != watched and "{" not in each]
    saved = [SavePattern.parse(each) for each in script.saves.checkpoints]
    written = [each for each in script.saves.outputs if not any(each_.match(each) for each_ in saved)]
    wanted = [*others, *written]
    if wanted:
        yield f"outputs: [{', '.join(map(text, wanted))}]  # come home at the end of each session"


def _profiles(script: Script, machines: Sequence[Machine]) -> Iterator[str]:
    """One device takes the whole batch of a step, because an ordinary script does not accumulate."""
    batch = _batch(script) or lcm(*(each.devices for each in machines), 1)
    yield "profiles:  # micro_batch: samples per device and forward pass; precision: what it computes in"
    fit = [each for each in machines if batch % each.devices == 0]
    for each in fit or [Machine("cpu", 1, "fp32", "this machine")]:
        values = f"{{micro_batch: {batch // each.devices}, precision: {each.precision}}}"
        yield f"  {each.accelerator}: {values}  # {_comment(each.why)}"
    for each in machines:
        if each not in fit:
            yield f"  # {each.accelerator} has {each.devices} devices, which do not divide {batch} samples"


def _comments(script: Script) -> Iterator[str]:
    if script.uses_helper:
        yield f"# It uses orchestrator.training, which saves and resumes: see {help_page('training')}."
    missing = lacking(script)
    if missing:
        yield f"# To resume, and to resume exactly ({help_page('any-script')}):"
        for each in missing:
            yield f"# - {_comment(each)}"
    if script.packages and script.requirements is None:
        yield f"# It imports {', '.join(script.packages)}: platforms without these need `requirements: FILE`."


def _resume(script: Script) -> Argument | None:
    found = script.argument(*_RESUME)
    return found if found is not None and found.takes_value else None


def _comment(words: str) -> str:
    """Text that stays within its line."""
    return "".join(each if each.isprintable() else "?" for each in words)


def text(words: str) -> str:
    """Text as YAML: quoted if it needs to be."""
    plain = _YAML_PLAIN.fullmatch(words) is not None and words.lower() not in _YAML_WORDS
    return words if plain else json.dumps(words)
