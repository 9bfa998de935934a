"""Where a script saves, as a pattern: from the expressions that name its files. Pure.

`f"{args.out}/ckpt_{epoch}.pt"` becomes `runs/ckpt_{epoch}.pt` if `--out` is `runs` by default. What cannot be
known becomes `*`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from orchestrator.drafting.arguments import last_name

_EPOCH = re.compile(r"(?:^|_)(?:e|ep|epoch|epochs)(?:$|_)", re.IGNORECASE)
_STEP = re.compile(r"(?:^|_)(?:step|steps|it|iter|iteration|i|n|idx|batch)(?:$|_|\d)", re.IGNORECASE)
_JOINING = frozenset({"join", "Path", "PurePath", "PosixPath", "str", "joinpath", "fspath", "abspath"})
UNKNOWN = "*"


def pattern(expression: ast.expr, known: Mapping[str, str]) -> str | None:
    """The pattern of a path; None if nothing of it is known. `known` are values of names and of attributes
    (`args.out`), by their text."""
    text = _text(expression, known)
    text = re.sub(r"\*+", "*", re.sub(r"/+", "/", text)).removeprefix("./")
    return None if not text.strip("*/.") or text.startswith("/") or ".." in text.split("/") else text


def _text(node: ast.expr, known: Mapping[str, str]) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Constant(value=value):
            return str(value)
        case ast.JoinedStr(values=values):
            return "".join(_text(each, known) for each in values)
        case ast.FormattedValue(value=value):
            return _placeholder(value, known)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left, known) + _text(right, known)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return f"{_text(left, known)}/{_text(right, known)}"
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod(), right=right):
            return _percent(text, right, known)
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format"), args=args):
            return _formatted(text, args, known)
        case ast.Call(func=func, args=args) if last_name(func) in _JOINING and args:
            before = [func.value] if isinstance(func, ast.Attribute) and func.attr == "joinpath" else []
            return "/".join(_text(each, known) for each in (*before, *args))
        case ast.Name() | ast.Attribute():
            return _placeholder(node, known)
    return UNKNOWN


def _placeholder(node: ast.expr, known: Mapping[str, str]) -> str:
    """A value in a path: known, or a number that counts, or anything."""
    text = ast.unparse(node)
    if text in known:
        return known[text]
    if isinstance(node, ast.BinOp):  # epoch + 1
        return _placeholder(node.left, known)
    name = text.rpartition(".")[2]
    if _EPOCH.search(name):
        return "{epoch}"
    return "{step}" if _STEP.search(name) else UNKNOWN


def _percent(text: str, right: ast.expr, known: Mapping[str, str]) -> str:
    values = iter(right.elts if isinstance(right, ast.Tuple) else [right])

    def filled(_: re.Match[str]) -> str:
        value = next(values, None)
        return UNKNOWN if value is None else _placeholder(value, known)

    return re.sub(r"%[-0-9.]*[a-z]", filled, text)


def _formatted(text: str, given: list[ast.expr], known: Mapping[str, str]) -> str:
    values = iter(given)

    def filled(match: re.Match[str]) -> str:
        name = match[1]
        value = None if name and not name.isdecimal() else next(values, None)
        if value is not None:
            return _placeholder(value, known)
        return _placeholder(ast.Name(id=name), known) if name.isidentifier() else UNKNOWN

    return re.sub(r"\{(\w*)[^{}]*\}", filled, text)
