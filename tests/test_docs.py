"""What the documents say is true: generated pages are current, quoted code is the code, links work."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from orchestrator import spec
from orchestrator.cli import arguments
from orchestrator.core.accelerators import catalogue
from orchestrator.core.lifecycle import TABLE, Kind, Phase
from orchestrator.errors import InputError
from orchestrator.platforms.colab.options import WORDS, ColabOptions
from orchestrator.platforms.colab.surveying import RATES
from orchestrator.platforms.kaggle.options import KaggleOptions
from scripts import generate_docs
from tests.tidy_texts import anchors

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "changes").glob("*.md")])
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("name", generate_docs.pages())
def test_a_generated_page_is_current(name: str) -> None:
    written = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert written == generate_docs.pages()[name], "out of date: run `make docs`"


def test_the_lifecycle_page_shows_every_phase_and_event() -> None:
    page = generate_docs.lifecycle_page()
    assert [word.value for word in (*Phase, *Kind) if word.value not in page] == []
    rows = dict(re.findall(r"^\| (\w+) \| (.*?) \|", page, re.MULTILINE))
    for phase, row in TABLE.items():
        for kind, after in row.items():
            assert (f"`{kind.value}` → {after.value}" in rows[phase.value]) == (after is not phase)


def test_the_contract_quotes_its_example_as_it_is() -> None:
    text = (ROOT / "docs" / "training-contract.md").read_text(encoding="utf-8")
    quoted = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert quoted == [(ROOT / "docs" / "examples" / "plain_pytorch.py").read_text(encoding="utf-8")]


def test_the_helpers_page_quotes_its_example_as_it_is() -> None:
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    example = (ROOT / "docs" / "examples" / "five_lines.py").read_text(encoding="utf-8")
    assert re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0] == example
    assert re.findall(r"# (\d)$", example, re.MULTILINE) == ["1", "2", "3", "4", "5"]


def test_the_contract_names_every_variable_that_a_command_is_given() -> None:
    text = (ROOT / "docs" / "training-contract.md").read_text(encoding="utf-8")
    source = (ROOT / "orchestrator" / "agent" / "leader.py").read_text(encoding="utf-8")
    given = set(re.findall(r'"(ORCHESTRATOR_[A-Z_]+)"', source))
    assert given
    assert [name for name in sorted(given) if f"`{name}`" not in text] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_every_link_leads_to_a_file(document: Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_every_link_to_a_heading_finds_it(document: Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [(target, anchor) for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", text)]
    pages = {
        target: document.parent / target if target else document for target, _ in links if "://" not in target
    }
    found = {target: anchors(page.read_text(encoding="utf-8")) for target, page in pages.items()}
    assert [(target, name) for target, name in links if target in found and name not in found[target]] == []


@pytest.mark.parametrize("record", DECISIONS, ids=relative)
def test_a_decision_record_is_numbered_short_and_complete(record: Path) -> None:
    text = record.read_text(encoding="utf-8")
    assert text.startswith(f"# {record.name[:3]}. ")
    headings = re.findall(r"^(?:## |\*\*)(\w+)", text, re.MULTILINE)
    assert {"Context", "Choice", "Rejected"} <= set(headings)
    assert text.count("\n") <= 60


def test_decision_records_are_numbered_without_a_gap() -> None:
    numbers = [path.name[:3] for path in DECISIONS]
    assert numbers == [f"{index:03}" for index in range(1, len(numbers) + 1)]


def test_every_make_command_in_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for document in DOCUMENTS:
        named = re.findall(
            r"(?:`|^    )(?:[A-Z_]+=\S+ )*make ([a-z-]+)", document.read_text(encoding="utf-8"), re.M
        )
        assert set(named) <= targets, document


_START = r"(?:^|&& |; )(?:\$ )?((?:\w+=\S+ )*(?:orchestrator|submit) (?!→)[^#|&<>;\n]*)"


def commands(text: str) -> Iterator[str]:
    """Every `orchestrator …` and `submit …` in a document, in a block or within a sentence, without what a
    shell adds."""
    blocks = re.findall(r"^ *```[a-z]*\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    plain = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    for line in [*"\n".join(blocks).splitlines(), *re.findall(r"^ {4,}(.*)$", plain, re.MULTILINE)]:
        yield from re.findall(_START, line.strip())
    yield from re.findall(r"`(orchestrator [^`#|&<>]+|submit \S+\.ya?ml[^`#|&<>]*)", plain)


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_every_command_is_one_that_can_be_typed(document: Path) -> None:
    for command in commands(document.read_text(encoding="utf-8")):
        words = shlex.split(re.sub(r"^(?:\w+=\S+ )+|[\[\]]", "", command))
        words = words if words[0] == "submit" else words[1:]
        given = arguments.parse(words) if not {"-h", "--help", "-V", "--version"} & {*words} else None
        offers = getattr(given, "offer", None) or []
        assert {re.split("[=:]", each)[1] for each in offers} <= {"ACCELERATOR", *catalogue}, command


def test_a_command_that_cannot_be_typed_is_noticed() -> None:
    text = (
        "`orchestrator backup`\n\n    make demo && orchestrator replay --al  # all\n\n```\nsubmit --x\n```\n"
    )
    found = [*commands(text)]
    assert [each.strip() for each in found] == [
        "submit --x",
        "orchestrator replay --al",
        "orchestrator backup",
    ]
    for command in found:
        with pytest.raises(InputError):
            arguments.parse(command.removeprefix("orchestrator ").split())


@pytest.mark.parametrize(
    ("page", "heading", "rows_min"),
    [
        ("kaggle.md", "## Failures", 30),
        ("stores-drive.md", "## What can go wrong", 30),
        ("colab.md", "## Failures", 30),
        ("colab.md", "### If something happens", 7),
    ],
)
def test_each_fault_has_tests_that_exist(page: str, heading: str, rows_min: int) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").partition(heading)[2]
    rows = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("|")][2:]
    assert len(rows) >= rows_min
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    tests = {name for source in sources for name in re.findall(r"^def (test_\w+)\(", source, re.MULTILINE)}
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row.strip("|").split("|")[-1])
        assert named, f"no test: {row}"
        assert set(named) <= tests, row


@pytest.mark.parametrize(("page", "options"), [("kaggle.md", KaggleOptions), ("colab.md", ColabOptions)])
def test_every_option_is_on_its_platforms_page(page: str, options: type[BaseModel]) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    table = text.partition("## Options")[2].partition("\n## ")[0]
    assert set(options.model_fields) <= set(re.findall(r"`(\w+)`", table))


def test_the_assumed_costs_of_colab_are_those_of_the_code() -> None:
    text = (ROOT / "docs" / "colab.md").read_text(encoding="utf-8")
    names, _, figures = re.findall(r"^\|(.*)\|$", text.partition("## Costs")[2].partition("\n## ")[0], re.M)
    told = dict(zip(re.findall(r"`([\w-]+)`", names), figures.split("|")[1:], strict=True))
    assert {name: float(told[name]) for name in told} == {name: RATES[word] for name, word in WORDS.items()}


def test_every_fragment_says_what_kind_of_change_it_is() -> None:
    fragments = [path.name for path in (ROOT / "changes").iterdir() if path.name != "README.md"]
    valid = re.compile(r"[a-z0-9-]+\.(added|changed|fixed|removed)\.md")
    assert [name for name in fragments if not valid.fullmatch(name)] == []


def test_the_job_in_the_readme_is_valid() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (quoted,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    job = spec.parse(quoted.encode(), "README.md", ROOT / "docs" / "examples").job
    assert job.name == "my-first-job"
    assert job.work.total == 20000
    assert quoted == (ROOT / "docs" / "examples" / "first.yaml").read_text(encoding="utf-8")
