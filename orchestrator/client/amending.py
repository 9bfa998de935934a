"""Adds a store to a user's config.yaml and keeps every line and comment of it.

Edits the text where a YAML parser found the keys, and reads the result: it must mean exactly the old config
and the new store. If it does not, nothing is written, and the user gets the lines to add by hand. Must never
know what a type of store needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from orchestrator import config as configuration
from orchestrator.client.home import CONFIG_BYTES_MAX
from orchestrator.config import DEFAULT_STORES, Config, StoreConfig, as_block, as_flow
from orchestrator.errors import InputError, SpecError
from orchestrator.files import read_own, write_new, write_whole
from orchestrator.home import CONFIG

_STORES, _HOME_STORE = "stores", "home_store"
_NEW_STORES = "# Where checkpoints are kept; relative paths start at this file's folder."
_NEW_HOME_STORE = (
    "# The store where the checkpoints of new runs live. Runs keep the store that they began with."
)
_BOM = "\ufeff"


class ByHand(InputError):
    """The config was not changed, and the message has the lines to add."""


class _Unsafe(Exception):
    """This text cannot be edited so that only the store is added; says why."""


@dataclass(frozen=True)
class Amended:
    """`kept`: where the old config is now; None if nothing had to change."""

    config: Path
    kept: Path | None


def add_home_store(home: Path, given: StoreConfig) -> Amended:
    """Makes this store the home store in the config of `home`, which must exist. A store of this name is kept
    as it is. Raises ByHand with the lines to add if the file cannot be edited safely."""
    path = home / CONFIG
    try:
        data = read_own(path, CONFIG_BYTES_MAX)
        before = configuration.parsed(home, data)
        text = data.decode("utf-8")
        after = amended(text, given)
        if after == text:
            return Amended(path, None)
        _check(before, configuration.parsed(home, after.encode()), given)
        kept = _replace(path, data, after.encode())
    except (_Unsafe, SpecError) as error:
        told = f"{path} was not changed, because it cannot be edited safely:\n{error}"
        raise ByHand(f"{told}\nFix that and try again, or add by hand:\n\n{by_hand(given)}") from None
    except OSError as error:
        told = f"{path} cannot be changed ({error.strerror})"
        raise ByHand(f"{told}; add by hand:\n\n{by_hand(given)}") from error
    return Amended(path, kept)


def by_hand(given: StoreConfig) -> str:
    """The lines that make this store the home store, to paste."""
    default = {each.name: _table(each) for each in DEFAULT_STORES}
    lines = as_block({_STORES: {given.name: _table(given)}, _HOME_STORE: given.name})
    note = f"# If the config has no `{_STORES}` yet, also keep: {as_flow(default)[1:-1]}\n"
    return note + lines


def amended(text: str, given: StoreConfig) -> str:
    """The config's text with this store as the home store; the same text if it is that already. The caller
    checks what it means. Raises _Unsafe, or yaml.YAMLError for a text that `config.parsed` refuses, too."""
    bom = _BOM if text.startswith(_BOM) else ""
    body = text.removeprefix(_BOM)
    newline = "\r\n" if "\r\n" in body else "\n"
    root = yaml.compose(body, Loader=yaml.SafeLoader)
    if root is not None and not isinstance(root, yaml.MappingNode):
        if root.value != "" or root.tag != "tag:yaml.org,2002:null":
            raise _Unsafe("it is not a mapping")
        root = None
    edited = _Editing(body, root, newline)
    edited.stores(given)
    edited.home_store(given.name)
    return bom + edited.result()


class _Editing:
    """Collects insertions and replacements by their place in the text, so that every place stays right."""

    def __init__(self, text: str, root: yaml.MappingNode | None, newline: str) -> None:
        self._text, self._root, self._newline = text, root, newline
        self._edits: list[tuple[int, int, str]] = []
        self._appended: list[str] = []

    def stores(self, given: StoreConfig) -> None:
        found = self._value(_STORES)
        if found is None:
            self._add(_NEW_STORES, {_STORES: _with_default(given)})
        elif not isinstance(found, yaml.MappingNode):
            raise _Unsafe(f"`{_STORES}` is not a mapping")
        elif all(key.value != given.name for key, _ in found.value):
            self._add_to(found, {given.name: _table(given)})

    def home_store(self, name: str) -> None:
        found = self._value(_HOME_STORE)
        if found is None:
            self._add(_NEW_HOME_STORE, {_HOME_STORE: name})
        elif not isinstance(found, yaml.ScalarNode):
            raise _Unsafe(f"`{_HOME_STORE}` is not a name")
        elif found.value != name:
            new = as_flow({_HOME_STORE: name})[1:-1].partition(": ")[2]
            self._edits.append((found.start_mark.index, found.end_mark.index, new))

    def result(self) -> str:
        text = self._text
        for start, end, new in _last_first(self._edits):
            text = text[:start] + new + text[end:]
        if self._appended and text and not text.endswith("\n"):
            text += self._newline
        for lines in self._appended:
            text += (self._newline if text else "") + lines
        return text

    def _value(self, key: str) -> yaml.Node | None:
        pairs = [] if self._root is None else self._root.value
        return next((value for name, value in pairs if name.value == key), None)

    def _add(self, comment: str, table: Mapping[str, Any]) -> None:
        """Adds a key to the whole document."""
        if self._root is not None and self._root.flow_style:
            self._add_to(self._root, table)
            return
        column = 0 if self._root is None else self._root.start_mark.column
        self._appended.append(self._lines(f"{comment}\n{as_block(table)}", column))

    def _add_to(self, found: yaml.MappingNode, table: Mapping[str, Any]) -> None:
        if found.flow_style:
            inner = as_flow(table)[1:-1]
            at = found.value[-1][1].end_mark.index if found.value else found.start_mark.index + 1
            is_first = not found.value and all(start != at for start, *_ in self._edits)
            self._edits.append((at, at, inner if is_first else f", {inner}"))
            return
        first_key, _ = found.value[0]
        at = self._next_line(_end(found))
        missing = self._newline if at and not self._text[:at].endswith("\n") else ""
        self._edits.append((at, at, missing + self._lines(as_block(table), first_key.start_mark.column)))

    def _next_line(self, index: int) -> int:
        """Where the line after this place starts; a block of text ends at the start of a line already."""
        if index and self._text[index - 1] == "\n":
            return index
        found = self._text.find("\n", index)
        return len(self._text) if found < 0 else found + 1

    def _lines(self, text: str, column: int) -> str:
        return "".join(" " * column + line + self._newline for line in text.splitlines())


def _last_first(edits: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Edits at the same place are made in reverse, too, so that the text gets them in order."""
    return sorted(edits, key=lambda edit: edit[0])[::-1]


