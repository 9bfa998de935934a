"""Files that are not specs, broken or hostile ones, and the YAML that a spec may use."""

from __future__ import annotations

import pytest

from orchestrator.spec import parse
from tests.fuzz.spec_fuzz import check
from tests.specs import GOOD, mistakes, with_

BOMB = "a: &a [x, x]\n" + "".join(
    f"{c}: &{c} [{', '.join(['*' + p] * 9)}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("data", "line", "told"),
    [
        (b"", 0, "empty"),
        (b"# nothing\n", 0, "empty"),
        (b"- a\n- b\n", 1, "a list"),
        (b"just text\n", 1, "'just text'"),
        (b"name: a\n---\nname: b\n", 2, "more than one document"),
        (b"name: \xff\xfe\n", 1, "not UTF-8"),
        ("name: é".encode("utf-16"), 1, "not UTF-8"),
        (b"a: b\nb:\n\t- x\n", 3, "indent with spaces"),
        (b"a: [1, 2\n", 1, "the [ in this line has no end"),
        (b"a: b: c\n", 1, "not valid YAML"),
        (b"a: \x00\n", 1, "U+0000"),
        (b'a: "\\UFFFFFFFF"\n', 0, "not valid YAML"),
        (b"%YAML 9" + b"9" * 6000 + b".1\n---\na: b\n", 0, "not valid YAML"),
        (b"x" * 10_000_000, 0, "256 KiB"),
        (b"[" * 100_000, 1, "nested deeper"),
        (b"- " * 100_000, 1, "nested deeper"),
        (b"{a: " * 50_000, 1, "nested deeper"),
        (b"a: [" + b"1, " * 80_000 + b"]\n", 1, "more than 5000 values"),
        (b"? " * 1000, 1, ""),
        (b"---\n" * 60_000, 2, "more than one document"),
    ],
)
@pytest.mark.timeout(20)
def test_a_file_that_is_no_spec_gets_one_plain_answer(data: bytes, line: int, told: str) -> None:
    assert check(data, None) is False  # within a second of processor time
    found = mistakes(data)[-1]
    assert (found.line, found.path) == (line, "")
    assert told in found.message


@pytest.mark.parametrize(
    ("text", "path", "told"),
    [
        (with_(tags="&t [a]"), "tags", "anchors"),
        (with_(tags="!!set {a}"), "tags", "tags are not supported"),
        (with_(tags="!!python/object/apply:os.system [id]"), "tags", "tags are not supported"),
        (with_(seed="!!int 3"), "seed", "tags are not supported"),
        (with_(env='{A: "\\ud800"}'), "env.A", "U+D800"),
        (with_(env='{A: "\\0"}'), "env.A", "U+0000"),
        (with_(seed="1\nseed: 1"), "seed", "given twice, first on line"),
        (with_(env="{A: a, A: b}"), "env.A", "given twice"),
        (with_(env="{1: a}"), "env", "a key must be text, given 1"),
        (with_(env="{[a]: b}"), "env", "a key must be text, given a list"),
        (with_(env="{null: b}"), "env", "a key must be text, given nothing"),
    ],
)  # fmt: skip
def test_what_yaml_allows_and_a_spec_does_not(text: str, path: str, told: str) -> None:
    found = [each for each in mistakes(text) if told in each.message]
    assert [each.path for each in found] == [path]
    assert found[0].line > 0


@pytest.mark.timeout(20)
def test_a_yaml_bomb_is_refused_and_not_expanded() -> None:
    assert check(BOMB.encode(), None) is False
    told = [each.message for each in mistakes(BOMB)]
    assert any("anchors" in message for message in told)
    assert any("aliases" in message for message in told)
    assert told[-1].endswith("more mistakes") or len(told) <= 100


@pytest.mark.timeout(20)
def test_thousands_of_mistakes_are_counted_and_not_all_told() -> None:
    text = GOOD + "".join(f"key{n}: 1\n" for n in range(2_000))
    assert check(text.encode(), None) is False
    found = mistakes(text)
    assert len(found) == 101
    assert "and 1900 more mistakes" in {each.message for each in found}


def test_on_is_a_key_and_numbers_are_read_as_written() -> None:
    text = with_(work="{total: 5e3, global_batch: 64, parameters: 80.3e6, flops_per_step: 25.7E+12}")
    work = parse(text.encode(), "job.yaml", None).job.work
    assert (work.total, work.parameters, work.flops_per_step) == (5000, 80.3e6, 25.7e12)
    claim = "{steps_per_second: [5, 8], batch: 32, on: yes, source: no, date: 2025-10-21}"
    text = with_(profiles=f"{{cpu: {{micro_batch: 8, precision: fp32, claim: {claim}}}}}")
    found = dict(parse(text.encode(), "job.yaml", None).job.profiles)["cpu"].claim
    assert found is not None
    assert (found.on, found.source, found.date) == ("yes", "no", "2025-10-21")


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm() -> None:
    data = b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode()
    assert parse(data, "job.yaml", None).job.name == "demo"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90.0), ("1.5h", 5400.0), ("10 m", 600.0), ("2d", 172800.0), ("45", 45.0), ("auto", None)],
)
def test_durations(text: str, seconds: float | None) -> None:
    job = parse(with_(checkpoint=f"{{interval: {text}}}").encode(), "job.yaml", None).job
    assert job.checkpoint.interval_seconds == seconds
