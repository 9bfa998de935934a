"""What a script's code says about it: its arguments, how it saves and loads, what it needs.

Reads the syntax tree only. Everything here is a guess for a person to check: it may miss what a script does
in a roundabout way, and says so by saying nothing.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from orchestrator.core.save_pattern import SavePattern
from orchestrator.drafting.paths import pattern
from orchestrator.errors import InputError

BYTES_MAX = 10_000_000
_MAGIC = re.compile(r"^\s*[%!?].*$", re.MULTILINE)
_LOCAL_MAX = 5_000


class Framework(StrEnum):
    PLAIN = "plain"
    HUGGING_FACE = "Hugging Face Trainer"
    LIGHTNING = "Lightning"


@dataclass(frozen=True)
class Argument:
    """One command-line argument. `flag` is its longest name, such as `--epochs`; `default` its text."""

    flag: str
    default: str | None = None
    takes_value: bool = True

    @property
    def name(self) -> str:
        return self.flag.lstrip("-").replace("-", "_").lower()


@dataclass(frozen=True)
class Script:
    """What was found. `saves` are patterns of files that it saves, `keys` what it puts into a checkpoint
    (None: not known), `outputs` patterns of other files that it writes. `packages`: what it imports that
    neither Python nor its folder has. `notes`: what could not be read."""

    path: Path
    framework: Framework = Framework.PLAIN
    arguments: tuple[Argument, ...] = ()
    saves: tuple[str, ...] = ()
    keys: frozenset[str] | None = None
    loads: bool = False
    shuffles: bool = False
    seeds: bool = False
    random_states: bool = False
    listens: bool = False
    uses_helper: bool = False
    outputs: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_notebook(self) -> bool:
        return self.path.suffix == ".ipynb"

    def argument(self, *names: str) -> Argument | None:
        """The first argument with one of these names."""
        by_name = {each.name: each for each in self.arguments}
        return next((by_name[name] for name in names if name in by_name), None)


def read(path: Path) -> Script:
    """Raises InputError if the file is no script or notebook that can be read."""
    try:
        data = path.read_bytes()[: BYTES_MAX + 1]
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    if len(data) > BYTES_MAX:
        raise InputError(f"{path}: larger than {BYTES_MAX // 1_000_000} MB; is it a script?")
    if path.suffix not in (".py", ".ipynb"):
        raise InputError(f"{path}: give a Python script (.py) or a notebook (.ipynb)")
    text = _cells(path, data) if path.suffix == ".ipynb" else data.decode("utf-8", "replace")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        raise InputError(f"{path}:{line or 1}: not valid Python: {error}") from error
    return _Reading(path, tree).script()


def _cells(path: Path, data: bytes) -> str:
    """The code of a notebook, without what only IPython understands."""
    try:
        cells = json.loads(data)["cells"]
        sources = [each["source"] for each in cells if each["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a notebook: {error}") from error
    return _MAGIC.sub("", "\n".join(each if isinstance(each, str) else "".join(each) for each in sources))


class _Reading:
    """One pass over a script's calls."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self._path, self._tree = path, tree
        self._calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        self._names = {_called(call) for call in self._calls}
        self._imports = set(_imported(tree))
        self._arguments = tuple(_arguments(self._calls))
        self._known = self._constants()

    def script(self) -> Script:
        tops = {name.partition(".")[0] for name in self._imports}
        framework = self._framework(tops)
        keys = self._keys()
        text = ast.unparse(self._tree)
        return Script(
            self._path,
            framework,
            self._arguments,
            tuple(self._saves(framework)),
            keys,
            loads=bool({"load", "load_state_dict", "load_checkpoint"} & self._names)
            or "resume_from_checkpoint" in text
            or "ckpt_path" in text,
            shuffles=any(
                _called(call) == "DataLoader" and _given(call, "shuffle") == "True" for call in self._calls
            ),
            seeds=bool({"manual_seed", "seed", "set_seed", "seed_everything"} & self._names),
            random_states="rng_state" in text or "getstate" in text,
            listens="SIGTERM" in text,
            uses_helper="orchestrator.training" in self._imports or "orchestrator" in tops,
            outputs=tuple(self._outputs()),
            packages=tuple(sorted(tops - _local(self._path.parent) - set(sys.stdlib_module_names))),
            notes=tuple(self._notes(tops)),
        )

    def _framework(self, tops: set[str]) -> Framework:
        if "Trainer" in self._names or "Seq2SeqTrainer" in self._names:
            if {"lightning", "pytorch_lightning"} & tops:
                return Framework.LIGHTNING
            if "transformers" in tops:
                return Framework.HUGGING_FACE
        return Framework.PLAIN

    def _constants(self) -> dict[str, str]:
        """The values of names that are assigned once, and of arguments by `args.name`."""
        found: dict[str, str] = {}
        many: set[str] = set()
        for node in ast.walk(self._tree):
            if (
                isinstance(node, ast.Assign)
                and len(node.targets) == 1
                and isinstance(node.targets[0], ast.Name)
            ):
                name = node.targets[0].id
                many |= {name} & found.keys()
                if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                    found[name] = node.value.value
                elif isinstance(node.value, ast.Call) and (text := pattern(node.value, found)) is not None:
                    found[name] = text
        given = {each.name: each.default for each in self._arguments if each.default}
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Attribute) and node.attr in given and isinstance(node.value, ast.Name):
                found[ast.unparse(node)] = str(given[node.attr])
        return {name: text for name, text in found.items() if name not in many}

    def _saves(self, framework: Framework) -> Iterator[str]:
        if framework is Framework.HUGGING_FACE:
            folder = next((text for call in self._calls if (text := self._path_of(call, "output_dir"))), "*")
            yield f"{folder}/checkpoint-{{step}}"
            return
        if framework is Framework.LIGHTNING:
            yield self._lightning()
            return
        seen = set()
        for call in self._calls:
            if _called(call) not in ("save", "save_checkpoint", "save_model", "save_weights", "save_file"):
                continue
            places = [
                *call.args[1:2],
                *call.args[:1],
                *(each.value for each in call.keywords if each.arg == "f"),
            ]
            for place in places:
                text = pattern(place, self._known)
                if text is not None and "." in text and text not in seen and _is_pattern(text):
                    seen.add(text)
                    yield text
                    break

    def _lightning(self) -> str:
        for call in self._calls:
            if _called(call) == "ModelCheckpoint":
                folder = self._path_of(call, "dirpath") or "lightning_logs/version_*/checkpoints"
                name = _given(call, "filename") or "{epoch}-{step}"
                filled = re.sub(r"\{(epoch|step)[^}]*\}", r"\1={\1}", name.strip("'\""))
                filled = re.sub(r"\{(?!epoch\}|step\})([^}:]*)[^}]*\}", r"\1=*", filled)
                return f"{folder}/{filled}.ckpt"
        return "lightning_logs/version_*/checkpoints/epoch={epoch}-step={step}.ckpt"

    def _path_of(self, call: ast.Call, keyword: str) -> str | None:
        value = next((each.value for each in call.keywords if each.arg == keyword), None)
        return None if value is None else pattern(value, self._known)

    def _keys(self) -> frozenset[str] | None:
        """The keys of the mappings that it saves."""
        found: set[str] = set()
        for call in self._calls:
            if _called(call) == "save" and call.args:
                table = call.args[0]
                if isinstance(table, ast.Name):
                    table = self._assigned(table.id) or table
                if isinstance(table, ast.Dict):
                    found |= {str(key.value) for key in table.keys if isinstance(key, ast.Constant)}
                    found |= {ast.unparse(value) for value in table.values}
        return frozenset(found) if found else None

    def _assigned(self, name: str) -> ast.expr | None:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Assign) and any(
                isinstance(t, ast.Name) and t.id == name for t in node.targets
            ):
                return node.value
        return None

    def _outputs(self) -> Iterator[str]:
        """Files that it writes for people."""
        seen = set()
        for call in self._calls:
            if (
                _called(call) in ("savefig", "to_csv", "to_json", "to_parquet", "savetxt", "imwrite")
                and call.args
            ):
                text = pattern(call.args[0], self._known)
                if text is not None:
                    text = re.sub(r"\{(?:step|epoch)\}", "*", text)
                    if text not in seen:
                        seen.add(text)
                        yield text

    def _notes(self, tops: set[str]) -> Iterator[str]:
        for package, what in (
            ("hydra", "its configuration"),
            ("fire", "its arguments"),
            ("typer", "its arguments"),
        ):
            if package in tops:
                yield f"{what} come from {package}, which was not read: complete the command"
        if "HfArgumentParser" in self._names:
            yield "its arguments come from data classes, which were not read: complete the command"
        if not self._arguments and "argv" in {
            node.attr for node in ast.walk(self._tree) if isinstance(node, ast.Attribute)
        }:
            yield "it reads sys.argv: complete the command"


def _is_pattern(text: str) -> bool:
    try:
        SavePattern.parse(text)
    except ValueError:
        return False
    return True


def _called(call: ast.Call) -> str:
    """The last name of what is called."""
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def _given(call: ast.Call, keyword: str) -> str | None:
    """A keyword argument, as it is written."""
    return next((ast.unparse(each.value) for each in call.keywords if each.arg == keyword), None)


def _arguments(calls: list[ast.Call]) -> Iterator[Argument]:
    """Those of argparse and click."""
    for call in calls:
        if _called(call) not in ("add_argument", "option", "argument"):
            continue
        flags = [
            each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)
        ]
        if not flags or (_called(call) == "argument" and not flags[0].isidentifier()):
            continue
        flag = max(flags, key=lambda each: (each.startswith("--"), len(each)))
        value = next((each.value for each in call.keywords if each.arg == "default"), None)
        default = str(value.value) if isinstance(value, ast.Constant) and value.value is not None else None
        action = _given(call, "action") or ""
        takes = (
            "store_true" not in action and "store_false" not in action and _given(call, "is_flag") != "True"
        )
        yield Argument(flag, default, takes)


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
