"""`orchestrator help TOPIC`: the pages of docs/ without a clone, and the messages that cite them."""

from __future__ import annotations

import ast
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import orchestrator
from orchestrator.cli import charset, helping
from orchestrator.cli import pages as showing
from orchestrator.cli.arguments import COMMANDS
from orchestrator.client import pages
from orchestrator.errors import InputError
from tests.cli.calls import Caller
from tests.cli.dialogue import dialogue

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = 60
CITED = re.compile(r"`orchestrator help ([a-z0-9-]+(?: [a-z0-9-]+)*)`")
INDENT = " " * 4  # of code, which is not wrapped


def seen(path: Path) -> Iterator[str]:
    """What people may see of a module: its strings, except docstrings, and what calls of `help_page` say."""
    text = path.read_text(encoding="utf-8")
    if not re.search(r"docs/|orchestrator help|help_page", text):
        return
    tree = ast.parse(text)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    unseen = {
        id(each.body[0].value)
        for each in ast.walk(tree)
        if isinstance(each, documented) and each.body and isinstance(each.body[0], ast.Expr)
    }
    for each in ast.walk(tree):
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in unseen:
            yield each.value
        elif isinstance(each, ast.Call) and ast.unparse(each.func) == "help_page":
            yield f"`orchestrator help {' '.join(ast.literal_eval(word) for word in each.args)}`"


def test_every_page_that_a_message_cites_is_there_and_no_message_cites_a_file() -> None:
    texts = {path: [*seen(path)] for path in sorted((ROOT / "orchestrator").rglob("*.py"))}
    files = [(path.name, text) for path, every in texts.items() for text in every
             if re.search(r"docs/(?!references/)[\w-]+\.md", text)]  # fmt: skip
    assert files == []
    cited = {words for every in texts.values() for text in every for words in CITED.findall(text)}
    assert {"any-script", "curves what-your-script-reports", "stores versions"} <= cited
    for words in cited - {"topics"}:
        assert helping.meant(words.split()) is not None, f"`orchestrator help {words}` shows a command"


def test_every_link_on_a_page_leads_to_a_page_and_its_heading() -> None:
    assert pages.topics() == sorted(path.stem for path in (ROOT / "docs").glob("*.md"))
    assert pages.LIST not in pages.topics()
    assert pages.LIST not in [each.name for each in COMMANDS]
    every = list(pages.pages())
    links = {tuple(link.split()) for page in every for link in re.findall(r"\(→ ([\w -]+)\)", page.text)}
    assert ("training-contract", "what-resume-promises") in links
    for topic, *heading in links:
        assert helping.meant([topic, *heading], as_page=True) is not None
    left = [(page.topic, link) for page in every for link in re.findall(r"\]\((?!\w+:)[^)]*\)", page.text)]
    assert left == []


def test_every_page_can_be_drawn_at_60_columns_in_the_c_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    encoding, errors = charset.chosen("utf-8", {"LC_ALL": "C"}, terminal=True)
    for page in pages.pages():
        drawn = io.BytesIO()
        stream = io.TextIOWrapper(drawn, encoding, errors)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            showing.draw(page.text, coloured=False)
        stream.flush()
        lines = drawn.getvalue().decode("ascii").splitlines()
        assert page.title.startswith(lines[0].strip())
        assert [line for line in lines if len(line) > COLUMNS and not line.startswith(INDENT)] == []
        replaced = "\n".join(lines).count("?") - page.text.count("?") - page.text.count("\ufffd")
        assert replaced <= 0, f"{page.topic} has characters for which there is no stand-in"


