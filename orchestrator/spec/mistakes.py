"""Validates a document with a pydantic model: the result is the values, or mistakes in the user's terms.

The text after "valid:" is the field's description in the model's JSON Schema, so that messages, schema and
editors say the same. Must never know particular models.
"""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from orchestrator.core import wording
from orchestrator.errors import SpecError
from orchestrator.spec.document import Document, Path, Problem, dotted, kind, nothings, shown
from orchestrator.spec.fields import NAME, NAME_LENGTH_MAX

Model = TypeVar("Model", bound=BaseModel)
_SUGGESTIONS_MAX = 100
_PLACES_MAX = 3
_FOREIGN_KEYS_MIN, _FOREIGN_SHOWN = 3, 5
_INSTEAD_MAX = 60
_NUMBER = re.compile(r"([0-9][0-9,_' ]*(?:\.[0-9]+)?) ?([A-Za-z]{0,3})")
_THOUSANDS = {"": "", "k": "000", "m": "000000"}
_NOT_IN_NAME = re.compile(r"[^a-z0-9]+")


def validate(
    model: type[Model],
    document: Document,
    checked: Iterable[Problem] = (),
    hints: Mapping[str, str] = MappingProxyType({}),
) -> Model:
    """The document as a model. Raises SpecError with every mistake: of YAML, model and `checked`. `hints` say
    what an unknown key is here, by its name or its path."""
    problems = list(document.problems)
    tree = document.tree
    value: Model | None = None
    if isinstance(tree, dict) and _is_something_else(model, tree):
        raise SpecError(document.mistakes([*problems, _something_else(model, tree)]))
    if isinstance(tree, dict):
        empty, told = _empty(model, tree, document.spoiled)
        problems += told
        silent = document.spoiled | empty
        try:
            value = model.model_validate(tree)
        except ValidationError as error:
            problems += _explain(model, error, silent, hints)
        problems += [problem for problem in checked if not _under(problem.path, silent)]
    elif not problems:
        found = "the file is empty" if tree is None else f"the file holds {shown(tree)}"
        keys = ", ".join(schema_of(model)["properties"])
        problems.append(Problem((), f"{found}; valid: lines `key: value` with the keys {keys}"))
    if problems or value is None:
        raise SpecError(document.mistakes(problems))
    return value


def _is_something_else(model: type[BaseModel], tree: Mapping[str, object]) -> bool:
    """Whether it is a file of another program: of its many keys none is known, or near to one that is."""
    keys = schema_of(model)["properties"]
    known = any(key in keys or wording.did_you_mean(key, keys) for key in tree)
    return len(tree) >= _FOREIGN_KEYS_MIN and not known


def _something_else(model: type[BaseModel], tree: Mapping[str, object]) -> Problem:
    keys = ", ".join(shown(key) for key in list(tree)[:_FOREIGN_SHOWN])
    valid = ", ".join(schema_of(model)["properties"])
    return Problem((), f"none of its keys is known here ({keys}): is this the right file? valid: {valid}")


def _empty(
    model: type[BaseModel], tree: Mapping[str, object], spoiled: Iterable[Path]
) -> tuple[set[Path], list[Problem]]:
    """The paths that have no value, and what is to be said of them."""
    silent: set[Path] = set()
    problems = []
    for path in sorted(set(nothings(tree)) - set(spoiled), key=str):
        around, key = path[:-1], path[-1]
        if _under(path, silent):
            continue
        if _is_placeholder(model, tree, around):
            silent.add(around)
            node = _node(model, around)
            told = f'given {{{key}}} without quotes; write "{{{key}}}"'
            is_text = node.get("type", "string") == "string"
            problems.append(Problem(around, told if is_text else _with_valid(f"given {{{key}}}", node)))
        elif _is_open(model, path):
            continue  # the type of the platform or store says whether null is valid
        elif not _is_unknown(model, path):
            silent.add(path)
            problems.append(_given(model, path, None))
        elif str(key).isdigit():
            silent.add(path)
            problems.append(Problem(path, "a number has no separators for thousands; write 50000 or 50e3"))
    return silent, problems


def _is_unknown(model: type[BaseModel], path: Path) -> bool:
    """Whether this is a key of a mapping that has no such key."""
    around = _node(model, path[:-1])
    return around.get("additionalProperties") is False and path[-1] not in around.get("properties", {})


def _is_open(model: type[BaseModel], path: Path) -> bool:
    """Whether this is a key of a mapping that may have any."""
    around = _node(model, path[:-1])
    return around.get("additionalProperties") is True and path[-1] not in around.get("properties", {})


