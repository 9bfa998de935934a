"""Parses YAML text into a plain tree with a line for every value. Decides which safe part of YAML we read.

Anchors, aliases, tags, duplicate keys, several documents and keys that are not text are mistakes. Plain words
mean what YAML 1.2 says (`on`, `yes`, `1:30` are text, `1e3` is a number). Must never know what a key is for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import yaml

from orchestrator.errors import Mistake, SpecError
from orchestrator.spec.syntax import explained

BYTES_MAX = 256 * 1024
DEPTH_MAX = 24
VALUES_MAX = 5_000
MISTAKES_MAX = 100

Path = tuple[str | int, ...]

_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,39})")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_WORDS: Mapping[str, object] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_BINARY_BYTES = 8192
_LIKE_A_SPACE = re.compile(r"[\u00a0\u2000-\u200b\u202f\u3000]")
_LIKE_QUOTES = frozenset("“”„‟‘’‚")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


@dataclass(frozen=True)
class Problem:
    """A mistake without its file. It has a line only if that differs from the line of its path."""

    path: Path
    message: str
    line: int | None = None


@dataclass(frozen=True)
class Document:
    """A file's values as dicts, lists, text, numbers, booleans and None, and the line of each path.

    `spoiled` holds the paths whose values were refused, so that they are not reported twice.
    """

    file: str
    tree: object = None
    lines: Mapping[Path, int] = field(default_factory=dict, repr=False)
    problems: tuple[Problem, ...] = ()
    spoiled: frozenset[Path] = frozenset()

    def line(self, path: Path) -> int:
        """The line of the value, or of the nearest value around it that has one; else 0."""
        return next((self.lines[path[:n]] for n in range(len(path), -1, -1) if path[:n] in self.lines), 0)

    def mistake(self, path: Path, message: str) -> Mistake:
        return Mistake(self.file, self.line(path), dotted(path), message)

    def _place(self, problem: Problem) -> Mistake:
        mistake = self.mistake(problem.path, problem.message)
        return mistake if problem.line is None else replace(mistake, line=problem.line)

    def mistakes(self, problems: Iterable[Problem]) -> tuple[Mistake, ...]:
        """All problems in line order, each once, at most MISTAKES_MAX and then a count of the rest."""
        unique = {self._place(problem) for problem in problems}
        ordered = sorted(unique, key=lambda mistake: (mistake.line, mistake.path, mistake.message))
        if len(ordered) <= MISTAKES_MAX:
            return tuple(ordered)
        rest = Mistake(self.file, 0, "", f"and {len(ordered) - MISTAKES_MAX} more mistakes")
        return (*ordered[:MISTAKES_MAX], rest)


def dotted(path: Path) -> str:
    """`("work", "phases", 1, "from")` as `work.phases[1].from`; long or unprintable keys are shortened."""
    text = ""
    for piece in path:
        if isinstance(piece, int):
            text += f"[{piece}]"
        else:
            plain = piece if len(piece) <= 60 and _UNPRINTABLE.search(piece) is None else shown(piece)
            text += f".{plain}" if text else plain
    return " ".join(text.split())


def shown(value: object) -> str:
    """A value as it is quoted in a message: on one line, at most about 60 characters."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case dict():
            return "a mapping"
        case list():
            return "a list"
    text = ascii(value) if isinstance(value, str) and _UNPRINTABLE.search(value) else repr(value)
    return text if len(text) <= 60 else f"{text[:40]}… ({len(text)} characters)"


def kind(value: object) -> str:
    """The kind of a value, without the value itself, which may be a secret."""
    match value:
        case str():
            return "text (not shown)"
        case bool():
            return "true or false (not shown)"
        case int() | float():
            return "a number (not shown)"
    return shown(value)


