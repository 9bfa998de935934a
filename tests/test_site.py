"""The site of the documentation builds without a warning, has no dead link, and answers within two clicks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import build_site, record_demo
from tests.site import Page, Site

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, str(ROOT / "scripts" / "build_site.py"), str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return Site.read(folder)


def test_every_page_of_the_docs_is_on_the_site(site: Site) -> None:
    sources = [*(ROOT / "docs").rglob("*.md"), ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
    missing = [
        path
        for path in sources
        if site.folder / path.relative_to(ROOT).with_suffix(".html") not in site.pages
    ]
    assert missing == []
    assert [
        site.leads_to(site.folder / "index.html", link.target) for link in site.page("index.html").links
    ] == [(site.folder / "docs" / "index.html", "")]


def test_no_link_of_the_site_is_dead(site: Site) -> None:
    assert list(site.dead_links()) == []
    assert list(site.odd_addresses()) == []


@pytest.mark.parametrize(
    ("wanted", "words", "page", "told"),
    [
        ("bring a Hugging Face script", ["Hugging Face"], "bring-your-script", "checkpoint-{step}"),
        ("what a message means", ["exited 0 without a checkpoint"], "troubleshooting", "left no checkpoint"),
        ("a GPU of my own without Docker", ["Your own machine"], "own-machine", "accelerator: RTX4090"),
        ("what Kaggle gets to see", ["What leaves"], "what-leaves", "everything that a session is given"),
        (
            "what is not proven",
            ["Your first run on Kaggle", "what was never tried"],
            "kaggle",
            "What was never tried",
        ),
        ("every key of a job", ["Bring your script", "input"], "job-reference", "inputs[].sha256"),
        ("an option of a command", ["Cheat sheet", "all options"], "commands", "--unless-running"),
        ("is it for me", ["Comparison"], "comparison", "SkyPilot"),
    ],
)
def test_it_takes_two_clicks_at_most(site: Site, wanted: str, words: list[str], page: str, told: str) -> None:
    assert len(words) <= 2
    found, anchor = site.clicks("docs/index.html", words)
    assert found == site.folder / "docs" / f"{page}.html", wanted
    assert told in site.pages[found].text
    assert not anchor or anchor in site.pages[found].anchors


def test_the_site_loads_nothing_from_elsewhere(site: Site) -> None:
    assert list(site.remote_loads()) == []
    assert site.page("docs/index.html").loads != []


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ('<a href="gone.html">x</a>', "leads to no file"),
        ('<a href="#gone">x</a>', "leads to no heading"),
        ('<a href="https://nowhere">x</a>', "https://nowhere"),
        ('<script src="https://cdn.example.org/a.js"></script>', "cdn.example.org"),
        ('<link rel="stylesheet" href="//fonts.example.org/a.css">', "fonts.example.org"),
        ("<style>body { background: url('https://a.example.org/b.png') }</style>", "a.example.org"),
    ],
)
def test_a_planted_fault_of_a_site_is_found(tmp_path: Path, html: str, found: str) -> None:
    (tmp_path / "index.html").write_text(
        f'<a href="index.html#here" id="here">fine</a>{html}', encoding="utf-8"
    )
    read = Site.read(tmp_path)
    (said,) = [*read.dead_links(), *read.odd_addresses(), *read.remote_loads()]
    assert found in said


def test_text_and_links_of_the_navigation_are_told_apart() -> None:
    page = Page('<nav><a href="a">one</a></nav><article>two <br><a href="b">three <b>four</b></a></article>')
    assert [(link.text, link.article) for link in page.links] == [("one", False), ("three four", True)]
    assert page.text == "two three four"


def test_the_recording_is_small_loads_nothing_and_can_stand_still() -> None:
    svg = (ROOT / "docs" / "_static" / "demo.svg").read_text(encoding="utf-8")
    assert len(svg.encode()) <= record_demo.BYTES_MAX <= 150_000
    assert "<script" not in svg
    assert "@font-face" not in svg
    assert "prefers-reduced-motion" in svg
    assert "kill -9" in svg
    assert svg.count("starts on here/cpu") >= 3  # it crosses the ends of sessions
    assert record_demo.still_without_animation("<svg a><style>translateY(-5px)</style></svg>").startswith(
        "<svg a><title>"
    )


def test_the_recordings_text_does_not_touch_its_edges() -> None:
    drawn = '<svg viewBox="0 0 608 342" width="608"><svg id="screen"></svg></svg>'
    ground = '<rect class="background" x="-10" y="-10" width="100%" height="100%"/>'
    assert record_demo.with_margin(drawn) == (
        f'<svg viewBox="-10 -10 628 362" width="628">{ground}<svg id="screen"></svg></svg>'
    )
    assert ground in (ROOT / "docs" / "_static" / "demo.svg").read_text(encoding="utf-8")
    with pytest.raises(SystemExit, match="another form"):
        record_demo.with_margin("<svg></svg>")


def test_an_option_is_not_taken_for_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert build_site.main(["--help"]) == 2
    assert "[FOLDER]" in capsys.readouterr().err
