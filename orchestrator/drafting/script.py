"""What a script's code says about it: its arguments, how it saves and loads, what it needs.

Reads the syntax tree only. Everything here is a guess for a person to check: it may miss what a script does
in a roundabout way, and says so by saying nothing.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from orchestrator.core.job import Precision
from orchestrator.core.notebook import SUFFIX
from orchestrator.drafting import cells
from orchestrator.drafting.arguments import Argument, arguments, called, given
from orchestrator.drafting.cells import Code
from orchestrator.drafting.paths import pattern
from orchestrator.drafting.saving import Saves, is_pattern, saves
from orchestrator.errors import InputError
from orchestrator.files import open_own

BYTES_MAX = 10_000_000
_LOCAL_MAX = 5_000
_TPU = frozenset({"torch_xla", "jax", "flax", "tensorflow", "keras"})
# Names of arguments, keywords of a call and constants.
STEPS = (
    "max_steps", "num_steps", "n_steps", "total_steps", "train_steps", "steps", "max_iters", "num_iters",
    "n_iters", "iters", "iterations",
)  # fmt: skip
EPOCHS = ("num_train_epochs", "max_epochs", "num_epochs", "n_epochs", "epochs")
BATCH = ("per_device_train_batch_size", "train_batch_size", "batch_size", "batch", "bs")
_SEEDING = frozenset({"manual_seed", "seed", "set_seed", "seed_everything", "PRNGKey"})
_GENERATORS = frozenset({"default_rng", "RandomState", "SeedSequence", "Random"})
_FINDING = frozenset(
    {"glob", "iglob", "rglob", "listdir", "scandir", "iterdir", "exists", "isfile", "is_file"}
)


class Framework(StrEnum):
    PLAIN = "plain"
    HUGGING_FACE = "Hugging Face Trainer"
    LIGHTNING = "Lightning"


@dataclass(frozen=True)
class Script:
    """What was found. `saves` are its checkpoints and outputs. `steps`, `epochs` and `batch`: numbers that
    stand in the code and not among its arguments. `packages`: what it imports that neither Python nor its
    folder has. `looks`: it may find what it loads by itself. `notes`: what the command may lack, and
    `warnings`: what does not work in a session, as sentences. `requirements`: the file beside it."""

    path: Path
    framework: Framework = Framework.PLAIN
    arguments: tuple[Argument, ...] = ()
    saves: Saves = field(default_factory=Saves)
    steps: int | None = None
    epochs: int | None = None
    batch: int | None = None
    precision: Precision = Precision.FP32
    loads: bool = False
    looks: bool = False
    shuffles: bool = False
    seeds: bool = False
    random_states: bool = False
    uses_helper: bool = False
    packages: tuple[str, ...] = ()
    requirements: str | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def is_notebook(self) -> bool:
        return self.path.suffix == SUFFIX

    @property
    def runs_on_tpu(self) -> bool:
        return not _TPU.isdisjoint(self.packages)

    def argument(self, *names: str) -> Argument | None:
        """The first argument with one of these names."""
        by_name = {each.name: each for each in self.arguments}
        return next((by_name[name] for name in names if name in by_name), None)


def read(path: Path) -> Script:
    """Raises InputError if the file is no script or notebook that can be read."""
    if path.suffix not in (".py", SUFFIX):
        what = "is a folder: give" if path.is_dir() else "give"
        raise InputError(f"{path}: {what} a Python script (.py) or a notebook ({SUFFIX})")
    try:
        with open_own(path) as stream:
            data = stream.read(BYTES_MAX + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    if len(data) > BYTES_MAX:
        raise InputError(f"{path}: larger than {BYTES_MAX // 1_000_000} MB; is it a script?")
    try:
        code = cells.of_notebook(data) if path.suffix == SUFFIX else cells.of_script(data)
        return _Reading(path, code).script()
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    except RecursionError as error:
        raise InputError(f"{path}: too deeply nested to be read") from error


class _Reading:
    """One pass over a script's calls."""

    def __init__(self, path: Path, code: Code) -> None:
        self._path, self._code, self._tree = path, code, code.tree
        self._calls = [node for node in ast.walk(code.tree) if isinstance(node, ast.Call)]
        self._names = {called(call) for call in self._calls}
        self._imports = set(_imported(code.tree))
        self._tops = {name.partition(".")[0] for name in self._imports}
        self._arguments = arguments(code.tree, code.parameters)
        self._known = _constants(code.tree, self._arguments)
        self._text = ast.unparse(code.tree)

    def script(self) -> Script:
        framework = self._framework()
        folder = self._path.absolute().parent
        listed = folder / "requirements.txt"
        return Script(
            self._path,
            framework,
            tuple(self._arguments),
            self._saves(framework),
            steps=self._number(*STEPS),
            epochs=self._number(*EPOCHS),
            batch=self._number(*BATCH),
            precision=self._precision(),
            loads=bool({"load", "load_state_dict", "load_checkpoint", "load_state"} & self._names)
            or "resume_from_checkpoint" in self._text
            or "ckpt_path" in self._text,
            looks=not _FINDING.isdisjoint(self._names),
            shuffles=any(
                called(call) == "DataLoader"
                and isinstance(value := given(call, "shuffle"), ast.Constant)
                and value.value is True
                for call in self._calls
            ),
            seeds=not _SEEDING.isdisjoint(self._names)
            or any(called(call) in _GENERATORS and (call.args or call.keywords) for call in self._calls),
            random_states="rng_state" in self._text or "getstate" in self._text,
            uses_helper="orchestrator" in self._tops,
            packages=tuple(
                sorted(self._tops - _local(folder) - set(sys.stdlib_module_names) - {"", "orchestrator"})
            ),
            requirements=listed.name if listed.is_file() else None,
            notes=tuple(self._notes()),
            warnings=tuple(self._warnings()),
        )

    def _framework(self) -> Framework:
        trainer = any(name.endswith("Trainer") for name in self._names)
        if trainer and {"lightning", "pytorch_lightning"} & self._tops:
            return Framework.LIGHTNING
        return Framework.HUGGING_FACE if trainer and "transformers" in self._tops else Framework.PLAIN

    def _saves(self, framework: Framework) -> Saves:
        plain = saves(self._tree, self._known)
        if framework is Framework.PLAIN:
            return plain
        all_own = self._hugging_face() if framework is Framework.HUGGING_FACE else self._lightning()
        own = tuple(each for each in all_own if is_pattern(each))
        elsewhere = tuple(each for each in all_own if each not in own)
        others = tuple(each for each in (*plain.outputs, *plain.checkpoints) if each not in all_own)
        others = tuple(re.sub(r"\{\w+\}", "*", each) for each in others)
        return Saves(own, others, (*elsewhere, *plain.elsewhere))

    def _hugging_face(self) -> tuple[str, ...]:
        for call in self._calls:
            if called(call).endswith("TrainingArguments"):
                strategy = given(call, "save_strategy")
                if isinstance(strategy, ast.Constant) and strategy.value == "no":
                    return ()
                place = given(call, "output_dir") or (call.args[0] if call.args else None)
                if place is not None and (folder := pattern(place, self._known)):
                    return (f"{folder}/checkpoint-{{step}}",)
        return ("*/checkpoint-{step}",)

    def _lightning(self) -> tuple[str, ...]:
        for call in self._calls:
            if called(call) == "ModelCheckpoint":
                place, name = given(call, "dirpath"), given(call, "filename")
                folder = None if place is None else pattern(place, self._known)
                text = name.value if isinstance(name, ast.Constant) else "{epoch}-{step}"
                filled = re.sub(r"(\w+=)?\{(\w+)[^{}]*\}", _of_lightning, str(text))
                return (f"{folder or 'lightning_logs/version_*/checkpoints'}/{filled}.ckpt",)
        return ("lightning_logs/version_*/checkpoints/epoch={epoch}-step={step}.ckpt",)

    def _number(self, *keywords: str) -> int | None:
        """A number that the code gives to one of these keywords, or as a constant of that name."""
        for keyword in keywords:
            for call in self._calls:
                value = given(call, keyword)
                if isinstance(value, ast.Constant) and type(value.value) is int and value.value > 0:
                    return value.value
            text = self._known.get(keyword, self._known.get(keyword.upper(), ""))
            if text.isdecimal() and int(text):
                return int(text)
        return None

    def _precision(self) -> Precision:
        text = self._text.lower()
        if "bf16" in text or "bfloat16" in text:
            return Precision.BF16
        half = ("fp16", "float16", "gradscaler", "16-mixed", "autocast")
        return Precision.FP16 if any(each in text for each in half) else Precision.FP32

    def _notes(self) -> Iterator[str]:
        yield from self._code.unread
        if "hydra" in self._tops:
            yield "its configuration comes from hydra and was not read: add what differs, such as key=value"
        for package in ("simple_parsing", "tyro", "jsonargparse"):
            if package in self._tops:
                yield f"its arguments come from {package} and were not read: complete the command"
        if not self._arguments and re.search(r"\bsys\.argv\b|\bargv\[", self._text):
            yield "it reads sys.argv: complete the command"

    def _warnings(self) -> Iterator[str]:
        if "google" in self._tops and "google.colab" in self._text:
            yield "google.colab does not work in a job: there is no browser; use `inputs` for data"
        if "input" in self._names and any(ast.unparse(call.func) == "input" for call in self._calls):
            yield "it calls input(), which fails in a job: nobody is there to answer"