def _is_placeholder(model: type[BaseModel], tree: object, path: Path) -> bool:
    """Whether the value is a word in braces where no mapping may be: YAML reads `{steps}` as one."""
    for piece in path:
        tree = tree[piece] if isinstance(tree, dict | list) else None  # type: ignore[index]
    mapping = _node(model, path).get("type") == "object"
    return bool(path) and not mapping and isinstance(tree, dict) and len(tree) == 1


def _explain(
    model: type[BaseModel], error: ValidationError, silent: Iterable[Path], hints: Mapping[str, str]
) -> list[Problem]:
    unknown_keys = _UnknownKeys(model, hints)
    problems: list[Problem] = []
    missing: list[Path] = []
    for detail in error.errors(include_url=False):
        path = tuple(piece for piece in detail["loc"] if piece != "[key]")
        if _under(path, silent) or any(each[: len(path)] == path for each in silent):
            continue
        match detail["type"]:
            case "missing":
                missing.append(path)
            case "extra_forbidden":
                problems.append(unknown_keys.told(path))
            case "value_error":
                problems.append(Problem(path, str(detail["ctx"]["error"])))
            case _ if detail["loc"][-1:] == ("[key]",):
                problems.append(Problem(path, f"not a valid name here: {_key_rule(model, path)}"))
            case _:
                problems.append(_given(model, path, detail["input"]))
    return problems + [
        Problem(path, _with_valid("missing", _node(model, path)))
        for path in missing
        if path not in unknown_keys.meant and f"`{dotted(path)}`" not in unknown_keys.hinted
    ]


class _UnknownKeys:
    """Says what an unknown key could be, and the valid keys of a mapping only once."""

    def __init__(self, model: type[BaseModel], hints: Mapping[str, str]) -> None:
        self._model = model
        self._hints = hints
        self._listed: set[Path] = set()
        self._count = 0
        self.meant: set[Path] = set()  # keys that are there under a wrong name
        self.hinted = ""

    def told(self, path: Path) -> Problem:
        *_, key = path
        around = path[:-1]
        keys = list(_node(self._model, around).get("properties", {}))
        self._count += 1
        hint = self._hints.get(dotted(path)) or self._hints.get(str(key))
        if hint:
            self.hinted += hint
            return Problem(path, f"unknown key; {hint}")
        places = [] if self._count > _SUGGESTIONS_MAX else _places(self._model, str(key))
        if places:
            return Problem(path, f"unknown key here; it is valid as {' or '.join(places[:_PLACES_MAX])}")
        again = around in self._listed
        self._listed.add(around)
        near = "".join(wording.nearest(str(key), keys)) if self._count <= _SUGGESTIONS_MAX else ""
        if near:
            self.meant.add((*around, near))
        if again:
            return Problem(path, f"unknown key; did you mean {near!r}?" if near else "unknown key")
        return Problem(path, wording.unknown("key", str(key), keys, suggest=bool(near)))


def _given(model: type[BaseModel], path: Path, value: object) -> Problem:
    node = _node(model, path)
    told = kind(value) if node.get("writeOnly") else shown(value)
    return Problem(path, _with_valid(f"given {told}{_instead(node, value)}", node))


def _instead(node: Mapping[str, Any], value: object) -> str:
    """What to write instead, as far as the value shows what is meant."""
    wanted = node.get("type")
    if wanted == "string" and _bare(value) and "enum" not in node:
        return "; write it in quotes"
    if not isinstance(value, str):
        return ""
    if wanted in ("integer", "number"):
        number = _number(value, whole=wanted == "integer")
        return f"; write {number}" if number else ""
    if wanted == "array":
        hidden = node.get("writeOnly") or len(value) > _INSTEAD_MAX
        return "; write a list, in brackets" if hidden else f"; write {_listed(value)}"
    if near := wording.suggested(value, node.get("enum", ())):
        return near
    if node.get("pattern") == NAME and (
        name := _NOT_IN_NAME.sub("-", value.lower()).strip("-")[:NAME_LENGTH_MAX]
    ):
        return f"; did you mean {name.strip('-')!r}?"
    return ""


def _listed(value: str) -> str:
    """`[results/]`, or `["*.png"]` for what YAML would read as something else."""
    try:
        found = yaml.safe_load(f"[{value}]")
    except yaml.YAMLError:
        found = None
    plain = isinstance(found, list) and all(isinstance(each, str) for each in found)
    return f"[{value}]" if plain else f"[{json.dumps(value, ensure_ascii=False)}]"


