"""Secrets in messages are masked, however they are written and wherever the text is cut."""

from __future__ import annotations

import base64
import json
import urllib.parse
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.core.mask import Mask, MaskedStream

LINES = ("MIIEvQIBADANBgkqhkiG9w0B", "AQEFAASCBKcwggSj", "AgEA==")
KEY = "\n".join(["-----BEGIN PRIVATE KEY-----", *LINES, "-----END PRIVATE KEY-----", ""])
TOKEN = "s3cret/token+of é & 42 letters \"quoted\" 'so' \\"
ACCOUNT = json.dumps({"type": "service_account", "private_key": KEY})

secrets = st.text(st.characters(exclude_categories=()), min_size=4, max_size=300).filter(
    lambda text: len(text.strip().encode("utf-8", "surrogatepass")) >= 4
)


def torn(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[at:end] for at, end in pairwise(ends)]


def shown(values: list[str], data: bytes, cuts: list[int]) -> bytes:
    stream = MaskedStream(Mask(values))
    pieces = [stream.feed(piece) for piece in torn(data, cuts)]
    return b"".join([*pieces, stream.feed(b"", last=True)])


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
@pytest.mark.parametrize(
    "said",
    [
        TOKEN,
        json.dumps(TOKEN)[1:-1],
        json.dumps({"key": TOKEN}, ensure_ascii=False)[9:-2],
        repr(TOKEN)[1:-1],
        urllib.parse.quote(TOKEN),
        urllib.parse.quote(TOKEN, safe=""),
        urllib.parse.quote_plus(TOKEN),
        TOKEN.encode().hex(),
        TOKEN.encode().hex().upper(),
        base64.b64encode(TOKEN.encode()).decode(),
        base64.urlsafe_b64encode(TOKEN.encode()).decode(),
    ],
)
def test_a_secret_is_masked_in_every_usual_writing(said: str, size: int) -> None:
    data = f"before {said} after\n".encode()
    assert shown([TOKEN, "other"], data, list(range(0, len(data), size))) == b"before *** after\n"


@pytest.mark.parametrize("said", [KEY, KEY.replace("\n", "\r\n"), KEY.strip().replace("\n", "\n   ") + "\n"])
def test_every_line_of_a_secret_is_masked_and_nothing_waits_for_the_next_line(said: str) -> None:
    stream = MaskedStream(Mask([KEY]))
    for line in said.splitlines(keepends=True):
        told = stream.feed(line.encode())
        assert told.strip() in (b"***", line.strip().encode())
        assert (b"***" in told) is (line.strip() in LINES)
        assert told.endswith(b"\n")


@pytest.mark.parametrize("width", [64, 76, 10_000])
def test_base64_of_a_key_is_masked_in_one_line_or_several(width: int) -> None:
    long = KEY.replace("AgEA==", "\n".join(base64.b64encode(bytes([n] * 48)).decode() for n in range(24)))
    encoded = base64.b64encode(long.encode()).decode()
    lines = [encoded[at : at + width] for at in range(0, len(encoded), width)]
    told = Mask([long]).text("\n".join(lines)).splitlines()
    assert {line.strip("*") for line in told} == {""}
    assert len(told) == len(lines)


def test_a_private_key_is_masked_in_an_account_file_and_out_of_it() -> None:
    mask = Mask([ACCOUNT])
    for said in (ACCOUNT, KEY, json.dumps(json.loads(ACCOUNT), indent=2)):
        told = mask.text(said)
        assert not any(line in told for line in LINES)


def test_the_login_of_an_address_is_masked_without_it() -> None:
    mask = Mask(["https://reader:t0ken-of-mine@index.example/simple"])
    basic = base64.b64encode(b"reader:t0ken-of-mine").decode()
    assert mask.text(f"Authorization: Basic {basic}; t0ken-of-mine") == "Authorization: Basic ***; ***"


def test_too_short_a_secret_is_not_masked_and_two_beside_each_other_are_two() -> None:
    assert Mask(["abc", "  ", ""]).text("abc and    so on") == "abc and    so on"
    assert Mask(["abcd", "efgh"]).text("abcdefgh") == "******"


def test_the_end_of_a_masked_secret_that_may_begin_another_stays_masked() -> None:
    stream = MaskedStream(Mask(["12abcd", "abcdefgh"]))
    assert b"".join(map(stream.feed, (b"12abcd", b"e", b"?"))) == b"***e?"


def test_a_secret_of_stars_leaves_none() -> None:
    assert Mask(["****"]).text("a ******* b") == "a ### b"


@example(["ab\ncd"], "", "", [])
@example(["****", "#~^|!*"], "***", "#", [3])
@example(["\ud800\udc80abc"], "", "", [])
@example(["000\udc80"], "", "", [])
@given(
    st.lists(secrets, min_size=1, max_size=4),
    st.text(max_size=40),
    st.text(max_size=40),
    st.lists(st.integers(0, 10_000), max_size=20),
)
def test_no_secret_is_left_of_any_text(values: list[str], before: str, after: str, cuts: list[int]) -> None:
    mask = Mask(values)
    for value in values:
        secret = value.strip()
        raw = secret.encode("utf-8", "surrogatepass")
        front, back = (text.encode("utf-8", "surrogatepass") for text in (before, after))
        told = shown(values, front + raw + back, cuts)
        assert raw not in told
        assert told == mask.data(front + raw + back)
        encoded = base64.b64encode(front + raw + back)
        inside = encoded[-(-len(front) * 8 // 6) : (len(front) + len(raw)) * 8 // 6]
        assert inside not in shown(values, encoded, cuts)
        assert raw.hex().encode() not in shown(values, front + raw.hex().encode() + back, cuts)


@given(
    st.lists(secrets, min_size=1, max_size=3),
    st.text(max_size=200),
    st.lists(st.integers(0, 999), max_size=9),
)
def test_what_holds_no_secret_is_left_as_it_is(values: list[str], text: str, cuts: list[int]) -> None:
    if Mask(values).text(text) == text:
        data = text.encode("utf-8", "surrogatepass")
        assert shown(values, data, cuts) == data
