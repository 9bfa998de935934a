"""Which characters standard output can show, and what stands in for the others.

Decides by the user's locale, so that no text of ours or of a run ever raises UnicodeEncodeError. Imports
little, because it runs before anything else. Must never know a command.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Mapping

_ERRORS = "orchestrator-typewriter"  # for a terminal: without accents, or a question mark
_ERRORS_IN_A_PIPE = "orchestrator-utf8"  # in the C locale: the bytes of UTF-8, as Python writes them there
_ASCII_LOCALES = frozenset({"C", "POSIX"})
_COERCED = frozenset({"C.UTF-8", "C.utf8", "UTF-8"})  # what Python puts into LC_CTYPE in such a locale
_STAND_INS = {
    "…": "...", "→": "->", "×": "x", "–": "-", "—": "-", "·": "-", "─": "-", "━": "-", "−": "-", "•": "*",
    "╸": "-", "╺": "-", "│": "|", "█": "#", "▓": "#", "▒": "=", "░": ".", "≤": "<=", "≥": ">=", "≈": "~",
    "└": "+", "┘": "+", "┌": "+", "┐": "+", "┼": "+", "▲": "^", "▼": "v", "►": ">", "◄": "<", "↑": "^",
    "⁻": "^-", "⁴": "^4", "⁵": "^5", "÷": "/", "⌈": "ceil(", "⌉": ")", "⟨": "<", "⟩": ">", "∘": "o",
    "τ": "tau",
    "√": "sqrt", "σ": "sigma", "§": "section ", "³": "^3", "⁶": "^6", "‘": "'", "’": "'", "‚": ",", "‛": "'",
    "“": '"', "”": '"', "„": '"', "‟": '"', "‹": "<", "›": ">", "«": "<<", "»": ">>", "\xa0": " ",
    "°": "deg ",
}  # fmt: skip


# For a terminal only: in a pipe, the letters of names and logs stay what they are.
_LETTERS = {
    "ß": "ss", "ẞ": "SS", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L",
    "đ": "d", "Đ": "D", "ð": "d", "þ": "th", "ı": "i",
}  # fmt: skip


def chosen(encoding: str, environ: Mapping[str, str] = os.environ, *, terminal: bool) -> tuple[str, str]:
    """The encoding and the error handler for an output that Python would write in this encoding."""
    _register()
    if not _is_ascii(environ):
        return encoding, _ERRORS
    return "ascii", _ERRORS if terminal else _ERRORS_IN_A_PIPE


def stand_ins(encoding: str | None) -> Callable[[str], str]:
    """Replaces those characters that this encoding lacks and for which there is a stand-in: before text is
    wrapped, because a stand-in may be longer."""
    lacks = {ord(each): shown for each, shown in _STAND_INS.items() if not _has(encoding, each)}
    return (lambda text: text if text.isascii() else text.translate(lacks)) if lacks else str


def _has(encoding: str | None, character: str) -> bool:
    try:
        return bool(character.encode(encoding or "utf-8"))
    except (UnicodeError, LookupError):
        return False


def _is_ascii(environ: Mapping[str, str]) -> bool:
    """Whether the user asked for the C locale. Without any locale, as in many containers, nobody did."""
    if environ.get("PYTHONIOENCODING") or environ.get("PYTHONUTF8") == "1":
        return False
    every, kind, language = (environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    if every or (kind and kind not in _COERCED):
        return (every or kind) in _ASCII_LOCALES
    return language in _ASCII_LOCALES


def _register() -> None:
    codecs.register_error(_ERRORS, lambda error: _replaced(error, in_utf8=False))
    codecs.register_error(_ERRORS_IN_A_PIPE, lambda error: _replaced(error, in_utf8=True))


def _letters(character: str) -> str:
    """`o` for `ö`: without the accents; a question mark if no letter of ASCII is left."""
    import unicodedata  # few texts need it

    if shown := _LETTERS.get(character):
        return shown
    pieces = unicodedata.normalize("NFKD", character)
    bare = "".join(each for each in pieces if not unicodedata.combining(each))
    return bare if bare and bare.isascii() and bare.isprintable() else "?"


def _replaced(error: UnicodeError, *, in_utf8: bool) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    other = str if in_utf8 else _letters
    shown = "".join(_STAND_INS.get(character) or other(character) for character in text)
    return (shown.encode("utf-8", "replace") if in_utf8 else shown), error.end