def test_a_page_in_a_pipe_and_on_a_terminal(user: Caller) -> None:
    piped = user("help", "any-script").out
    assert piped.startswith("# Any script\n")
    assert "the contract (→ training-contract)" in piped
    assert "```yaml\ncommand: python train.py" in piped
    assert piped.endswith("`orchestrator help TOPIC --page`\n")
    told = user("help", "any-script", "--json").json
    assert (told["topic"], told["title"]) == ("any-script", "Any script")
    assert piped.startswith(told["text"].rstrip())
    with dialogue(user, "help", "any-script", COLUMNS=str(COLUMNS), NO_COLOR="1") as terminal:
        assert terminal.ends() == 0
    assert "the contract (→" in terminal.said
    assert "```" not in terminal.said
    assert f"{INDENT}command: python train.py --epochs 40 --resume {{resume}}" in terminal.said


def test_a_part_of_a_page_is_found_by_its_heading() -> None:
    page = pages.read("training-contract")
    whole = page.under("What resume promises")
    assert whole.title == 'What "resume" promises'
    assert whole.text.startswith('## What "resume" promises\n')
    assert page.under("promises") == page.under("what-resume-promises") == whole
    assert "\n## " not in page.under("requirements").text[3:]
    assert helping.meant(["docs/training-contract.md#what-resume-promises"]) == whole
    assert [each.words for each in page.headings()][:2] == ["requirements", "secrets"]
    with pytest.raises(InputError, match=r"no heading 'nothing'; valid: requirements, secrets"):
        page.under("nothing")
    with pytest.raises(InputError, match="more than one heading 's'"):
        page.under("s")


def test_code_is_left_as_it_is() -> None:
    page = pages.Page("x", "X", "# X\n\n```sh\n# no heading\n```\n\n## One\n\n### Two\n\n## Three\n")
    assert [each.words for each in page.headings()] == ["one", "two", "three"]
    assert page.under("one").text == "## One\n\n### Two\n"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["anyscript"], "did you mean 'any-script'? `orchestrator help topics` lists the pages"),
        (["sumbit"], "did you mean 'submit'?"),
        (["../README"], "there is no command or page '../README'"),
        (["decisions/001"], "there is no command or page"),
        (["#x"], "there is no command or page '#x'"),
        ([""], "there is no command or page ''"),
        (["kaggle", "nothing"], "the page kaggle has no heading 'nothing'; valid: "),
    ],
)
def test_an_unknown_page_says_which_there_are(words: list[str], hint: str) -> None:
    with pytest.raises(InputError) as error:
        helping.meant(words)
    assert hint in str(error.value)


def test_an_unknown_page_is_not_taken_for_the_command_of_its_name() -> None:
    with pytest.raises(InputError, match=r"^there is no page 'submit'; `orchestrator help topics` lists"):
        helping.meant(["submit"], as_page=True)


def test_a_name_of_both_is_the_command_and_names_its_page(user: Caller) -> None:
    text = user("help", "rehearse").out
    assert text.startswith("usage: orchestrator rehearse")
    assert re.search(r"its page +\S*orchestrator help rehearse --page$", text.rstrip())
    assert user("help", "rehearse", "--json").json["page"] == "rehearse"
    assert helping.meant(["rehearse"]) is None
    assert helping.meant(["rehearse"], as_page=True) == pages.read("rehearse")
    assert helping.meant(["colab", "login"]) is None
    part = helping.meant(["colab", "options"])
    assert part is not None
    assert part.title == "Options"


def test_the_pages_are_listed(user: Caller) -> None:
    told = user("help", "topics", "--json").json["topics"]
    assert {"topic": "any-script", "title": "Any script"} in told
    assert all(each["title"] for each in told)
    assert "any-script " in user("help", "topics").out
    words = user("complete", "topics").out.split()
    assert {"topics", "any-script", "submit"} <= set(words)
    assert len(words) == len(set(words))


@pytest.mark.parametrize("content", [None, b"\xff\xfe# Kaggle"])
def test_an_installation_with_a_damaged_page_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    package = tmp_path / "orchestrator"
    (package / "docs").mkdir(parents=True)
    if content is not None:
        (package / "docs" / "kaggle.md").write_bytes(content)
    monkeypatch.setattr(orchestrator, "__file__", str(package / "__init__.py"))
    with pytest.raises(InputError, match=r"lacks its page kaggle .*install it again"):
        pages.read("kaggle")
