"""Mutates the bundled specs; each mutant must parse to a job or give an error for the user.

By hand:

    python -m tests.fuzz.spec_fuzz --minutes 20 --seed 1

A case that takes more than a second of processor time, or raises anything but SpecError or InputError, is
written to spec-fuzz-failure.yaml with the seed that reproduces it.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import yaml
from jsonschema import Draft202012Validator

from orchestrator.errors import InputError, SpecError
from orchestrator.spec import document, parse, schema
from tests.fuzz.timer import raising

JOBS = Path(__file__).resolve().parents[2] / "jobs"
CORPUS = tuple(path.read_bytes() for path in sorted(JOBS.glob("*.yaml")))
WHOLE = b"""\
name: whole
source: .
source_allow: [token.json]
command: sh -c "echo {steps} {{}} {micro_batch} {accumulate} {devices} {precision} {seed}"
inputs: [{name: corpus, from: "kaggle:owner/data", sha256: "%s"}, {name: page, from: "https://example.org/a"}]
tags: [a, b]
work: {total: 50e3, global_batch: 64, group: 4, phases: [{from: 0, flops_per_step: 1e12}]}
needs: {disk_gb: 5, memory_gb: 1.5, internet: true}
checkpoint: {interval: 90s, keep: {last: 2, best: {metric: loss, mode: min}}}
profiles: {cpu: {micro_batch: 8, precision: fp32}, default: {micro_batch: 4, precision: bf16, memory_gb: 2}}
route:
  prefer: cheapest
  platforms: [process]
  precision: any
  finish_within: 30d
  rules:
    - name: nights
      when: {expected_hours: {at_most: 8}, hours_of_day: [22, 6], tags: [a]}
      require: {platform: process, owned: true}
