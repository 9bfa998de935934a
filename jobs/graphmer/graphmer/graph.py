"""A knowledge graph from Python source: what the code states about itself, read with `ast`.

The same source gives the same graph, whatever the hash seed or the order of files on disk. The code is
neither imported nor executed. Must never know how facts are encoded or used for training.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib.util
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

RELATIONS = (
    "contains",  # module or function → class or function
    "has_method",  # class → function
    "imports",  # module or function → module or name
    "inherits_from",  # class → class
    "has_parameter",  # function → parameter, except self and cls
    "defaults_to",  # parameter → constant or name
    "annotated_with",  # parameter or attribute → type
    "returns",  # function → type, name or constant
    "raises",  # function → exception
    "catches",  # function → exception
    "decorated_by",  # function or class → decorator
    "assigns",  # module or class → name; local variables of functions are not facts
    "sets_attribute",  # function → attribute that it sets on self
    "calls",  # anything → what it calls
)
STANDARD_LIBRARY = "standard_library"
_SKIPPED_FOLDERS = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})


@dataclass(frozen=True)
class Triple:
    """One fact. Entities are dotted names: `json.decoder.JSONDecoder`, `re.compile`, `self.memo`."""

    head: str
    relation: str
    tail: str


@dataclass(frozen=True)
class Passage:
    """A module, class or function: its source text and the facts that it states, in source order.

    `name` is its dotted name; the heads of its facts are itself and its parameters.
    """

    module: str
    name: str
    text: str
    triples: tuple[Triple, ...]


@dataclass(frozen=True)
class Graph:
    """Passages in reading order; every triple occurs once."""

    passages: tuple[Passage, ...]

    @property
    def triples(self) -> tuple[Triple, ...]:
        return tuple(triple for passage in self.passages for triple in passage.triples)

    def fingerprint(self) -> str:
        """sha256 of texts and facts. Graphs with the same fingerprint give the same training."""
        digest = hashlib.sha256()
        for passage in self.passages:
            digest.update(repr((passage.module, passage.name, passage.text)).encode())
            for triple in passage.triples:
                digest.update(repr((triple.head, triple.relation, triple.tail)).encode())
        return digest.hexdigest()


def standard_library() -> Path:
    """The running interpreter's own source."""
    return Path(sysconfig.get_paths()["stdlib"])


def sources(names: Iterable[str]) -> list[Path]:
    """The source folders of `standard_library`, of folders, and of importable packages such as `torch`.

    Imports nothing. Raises ValueError with every name that is none of these.
    """
    found = {name: _source(name) for name in names}
    if unknown := [name for name, path in found.items() if path is None]:
        raise ValueError(f"neither a folder nor a package with source: {', '.join(unknown)}")
    return [path for path in found.values() if path is not None]


def build(source: Path | Sequence[Path], limit: int | None = None) -> Graph:
    """Reads the modules below folders, in the order of the hashes of their names, up to `limit` triples.

    In that order, a cut is a fair sample of all packages, and no more files are read than needed.
    Modules of a package's own folder have their full names. If two modules have the same name, the first
    is read. Test suites, installed packages and files that do not parse are left out. Raises ValueError
    if there is no module.
    """
    folders = [source] if isinstance(source, Path) else list(source)
    modules: dict[str, Path] = {}
    for folder in folders:
        for module, path in _modules(folder):
            modules.setdefault(module, path)
    ordered = sorted(modules.items(), key=lambda item: order_of(item[0]))
    passages = cut((passage for module, path in ordered for passage in _read(module, path)), limit)
    if not passages:
        raise ValueError(f"{', '.join(map(str, folders))}: found no Python source with facts")
    return Graph(tuple(passages))


def order_of(module: str) -> bytes:
    """A sort key under which the first modules are a fair sample of all."""
    return hashlib.sha256(module.encode()).digest()


def cut(passages: Iterable[Passage], limit: int | None) -> list[Passage]:
    """The passages that state facts, up to `limit` facts. Reads no more passages than needed."""
    kept: list[Passage] = []
    left = sys.maxsize if limit is None else limit
    for passage in passages:
        if facts := passage.triples[:left]:
            kept.append(replace(passage, triples=facts))
        left -= len(facts)
        if left <= 0:
            break
    return kept


def _source(name: str) -> Path | None:
    if name == STANDARD_LIBRARY:
        return standard_library()
    if Path(name).is_dir():
        return Path(name)
    spec = importlib.util.find_spec(name) if name.isidentifier() else None  # a dotted name imports its parent
    places = spec.submodule_search_locations if spec else None
    return Path(next(iter(places))) if places else None


def _modules(source: Path) -> Iterator[tuple[str, Path]]:
    """Names and files in a fixed order. A package comes before a module with the same name."""
    package = (source.name,) if (source / "__init__.py").is_file() else ()
    for path in sorted(source.rglob("*.py")):
        below = path.relative_to(source).with_suffix("").parts
        parts = package + below
        if _SKIPPED_FOLDERS.isdisjoint(below) and all(part.isidentifier() for part in parts):
            yield ".".join(parts[:-1] if parts[-1] == "__init__" and parts[1:] else parts), path


def _read(module: str, path: Path) -> list[Passage]:
    try:
        text = path.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's strings
            tree = ast.parse(text)
        reader = _Reader(module, text.split("\n"))
        reader.scope(tree, module, "module")
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    return reader.passages


