"""What is wrong with a file that is not YAML, in the words of the person who wrote it.

Decides which line is at fault and what to write there. PyYAML says what its scanner expected, which helps
nobody who forgot a quote. Must never know what a key is for.
"""

from __future__ import annotations

import re

import yaml

_SECOND_COLON = re.compile(r"[\w\"'-]+ *: +[^\s\"'\[{|>#&*!].*:(?:\s|$)")


def explained(error: yaml.error.MarkedYAMLError, text: str) -> tuple[int, str]:
    """The line at fault, from 1 (0: unknown), and what is wrong with it and how to fix it."""
    problem, context = error.problem or "", error.context or ""
    at, since = error.problem_mark or error.context_mark, error.context_mark or error.problem_mark
    if at is None or since is None:
        return 0, f"not valid YAML: {problem}"
    lines = text.splitlines()
    here = lines[at.line] if at.line < len(lines) else ""
    rest = here[at.column :].strip()
    match problem:
        case "mapping values are not allowed here":
            return at.line + 1, f"not valid YAML: {_colon(here)}"
        case "could not find expected ':'":
            return since.line + 1, (
                "not valid YAML: this line is not `key: value`; write a colon and a space between the "
                "two, such as "
                "`seed: 3`"
            )
        case "found unexpected end of stream" if "quoted scalar" in context:
            return since.line + 1, "not valid YAML: the quote that begins here has no end; add the second one"
        case _ if "found character '\\t'" in problem:
            return at.line + 1, "not valid YAML: a tab; indent with spaces, not tabs"
        case _ if problem.startswith("found character"):
            return at.line + 1, _begins_with(rest[:1])
        case _ if "scanning an alias" in context:
            return since.line + 1, _begins_with("*")
        case _ if "scanning an anchor" in context:
            return since.line + 1, _begins_with("&")
        case _ if "escape" in problem or "escape" in context or "expected escape sequence" in problem:
            return at.line + 1, (
                "not valid YAML: in double quotes a \\ begins an escape; use single quotes, or write \\\\"
            )
        case _ if "parsing a flow" in context:
            return _flow(problem, since.line, at.line, rest)
        case _ if problem.startswith("expected <block end>"):
            return at.line + 1, f"not valid YAML: {_block(lines, at.line, at.column)}"
    return at.line + 1, f"not valid YAML: {': '.join(filter(None, (context, problem)))}"


def _begins_with(character: str) -> str:
    shown = character if character.isprintable() else f"U+{ord(character):04X}"
    return f'not valid YAML: text that begins with {shown} needs quotes, such as "{shown}…"'


def _colon(line: str) -> str:
    """What is wrong with a line that has a `: ` too many, or one that is indented below a value."""
    if _SECOND_COLON.match(line.strip().removeprefix("- ")):
        return "text that contains a colon and a space needs quotes; put the whole text in quotes"
    return (
        "this line is indented deeper than the line above it, which has a value already; begin the keys of "
        "one mapping in the same column"
    )


def _flow(problem: str, opened: int, line: int, rest: str) -> tuple[int, str]:
    """Something in brackets or braces that does not end, or holds a brace."""
    bracket = "{" if "'}'" in problem else "["
    if rest.startswith(("{", "}", "[")):
        return line + 1, (
            f"not valid YAML: text that contains {rest[0]} needs quotes inside {bracket}; put the whole text "
            "in quotes"
        )
    closing = "}" if bracket == "{" else "]"
    return opened + 1, (
        f"not valid YAML: the {bracket} in this line has no end, or a comma is missing after it; add "
        f"{closing} or the comma"
    )


def _block(lines: list[str], line: int, column: int) -> str:
    text = lines[line] if line < len(lines) else ""
    before = text[:column].rstrip()
    if before.endswith(("}", "]", '"', "'")):
        value = text.partition(":")[2].strip()
        opening = value[:1]
        return f"text after the closing {before[-1]}; text that begins with {opening} needs quotes as a whole"
    return "indented differently from the lines above; begin the keys of one mapping in the same column"
