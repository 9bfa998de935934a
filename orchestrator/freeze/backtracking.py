"""Rewrites the regular expression of an ignore pattern so that no name takes long to match.

Python's expressions backtrack: `a*a*a*b` tries every split of a name of many a's, and `**/a/**/b` every split
of a deep path. Both may come from a stranger. But if the first place where a part fits does not lead to a
match, no later one does, so the search may stay with it (`(?>…)`). The last part may still move: which of its
places is taken decides whether a file or its folder is meant. Knows the few forms that pathspec writes;
leaves any other as it is.
"""

from __future__ import annotations

import re

_LEAD, _BETWEEN, _STAR = "(?:.+/)?", "(?:/.+)?", "[^/]*"
_TOKEN = re.compile(
    r"""(?P<lead>\(\?:\.\+/\)\?) | (?P<between>\(\?:/\.\+\)\?) | (?P<star>(?:\[\^/\]\*)+)
    | (?P<end>\(\?:\(\?P<\w+>/\)\|\$\)$ | \(\?P<\w+>/\)$)
    | (?P<one>\[\^/\]\+? | \\. | [^\\\[\](){}.*+?^$|/])
    | (?P<any>\[\^?\]?[^\]]*\])
    | (?P<slash>/)""",
    re.VERBOSE | re.DOTALL,
)


def without(pattern: re.Pattern[str]) -> re.Pattern[str]:
    """The same expression without backtracking; the given one if it has none, or is not understood."""
    text = pattern.pattern
    if text.count(_STAR) + text.count(_LEAD) + text.count(_BETWEEN) < 2 or not text.startswith("^"):
        return pattern
    found = _groups(text[1:])
    if found is None:
        return pattern
    groups, floats, end = found
    *before, last = ("/".join(map(_segment, group)) for group in groups)
    parts = []
    for number, group in enumerate(before):
        if number:
            parts.append(f"(?>(?:/.+?)??/{group}(?=/))")
        else:
            parts.append(f"(?>(?:.+?/)??{group}(?=/))" if floats else f"{group}(?=/)")
    if before:
        parts.append(f"{_BETWEEN}/{last}{end}")
    else:
        parts.append(f"{_LEAD if floats else ''}{last}{end}")
    return re.compile("^" + "".join(parts), pattern.flags)


def _groups(text: str) -> tuple[list[list[list[str]]], bool, str] | None:
    """The segments between two `**`, each as its tokens; whether the first may begin in any folder; and what
    must follow the last. None: not understood."""
    groups: list[list[list[str]]] = [[[]]]
    floats, end, at = False, "", 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            return None
        at = token.end()
        match token.lastgroup:
            case "lead" if token.start() == 0:
                floats = True
            case "between":
                groups.append([])
            case "slash":
                groups[-1].append([])
            case "star":
                groups[-1][-1].append(_STAR)
            case "one" if groups[-1]:
                groups[-1][-1].append(token[0])
            case "any" if groups[-1]:
                groups[-1][-1].append(f"(?!/){token[0]}")  # like git: no class matches a slash
            case "end":
                end = token[0]
            case _:
                return None
    return groups, floats, end


def _segment(tokens: list[str]) -> str:
    """The expression of one segment: each part between two stars stays at the first place where it fits."""
    parts, stars = [""], 0
    for token in tokens:
        if token == _STAR:
            parts.append("")
            stars += 1
        else:
            parts[-1] += token
    if stars < 2:
        return "".join(tokens)
    first, *middle, last = parts
    return first + "".join(f"(?>[^/]*?{part})" for part in middle) + _STAR + last