def _number(text: str, *, whole: bool) -> str:
    """`50000` for `50k`, `50,000`, `50_000` and `'50000'`, `16` for `16GB`; empty if no number is meant."""
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        return ""
    digits, unit = re.sub(r"[,_' ]", "", found[1]).lstrip("0") or "0", (found[2] or "").lower()
    if whole and unit in _THOUSANDS and "." not in digits:
        return digits + _THOUSANDS[unit]
    return digits if (unit == "" or (not whole and unit.startswith("g"))) else ""


def _bare(value: object) -> bool:
    return isinstance(value, int | float)


def _with_valid(problem: str, node: Mapping[str, Any]) -> str:
    description = node.get("description", "")
    if not description and "properties" in node:
        required = ", ".join(node.get("required", node["properties"]))
        description = f"a mapping with at least {required}"
    return wording.with_valid(problem, description) if description else problem


def _key_rule(model: type[BaseModel], path: Path) -> str:
    rule = _node(model, path[:-1]).get("propertyNames", {})
    return str(rule.get("description") or rule.get("pattern") or "see the schema")


def _under(path: Path, silent: Iterable[Path]) -> bool:
    return any(path[:n] in silent for n in range(1, len(path) + 1))


def unknown(what: str, given: str, valid: Iterable[str]) -> str:
    """Like `wording.unknown`, with the name quoted as in other messages about a document."""
    return wording.unknown(f"{what} {shown(given)}", given, valid)


# --- JSON Schema ----------------------------------------------------------------------------------------


@functools.cache
def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """The model's JSON Schema without parts that mean nothing in a file: titles, nulls and null defaults."""
    tidied = _tidy(copy.deepcopy(model.model_json_schema(by_alias=True)))
    assert isinstance(tidied, dict)
    return tidied


def _tidy(node: Any, *, named: bool = False) -> Any:
    """`named`: the node maps names to schemas, so its keys are not keywords."""
    if isinstance(node, list):
        return [_tidy(item) for item in node]
    if not isinstance(node, dict):
        return node
    result = {
        key: _tidy(value, named=key in ("properties", "$defs", "patternProperties") and not named)
        for key, value in node.items()
        if named or not (key == "title" or (key == "default" and value is None))
    }
    if named or "anyOf" not in result:
        return result
    branches = [branch for branch in result["anyOf"] if branch != {"type": "null"}]
    if len(branches) > 1:
        return result | {"anyOf": branches}
    del result["anyOf"]
    return branches[0] | result


def _node(model: type[BaseModel], path: Path) -> dict[str, Any]:
    """The schema of the value at a path; `{}` if there is none. Everything below a `writeOnly` node is
    `writeOnly` too."""
    root = schema_of(model)
    node: dict[str, Any] = root
    secret = False
    for piece in path:
        node = _follow(root, node)
        secret = secret or bool(node.get("writeOnly"))
        node = _child(node, piece)
    node = _follow(root, node)
    return node | {"writeOnly": True} if secret else node


def _follow(root: Mapping[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    reference = node.get("$ref")
    if reference is None:
        return node
    target: dict[str, Any] = root["$defs"][reference.rsplit("/", 1)[1]]
    return target | {key: value for key, value in node.items() if key != "$ref"}


def _child(node: Mapping[str, Any], piece: str | int) -> dict[str, Any]:
    if isinstance(piece, int):
        child = node.get("items")
    else:
        child = node.get("properties", {}).get(piece)
        for pattern in () if child else node.get("patternProperties", {}).values():
            child = pattern
        child = child or node.get("additionalProperties")
    return child if isinstance(child, dict) else {}


def _places(model: type[BaseModel], key: str) -> list[str]:
    """Where a key of this name is valid, such as `work.total` and `profiles.….precision`."""
    return [".".join((*around, name)) for around, name in _all_keys(model) if name == key]


@functools.cache
def _all_keys(model: type[BaseModel]) -> tuple[tuple[tuple[str, ...], str], ...]:
    root = schema_of(model)
    return tuple(_keys_of(root, root, ()))


def _keys_of(
    root: Mapping[str, Any], node: dict[str, Any], around: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], str]]:
    node = _follow(root, node)
    for name, child in node.get("properties", {}).items():
        yield around, name
        yield from _keys_of(root, child, (*around, name))
    for child, piece in ((node.get("additionalProperties"), "…"), (node.get("items"), "")):
        if isinstance(child, dict):
            yield from _keys_of(root, child, (*around, piece) if piece else around)
