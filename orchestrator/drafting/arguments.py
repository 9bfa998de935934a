"""The command-line arguments that a script takes, as far as its code says so.

Knows argparse, click, typer, fire, absl and Hugging Face's data classes. Must never call any of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Argument:
    """One command-line argument. `flag` is its longest name, such as `--epochs`, or the bare name of a
    positional one; `default` its text. `required`: the script does not start without it."""

    flag: str
    default: str | None = None
    takes_value: bool = True
    required: bool = False

    @property
    def name(self) -> str:
        return self.flag.lstrip("-").replace("-", "_").lower()


def arguments(tree: ast.Module, parameters: Mapping[str, ast.expr] | None) -> list[Argument]:
    """All arguments, in the order of the code. `parameters` are those of a notebook, which has no others
    then."""
    if parameters is not None:
        return [Argument(f"--{name}", _text(value)) for name, value in parameters.items()]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    found = [*_declared(calls), *_of_functions(tree, calls), *_of_data_classes(tree, calls)]
    return list({each.flag: each for each in reversed(found)}.values())[::-1]


def called(call: ast.Call) -> str:
    """The last name of what is called."""
    return last_name(call.func)


def last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def given(call: ast.Call, keyword: str) -> ast.expr | None:
    return next((each.value for each in call.keywords if each.arg == keyword), None)


def _declared(calls: Iterable[ast.Call]) -> Iterator[Argument]:
    """Those of argparse, click and absl, one call for each."""
    for call in calls:
        kind = called(call)
        if kind.startswith("DEFINE_") and len(call.args) > 1:
            yield Argument(f"--{_text(call.args[0])}", _text(call.args[1]), kind != "DEFINE_bool")
        if kind not in ("add_argument", "option", "argument"):
            continue
        words = (each.value for each in call.args if isinstance(each, ast.Constant))
        flags = [each.split("/")[0] for each in words if isinstance(each, str)]
        if flags and (kind != "argument" or flags[0].isidentifier()):
            flag = max(flags, key=lambda each: (each.startswith("--"), len(each)))
            yield _argument(call, flag, click=kind != "add_argument")


def _argument(call: ast.Call, flag: str, *, click: bool) -> Argument:
    action, is_flag = _text(given(call, "action")), _text(given(call, "is_flag"))
    default, count = given(call, "default"), _text(given(call, "nargs"))
    takes = (
        action in (None, "store", "append", "extend")
        and is_flag != "True"
        and "/" not in str(_text(call.args[0]) if click else "")
    )
    needed = _text(given(call, "required")) == "True"
    if not flag.startswith("-"):
        optional = count in ("?", "*", "-1") or (click and _text(given(call, "required")) == "False")
        needed = default is None and not optional
    return Argument(flag, _text(default), takes, needed and takes)


def _of_functions(tree: ast.Module, calls: Iterable[ast.Call]) -> Iterator[Argument]:
    """Those of typer and fire: the parameters of a function."""
    named = {
        last_name(call.args[0]): called(call) == "Fire"
        for call in calls
        if call.args and (called(call) == "Fire" or ast.unparse(call.func) in ("typer.run", "run"))
    }
    for node in ast.walk(tree):
        if not isinstance(node, Function):
            continue
        decorators = [called(each) for each in node.decorator_list if isinstance(each, ast.Call)]
        of_click = not {"option", "argument"}.isdisjoint(decorators)
        of_typer = not of_click and any(_is_command(each) for each in node.decorator_list)
        if node.name in named or of_typer:
            yield from _parameters(node, dashes=not named.get(node.name, False))


def _is_command(decorator: ast.expr) -> bool:
    """`@app.command()` of typer; click's has its options in decorators of their own."""
    func = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(func, ast.Attribute) and func.attr == "command" and last_name(func.value) != "click"


def _parameters(node: Function, *, dashes: bool) -> Iterator[Argument]:
    positional = [*node.args.posonlyargs, *node.args.args]
    missing = [None] * (len(positional) - len(node.args.defaults))
    pairs = [
        *zip(positional, [*missing, *node.args.defaults], strict=True),
        *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True),
    ]
    for each, default in pairs:
        if isinstance(default, ast.Call):  # typer.Option(10, help="…")
            inner = default.args[0] if default.args else given(default, "default")
            is_option = called(default) == "Option"
        else:
            inner, is_option = default, default is not None
        none = inner is None or (isinstance(inner, ast.Constant) and inner.value is ...)
        name = each.arg.replace("_", "-") if dashes else each.arg
        flag = f"--{name}" if is_option else name
        is_bool = isinstance(inner, ast.Constant) and isinstance(inner.value, bool) and dashes
        yield Argument(flag, None if none else _text(inner), not is_bool, none)


def _of_data_classes(tree: ast.Module, calls: Iterable[ast.Call]) -> Iterator[Argument]:
    """Those of Hugging Face's HfArgumentParser: the fields of its classes."""
    named: set[str] = set()
    for call in calls:
        if called(call) == "HfArgumentParser" and call.args:
            given_ = call.args[0]
            parts = given_.elts if isinstance(given_, ast.Tuple | ast.List) else [given_]
            named |= {last_name(each) for each in parts}
    if any("TrainingArguments" in name for name in named):
        yield Argument("--output_dir", None, required=True)
        yield from (Argument(f"--{name}") for name in ("max_steps", "seed", "resume_from_checkpoint"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name in named:
            yield from _fields(node)


def _fields(node: ast.ClassDef) -> Iterator[Argument]:
    for each in node.body:
        if not isinstance(each, ast.AnnAssign) or not isinstance(each.target, ast.Name):
            continue
        default = each.value
        if isinstance(default, ast.Call) and called(default) == "field":
            factory = given(default, "default_factory")
            default = given(default, "default") or (factory and ast.Constant(None))
        boolean = isinstance(default, ast.Constant) and isinstance(default.value, bool)
        yield Argument(f"--{each.target.id}", _text(default), not boolean, required=default is None)


def _text(value: ast.expr | None) -> str | None:
    """A constant as text; None for anything else, and for None."""
    match value:
        case ast.Constant(value=found) if found is not None and found is not ...:
            return str(found)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return str(-number)
    return None
