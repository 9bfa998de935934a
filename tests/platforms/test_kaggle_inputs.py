"""Inputs that are data sets of Kaggle: a session mounts them, verifies them, and finds them by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.job import Input
from orchestrator.core.order import Order, Outcome
from orchestrator.errors import Refused
from orchestrator.files.hashing import digest
from orchestrator.platforms.kaggle import runner
from tests.conformance.test_platforms import agent
from tests.platforms.kaggle_box import FIRST, Box, Boxes, box, boxes
from tests.stand_ins.kaggle import Warts
from tests.stand_ins.kaggle_user import User
from tests.stand_ins.test_kaggle_datasets import deletes, uploads

__all__ = ["agent", "box", "boxes"]
# An agent that says what it finds among the inputs.
READS = """
import json, pathlib, sys
root, outbox = pathlib.Path(sys.argv[1]), pathlib.Path(json.loads(sys.argv[3])["outbox"])
found = {p.relative_to(root / "inputs").as_posix(): p.read_text()
         for name in sorted((root / "inputs").iterdir())
         for p in ([name] if name.is_file() else sorted(name.iterdir()))}
(outbox / "incarnation").write_text("other")
result = {"incarnation": "other", "outcome": "stopped", "exit_code": 0, "step": None}
result["message"] = json.dumps(found)
(outbox / "result.json").write_text(json.dumps(result))
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """What a submit has fetched and staged: a data set of Kaggle, one file of it, and a file from here."""
    staged = tmp_path / "staged-inputs"
    (staged / "corpus").mkdir(parents=True)
    (staged / "corpus" / "one").write_text("first")
    (staged / "corpus" / "two").write_text("zweites")
    (staged / "single").write_text("first")
    (staged / "mine").write_text("from here")
    return staged


def order(box: Box, data: Path, version: int = 1, **changes: object) -> Order:
    origins = {
        "corpus": f"kaggle:ada/my-data/{version}", "single": f"kaggle:ada/my-data/{version}/one",
        "mine": "/mine",
    }  # fmt: skip
    given = tuple(Input(name, origin, digest(data / name)) for name, origin in origins.items())
    return box.order(**({"inputs": given} | changes))  # type: ignore[arg-type]


def start(box: Box, wanted: Order, data: Path) -> None:
    box.platform.prepare(wanted, replace(box.materials_of(READS), inputs=data))
    box.platform.launch(wanted)


def seen(box: Box) -> object:
    result = box.until_ended(FIRST).result
    assert result is not None
    return json.loads(result.message)


EVERYTHING = {"corpus/one": "first", "corpus/two": "zweites", "single": "first", "mine": "from here"}


def uploaded(box: Box, text: bytes) -> bool:
    return any(text in path.read_bytes() for path in box.mounted())


@pytest.mark.parametrize("warts", [Warts(), Warts(old_input_layout=True, inputs_are_links=True)])
def test_a_data_set_of_kaggle_is_mounted_and_not_uploaded(
    boxes: Boxes, tmp_path: Path, data: Path, warts: Warts
) -> None:
    box = boxes(warts)
    uploads(box.kaggle, tmp_path / "up", one=b"first", two=b"zweites")
    start(box, order(box, data), data)
    assert seen(box) == EVERYTHING
    assert box.kaggle.pushed[-1]["datasetDataSources"][-1] == "ada/my-data/1"
    assert uploaded(box, b"from here")
    assert not uploaded(box, b"zweites")


def test_an_older_version_or_one_that_is_gone_is_uploaded(box: Box, tmp_path: Path, data: Path) -> None:
    uploads(box.kaggle, tmp_path / "up", one=b"first", two=b"zweites")
    User(box.kaggle).dataset_create_version(str(tmp_path / "up"), "more", quiet=True)
    start(box, order(box, data), data)
    assert seen(box) == EVERYTHING
    assert uploaded(box, b"zweites")
    assert len(box.kaggle.pushed[-1]["datasetDataSources"]) == 1


def test_mounting_may_be_switched_off(box: Box, tmp_path: Path, data: Path) -> None:
    uploads(box.kaggle, tmp_path / "up", one=b"first", two=b"zweites")
    box.use(mount_inputs=False)
    start(box, order(box, data), data)
    assert seen(box) == EVERYTHING
    assert uploaded(box, b"zweites")


def test_other_content_than_at_the_submit_is_not_read(box: Box, tmp_path: Path, data: Path) -> None:
    uploads(box.kaggle, tmp_path / "up", one=b"changed", two=b"zweites")
    start(box, order(box, data), data)
    seen = box.until_ended(FIRST)
    assert seen.result is not None
    assert seen.result.outcome is Outcome.LOST
    assert "input corpus: ada/my-data has other content than at the submit" in seen.result.message


def test_a_data_set_that_vanishes_before_the_push_is_uploaded_in_the_end(
    box: Box, tmp_path: Path, data: Path
) -> None:
    uploads(box.kaggle, tmp_path / "up", one=b"first", two=b"zweites")
    wanted, materials = order(box, data), replace(box.materials_of(READS), inputs=data)
    box.platform.prepare(wanted, materials)
    deletes(User(box.kaggle), "my-data")
    for _ in range(2):
        with pytest.raises(Refused, match="my-data"):
            box.platform.launch(wanted)
    box.platform.prepare(wanted, materials)
    box.platform.launch(wanted)
    assert seen(box) == EVERYTHING


def test_the_runner_hashes_as_a_submit_does(data: Path) -> None:
    (data / "corpus" / "deep").mkdir()
    (data / "corpus" / "deep" / "ü-a").write_text("x")
    (data / "corpus" / "deep.txt").write_text("y")
    assert runner.whole_digest(data / "corpus") == digest(data / "corpus")
    assert runner.whole_digest(data / "mine") == digest(data / "mine")
