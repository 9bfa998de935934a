"""Somebody with access to the account replaces our checkpoint with another complete, consistent one."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path

from orchestrator.core import wire
from orchestrator.core.order import Order, Outcome
from orchestrator.files.hashing import digest_file
from orchestrator.platforms.kaggle import staging
from orchestrator.platforms.kaggle.kernel import HEADER, StagedFile, fingerprint
from orchestrator.platforms.kaggle.uploads import upload
from tests.conformance.platform_suite import content
from tests.conformance.test_platforms import agent
from tests.forging import forge
from tests.platforms.kaggle_box import FIRST, SECOND, THIRD, Box, box, boxes

__all__ = ["agent", "box", "boxes"]


def prepared(box: Box) -> Order:
    """The second session, prepared to continue from the newest checkpoint of the first; not yet launched."""
    box.run_to_end()
    order = box.resuming(SECOND, 11, 2)
    newest = box.collect(FIRST).manifests[-1]
    order = replace(order, resume_sha256=newest.sha256)
    box.platform.prepare(order, box.materials(box.into(FIRST)))
    return order


def test_a_checkpoint_replaced_in_the_kernel_that_hands_it_over_is_refused(box: Box) -> None:
    order = prepared(box)
    assert box.staged(SECOND) == ["materials"]
    assert order.resume is not None
    forge(box.kaggle.kernel(FIRST).folder / "working" / "outbox", order.resume)
    box.platform.launch(order)
    result = box.until_ended(SECOND).result
    assert result is not None
    assert result.outcome is Outcome.LOST
    assert f"checkpoint {order.resume} was replaced" in result.message
    assert box.trainings(SECOND) == 0


def test_a_dataset_in_the_place_of_ours_trains_nothing(box: Box, tmp_path: Path) -> None:
    """It has the names that ours would have, and its order names the forged manifest."""
    box.use(hand_over_bytes=1 << 40)
    order = prepared(box)
    assert box.staged(SECOND) == ["checkpoint", "materials"]
    put_another(box, order, tmp_path / "forged")
    names = tuple(path.name for path in box.mounted(SECOND))
    assert staging.is_whole(names, order, handed=False)
    box.platform.launch(order)
    result = box.until_ended(SECOND).result
    assert result is not None
    assert result.outcome is Outcome.LOST
    assert "was not mounted" in result.message
    assert box.trainings(SECOND) == 0
    again = replace(order, session=THIRD, generation=3, env=(("TRACE", box.trace(THIRD)),))
    box.start(again, box.into(FIRST))
    result = box.until_ended(THIRD).result
    assert result is not None
    assert result.outcome is Outcome.COMPLETED, result
    final = box.collect(THIRD).manifests[-1]
    assert content(box.into(THIRD), final, "state.json") == box.expected(again, 11)


def put_another(box: Box, order: Order, folder: Path) -> None:
    """Replaces its dataset with one of the same name: a forged checkpoint, and an order and names that
    match."""
    client = box.platform._client
    [name] = box.datasets(SECOND)
    packed = {path.name.split("-")[0]: path.read_bytes() for path in box.mounted(SECOND)}
    [home] = {path.name.split("-")[1] for path in box.mounted(SECOND)}
    with tarfile.open(fileobj=io.BytesIO(packed["checkpoint"][len(HEADER) :])) as tar:
        tar.extractall(folder, filter="data")
    assert order.resume is not None
    forged = forge(folder / "staged", order.resume)
    believed = wire.encode(replace(order, resume_sha256=forged.sha256))
    folder.joinpath("order.json").write_bytes(believed)
    pack(folder / "checkpoint", staged=folder / "staged")
    pack(folder / "materials", **{"agent.pyz": box.agent, "bundle.tar.gz": box.bundle,
                                  "order.json": folder / "order.json"})  # fmt: skip
    client.delete_dataset(name)
    tokens = []
    for kind in ("checkpoint", "materials"):
        file = StagedFile(kind, home, fingerprint(order), digest_file(folder / kind)).name
        tokens.append(upload(client, (folder / kind).rename(folder / file), lambda _: None))
    client.create_dataset(name, tokens)
    staging.wait_until_ready(client, name, box.platform._options.ready_seconds)


def pack(into: Path, **files: Path) -> None:
    with into.open("wb") as file:
        file.write(HEADER)
        with tarfile.open(fileobj=file, mode="w") as tar:
            for name, path in files.items():
                tar.add(path, name)
