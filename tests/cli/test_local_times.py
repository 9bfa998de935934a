"""Times for people are in their zone, whoever wrote the sentence; those for programs are not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from orchestrator.cli.local_times import localised, zone_of
from orchestrator.cli.running import LOCAL, run
from orchestrator.clock import utc_text
from orchestrator.core.event import Deferred, Slept, Submitted
from orchestrator.core.wording import date
from tests.client.homes import ledger_of
from tests.core.runs import NOW, RUN, job

BERLIN = ZoneInfo("Europe/Berlin")
WINTER, SUMMER = 1_795_611_603.0, 1_782_910_800.0  # 25 November 13:00:03Z, 1 July 13:00Z


def test_the_page_lists_the_commands_with_local_times() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "planning.md").read_text("utf-8")
    told = page[page.index("So are those of ") : page.index("All name their")]
    said = {*re.findall(r"`([a-z]+)`", told), "plan"}
    assert said == LOCAL


@pytest.mark.parametrize(
    ("text", "local"),
    [
        (f"waits until {date(WINTER)}: quota", "waits until 2026-11-25 14:00 CET: quota"),
        (utc_text(WINTER), "2026-11-25 14:00:03 CET"),
        (f"({date(SUMMER)})", "(2026-07-01 15:00 CEST)"),
        ("2026-11-25 23:30Z to 2026-11-26 00:30Z", "2026-11-26 00:30 CET to 2026-11-26 01:30 CET"),
        ("Zebra of 2026-11-25", "Zebra of 2026-11-25"),
        ("backup-2026-11-25-130000Z.tar.gz", "backup-2026-11-25-130000Z.tar.gz"),
        ("2026-02-31 10:00Z, 2026-11-25T10:00Z", "2026-02-31 10:00Z, 2026-11-25T10:00Z"),
        ("9999-12-31 23:59Z", "9999-12-31 23:59Z"),
        ("????-??-?? ??:??:??Z", "????-??-?? ??:??:??Z"),
    ],
)
def test_times_of_a_sentence_are_turned(text: str, local: str) -> None:
    assert localised(text, BERLIN) == local
    assert localised(text, ZoneInfo("UTC")) == text


@pytest.mark.parametrize(
    ("line", "zone"),
    [
        ("timezone: Europe/Berlin", BERLIN),
        ("timezone: 'Europe/Berlin'  # home", BERLIN),
        ('timezone: "Europe/Berlin"\r', BERLIN),
        ("# timezone: Europe/Berlin", None),
        ("  timezone: Europe/Berlin", None),
        ("timezone: Nowhere/Atall", None),
        ("timezone: ../../etc/passwd", None),
        ("", None),
    ],
)
def test_the_zone_is_that_of_the_config(tmp_path: Path, line: str, zone: ZoneInfo | None) -> None:
    (tmp_path / "config.yaml").write_bytes(f"platforms: {{}}\n{line}\nstores: {{}}\n".encode())
    assert zone_of(tmp_path / "config.yaml") == zone
    assert zone_of(tmp_path / "none.yaml") is None


def test_a_story_is_told_in_local_time_and_its_json_in_utc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also the times in reasons that the ledger keeps."""
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path))
    (tmp_path / "config.yaml").write_text(
        "platforms: {here: {type: process, accelerator: cpu}}\ntimezone: Europe/Berlin\n"
    )
    sleeps = Slept(WINTER, f"asleep until {date(WINTER + 3600.0)}: schedule nightly", WINTER + 3600.0)
    with ledger_of(tmp_path) as ledger:
        ledger.submit(Submitted(RUN, job(), NOW, store="home", schedule="nightly"))
        ledger.append(ledger.record(RUN), [Deferred(SUMMER, WINTER, "no quota"), sleeps], due_at=None)
    for words in ("why", RUN), ("show", RUN), ("ps",):
        assert run(words) == 0
        said = capsys.readouterr().out
        assert "asleep until 2026-11-25 15:00 CET" in said, words
        assert "Z:" not in said, words
    assert run(("why", RUN)) == 0
    assert "2026-07-01 15:00:00 CEST" in capsys.readouterr().out
    assert run(("why", RUN, "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["reason"] == sleeps.reason
