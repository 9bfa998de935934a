"""Where a script saves by itself: a pattern such as `checkpoints/ckpt_{step}.pt`, and what it matches.

Pure. `{step}` and `{epoch}` stand for digits, `*` for anything within one name. Paths are relative to the
working directory, or, after `{checkpoints}/`, to the folder that the contract names. Also guesses a pattern
from names that were saved. Must never read a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PLACEHOLDERS = ("step", "epoch")
CHECKPOINTS = "{checkpoints}/"
COUNTED = "completed; last checkpoint: save "  # how an agent says that its steps are a count of the saves
PIECES_MAX = 16
_DIGITS_MAX = 18  # below 2**63
_PIECE = re.compile(r"\{([^{}]*)\}|(\*)")
_FORMAT = re.compile(r"%0?[0-9]*d|%s")
_SUFFIXES = frozenset({".pt", ".pth", ".ckpt", ".safetensors", ".h5", ".keras", ".msgpack"})
_OF_ANYTHING = frozenset({".pkl", ".pickle", ".npz", ".joblib"})  # data too, so the name must say more
_WORDS = re.compile(r"(?:ckpt|checkpoint|step|epoch|model|iter|state|last|latest|weights)", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Saved:
    """What a path means: the number in place of `{step}` and `{epoch}`, None where the pattern has none."""

    step: int | None
    epoch: int | None


@dataclass(frozen=True)
class SavePattern:
    """A valid pattern. `pieces` are the expressions of its folders and, last, of what is saved: a file or a
    folder. `in_checkpoints`: below the contract's folder instead of the working directory."""

    text: str
    in_checkpoints: bool
    pieces: tuple[re.Pattern[str], ...]
    whole: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> SavePattern:
        """Raises ValueError, in words, for what is no pattern."""
        in_checkpoints = text.startswith(CHECKPOINTS)
        names = text.removeprefix(CHECKPOINTS).rstrip("/").split("/")
        if len(names) > PIECES_MAX or not {"", ".", ".."}.isdisjoint(names) or "\\" in text or "\0" in text:
            raise ValueError(
                "a path below the working directory, such as checkpoints/ckpt_{step}.pt; it begins with "
                "{checkpoints}/ for the folder in ORCHESTRATOR_CHECKPOINT_DIR"
            )
        if text.startswith("~") or "$" in text:
            raise ValueError("a path below the working directory, without ~ or $, which are not expanded")
        if found := _FORMAT.search(text):
            raise ValueError(f"{{step}} for the digits of the step, not {found[0]}")
        if "**" in text:
            raise ValueError("`*` for anything within one name; `**` is not supported")
        seen: set[str] = set()
        whole = "/".join(_expression(name, seen) for name in names)
        pieces = tuple(re.compile(_expression(name, set())) for name in names)
        return cls(text, in_checkpoints, pieces, re.compile(whole))

    @property
    def numbered(self) -> bool:
        """Whether each save has a name of its own, by its step or epoch."""
        return bool(self.whole.groupindex)

    def match(self, path: str) -> Saved | None:
        """What a relative path means; None if it is not saved by this pattern."""
        found = self.whole.fullmatch(path)
        if found is None:
            return None
        numbers = found.groupdict()
        step, epoch = numbers.get("step"), numbers.get("epoch")
        return Saved(None if step is None else int(step), None if epoch is None else int(epoch))

    def covers(self, path: str) -> bool:
        """Whether a file is what is saved, or lies in it."""
        return self.root([path]) is not None

    def root(self, paths: Iterable[str]) -> str | None:
        """The one file or folder of this pattern that all the paths are or lie in; None if there is none."""
        roots = {"/".join(path.split("/")[: len(self.pieces)]) for path in paths}
        [root] = roots if len(roots) == 1 else [""]
        return root if self.match(root) is not None else None


