"""Colab's answers and failures, decoded: values in, values out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from orchestrator.errors import AccessDenied, BackendError, Rejected, Transient
from orchestrator.platforms.colab.errand import hidden, lacking
from orchestrator.platforms.colab.machine import Left
from orchestrator.platforms.colab.refusals import meaning
from orchestrator.platforms.colab.values import (
    Assignment,
    Entry,
    Units,
    decode_assignments,
    decode_entry,
    decode_units,
    notebook,
)


def test_a_session_always_has_the_same_notebook() -> None:
    """Also after an update: machines that are running must be found again."""
    assert str(notebook("demo-7f3kq2vd-s01")) == "5671302b-2e3c-5513-9107-ba80ac2b91a6"
    assert notebook("demo-7f3kq2vd-s02") != notebook("demo-7f3kq2vd-s01")


def test_assignments() -> None:
    body = {"assignments": [
        {"endpoint": "a", "accelerator": "t4", "machineShape": 1},
        {"endpoint": "b", "accelerator": "B200", "machineShape": "STANDARD", "more": 1},
        {"endpoint": "c"},
    ]}  # fmt: skip
    assert decode_assignments(body) == (
        Assignment("a", "T4", high_mem=True), Assignment("b", "B200"), Assignment("c", "NONE"),
    )  # fmt: skip
    assert decode_assignments({}) == ()
    with pytest.raises(KeyError):
        decode_assignments({"assignments": [{"accelerator": "T4"}]})


def test_units() -> None:
    bare = {"currentBalance": 1.5, "consumptionRateHourly": 0.0, "assignmentsCount": 2}
    assert decode_units(bare) == Units(1.5, 0.0, 2)
    free = {"freeCcuQuotaInfo": {"remainingTokens": "1234", "nextRefillTimestampSec": 1_800_000_000}}
    lists = {"eligibleGpus": ["T4"], "ineligibleGpus": [], "eligibleTpus": ["v5e1"]}
    assert decode_units(bare | free | lists) == Units(
        1.5,
        0.0,
        2,
        free_left=1.234,
        free_refill_at=1_800_000_000.0,
        gpus=("T4",),
        ineligible_gpus=(),
        tpus=("V5E1",),
    )
    with pytest.raises(KeyError):
        decode_units({})


@pytest.mark.parametrize("odd", [math.inf, math.nan, 10**400, "9" * 400, "many"])
@pytest.mark.parametrize("key", ["currentBalance", "consumptionRateHourly", "assignmentsCount"])
def test_what_is_no_number_cannot_be_read(key: str, odd: object) -> None:
    with pytest.raises(ValueError, match=r"not a finite number|could not convert"):
        decode_units({"currentBalance": 1.5} | {key: odd})


@pytest.mark.parametrize("odd", [1e18, -1e18])
def test_a_time_that_no_calendar_shows_is_not_known(odd: float) -> None:
    found = decode_units({"currentBalance": 0, "freeCcuQuotaInfo": {"nextRefillTimestampSec": odd}})
    assert found.free_refill_at is None


def test_entries() -> None:
    file = {"name": "a", "type": "file", "size": 3, "last_modified": "1970-01-01T00:01:00Z"}
    assert decode_entry(file) == Entry("a", False, 3, 60.0)
    assert decode_entry({"name": "b", "type": "directory", "size": 4096}) == Entry("b", True)
    with pytest.raises(ValueError, match="not a finite number"):
        decode_entry(file | {"size": math.inf})


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (
            {"kind": "strange", "version": "0.8.0", "message": "AttributeError: app"},
            Rejected,
            "0.8.0 is not the one",
        ),
        ({"kind": "failed", "phase": "login", "kinds": ["EOFError"]}, AccessDenied, "nobody is logged in"),
        (
            {"kind": "failed", "phase": "login", "requests": [{"path": "/token", "error": "ConnectTimeout"}]},
            Transient,
            "cannot be renewed now",
        ),
        (
            {"kind": "failed", "requests": [{"host": "x", "path": "/tun/m/assign", "error": "ReadTimeout"}]},
            Transient,
            "no answer from x",
        ),
        (
            {"kind": "failed", "requests": [{"path": "/api/contents/x", "status": 404}]},
            Transient,
            "the machine is gone",
        ),
        (
            {
                "kind": "failed",
                "requests": [
                    {"method": "POST", "path": "/tun/m/assign", "error": "ReadTimeout"},
                    {"method": "POST", "path": "/tun/m/assign", "status": 412},
                ],
            },
            Transient,
            "may give one later",
        ),
        ({"kind": "failed", "message": "what it said"}, Rejected, "what it said"),
    ],
)
def test_failures_that_the_local_colab_does_not_show(
    answer: Mapping[str, Any], kind: type[BackendError], words: str
) -> None:
    error = meaning(answer, backend="colab", operation="new", login="log in")
    assert type(error) is kind
    assert words in str(error)


@pytest.mark.parametrize(
    ("kinds", "message", "words"),
    [
        ("Warning", 'Scope has changed from "openid colaboratory" to "openid".',
         "not to everything (Colab): run it again"),
        ("Warning", 'Scope has changed from "openid x/auth/userinfo.email x/new.scope" to "".',
         "not to everything (openid, email, new.scope)"),
        ("Warning", 'Scope has changed from "openid x/auth/userinfo.email" to "email openid profile".',
         "nobody is logged in to Colab (Warning)"),
        ("AccessDeniedError OAuth2Error", "(access_denied) ", "you refused"),
        ("CustomOAuth2Error", "(access_denied) The user denied it", "you refused"),
        ("CustomOAuth2Error", "(admin_policy_enforced) ", "the administrator of this Google account"),
        ("ValueError", "Please supply either code or authorization_response", "no code was pasted"),
        ("InvalidGrantError", "(invalid_grant) Bad Request", "it is wrong or too old"),
    ],
)  # fmt: skip
def test_what_a_person_reads_after_a_login_that_failed(kinds: str, message: str, words: str) -> None:
    token = {"method": "POST", "path": "/token", "host": "oauth2.googleapis.com", "status": 200}
    answer = {"kind": "failed", "phase": "login", "error": kinds.split()[0], "kinds": kinds.split(),
              "message": message, "requests": [token]}  # fmt: skip
    error = meaning(answer, backend="colab", operation="login", login="log in")
    assert type(error) is AccessDenied
    assert words in str(error)


@pytest.mark.parametrize(
    ("granted", "lacks"),
    [
        ("drive.file colaboratory email", []),
        ("email x/auth/colaboratory", ["drive.file"]),
        ("x/auth/drive.file x/auth/colaboratory x/auth/userinfo.email profile", []),
        ("", ["email", "colaboratory", "drive.file"]),
    ],
)
def test_a_scope_under_another_name_is_granted(granted: str, lacks: list[str]) -> None:
    asked = ["x/auth/userinfo.email", "x/auth/colaboratory", "x/auth/drive.file"]
    assert lacking(asked, granted.split()) == lacks


@pytest.mark.parametrize(
    "text",
    [
        "GET https://x/api/contents/a?authuser=0&colab-runtime-proxy-token=SECRET",
        "Authorization: Bearer SECRET",
        '{"token": "SECRET"}',
    ],
)
def test_tokens_are_hidden(text: str) -> None:
    assert "SECRET" not in hidden(text)
    assert "SECRET" not in hidden(f"{text}&more=1")


@pytest.mark.parametrize(
    ("left", "text"),
    [
        (Left(0, ""), "its agent has ended"),
        (Left(-9, ""), "its agent died (-9)"),
        (Left(None, "no Python"), "its agent could not be started: no Python"),
    ],
)
def test_an_agent_that_ended_as_it_should_is_not_called_dead(left: Left, text: str) -> None:
    assert left.text == text
