"""Validates a document with a pydantic model: the result is the values, or mistakes in the user's terms.

The text after "valid:" is the field's description in the model's JSON Schema, so that messages, schema and
editors say the same. Must never know particular models.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from orchestrator.core import wording
from orchestrator.errors import SpecError
from orchestrator.spec.document import Document, Path, Problem, kind, nothings, shown

Model = TypeVar("Model", bound=BaseModel)
_SUGGESTIONS_MAX = 100


def validate(model: type[Model], document: Document, checked: Iterable[Problem] = ()) -> Model:
    """The document as a model. Raises SpecError with every mistake: of YAML, model and `checked`."""
    problems = list(document.problems)
    tree = document.tree
    value: Model | None = None
    if isinstance(tree, dict):
        empty = set(nothings(tree)) - document.spoiled
        problems += [_given(model, path, None) for path in sorted(empty, key=str)]
        silent = document.spoiled | empty
        try:
            value = model.model_validate(tree)
        except ValidationError as error:
            problems += _explain(model, error, silent)
        problems += [problem for problem in checked if not _under(problem.path, silent)]
    elif not problems:
        found = "the file is empty" if tree is None else f"the file holds {shown(tree)}"
        keys = ", ".join(schema_of(model)["properties"])
        problems.append(Problem((), f"{found}; valid: a mapping with the keys {keys}"))
    if problems or value is None:
        raise SpecError(document.mistakes(problems))
    return value


def _explain(model: type[BaseModel], error: ValidationError, silent: Iterable[Path]) -> list[Problem]:
    problems: list[Problem] = []
    for detail in error.errors(include_url=False):
        path = tuple(piece for piece in detail["loc"] if piece != "[key]")
        if _under(path, silent):
            continue
        match detail["type"]:
            case "missing":
                problems.append(Problem(path, _with_valid("missing", _node(model, path))))
            case "extra_forbidden":
                keys = list(_node(model, path[:-1]).get("properties", {}))
                suggest = len(problems) < _SUGGESTIONS_MAX
                told = wording.unknown("key", str(path[-1]), keys, suggest=suggest)
                problems.append(Problem(path, told))
            case "value_error":
                problems.append(Problem(path, str(detail["ctx"]["error"])))
            case _ if detail["loc"][-1:] == ("[key]",):
                problems.append(Problem(path, f"not a valid name here: {_key_rule(model, path)}"))
            case _:
                problems.append(_given(model, path, detail["input"]))
    return problems


def _given(model: type[BaseModel], path: Path, value: object) -> Problem:
    node = _node(model, path)
    told = kind(value) if node.get("writeOnly") else shown(value)
    quote = "; write it in quotes" if node.get("type") == "string" and _bare(value) else ""
    return Problem(path, _with_valid(f"given {told}{quote}", node))


def _bare(value: object) -> bool:
    return isinstance(value, int | float)


def _with_valid(problem: str, node: Mapping[str, Any]) -> str:
    description = node.get("description", "")
    return f"{problem}; valid: {description}" if description else problem


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