def _expression(name: str, seen: set[str]) -> str:
    """One name of a pattern as a regular expression. A number that is repeated must be the same."""
    found, at = "", 0
    for match in _PIECE.finditer(name):
        found += re.escape(name[at : match.start()])
        at = match.end()
        word = match[1]
        if word is None:
            found += "[^/]*"
        elif word not in PLACEHOLDERS:
            name, colon, _ = word.partition(":")
            if colon and name in PLACEHOLDERS:
                raise ValueError(
                    f"{{{name}}} without a format, which matches leading zeros too, not {{{word[:60]}}}"
                )
            raise ValueError(f"the placeholders {{step}} and {{epoch}}, not {{{word[:60]}}}")
        elif word in seen:
            found += f"(?P={word})"
        else:
            seen.add(word)
            found += rf"(?P<{word}>\d{{1,{_DIGITS_MAX}}})"
    rest = name[at:]
    if "{" in rest or "}" in rest:
        raise ValueError("the placeholders {step} and {epoch}; other braces are not supported")
    return found + re.escape(rest)


# --- Guessing -------------------------------------------------------------------------------------------


def guess(paths: Sequence[str], *, in_checkpoints: bool = False) -> str | None:
    """A pattern for the newest of these paths that looks like a checkpoint; None if none does. The paths are
    files, and folders with a `/` at their end, in the order in which they were written."""
    for path in reversed(paths):
        found = _guess(path)
        if found is not None:
            return CHECKPOINTS + found if in_checkpoints else found
    return None


def _guess(path: str) -> str | None:
    is_folder = path.endswith("/")
    name = path.rstrip("/").rpartition("/")[2]
    stem, dot, suffix = name.rpartition(".")
    numbers = list(_NUMBER.finditer(stem if stem and not is_folder else name))
    has_word, is_file = _WORDS.search(name) is not None, bool(stem) and not is_folder
    named_so = has_word and (bool(numbers) or (is_file and dot + suffix in _OF_ANYTHING))
    is_weights = is_file and dot + suffix in _SUFFIXES
    if not (named_so or is_weights) or not {"{", "}", "*"}.isdisjoint(path):
        return None
    *parents, _ = path.rstrip("/").split("/")
    return "/".join([*map(_any_number, parents), _with_placeholders(name, numbers)])


def _any_number(folder: str) -> str:
    """`version_3` → `version_*`; a date → `*`: the next session may have another."""
    found = _NUMBER.sub("*", folder)
    return "*" if found.count("*") > 1 else found


def _with_placeholders(name: str, numbers: Sequence[re.Match[str]]) -> str:
    """`epoch=3-step=900.ckpt` → `epoch={epoch}-step={step}.ckpt`; other numbers, such as a loss, become *."""
    if not numbers:
        return name
    kinds = [_kind(name[: each.start()]) for each in numbers]
    if "step" not in kinds and "epoch" not in kinds:
        counts = [at for at, each in enumerate(numbers) if not _is_decimal(name, each)]
        kinds[counts[-1] if counts else -1] = "step"
    found, at, used = "", 0, set[str]()
    for number, kind in zip(numbers, kinds, strict=True):
        word = f"{{{kind}}}" if kind in PLACEHOLDERS and kind not in used else "*"
        used.add(kind)
        found += name[at : number.start()] + word
        at = number.end()
    return re.sub(r"\*(?:\.\*)+", "*", found + name[at:])


def _is_decimal(name: str, number: re.Match[str]) -> bool:
    """Whether it is part of a number such as 0.271, which is a loss and not a count."""
    before, after = name[: number.start()], name[number.end() :]
    return re.search(r"\d\.\Z", before) is not None or re.match(r"\.\d", after) is not None


def _kind(before: str) -> str:
    """What a number means, by the word right before it."""
    word = re.search(r"([A-Za-z]+)[^A-Za-z0-9]*\Z", before)
    text = word[1].lower() if word else ""
    if text.endswith(("step", "steps", "iter", "iteration", "checkpoint", "ckpt", "global")):
        return "step"
    return "epoch" if text.endswith(("epoch", "ep")) else "other"