def _of_lightning(match: re.Match[str]) -> str:
    """`{epoch}` → `epoch={epoch}`, as Lightning writes it; what is no number of ours becomes `*`."""
    before, name = match[1] or f"{match[2]}=", match[2]
    return f"{before}{{{name}}}" if name in ("epoch", "step") else f"{before}*"


def _constants(tree: ast.Module, found_arguments: list[Argument]) -> Mapping[str, str]:
    """The values of names that are assigned once, and of arguments by `args.name`."""
    found: dict[str, str] = {}
    many: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            name, value = ast.unparse(node.targets[0]), node.value
            many |= {name} & found.keys()
            if isinstance(value, ast.Constant) and isinstance(value.value, str | int):
                found[name] = str(value.value)
            elif isinstance(value, ast.Call | ast.BinOp | ast.JoinedStr):
                text = pattern(value, found)
                if text is not None and "{" not in text:
                    found[name] = text
    arguments_by_name = {each.name: each.default for each in found_arguments if each.default}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            default = arguments_by_name.get(node.attr.lower())
            found |= {} if default is None else {ast.unparse(node): default}
    parameters = {
        each.arg for node in ast.walk(tree) if isinstance(node, ast.arguments) for each in node.args
    }
    for name in parameters & arguments_by_name.keys():
        found.setdefault(name, str(arguments_by_name[name]))
    return {name: text for name, text in found.items() if name not in many}


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def _local(folder: Path) -> set[str]:
    """The modules and packages beside the script."""
    found = set()
    for number, path in enumerate(folder.iterdir()):
        if number > _LOCAL_MAX:
            break
        if path.suffix == ".py" or path.is_dir():
            found.add(path.stem)
    return found