class _Reader:
    """Walks one module. Every class and function becomes its own passage."""

    def __init__(self, module: str, lines: list[str]) -> None:
        self.module = module
        self.lines = lines
        self.passages: list[Passage] = []
        self.seen: set[Triple] = set()
        self.facts: list[Triple] = []

    def scope(
        self, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, name: str, kind: str
    ) -> None:
        outer, self.facts = self.facts, []
        place = len(self.passages)
        if isinstance(node, ast.ClassDef):
            self.class_facts(node, name)
        elif not isinstance(node, ast.Module):
            self.function_facts(node, name)
        for child in node.body:
            self.visit(child, name, kind)
        text = "\n".join(
            self.lines if isinstance(node, ast.Module) else self.lines[node.lineno - 1 : node.end_lineno]
        )
        facts = tuple(self.facts)
        self.passages.insert(place, Passage(self.module, name, text, facts))
        self.facts = outer

    def add(self, head: str, relation: str, tail: str | None) -> None:
        if tail:
            triple = Triple(head, relation, tail)
            if triple not in self.seen:
                self.seen.add(triple)
                self.facts.append(triple)

    def class_facts(self, node: ast.ClassDef, name: str) -> None:
        for decorator in node.decorator_list:
            self.add(name, "decorated_by", _named(decorator))
        for parent in node.bases:
            self.add(name, "inherits_from", _named(parent))

    def function_facts(self, node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> None:
        for decorator in node.decorator_list:
            self.add(name, "decorated_by", _named(decorator))
        given = node.args
        positional = [*given.posonlyargs, *given.args]
        defaults = [None] * (len(positional) - len(given.defaults)) + [*given.defaults]
        pairs = [
            *zip(positional, defaults, strict=True),
            *zip(given.kwonlyargs, given.kw_defaults, strict=True),
        ]
        pairs += [(extra, None) for extra in (given.vararg, given.kwarg) if extra is not None]
        for parameter, default in pairs:
            if parameter.arg not in ("self", "cls"):
                self.add(name, "has_parameter", parameter.arg)
            self.add(f"{name}.{parameter.arg}", "annotated_with", _named(parameter.annotation))
            self.add(f"{name}.{parameter.arg}", "defaults_to", _named(default))
        self.add(name, "returns", _named(node.returns))

    def visit(self, node: ast.AST, scope: str, kind: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self.add(scope, "has_method" if kind == "class" else "contains", node.name)
            self.scope(node, f"{scope}.{node.name}", "function")
            return
        if isinstance(node, ast.ClassDef):
            self.add(scope, "contains", node.name)
            self.scope(node, f"{scope}.{node.name}", "class")
            return
        self.statement(node, scope, kind)
        for child in ast.iter_child_nodes(node):
            self.visit(child, scope, kind)

    def statement(self, node: ast.AST, scope: str, kind: str) -> None:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    self.add(scope, "imports", alias.name)
            case ast.ImportFrom(names=names, module=module):
                for alias in names:
                    self.add(scope, "imports", f"{module or ''}.{alias.name}".strip("."))
            case ast.Raise(exc=raised):
                self.add(scope, "raises", _named(raised))
            case ast.ExceptHandler(type=caught):
                for each in caught.elts if isinstance(caught, ast.Tuple) else [caught]:
                    self.add(scope, "catches", _named(each))
            case ast.Return(value=value):
                self.add(scope, "returns", _named(value))
            case ast.AnnAssign(target=target, annotation=annotation):
                self.assignment(target, scope, kind)
                self.add(scope, "annotated_with", _named(annotation))
            case ast.Assign(targets=targets):
                for each in targets:
                    self.assignment(each, scope, kind)
            case ast.Call(func=function):
                self.add(scope, "calls", _named(function))

    def assignment(self, target: ast.AST, scope: str, kind: str) -> None:
        match target:
            case ast.Name(id=name) if kind != "function":
                self.add(scope, "assigns", name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                self.add(scope, "sets_attribute", name)
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                for each in targets:
                    self.assignment(each, scope, kind)


def _named(node: ast.AST | None) -> str | None:
    """The dotted name of an expression, the text of a constant, or None for anything without a name."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            owner = _named(value)
            return f"{owner}.{name}" if owner else name
        case ast.Call(func=function):
            return _named(function)
        case ast.Subscript(value=value):
            return _named(value)
        case ast.Constant(value=None | bool() | int() as constant):
            return str(constant)
        case ast.Constant(value=constant):
            return type(constant).__name__
    return None


def main() -> None:
    """Prints a summary of the graph of folders or packages."""
    parser = argparse.ArgumentParser(prog="python -m graphmer.graph", description=main.__doc__)
    parser.add_argument("source", nargs="*", default=[STANDARD_LIBRARY])
    parser.add_argument("--limit", type=int)
    arguments = parser.parse_args()
    graph = build(sources(arguments.source), arguments.limit)
    counts = Counter(triple.relation for triple in graph.triples)
    entities = {name for triple in graph.triples for name in (triple.head, triple.tail)}
    modules = {passage.module for passage in graph.passages}
    for relation in RELATIONS:
        print(f"{counts[relation]:8,d}  {relation}")
    print(f"{counts.total():8,d}  triples, {len(entities):,d} entities, {len(modules):,d} modules")
    print(graph.fingerprint())


if __name__ == "__main__":
    main()
