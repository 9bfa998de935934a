"""Where and what a script saves: its checkpoints, what they hold, and the files that it writes for people.

Reads the calls of a syntax tree. A file that is saved again and again, or under a number, is a checkpoint;
one that is written once at the end is an output. Must never claim to know what it only guesses.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from orchestrator.core.save_pattern import SavePattern
from orchestrator.drafting.arguments import Function, called, given, last_name
from orchestrator.drafting.paths import pattern

_SAVING = frozenset({
    "save", "save_checkpoint", "save_model", "save_weights", "save_file", "save_state", "savez",
    "savez_compressed", "safe_save",
})  # fmt: skip
_WRITING = frozenset({"savefig", "to_csv", "to_json", "to_parquet", "to_excel", "to_pickle", "savetxt",
                      "imwrite", "write_html", "write_image", "imsave", "save_pretrained"})  # fmt: skip
_OF_PEOPLE = frozenset({".npy", ".npz", ".csv", ".json", ".jsonl", ".txt", ".png", ".jpg", ".jpeg", ".pdf",
                        ".svg", ".gif", ".html", ".onnx", ".parquet", ".log", ".yaml",
                        ".wav", ".mp4"})  # fmt: skip
_OPTIMIZERS = frozenset({"Adam", "AdamW", "SGD", "RMSprop", "Adagrad", "Adadelta", "NAdam", "RAdam", "LBFGS",
                         "Adamax", "Adafactor", "Lion", "AdamW8bit", "Muon"})  # fmt: skip
_NAMED_SO = re.compile(r"optim|(?:^|[^a-z])opt(?:$|[^a-z])", re.IGNORECASE)
_MODULES = frozenset({"gzip", "bz2", "lzma", "io", "codecs", "os"})  # with an `open` of their own
_CALLS_MAX = 4  # a save in a function in a function … in a loop


@dataclass(frozen=True)
class Saves:
    """`checkpoints` and `outputs` are patterns. `elsewhere`: paths of saves that may lie outside the working
    directory. `optimizer`: whether a checkpoint holds the optimizer's state; None: not known, or there is no
    optimizer."""

    checkpoints: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    optimizer: bool | None = None


def saves(tree: ast.Module, known: Mapping[str, str]) -> Saves:
    """What plain code saves. `known`: values of names, by their text."""
    found = _Reading(tree, known)
    for call in sorted(found.calls, key=lambda each: each.lineno):
        found.read(call)
    once = [each for each in found.once if each not in found.again]
    return Saves(
        tuple(dict.fromkeys(found.again)),
        tuple(dict.fromkeys([*found.written, *once])),
        tuple(dict.fromkeys(found.elsewhere)),
        _holds_optimizer(found),
    )


class _Reading:
    """`again` and `once`: what is saved, in a loop or not. `tables`: what is in it."""

    def __init__(self, tree: ast.Module, known: Mapping[str, str]) -> None:
        self.tree, self.known = tree, known
        self.calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        self.parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self.again: list[str] = []
        self.once: list[str] = []
        self.written: list[str] = []
        self.elsewhere: list[str] = []
        self.tables: list[ast.expr] = []

    def read(self, call: ast.Call) -> None:
        name = called(call)
        if name in _SAVING:
            self._saved(call)
        elif name in _WRITING and call.args:
            self._note(self.written, call.args[0])
        elif name in ("open", "write_text", "write_bytes"):
            self._opened(call, name)

    def _saved(self, call: ast.Call) -> None:
        of_torch = ast.unparse(call.func) in ("torch.save", "xm.save", "accelerator.save", "fabric.save")
        if of_torch and call.args:
            self.tables.append(call.args[0])
        places = [*call.args[1:2], *call.args[:1], *(each.value for each in call.keywords)]
        for place in places if not of_torch else places[:1] + [each.value for each in call.keywords]:
            text = self._path(place)
            if text is None:
                continue
            suffix = PurePosixPath(text.replace("{", "").replace("}", "")).suffix
            if not of_torch and (suffix in _OF_PEOPLE or not suffix):
                if suffix:
                    self.written.append(_glob(text))
                return
            numbered = "{step}" in text or "{epoch}" in text
            if numbered or self._repeats(call):
                self.again.append(text)
            else:
                self.once.append(_glob(text))
            return

    def _opened(self, call: ast.Call, name: str) -> None:
        """`open("results/x.json", "w")`, and the methods of a Path. Bytes that are written again and again
        (`pickle.dump(state, open("state.pkl", "wb"))`) are a checkpoint."""
        binary = name == "write_bytes"
        if name == "open":
            method = isinstance(call.func, ast.Attribute)  # Path("x").open("w")
            modes = [*call.args[0 if method else 1 :][:1], given(call, "mode")]
            mode = next((each.value for each in modes if isinstance(each, ast.Constant)), "r")
            if not isinstance(mode, str) or not set(mode) & set("wxa"):
                return
            binary = set("wb") <= set(mode)
        if isinstance(call.func, ast.Attribute) and last_name(call.func.value) not in _MODULES:
            place = call.func.value
        elif call.args:
            place = call.args[0]
        else:
            return
        text = self._path(place) if binary else None
        if text is None or PurePosixPath(text).suffix in _OF_PEOPLE or not self._repeats(call):
            self._note(self.written, place)
        else:
            self.again.append(text)

    def _note(self, into: list[str], place: ast.expr) -> None:
        text = self._path(place, named=False)
        if text is not None:
            into.append(_glob(text))

    def _path(self, place: ast.expr, *, named: bool = True) -> str | None:
        """A relative pattern, or None. An absolute path is noted. `named`: it needs a suffix."""
        if isinstance(place, ast.Name) and place.id not in self.known:
            assigned = self.assigned(place.id)
            place = assigned if isinstance(assigned, ast.JoinedStr | ast.BinOp | ast.Call) else place
        text = pattern(place, self.known)
        if text is None:
            start = _begin(place, self.known)
            if start.startswith("/"):
                self.elsewhere.append(start)
            return None
        return text if (not named or "." in PurePosixPath(text).name) and is_pattern(text) else None

    def assigned(self, name: str) -> ast.expr | None:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and any(
                isinstance(target, ast.Name) and target.id == name for target in node.targets
            ):
                return node.value
        return None

    def _repeats(self, node: ast.AST, depth: int = 0) -> bool:
        """Whether this is in a loop, or in a function that is called in one."""
        while (above := self.parents.get(node)) is not None:
            if isinstance(above, ast.For | ast.AsyncFor | ast.While) and node not in above.orelse:
                return True
            if isinstance(above, Function) and depth < _CALLS_MAX:
                name = above.name
                if any(called(call) == name and self._repeats(call, depth + 1) for call in self.calls):
                    return True
            node = above
        return False


def _holds_optimizer(found: _Reading) -> bool | None:
    """Whether what is saved names an optimizer, or a variable that is one."""
    names = {
        target.id if isinstance(target, ast.Name) else ast.unparse(target)
        for node in ast.walk(found.tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _is_optimizer(node.value)
        for target in node.targets
    }
    whole = []
    for table in found.tables:
        inner = found.assigned(table.id) if isinstance(table, ast.Name) else None
        whole.append(table if inner is None else inner)
        if isinstance(table, ast.Name):  # state["optimizer"] = …
            whole += [
                node
                for node in ast.walk(found.tree)
                if isinstance(node, ast.Subscript) and last_name(node.value) == table.id
            ]
    if not whole or any(isinstance(each, ast.Name) for each in whole):
        return None  # what the variable holds was not seen
    for node in (inner for each in whole for inner in ast.walk(each)):
        match node:
            case ast.Constant(value=str(text)) if _NAMED_SO.search(text):
                return True
            case ast.Name(id=text) | ast.Attribute(attr=text) | ast.keyword(arg=str(text)) if (
                text in names or _NAMED_SO.search(text)
            ):
                return True
            case ast.Attribute() if ast.unparse(node) in names:
                return True
    uses = names or any(_is_optimizer(call) for call in found.calls)
    return False if uses else None


def _is_optimizer(call: ast.Call) -> bool:
    return called(call) in _OPTIMIZERS or ".optim." in f".{ast.unparse(call.func)}"


def _begin(place: ast.expr, known: Mapping[str, str]) -> str:
    """The path as far as its start is known: enough to see that it is absolute."""
    text = pattern(ast.BinOp(ast.Constant("x"), ast.Add(), place), known)
    return "" if text is None else text.removeprefix("x")


def _glob(text: str) -> str:
    return re.sub(r"\*+", "*", re.sub(r"\{(?:step|epoch)\}", "*", text))


def is_pattern(text: str) -> bool:
    try:
        SavePattern.parse(text)
    except ValueError:
        return False
    return True
