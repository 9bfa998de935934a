"""Removes secrets from text: whole values, their lines, and the common encodings of both.

Decides what counts as a secret's text and what replaces it. Protects against accidents, such as a printed
environment or a request in a traceback. No mask stops a script that wants to give its secret away. Pure: must
never know where the text comes from or goes to.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain, count

SECRET_BYTES_MIN = 4  # shorter ones would remove ordinary words
_PIECE = 128  # characters: longer texts are searched in pieces, so that a stream buffers little
_FEW = 16  # up to so many patterns, searching one by one is faster than by their words
_WORD = 4
_SHIFTED = 2 * _WORD - 1  # a text of this length contains an aligned word, wherever it begins
_LINE_ENDS = re.compile(
    r"\r\n|[\n\r]|\\r\\n|\\[nr]"
)  # also as JSON writes them: a private key in an account file
_ARMOUR = re.compile(r"-{5}(?:BEGIN|END) [A-Z0-9 ]+-{5}")  # around a key; says only what kind it is
_LOGIN = re.compile(r"://([^/@\s:]*:([^/@\s]+))@")  # in a URL; basic authentication is base64 of the whole
_WRAPS = (64, 76)  # where openssl and base64 break their lines
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_LEFT_AS_THEY_ARE = (b"", b"/", b"!'()*")  # when percent-encoded: by forms, by paths, by JavaScript


class Mask:
    """The texts of some secrets, ready to be removed. `stars` replaces them and is not part of any secret.

    False if there is nothing to remove. Immutable, so threads may share it.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        pieces = {piece for value in values for form in _forms_of(value) for piece in _pieces(form)}
        found = {piece for piece in pieces if len(piece) >= SECRET_BYTES_MIN}
        self._patterns = tuple(sorted(found, key=lambda each: (-len(each), each)))
        self.stars = _stars(self._patterns)
        self._shifts = 1 if not found or len(self._patterns[-1]) >= _SHIFTED else _WORD
        self._by_word: dict[int, set[bytes]] = {}
        self._by_start: dict[bytes, list[bytes]] = {}
        self._stubs = {pattern[:length] for pattern in self._patterns for length in (1, 2)}
        for pattern in self._patterns:
            for at in range(min(_WORD, len(pattern) - _WORD + 1)):
                word = memoryview(pattern[at : at + _WORD]).cast("I")[0]
                self._by_word.setdefault(word, set()).add(pattern)
            self._by_start.setdefault(pattern[:3], []).append(pattern)
        self._words = frozenset(self._by_word)
        self._held_max = len(self._patterns[0]) - 1 if found else 0

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def data(self, data: bytes) -> bytes:
        """The data without the secrets."""
        return MaskedStream(self).feed(data, last=True)

    def text(self, text: str) -> str:
        """The text without the secrets."""
        if not self:
            return text
        return self.data(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def spans(self, data: bytes, covered: int = 0) -> list[tuple[int, int]]:
        """The (begin, end) of each secret; overlapping ones are merged. The first `covered` bytes are known
        to belong to one."""
        found = [(0, covered)] if covered else []
        for pattern in self._candidates(data):
            at = data.find(pattern)
            while at >= 0:
                found.append((at, at + len(pattern)))
                at = data.find(pattern, at + 1)
        spans: list[tuple[int, int]] = []
        for begin, end in sorted(found):
            if spans and begin < spans[-1][1]:
                spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
            else:
                spans.append((begin, end))
        return spans

    def _candidates(self, data: bytes) -> Iterable[bytes]:
        """All patterns that are in the data, and perhaps a few others."""
        if len(self._patterns) <= _FEW:
            return self._patterns
        view = memoryview(data)
        hits: set[int] = set()
        for shift in range(self._shifts):
            whole = (len(data) - shift) // _WORD * _WORD
            if whole > 0:
                hits |= self._words.intersection(view[shift : shift + whole].cast("I"))
        return {pattern for hit in hits for pattern in self._by_word[hit]}

    def unfinished(self, data: bytes) -> int:
        """Length of the longest end of the data that may be the beginning of a secret."""
        tail = data[-self._held_max :] if self._held_max else b""
        for at in range(len(tail) - 2):
            begun = self._by_start.get(tail[at : at + 3])
            if begun and any(len(p) > len(tail) - at and p.startswith(tail[at:]) for p in begun):
                return len(tail) - at
        return next((len(end) for end in (tail[-2:], tail[-1:]) if end in self._stubs), 0)


class MaskedStream:
    """Removes secrets from a stream of bytes, also if a secret is split between two reads.

    It buffers the last few bytes while they may be the beginning of a secret; `covered` of these belong to a
    secret that is already masked.
    """

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._held = b""
        self._covered = 0

    def feed(self, data: bytes, *, last: bool = False) -> bytes:
        if not self._mask:
            return data
        data = self._held + data
        cut = len(data) - (0 if last else self._mask.unfinished(data))
        shown, at = [], 0 if cut else self._covered  # without a cut, what was masked stays masked
        for begin, end in self._mask.spans(data, self._covered):
            if begin >= cut:
                break
            if begin or not self._covered:
                shown += [data[at:begin], self._mask.stars]
            at = end
        shown.append(data[at:cut])
        self._held, self._covered = data[cut:], max(0, at - cut)
        return b"".join(shown)


# --- What a secret looks like -----------------------------------------------------------------------------


def _forms_of(value: str) -> Iterator[str | bytes]:
    """A value of several lines is searched line by line, so that no line waits for the next one."""
    whole = value.strip()
    if len(_bytes(whole)) < SECRET_BYTES_MIN:
        return
    lines = {line.strip() for line in _LINE_ENDS.split(whole)}
    telling = {
        each for each in lines if len(_bytes(each)) >= SECRET_BYTES_MIN and not _ARMOUR.fullmatch(each)
    }
    for said in {*(telling or {whole}), *chain.from_iterable(_LOGIN.findall(whole))}:
        yield from (said, _raw(said))
        yield from _encoded(said)
    yield from _encoded(whole)
    wrapped = base64.b64encode(_raw(value)).decode()
    for width in _WRAPS:
        yield from (wrapped[at : at + width] for at in range(0, len(wrapped), width))


def _encoded(part: str) -> Iterator[str | bytes]:
    """The text in the usual quotings and encodings, each on one line."""
    yield from (json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1], repr(part)[1:-1])
    for raw in {_raw(part), _bytes(part)}:  # they differ only for text that is not Unicode
        yield from _encoded_bytes(raw)


