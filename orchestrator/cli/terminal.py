"""Makes text of sessions, platforms and stores harmless, so that no terminal acts on it.

Decides which characters are shown and which are dropped. Must never know where a text comes from, nor whether
the output is a terminal: text that is piped today may be shown on a terminal tomorrow.
"""

from __future__ import annotations

import re

_REPLACEMENT = "\ufffd"
_NO_BREAK_SPACE = 0xA0  # a white-space character below it is a control character
_STRING_MAX = 4096  # characters of a command to the terminal; a longer one is treated as text
# Commands of ECMA-48 and xterm: CSI (colours, cursor, erasing), the strings DCS, SOS, OSC (title, clipboard,
# links), PM and APC with their end, and the short ones. Each starts with ESC and a letter, or with a C1 code.
_COMMAND = re.compile(
    rf"""(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]
    | (?:\x1b[PX\]^_]|[\x90\x98\x9d-\x9f])[^\0-\x08\n-\x1f\x7f-\x9f]{{0,{_STRING_MAX}}}(?:\x07|\x1b\\|\x9c)
    | \x1b[ -/]+[0-~]
    | \x1b[0-OQ-WYZ\\`-~]
    """,
    re.VERBOSE,
)
_HARMLESS = re.compile(r"[ -~\n\t]*")
# No information is lost without these: bell, backspace (bars use it), joiners, soft hyphen, byte order mark.
_DROPPED = frozenset("\0\a\b\u00ad\u200b\u200c\u200d\u2060\ufeff")


class _Shown(dict[int, str]):
    """Maps a character to the text that is shown for it. Computed once per character."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if character in _DROPPED:
            shown = ""
        elif character.isprintable() or character in "\n\t":
            shown = character
        else:  # an unusual space, or a character that could control the terminal or reverse the text
            shown = " " if character.isspace() and code >= _NO_BREAK_SPACE else _REPLACEMENT
        self[code] = shown
        return shown


_SHOWN = _Shown()


def plain(text: str) -> str:
    """The text as a terminal may show it: lines, tabs and printable characters.

    Colours and other commands to the terminal are dropped, a carriage return ends a line, and any other
    unprintable character becomes U+FFFD.
    """
    if _HARMLESS.fullmatch(text):
        return text
    text = _COMMAND.sub("", text)
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_SHOWN)


def one_line(text: str) -> str:
    """Like `plain`, on one line: for names and table cells."""
    return " ".join(plain(text).split("\n"))


def last_state(line: str) -> str:
    """Like `plain`, for one line of a log. If carriage returns overwrote the line, as progress bars do, only
    its last state is shown."""
    return plain(line.rstrip("\r").rpartition("\r")[2])