def _end(node: yaml.Node) -> int:
    """Where the node's own text ends: without the comments and empty lines that follow it."""
    if not isinstance(node, yaml.CollectionNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(last, tuple) else last)


def _table(given: StoreConfig) -> dict[str, Any]:
    return {"type": given.type, **given.options}


def _with_default(given: StoreConfig) -> dict[str, Any]:
    """Runs may be on the default store, which a config without stores has, so it is written out."""
    return {each.name: _table(each) for each in (*DEFAULT_STORES, given)}


def _check(before: Config, after: Config, given: StoreConfig) -> None:
    """Raises _Unsafe unless the store is all that was added, and all else means what it meant."""
    tree = before.document.tree
    assert isinstance(tree, dict)
    stores = tree.get(_STORES) or {each.name: _table(each) for each in DEFAULT_STORES}
    wanted = {**tree, _STORES: {given.name: _table(given), **stores}, _HOME_STORE: given.name}
    if after.document.tree != wanted:
        raise _Unsafe("the store would not be the only change")


def next_old(path: Path) -> Path:
    """A free name for the old version of a file."""
    number = 1
    while (kept := path.with_name(f"{path.name}.old-{number}")).exists():
        number += 1
    return kept


def _replace(path: Path, old: bytes, new: bytes) -> Path:
    """Keeps the old text beside the config, and replaces it. A link to a config elsewhere stays a link."""
    kept = next_old(path)
    write_new(kept, old)
    real = path.resolve()
    if read_own(real, CONFIG_BYTES_MAX) != old:
        kept.unlink()
        raise _Unsafe("somebody else changed it just now")
    write_whole(real, new)
    return kept