def read(data: bytes, file: str) -> Document:
    """The document in `data`; mistakes that do not stop the reading are in `problems`.

    Raises SpecError if it cannot be read at all: not UTF-8, not YAML, too large, too deep.
    """
    if len(data) > BYTES_MAX:
        raise SpecError(
            (Mistake(file, 0, "", f"larger than {BYTES_MAX // 1024} KiB; is this the right file?"),)
        )
    if b"\0" in data[:_BINARY_BYTES] and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        line = data[: data.index(b"\0")].count(b"\n") + 1
        message = "the character U+0000 is not allowed: this is not a text file; is it the right file?"
        raise SpecError((Mistake(file, line, "", message),))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        message = f"not UTF-8 (byte 0x{data[error.start]:02x}); save the file as UTF-8"
        raise SpecError((Mistake(file, line, "", message),)) from None
    reader = _Reader(file)
    try:
        tree = reader.document(yaml.parse(text, Loader=yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise SpecError((*reader.mistakes(), _syntax_mistake(error, text, file))) from None
    except (ValueError, OverflowError) as error:
        # The parser lets these escape for `"\UFFFFFFFF"` and for absurd version numbers in `%YAML`.
        raise SpecError((*reader.mistakes(), Mistake(file, 0, "", f"not valid YAML: {error}"))) from None
    return Document(file, tree, reader.lines, tuple(reader.problems), frozenset(reader.spoiled))


def _syntax_mistake(error: yaml.YAMLError, text: str, file: str) -> Mistake:
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return Mistake(file, line, "", f"the character U+{_code(error.character):04X} is not allowed in YAML")
    if not isinstance(error, yaml.error.MarkedYAMLError):
        return Mistake(file, 0, "", f"not valid YAML: {error}")
    line, message = explained(error, text)
    return Mistake(file, line, "", message)


def _code(character: object) -> int:
    return character if isinstance(character, int) else ord(str(character)[:1])


class _Reader:
    """Builds the tree from the parser's events, so that limits are checked early and no alias is expanded."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: dict[Path, int] = {}
        self.problems: list[Problem] = []
        self.spoiled: set[Path] = set()
        self.values = 0

    def mistakes(self) -> tuple[Mistake, ...]:
        return Document(self.file, lines=self.lines).mistakes(self.problems)

    def document(self, events: Iterator[yaml.Event]) -> object:
        tree: object = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self.stop(event, "more than one document; keep one, without `---` between")
            elif isinstance(event, yaml.NodeEvent):
                self.lines[()] = _line(event)
                tree = self.value(event, events, ())
        return tree

    def value(self, event: yaml.Event, events: Iterator[yaml.Event], path: Path) -> object:
        self.values += 1
        if self.values > VALUES_MAX:
            self.stop(event, f"more than {VALUES_MAX} values; is this the right file?")
        if len(path) > DEPTH_MAX:
            self.stop(event, f"nested deeper than {DEPTH_MAX} levels")
        if isinstance(event, yaml.AliasEvent):
            self.say(
                path,
                "aliases (`*name`) are not supported; write the value out, or put text that begins with "
                "* in quotes",
            )
            self.spoiled.add(path)
            return None
        self.properties(event, path)
        match event:
            case yaml.MappingStartEvent():
                return self.mapping(events, path)
            case yaml.SequenceStartEvent():
                return self.sequence(events, path)
            case _:
                assert isinstance(event, yaml.ScalarEvent)
                return self.scalar(event, path)

    def properties(self, event: yaml.Event, path: Path) -> None:
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        if event.anchor is not None:
            self.say(path, "anchors (`&name`) are not supported; write the value where it is needed")
        if event.tag is not None and event.tag != "!":
            text = shown(event.tag.rstrip(",]}"))
            self.say(path, f"tags are not supported; remove {text}, or put text that begins with ! in quotes")

    def sequence(self, events: Iterator[yaml.Event], path: Path) -> list[object]:
        items: list[object] = []
        for event in _until(events, yaml.SequenceEndEvent):
            inner = (*path, len(items))
            self.lines[inner] = _line(event)
            items.append(self.value(event, events, inner))
        return items

    def mapping(self, events: Iterator[yaml.Event], path: Path) -> dict[str, object]:
        table: dict[str, object] = {}
        for event in _until(events, yaml.MappingEndEvent):
            line = _line(event)
            key = self.key(event, events, path)
            inner = (*path, "?" if key is None else key)
            if key in table:
                again = f"given twice, first on line {self.lines[inner]}; keep one"
                self.problems.append(Problem(inner, again, line))
                key, inner = None, (*path, "?")
            self.lines[inner] = line
            value = self.value(next(events), events, inner)
            if key is not None:
                table[key] = value
        return table

    def key(self, event: yaml.Event, events: Iterator[yaml.Event], path: Path) -> str | None:
        line = _line(event)
        inner = (*path, "?")
        self.lines[inner] = line
        mark = len(self.problems)
        key = self.value(event, events, inner)
        if len(self.problems) > mark:
            return None
        if not isinstance(key, str):
            quote = "; text that begins with { needs quotes" if isinstance(key, dict) else ""
            self.problems.append(Problem(path, f"a key must be text, given {shown(key)}{quote}", line))
            return None
        if found := _LIKE_A_SPACE.search(key):
            looks = f"the character U+{ord(found[0]):04X} looks like a space; replace it by a plain one"
            self.problems.append(Problem(path, looks, line))
            return None
        return key

    def scalar(self, event: yaml.ScalarEvent, path: Path) -> object:
        text: str = event.value
        found = _UNPRINTABLE.search(text)
        if found is not None:
            self.say(path, f"the character U+{ord(found[0]):04X} is not allowed in a value")
            self.spoiled.add(path)
        if event.style is not None or event.tag == "!":
            return text
        if len(text) > 1 and text[0] in _LIKE_QUOTES and text[-1] in _LIKE_QUOTES:
            self.say(path, f"text that begins with {text[0]}, which is no quote in YAML; write \" or '")
            self.spoiled.add(path)
        return resolve(text)

    def say(self, path: Path, message: str) -> None:
        self.problems.append(Problem(path, message))

    def stop(self, event: yaml.Event, message: str) -> None:
        raise SpecError((*self.mistakes(), Mistake(self.file, _line(event), "", message)))


def _line(event: yaml.Event) -> int:
    assert event.start_mark is not None
    return event.start_mark.line + 1


def _until(events: Iterator[yaml.Event], end: type[yaml.Event]) -> Iterator[yaml.Event]:
    for event in events:
        if isinstance(event, end):
            return
        yield event


def resolve(text: str) -> object:
    """The value of an unquoted word: YAML 1.2's null, booleans and numbers, or else text.

    If YAML versions disagree on a number (`0123`, `0x1F`, `1_000`, `1:30`), it stays text, and no number
    field accepts it.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) and not text.lstrip("+-").isdigit() else text


def nothings(tree: object, path: Path = ()) -> Iterator[Path]:
    """The paths of keys and items without a value."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from nothings(value, (*path, key))
    elif isinstance(tree, list):
        for number, value in enumerate(tree):
            yield from nothings(value, (*path, number))
    elif tree is None and path:
        yield path
