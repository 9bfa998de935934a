"""Text of sessions, platforms and stores made harmless for whoever looks: no terminal acts on any of it.

Decides what is shown of it and what is dropped. Must never know where a text comes from, nor whether a
terminal looks: what is piped today is looked at on a terminal tomorrow.
"""

from __future__ import annotations

import re

_REPLACEMENT = "\ufffd"
_NO_BREAK_SPACE = 0xA0  # what is a space and below it is a control character
_STRING_MAX = 4096  # characters of a command to the terminal; what is longer is taken for text
# Commands of ECMA-48 and xterm: CSI (colours, cursor, erasing), the strings DCS, SOS, OSC (title, clipboard,
# links), PM and APC with their end, and the short ones; each by ESC and a letter or by its one C1 character.
_COMMAND = re.compile(
    rf"""(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]
    | (?:\x1b[PX\]^_]|[\x90\x98\x9d-\x9f])[^\0-\x08\n-\x1f\x7f-\x9f]{{0,{_STRING_MAX}}}(?:\x07|\x1b\\|\x9c)
    | \x1b[ -/]+[0-~]
    | \x1b[0-OQ-WYZ\\`-~]
    """,
    re.VERBOSE,
)
_HARMLESS = re.compile(r"[ -~\n\t]*")
# Nothing is lost with these: bell, backspace (bars draw with it), joiners, soft hyphen, byte order mark.
_DROPPED = frozenset("\0\a\b\u00ad\u200b\u200c\u200d\u2060\ufeff")


class _Shown(dict[int, str]):
    """What a character is shown as, found once for each."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if character in _DROPPED:
            shown = ""
        elif character.isprintable() or character in "\n\t":
            shown = character
        else:  # a blank of another width, or what would steer the terminal or turn the text around
            shown = " " if character.isspace() and code >= _NO_BREAK_SPACE else _REPLACEMENT
        self[code] = shown
        return shown


_SHOWN = _Shown()


def plain(text: str) -> str:
    """The text as a terminal may have it: lines, tabs and printable characters.

    Colours and other commands to the terminal are dropped, a carriage return ends a line, and what else is
    not printable appears as U+FFFD.
    """
    if _HARMLESS.fullmatch(text):
        return text
    text = _COMMAND.sub("", text)
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_SHOWN)


def one_line(text: str) -> str:
    """As `plain`, on one line: for names and cells of a table."""
    return " ".join(plain(text).split("\n"))


def last_state(line: str) -> str:
    """As `plain`, of one line of a log: what was written over with carriage returns, as progress bars are,
    is shown as it was last."""
    return plain(line.rstrip("\r").rpartition("\r")[2])