retry: {without_progress: 3}
env: {A: "1"}
secrets: [WANDB_API_KEY]
schedule: {cron: "0 1 * * *", timezone: UTC, mode: continue, overlap: skip}
notify: {on: [failed, done], url: env:NOTIFY_URL}
""" % (b"0" * 64)
NASTY: tuple[bytes, ...] = (
    b"&a ", b"*a", b"<<: *a", b"!!python/object/apply:os.system [id]", b"!!binary aGk=", b"!!set {a, b}",
    b"---\n", b"...\n", b"\t", b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xe2\x80\xa8",
    b"\xc2\x85", b"%YAML 9.9\n", b"? ", b"- ", b": ", b"[", b"]", b"{", b"}", b"[" * 60, b"{a: " * 60,
    b"- " * 60, b"|\n", b">-\n", b'"', b"'", b'"\\uD800"', b'"\\0"', b'"\\UFFFFFFFF"', b"1e999", b".inf",
    b"-.inf", b".nan", b"-0", b"0x1F", b"0123", b"1_000", b"190:20:30", b"9" * 400, b"1e-400",
    b"2025-10-21", b"yes", b"on", b"~", b"null", b"{steps}", b"{}", b"{steps!r:>{devices}}", b"{0}",
    b"{a.b[c]}", b"}}{{", b"$(id)", b"../../../../etc/passwd", b"/dev/zero", b"a" * 5000,
    b"\xf0\x9f\x92\xa5", b"#", b"\r", b"\r\n", b"@", b"`", b"!", b"%", b"e", b"0", b"-1", b"65536",
    b"4294967296", b"[&a x, *a, *a, *a]", b"&a {a: &b [*a, *a], b: [*b, *b]}", b"<<: [*a, *a]",
    b"[" * 20 + b"x," * 4000, b"'" + b"@" * 3000, b"https://a:b@c", b"--api-key=0123456789abcdef",
)  # fmt: skip
VALUES: tuple[object, ...] = (
    None, True, False, 0, -1, 1, 3, 7, 2**31, 2**63, 10**30, 0.5, 1e300, float("inf"), float("nan"), "",
    " ", "x", "auto", "90s", "1e3", "\n", "é", "\0", "a" * 300, "{steps}", "{x}", [], [1], [[]], {},
    {"a": {"b": 1}}, {1: 2},
)  # fmt: skip

Mutation = Callable[[random.Random, bytes], bytes]


def _flip(draw: random.Random, text: bytes) -> bytes:
    changed = bytearray(text)
    for _ in range(draw.randint(1, 8)):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed)


def _splice(draw: random.Random, text: bytes) -> bytes:
    at, upto = sorted(draw.randrange(len(text) + 1) for _ in range(2))
    kept = text[at if draw.random() < 0.7 else min(upto, at + 20) :]
    return text[:at] + draw.choice(NASTY) + kept


def _cut(draw: random.Random, text: bytes) -> bytes:
    at, upto = sorted(draw.randrange(len(text) + 1) for _ in range(2))
    return text[:at] + text[upto:] if draw.random() < 0.5 else text[:upto] + text[at:]


def _swap_tokens(draw: random.Random, text: bytes) -> bytes:
    tokens = text.split(b" ")
    for _ in range(draw.randint(1, 4)):
        a, b = (draw.randrange(len(tokens)) for _ in range(2))
        tokens[a], tokens[b] = tokens[b], tokens[a]
    return b" ".join(tokens)


def _swap_lines(draw: random.Random, text: bytes) -> bytes:
    lines = text.split(b"\n")
    a, b = (draw.randrange(len(lines)) for _ in range(2))
    lines[a] = lines[b] if draw.random() < 0.5 else b"  " + lines[a]
    return b"\n".join(lines)


def _restructure(draw: random.Random, text: bytes) -> bytes:
    try:
        tree = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, OverflowError, TypeError, RecursionError):
        return _flip(draw, text)
    places = list(_places(tree))
    for _ in range(draw.randint(1, 3)):
        if places:
            _change(draw, *draw.choice(places), draw.choice(places)[1])
    try:
        return yaml.safe_dump(tree, allow_unicode=True).encode("utf-8", "surrogatepass")
    except (yaml.YAMLError, RecursionError, TypeError):  # now a value inside itself, or keys of several types
        return _flip(draw, text)


def _places(tree: object, seen: frozenset[int] = frozenset()) -> Iterator[tuple[object, object]]:
    if id(tree) in seen:
        return
    items: list[object] = list(tree) if isinstance(tree, dict) else []
    items = list(range(len(tree))) if isinstance(tree, list) else items
    for key in items:
        yield tree, key
        yield from _places(tree[key], seen | {id(tree)})  # type: ignore[index]


def _change(draw: random.Random, parent: object, key: object, other: object) -> None:
    assert isinstance(parent, dict | list)
    value = draw.choice(VALUES)
    match draw.randrange(4):
        case 0 if isinstance(parent, dict):
            parent.pop(key, None)
        case 1 if isinstance(parent, dict) and key in parent:
            parent[other if not isinstance(other, int) else "x"] = parent.pop(key)
        case 2 if isinstance(parent, list):
            parent.append(value)
        case _ if isinstance(parent, dict) or (isinstance(key, int) and key < len(parent)):
            parent[key] = value  # type: ignore[call-overload]


MUTATIONS: tuple[Mutation, ...] = (
    _flip,
    _splice,
    _splice,
    _cut,
    _swap_tokens,
    _swap_lines,
    _restructure,
    _restructure,
)


def mutant(draw: random.Random) -> bytes:
    """A spec with a few mutations on top of each other."""
    text = draw.choice((*CORPUS, WHOLE))
    for _ in range(draw.choice((1, 1, 1, 2, 3, 6))):
        text = draw.choice(MUTATIONS)(draw, text or b"x")
    return text


class TooSlow(BaseException):
    """Not an Exception, so that no handler swallows it."""


def processor_seconds(limit: float) -> AbstractContextManager[None]:
    """Raises TooSlow once the body has used this much processor time. The load of other processes does not
    count."""
    slow = TooSlow(f"more than {limit} s of processor time")
    return raising(signal.SIGPROF, signal.ITIMER_PROF, limit, slow)


def check(text: bytes, folder: Path | None) -> bool:
    """Whether the spec is accepted. Raises every error that a user must never see."""
    with processor_seconds(1.0):
        error = _error(text, folder)
    if error is None:
        Draft202012Validator(schema()).validate(document.read(text, "mutant.yaml").tree)
        return True
    assert str(error)
    for mistake in error.mistakes if isinstance(error, SpecError) else ():
        assert mistake.message
        assert 0 <= mistake.line <= len(text) + 1
        assert str(mistake).isprintable(), f"unprintable: {mistake!r}"
        assert len(str(mistake)) < 2_000
    return False


def _error(text: bytes, folder: Path | None) -> InputError | None:
    try:
        parse(text, "mutant.yaml", folder)
    except InputError as error:
        return error
    return None


def fuzz(seed: int, cases: int | None = None, seconds: float | None = None) -> tuple[int, int]:
    """Runs this many cases, or for this long. Returns how many ran and how many were accepted."""
    deadline = None if seconds is None else time.monotonic() + seconds
    count = accepted = 0
    while count != cases and (deadline is None or time.monotonic() < deadline):
        draw = random.Random(f"{seed}/{count}")
        text = mutant(draw)
        try:
            accepted += check(text, draw.choice((None, JOBS)))
        except BaseException:
            sys.stderr.write(f"seed {seed}, case {count}: {text[:2000]!r}\n")
            if cases is None:
                Path("spec-fuzz-failure.yaml").write_bytes(text)
            raise
        count += 1
    return count, accepted


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    arguments.add_argument("--minutes", type=float, default=20.0)
    arguments.add_argument("--seed", type=int, default=1)
    given = arguments.parse_args()
    count, accepted = fuzz(given.seed, seconds=given.minutes * 60)
    sys.stdout.write(
        f"seed {given.seed}: {count} mutated specs, {accepted} accepted, no traceback, no hang\n"
    )


if __name__ == "__main__":
    main()
