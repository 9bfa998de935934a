"""The executed copy: what of a cell's outputs is kept in it, and within which bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.clock import SystemClock
from orchestrator.core.mask import Mask
from orchestrator.core.notebook import Notebook
from orchestrator.notebook import record
from orchestrator.notebook.record import Outputs, Record, joined, traceback_of
from tests.agent.cells import notebook


def figure(size: int, name: str = "image/png") -> dict[str, Any]:
    return {"output_type": "display_data", "data": {name: "x" * size}, "metadata": {}}


def test_of_a_flood_of_text_the_begin_and_the_end_are_kept() -> None:
    outputs = Outputs()
    for number in range(5000):
        outputs.write("stdout" if number % 2 else "stderr", f"{number:999d}\n")
    outputs.write("stdout", "the end\n")
    found = outputs.listed()
    assert len(found) <= record.OUTPUTS_MAX + 1
    assert found[0]["text"].endswith(" 0\n")
    assert found[-1]["text"].endswith("4999\nthe end\n")
    assert "characters are left out here; the log has them]" in found[-1]["text"]
    assert sum(len(each["text"]) for each in found) < 2 * record.TEXT_MAX + 200


def test_what_is_too_large_is_counted_and_left_out() -> None:
    outputs = Outputs(data_max=1000)
    outputs.show(figure(500))
    outputs.show(figure(600))
    outputs.show(figure(300))
    assert [len(each["data"]["image/png"]) for each in outputs.listed()[:2]] == [500, 300]
    assert outputs.listed()[2]["text"] == "[1 outputs (0.0 MB) are left out here]\n"
    assert outputs.data <= 1000


def test_cleared_outputs_make_room_and_a_display_can_be_updated() -> None:
    outputs = Outputs(data_max=1000)
    outputs.show(figure(500), "a")
    outputs.update("a", figure(800))
    outputs.update("a", figure(5000))  # does not fit
    assert [len(each["data"]["image/png"]) for each in outputs.listed()] == [800]
    outputs.clear(wait=True)
    assert len(outputs.listed()) == 1
    outputs.show(figure(900))
    assert [len(each["data"]["image/png"]) for each in outputs.listed()] == [900]
    outputs.clear(wait=False)
    assert (outputs.listed(), outputs.data) == ([], 0)


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["a\n", "b\n"], "a\nb\n"),
        (["begin\n", "\r 10%", "\r 20%", "\r100%\n", "end"], "begin\n100%\nend"),
        ([" 10%\r", " 20%\r", "done\n"], "done\n"),
        (["a\r\n", "b\r", "\nc"], "a\nb\nc"),
    ],
)
def test_of_a_progress_bar_the_last_state_is_kept(pieces: list[str], text: str) -> None:
    found = ""
    for piece in pieces:
        found = joined(found, piece)
    assert found == text


def test_the_copy_is_whole_masked_and_has_no_outputs_of_before(tmp_path: Path) -> None:
    tree = notebook("a", "b")
    tree["cells"][1]["outputs"] = [figure(10)]
    path = tmp_path / "copy.ipynb"
    kept = Record(Notebook(tree), path, SystemClock(), Mask(["hunter22"]))
    kept.begin(kept.tree["cells"][0])
    kept.hear({"msg_type": "stream", "content": {"name": "stdout", "text": "it is hunter22 \udc80 ü\n"}})
    kept.hear({"msg_type": "display_data", "content": {"data": {"text/html": ["hunter22"]}, "metadata": {}}})
    kept.end()
    cells = json.loads(path.read_bytes())["cells"]
    assert cells[0]["outputs"][0]["text"] == "it is *** ? ü\n"
    assert cells[0]["outputs"][1]["data"] == {"text/html": ["***"]}
    assert cells[1]["outputs"] == []
    assert tree["cells"][1]["outputs"] != []
    assert [each.name for each in tmp_path.iterdir()] == ["copy.ipynb"]


def test_a_copy_that_cannot_be_written_stops_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kept = Record(Notebook(notebook("a")), tmp_path / "gone" / "copy.ipynb", SystemClock(), Mask())
    kept.write()
    kept.write()
    assert capfd.readouterr().err.count("cannot be written") == 1


def test_a_traceback_ends_with_its_exception() -> None:
    error = {"ename": "KeyError", "evalue": "'a'", "traceback": ["\x1b[31mTraceback\x1b[0m", "KeyError: 'a'"]}
    assert traceback_of(error) == "Traceback\nKeyError: 'a'\n"
    noted = {**error, "traceback": ["Traceback", "KeyError: 'a'\n\nNOTE: see the docs"]}
    assert traceback_of(noted).endswith("NOTE: see the docs\nKeyError: 'a'\n")
