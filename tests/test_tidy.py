"""Every file follows the house rules. Each rule is proved with a planted sample that it must find."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import tidy
from tests.tidy import Module, Rule
from tests.tidy_texts import anchors, citations, own_machine, private_notes

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("orchestrator", "jobs", "tests", "benchmarks", "scripts")
LONG_FUNCTION = "def f():\n" + "    x = 1\n" * 71
WIDE_CLASS = "class C:\n" + "".join(f"    def m{i}(self): ...\n" for i in range(16))


def files(pattern: str, *folders: str) -> list[Path]:
    found = (path for folder in folders for path in (ROOT / folder).rglob(pattern))
    return sorted(path for path in found if path.is_file() and "__pycache__" not in path.parts)


@functools.cache
def modules() -> list[Module]:
    paths = [path for path in files("*.py", *FOLDERS) if "data" not in path.relative_to(ROOT).parts]
    return [Module(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in paths]


@pytest.mark.parametrize("rule", tidy.RULES, ids=lambda rule: rule.__name__)
def test_every_module_obeys(rule: Rule) -> None:
    found = [finding for module in modules() for finding in rule(module)]
    assert not found, "\n".join(found)


def test_every_module_was_looked_at() -> None:
    paths = {module.path for module in modules()}
    assert {"orchestrator/core/lifecycle.py", "tests/test_tidy.py", "scripts/setup.py"} <= paths


PLANTED: list[tuple[Rule, str, str, str]] = [
    (tidy.sizes, "orchestrator/x.py", "x = 1\n" * 501, "501 lines"),
    (tidy.sizes, "orchestrator/x.py", LONG_FUNCTION, "f has 72 lines"),
    (tidy.sizes, "orchestrator/x.py", WIDE_CLASS, "16 public methods"),
    (tidy.module_names, "orchestrator/stores/folder_utils.py", "", "'folder_utils'"),
    (tidy.module_names, "tests/helpers/x.py", "", "'helpers'"),
    (tidy.docstrings, "orchestrator/x.py", "x = 1\n", "no docstring"),
    (tidy.one_clock, "orchestrator/engine/market.py", "import time\n", "reads the time"),
    (tidy.one_clock, "orchestrator/agent/x.py", "from time import monotonic\n", "reads the time"),
    (tidy.one_clock, "orchestrator/x.py", "x = datetime.now(UTC)\n", "reads the time"),
    (tidy.one_clock, "orchestrator/x.py", "x = datetime.date.today()\n", "reads the time"),
    (tidy.one_clock, "orchestrator/x.py", "x = datetime.datetime.utcnow()\n", "reads the time"),
    (tidy.one_clock, "tests/x.py", "import time\ntime.sleep(1)\n", "do not sleep"),
    (tidy.one_clock, "jobs/x.py", "from time import sleep\n", "do not sleep"),
    (tidy.broad_excepts, "orchestrator/x.py", "try: f()\nexcept: pass\n", "catches everything"),
    (tidy.broad_excepts, "jobs/x.py", "try: f()\nexcept (OSError, Exception): pass\n", "catches everything"),
    (tidy.broad_excepts, "tests/x.py", "try: f()\nexcept Exception:  # noqa: BLE001\n    pass\n", "reason"),
    (tidy.pure_core, "orchestrator/core/x.py", "from pathlib import Path\n", "pathlib"),
    (tidy.pure_core, "orchestrator/core/x.py", "import random\n", "random"),
    (tidy.pure_core, "orchestrator/core/x.py", "print(1)\n", "print"),
    (tidy.one_user, "orchestrator/x.py", "x = Path.home()\n", "orchestrator/user.py"),
    (tidy.one_user, "orchestrator/x.py", "x = Path(y).expanduser()\n", "orchestrator/user.py"),
    (tidy.one_user, "orchestrator/x.py", "import platformdirs\n", "orchestrator/user.py"),
    (tidy.import_rules, "orchestrator/core/x.py", "import orchestrator.clock\n", "may not import"),
    (tidy.import_rules, "orchestrator/core/x.py", "import yaml\n", "standard library only"),
    (tidy.import_rules, "orchestrator/agent/x.py", "from orchestrator.core import decide\n", "core.decide"),
    (tidy.import_rules, "orchestrator/agent/x.py", "import torch\n", "standard library only"),
    (tidy.import_rules, "orchestrator/training/x.py", "from orchestrator import errors\n", "may not import"),
    (tidy.import_rules, "orchestrator/platforms/x.py", "from ..stores import folder\n", "stores.folder"),
    (tidy.import_rules, "orchestrator/stores/x.py", "import orchestrator.platforms.ssh\n", "platforms.ssh"),
    (tidy.import_rules, "orchestrator/engine/x.py", "import orchestrator.platforms.ssh\n", "platforms.ssh"),
    (tidy.import_rules, "orchestrator/ledger/x.py", "from orchestrator.cli import main\n", "may not import"),
    (tidy.import_rules, "orchestrator/cli/x.py", "from orchestrator.ledger import Ledger\n", "ledger.Ledger"),
    (tidy.import_rules, "orchestrator/cli/x.py", "from orchestrator.core import route\n", "core.route"),
    (tidy.import_rules, "orchestrator/newcomer.py", "", "does not say what"),
    (tidy.platform_names, "orchestrator/engine/market.py", "x = name == 'kaggle'\n", "'kaggle'"),
    (tidy.platform_names, "orchestrator/core/x.py", "x = name in ('cpu', 'docker')\n", "'docker'"),
    (tidy.platform_names, "orchestrator/x.py", "match n:\n    case 'slurm': pass\n", "'slurm'"),
    (tidy.no_mocks, "tests/x.py", "from unittest import mock\n", "no mocks"),
    (tidy.no_mocks, "tests/x.py", "from unittest.mock import patch\n", "no mocks"),
    (tidy.no_other_writer, "orchestrator/agent/x.py", "path.unlink()\n", "not path.unlink"),
    (tidy.no_other_writer, "orchestrator/engine/x.py", "path.replace(target)\n", "not path.replace"),
    (tidy.no_other_writer, "orchestrator/session/x.py", "with path.open('ab') as file: pass\n", "path.open"),
    (tidy.no_other_writer, "orchestrator/session/x.py", "x = open(path, mode='r+')\n", "not open"),
    (tidy.no_other_writer, "orchestrator/client/live.py", "os.open(path, flags)\n", "not os.open"),
    (tidy.failing_is_possible, "tests/x.py", "def test_a():\n    f()\n", "asserts nothing"),
    (tidy.constants_once, "orchestrator/x.py", "A = 1\nB = 2\nA = 3\n", "A is assigned twice"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "path", "source", "finding"), PLANTED)
def test_a_planted_offence_is_found(rule: Rule, path: str, source: str, finding: str) -> None:
    assert any(finding in found for found in rule(Module(path, source)))


CLEAN: list[tuple[Rule, str, str]] = [
    (tidy.sizes, "orchestrator/x.py", "x = 1\n" * 500),
    (tidy.module_names, "orchestrator/database.py", ""),
    (tidy.docstrings, "tests/__init__.py", ""),
    (tidy.one_clock, "orchestrator/clock.py", "import time\nx = time.time()\n"),
    (tidy.one_clock, "tests/x.py", "import time\nx = time.monotonic()\n"),
    (tidy.broad_excepts, "orchestrator/x.py", "try: f()\nexcept BaseException:\n    g()\n    raise\n"),
    (
        tidy.broad_excepts,
        "orchestrator/x.py",
        "try: f()\nexcept Exception as e:  # noqa: BLE001 a thread must report, not die\n    g(e)\n",
    ),
    (tidy.import_rules, "orchestrator/agent/x.py", "import json\nfrom orchestrator.core import wire\n"),
    (tidy.import_rules, "orchestrator/platforms/catalog.py", "from orchestrator.platforms import process\n"),
    (tidy.import_rules, "orchestrator/client/x.py", "from orchestrator.platforms.process import Process\n"),
    (tidy.platform_names, "orchestrator/platforms/kaggle.py", "x = name == 'kaggle'\n"),
    (tidy.failing_is_possible, "tests/x.py", "def look(x):\n    assert x\ndef test_a():\n    look(f())\n"),
    (tidy.no_other_writer, "orchestrator/files/x.py", "path.unlink()\n"),
    (tidy.no_other_writer, "orchestrator/agent/x.py", "os.unlink(name, dir_fd=folder)\n"),
    (tidy.no_other_writer, "orchestrator/agent/x.py", "x = path.open('rb'), text.replace('a', 'b')\n"),
    (tidy.constants_once, "orchestrator/x.py", "if x:\n    A = 1\nelse:\n    A = 2\n"),
    (tidy.failing_is_possible, "tests/x.py", "def test_a():\n    with pytest.raises(OSError): f()\n"),
]


@pytest.mark.parametrize(("rule", "path", "source"), CLEAN)
def test_what_is_allowed_is_not_found(rule: Rule, path: str, source: str) -> None:
    assert list(rule(Module(path, source))) == []


def test_nothing_names_the_machine_it_was_written_on() -> None:
    words = frozenset(str(path) for path in (ROOT, Path.home()) if len(path.parts) > 2)
    found = [
        f"{path}:{finding}"
        for path, text in texts()
        if not path.startswith("images/")  # which have folders of their own in /home
        for finding in own_machine(text, words)
    ]
    assert not found, "\n".join(found)


def texts() -> Iterator[tuple[str, str]]:
    """Every text of the repository by its path, except this module, which is full of planted samples."""
    folders = files("*", *FOLDERS, "docs", "changes", "images", ".ci")
    for path in [*folders, *ROOT.glob("*.*"), ROOT / "Dockerfile", ROOT / "Makefile"]:
        if (
            path.is_file()
            and path not in (Path(__file__), ROOT / ".git")
            and (text := _text(path)) is not None
        ):
            yield path.relative_to(ROOT).as_posix(), text


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


@pytest.mark.parametrize("line", ["see /home/ada/notes", "open('/root/x')", "on otter-7", "cd /otter/clone"])
def test_a_planted_machine_is_found(line: str) -> None:
    assert list(own_machine(line, frozenset({"otter-7", "/otter/clone"})))


@pytest.mark.parametrize("line", ["{tmp}/work/source", "/kaggle/working", "motter-70", "~/work/x"])
def test_what_names_no_machine_is_not_found(line: str) -> None:
    assert not list(own_machine(line, frozenset({"otter-7"})))


def test_nothing_cites_our_private_notes() -> None:
    found = [f"{path}:{finding}" for path, text in texts() for finding in private_notes(text)]
    assert not found, "\n".join(found)


def test_every_page_and_heading_that_is_cited_exists() -> None:
    pages = {path: anchors(text) for path, text in texts() if path.startswith("docs/")}
    assert "docs/references/kaggle.md" in pages
    found = [f"{path}:{finding}" for path, text in texts() for finding in citations(text, pages)]
    assert not found, "\n".join(found)


PAGE = '# A page\n## What "resume" promises\n```\n# no heading\n```\n'
PAGES = {"docs/references/a.md": anchors(PAGE)}


@pytest.mark.parametrize(
    "line",
    ["# (facts/kaggle.md §3)", "see facts/speeds.json", 'DESIGN.md "The shape"', "the sum (decision 13b)"],
)
def test_a_planted_private_note_is_found(line: str) -> None:
    assert list(private_notes(line))


@pytest.mark.parametrize(
    "line",
    ["12 facts/s", "inputs/facts.jsonl", "docs/references/a.md", "REDESIGN.md", "([decision 013](a.md))"],
)
def test_what_is_no_private_note_is_not_found(line: str) -> None:
    assert not list(private_notes(line))


@pytest.mark.parametrize(
    ("line", "finding"),
    [
        ("# docs/references/a.md#resume", "'resume'"),
        ("(docs/references/a.md#no-heading)", "'no-heading'"),
        ("two: docs/references/a.md#a-page, docs/references/a.md#b-page.", "'b-page'"),
        ("docs/references/b.md", "docs/references/b.md"),
        ("docs/gone.md#a-page", "docs/gone.md"),
    ],
)
def test_a_planted_citation_of_nothing_is_found(line: str, finding: str) -> None:
    (found,) = citations(line, PAGES)
    assert finding in found


@pytest.mark.parametrize(
    "line",
    [
        "docs/references/a.md#what-resume-promises.",
        "docs/references/a.md",
        "https://a.org/docs/references/b.md",
        "docs/b.md",
    ],
)
def test_a_citation_of_what_exists_is_not_found(line: str) -> None:
    assert not list(citations(line, PAGES))


TOP_FOLDERS = {".ci", "benchmarks", "changes", "docs", "images", "jobs", "orchestrator", "scripts", "tests"}
TOP_TEXTS = {"CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "NOTICE", "README.md", "SECURITY.md"}
TOP_SETTINGS = {".dockerignore", ".env", ".gitignore", "Dockerfile", "Makefile", "pyproject.toml"}
TOP_BUILD = {"MANIFEST.in", "setup.py"}
TOP_COMPOSE = {"compose.yaml", "compose.engine.yaml"}


def tracked() -> list[str]:
    done = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else []


def test_nothing_private_is_tracked() -> None:
    assert not [path for path in tracked() if path.startswith((".venv/", ".demo/")) or path.endswith(".pyc")]


def test_nothing_strays_into_the_top_level() -> None:
    assert {
        path.partition("/")[0] for path in tracked()
    } <= TOP_FOLDERS | TOP_TEXTS | TOP_SETTINGS | TOP_BUILD | TOP_COMPOSE