def _encoded_bytes(raw: bytes) -> Iterator[str | bytes]:
    yield from (raw.hex(), raw.hex().upper())
    for kept in _LEFT_AS_THEY_ARE:
        for digits in ("%02X", "%02x"):
            quoted = "".join(chr(b) if b in _UNRESERVED or b in kept else f"%{digits % b}" for b in raw)
            yield from (quoted, quoted.replace("%20", "+"))
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(raw)
        yield from (_aligned(encode(bytes(before) + raw), before, len(raw)) for before in range(3))


def _raw(part: str) -> bytes:
    """The bytes that a process has in its environment (PEP 383)."""
    try:
        return part.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return part.encode("utf-8", "surrogatepass")


def _aligned(encoded: bytes, before: int, length: int) -> bytes:
    """The base64 characters that depend only on the secret, if `before` other bytes precede it in its first
    group of three."""
    return encoded[-(-before * 8 // 6) : (before + length) * 8 // 6]


def _pieces(form: str | bytes) -> Iterator[bytes]:
    """Pieces of about equal length, cut between characters."""
    if len(form) <= _PIECE:
        yield _bytes(form)
        return
    pieces = -(-len(form) // _PIECE)
    ends = [len(form) * n // pieces for n in range(pieces + 1)]
    yield from (_bytes(form[at:end]) for at, end in zip(ends, ends[1:]))  # noqa: B905, RUF007 - Python 3.9


def _bytes(form: str | bytes) -> bytes:
    return form if isinstance(form, bytes) else form.encode("utf-8", "surrogatepass")


def _stars(patterns: Iterable[bytes]) -> bytes:
    """`***`, or another character three times if a secret contains `*`: the result must form no secret."""
    taken = frozenset(b"".join(patterns))
    characters = (character.encode() for character in chain("*#~^|!", map(chr, count(0x2588))))
    return next(each for each in characters if not taken & {*each}) * 3
