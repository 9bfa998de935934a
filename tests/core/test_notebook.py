"""What a notebook is, and what its arguments mean."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest

from orchestrator.core.notebook import Notebook, executed_copy, given, of_command
from tests.agent.cells import notebook

TEXTS = {"steps": "1", "rate": "0.1", "resume": "None", "out_dir": "'runs'", "fast": "False"}
DEFAULTS = {name: ast.parse(text, mode="eval").body for name, text in TEXTS.items()}


def encoded(*sources: str, **changes: Any) -> bytes:
    return json.dumps(notebook(*sources, **changes)).encode()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it is not JSON"),
        (b"\xff\xfe\x00", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"print('a script')", "it is not JSON"),
        (b"[]", "it does not name its `nbformat`"),
        (encoded("1", nbformat=3), "its notebook format is 3, and only 4 can be run"),
        (encoded("1", cells={}), "its `cells` are not a list"),
        (encoded("1", cells=[{"cell_type": "code"}]), "its `cells` are not a list"),
        (encoded("1", cells=[{"cell_type": "code", "source": [1]}]), "its `cells` are not a list"),
        (encoded(), "it has no code cell"),
        (encoded(" \n"), "it has no code cell"),
        (encoded("1", metadata={}), "its language is unknown (it names no kernel)"),
        (encoded("1", metadata=[]), "its language is unknown"),
        (encoded("1", metadata={"kernelspec": {"name": "own"}}), "(its kernel is 'own')"),
        (encoded("1", metadata={"kernelspec": {"name": "ir", "language": "R"}}), "its language is R"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_reason(data: bytes, why: str) -> None:
    with pytest.raises(ValueError) as refused:
        Notebook.parse(data)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    "metadata",
    [
        {"kernelspec": {"name": "any", "language": "python"}},
        {"kernelspec": {"name": "python3"}},  # Colab
        {"language_info": {"name": "python"}},  # VS Code
    ],
)
def test_a_notebook_of_python_can_be_run(metadata: dict[str, Any]) -> None:
    data = b"\xef\xbb\xbf" + encoded("a = 1", "b = 2", metadata=metadata)
    assert Notebook.parse(data).sources == ["a = 1", "b = 2"]


def test_the_parameters_are_what_the_tagged_cell_assigns() -> None:
    found = Notebook.parse(
        encoded("a = 0", "lr: float = 0.1\nsteps = 3  # many\nprint(lr)", tags={1: ["parameters"]})
    )
    assert {name: ast.unparse(value) for name, value in (found.parameters or {}).items()} == {
        "lr": "0.1", "steps": "3",
    }  # fmt: skip
    assert Notebook.parse(encoded("a = 0")).parameters is None
    assert Notebook.parse(encoded("a = (", tags={0: ["parameters"]})).parameters == {}
    magic = "%matplotlib inline\n!pip install -q torch\nepochs = 3"
    assert list(Notebook.parse(encoded(magic, tags={0: ["parameters"]})).parameters or {}) == ["epochs"]


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("", {}),
        ("--steps 40 --rate=1e-3", {"steps": 40, "rate": 0.001}),
        ("--out-dir 7 --out_dir=8", {"out_dir": "8"}),
        ("--fast --resume a/b.pt", {"fast": True, "resume": "a/b.pt"}),
        ("--fast false --steps -1", {"fast": False, "steps": -1}),
        ("--resume=__import__('os')", {"resume": "__import__('os')"}),
    ],
)
def test_arguments_become_values(words: str, values: dict[str, Any]) -> None:
    assert given(words.split(), DEFAULTS) == values


@pytest.mark.parametrize("words", ["--steps 1 --epochs 2 -x", "40"])
def test_arguments_that_are_no_parameters_are_all_named(words: str) -> None:
    with pytest.raises(ValueError, match=r"its parameters: --steps, --rate, --resume, --out_dir, --fast"):
        given(words.split(), DEFAULTS)


def test_a_command_of_a_notebook_and_its_copy() -> None:
    assert of_command(("a/b.ipynb", "--x")) == "a/b.ipynb"
    assert of_command(("python", "a.ipynb")) is None
    assert of_command(("run a.ipynb",), shell=True) is None
    assert executed_copy("a/b c.ipynb") == "a/b c.executed.ipynb"
