"""Every YAML block of the documents is valid, and every message that they explain is one of the product's."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from orchestrator import spec
from tests import documented

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "changes").glob("*.md")])
WITH_YAML = [path for path in PAGES if any(documented.blocks(path.read_text(encoding="utf-8")))]
MESSAGES = re.findall(
    r"^### `(.+)`$", (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE
)


@pytest.mark.parametrize("page", WITH_YAML, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_block_of_yaml_is_a_job_or_a_config_or_keys_of_one(page: Path, tmp_path: Path) -> None:
    for block in documented.blocks(page.read_text(encoding="utf-8")):
        assert documented.wrong(block, tmp_path) == "", block


def test_every_job_of_the_tutorial_is_whole() -> None:
    text = (ROOT / "docs" / "bring-your-script.md").read_text(encoding="utf-8")
    jobs = [spec.parse(block.encode(), "job", None).job for block in documented.blocks(text)]
    assert len(jobs) >= 9
    assert len({job.name for job in jobs}) == len(jobs)


@pytest.mark.parametrize(
    ("block", "fault"),
    [
        ("work: {total: many, global_batch: 8}\n", "work.total"),
        ("platfroms: {here: {type: process}}\n", "platfroms"),
        ("command: python train.py\ncommand: {shel: x}\n", "shel"),
        ("platforms:\n  here: {accelerator: cpu}\n", "type"),
    ],
)
def test_a_planted_fault_in_a_block_is_found(block: str, fault: str, tmp_path: Path) -> None:
    assert fault in documented.wrong(block, tmp_path)
    assert list(documented.blocks(f"Text:\n\n```yaml\n{block}```\n")) == [block]


def test_indented_blocks_are_found_too() -> None:
    text = "1. Add:\n\n       platforms:\n         here: {type: process}\n\nThen:\n\n    orchestrator up\n"
    assert list(documented.blocks(text)) == ["platforms:\n  here: {type: process}\n"]


@functools.cache
def texts() -> str:
    """Every text in the product's code, a line for each, with … for what is filled in; no docstrings."""
    found: list[str] = []
    for path in sorted((ROOT / "orchestrator").rglob("*.py")):
        nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
        while nodes:
            node = nodes.pop()
            if isinstance(node, ast.JoinedStr):
                parts = (each.value if isinstance(each, ast.Constant) else "…" for each in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):  # a docstring
                nodes.extend(ast.iter_child_nodes(node))
    return "\n".join(" ".join(text.split()) for text in found)


def is_said(message: str) -> bool:
    """Whether some text of the product has all that this message has, between what differs."""
    pieces = [re.escape(piece.strip()) for piece in message.split("…") if piece.strip()]
    return max(map(len, pieces), default=0) >= 8 and re.search(".*?".join(pieces), texts()) is not None


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_that_is_explained_is_one_of_the_product(message: str) -> None:
    assert is_said(message)


def test_at_least_thirty_messages_are_explained_once() -> None:
    assert len(MESSAGES) >= 30
    assert len(set(MESSAGES)) == len(MESSAGES)
    assert not is_said("the flux capacitor of … is empty")
    assert not is_said("… of …")
