"""The kaggle platform when something is lost, refused, asked twice, or must not be seen.

Staging, hand-over of checkpoints, idempotence, access, secrets, leftovers. Pitfalls and endings are in
test_kaggle.py.
"""

from __future__ import annotations

import base64
import logging
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.order import Order, Outcome
from orchestrator.core.session import ABSENT, Sighting, StopReply
from orchestrator.errors import AccessDenied, OrchestratorError, QuotaExhausted, Refused, Rejected, Transient
from orchestrator.platforms.platform import Health, Leftover
from tests.conformance.platform_suite import content
from tests.conformance.test_platforms import agent
from tests.platforms.kaggle_box import FIRST, LEAVES, RUN, SECOND, THIRD, WAITS, Box, Boxes, box, boxes, show
from tests.seen import observed
from tests.stand_ins.kaggle import Fault, Warts
from tests.stand_ins.kaggle.datasets import Version

__all__ = ["agent", "box", "boxes"]
SECRET = "wandb-4f9d2c7be1a05836"
TELLING = (
    "import os, sys, train; print(os.environ['WANDB_API_KEY'], flush=True); "
    "print(os.environ['WANDB_API_KEY'], file=sys.stderr, flush=True); sys.exit(train.main(3, 0.01, 3))"
)


# --- Staging ----------------------------------------------------------------------------------------------


def test_what_is_prepared_twice_is_uploaded_once(box: Box) -> None:
    box.platform.prepare(box.order(), box.materials())
    box.platform.prepare(box.order(), box.materials())
    box.another_controller().prepare(box.order(), box.materials())
    assert box.kaggle.calls.count("upload") == 1
    assert box.kaggle.calls.count("CreateDataset") == 1


def test_a_dataset_that_fails_is_made_anew(boxes: Boxes) -> None:
    box = boxes(Warts(dataset_end="FAILED"))
    made = []
    for _ in range(2):
        with pytest.raises(Transient, match="failed to process"):
            box.platform.prepare(box.order(), box.materials())
        made += box.datasets()
    assert len(made) == len(set(made)) == 2
    box.kaggle.warts.dataset_end = "READY"
    assert box.run_to_end().result is not None


def test_a_dataset_that_never_gets_ready_is_given_up(boxes: Boxes) -> None:
    box = boxes(ready_seconds=3600.0)
    box.use(ready_seconds=0.2)
    with pytest.raises(Transient, match="still blobs_received"):
        box.platform.prepare(box.order(), box.materials())
    with pytest.raises(Rejected, match="not prepared"):
        box.platform.launch(box.order())
    assert box.kaggle.pushed == []


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.SERVER_ERROR, Fault.CUT])
def test_a_dataset_of_which_nobody_knows_whether_it_was_made_is_there_once(box: Box, fault: Fault) -> None:
    box.kaggle.fail("CreateDataset", fault)
    with pytest.raises(Transient):
        box.platform.prepare(box.order(), box.materials())
    assert box.run_to_end().result is not None
    assert box.staged() == ["materials"]


@pytest.mark.parametrize("warts", [Warts(first_dataset_status_is_403=True), Warts(missing_is_403=False)])
def test_a_dataset_that_is_refused_at_first_is_waited_for(boxes: Boxes, warts: Warts) -> None:
    box = boxes(warts)
    box.platform.prepare(box.order(), box.materials())
    assert box.kaggle.calls.count("upload") == 1
    assert box.see(FIRST) == ABSENT


def test_a_dataset_whose_files_are_refused_is_not_the_jobs_fault(box: Box) -> None:
    box.kaggle.fail("ListDatasetFiles", Fault.NESTED)
    with pytest.raises(Transient):
        box.platform.prepare(box.order(), box.materials())
    box.platform.prepare(box.order(), box.materials())
    assert box.staged() == ["materials"]


def test_a_dataset_without_one_of_its_parts_is_made_anew(box: Box) -> None:
    box.use(hand_over_bytes=1 << 40)
    box.run_to_end()
    order = box.resuming(SECOND, 11, 2)
    resume = box.materials(box.into(FIRST))
    box.kaggle.fail("CreateDataset", Fault.LOST_REPLY)
    with pytest.raises(Transient):
        box.platform.prepare(order, resume)
    assert box.staged(SECOND) == ["checkpoint", "materials"]
    next(path for path in box.mounted(SECOND) if path.name.startswith("checkpoint")).unlink()
    box.platform.prepare(order, resume)
    assert box.staged(SECOND) == ["checkpoint", "materials"]


def test_an_upload_that_is_refused_makes_no_dataset(box: Box, scratch: Path) -> None:
    box.kaggle.fail("upload", Fault.NESTED, 2)  # and again at the new address
    with pytest.raises(Refused):
        box.platform.prepare(box.order(), box.materials())
    assert box.kaggle.calls.count("CreateDataset") == 0
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("damage", ["altered", "stale"])
def test_what_is_mounted_is_not_trusted(box: Box, damage: str) -> None:
    """The session reports what is missing, and the run continues elsewhere from its last checkpoint."""
    box.platform.prepare(box.order(), box.materials())
    [file] = box.mounted()
    if damage == "altered":
        file.write_bytes(b"x" + file.read_bytes()[1:])
    else:  # the version before the newest: docs/references/kaggle.md#inputs
        [name] = box.datasets()
        versions = box.kaggle.datasets._all[name].versions
        old = box.folder / "old"
        old.mkdir()
        (old / "something-else").touch()
        versions.insert(0, Version(0, old, 0.0, ""))
        box.kaggle.warts.stale_mount = True
    box.platform.launch(box.order())
    result = box.until_ended(FIRST).result
    assert result is not None
    assert result.outcome is Outcome.LOST
    assert ("was changed on the way" if damage == "altered" else "was not mounted") in result.message
    assert box.trainings(FIRST) == 0


@pytest.mark.parametrize("archives", ["folder", "flat", "kept"])
@pytest.mark.parametrize("old_input_layout", [False, True])
def test_inputs_are_found_wherever_they_are_mounted(
    boxes: Boxes, archives: Any, old_input_layout: bool
) -> None:
    box = boxes(Warts(archives=archives, old_input_layout=old_input_layout))
    result = box.run_to_end(total=1).result
    assert result is not None
    assert result.outcome is Outcome.COMPLETED


# --- Hand-over of checkpoints -----------------------------------------------------------------------------


@pytest.mark.parametrize("old_input_layout", [False, True])
def test_a_large_checkpoint_is_read_from_the_kernel_before(boxes: Boxes, old_input_layout: bool) -> None:
    box = boxes(Warts(old_input_layout=old_input_layout))
    box.run_to_end()
    went_on(box, box.resuming(SECOND, 11, 2))
    assert box.staged(SECOND) == ["materials"]
    assert box.kaggle.pushed[-1]["kernelDataSources"] == [f"ada/{FIRST}"]


def test_a_small_checkpoint_is_uploaded(box: Box) -> None:
    box.use(hand_over_bytes=1 << 40)
    box.run_to_end()
    order = box.resuming(SECOND, 11, 2)
    box.platform.prepare(order, box.materials(box.into(FIRST)))
    box.platform.discard(FIRST)
    went_on(box, order)
    assert box.staged(SECOND) == ["checkpoint", "materials"]
    assert not box.kaggle.pushed[-1].get("kernelDataSources")


@pytest.mark.parametrize("loss", ["blob", "kernel", "list"])
def test_a_checkpoint_that_is_not_whole_there_is_uploaded(box: Box, loss: str) -> None:
    box.run_to_end()
    order = box.resuming(SECOND, 11, 2)
    if loss == "blob":
        outputs = box.kaggle.kernel(FIRST).outputs
        outputs.remove(next(each for each in outputs if "/blobs/" in each[0]))
    elif loss == "kernel":
        box.platform.discard(FIRST)
    else:  # gone between two requests
        box.kaggle.fail("ListKernelSessionOutput", Fault.NESTED)
    went_on(box, order)
    assert box.staged(SECOND) == ["checkpoint", "materials"]


def test_a_checkpoint_that_is_altered_there_is_cited_once(box: Box) -> None:
    box.run_to_end()
    order = box.resuming(SECOND, 11, 2)
    box.corrupt(FIRST)
    box.start(order, box.into(FIRST))
    result = box.until_ended(SECOND).result
    assert result is not None
    assert result.outcome is Outcome.LOST
    assert "corrupt" in result.message
    assert box.trainings(SECOND) == 0
    went_on(box, replace(order, session=THIRD, generation=3, env=(("TRACE", box.trace(THIRD)),)))
    assert box.staged(THIRD) == ["checkpoint", "materials"]


def test_a_session_that_was_refused_has_not_read_the_checkpoint(box: Box) -> None:
    box.run_to_end()
    order = box.resuming(SECOND, 11, 2)
    gpus = replace(order, accelerator="T4x2", devices=2)
    box.kaggle.use_up("gpu")
    with pytest.raises(QuotaExhausted):
        box.start(gpus, box.into(FIRST))
    went_on(box, replace(order, session=THIRD, generation=3, env=(("TRACE", box.trace(THIRD)),)))
    assert box.staged(THIRD) == ["materials"], "a refusal uploads nothing large"


def went_on(box: Box, order: Order) -> None:
    box.start(order, box.into(FIRST))
    result = box.until_ended(order.session).result
    assert result is not None
    assert result.outcome is Outcome.COMPLETED, result
    final = box.collect(order.session).manifests[-1]
    assert content(box.into(order.session), final, "state.json") == box.expected(order, order.steps_total)


# --- Asked twice ------------------------------------------------------------------------------------------


def test_a_stop_that_comes_before_the_kernel_is_seen_is_asked_again(boxes: Boxes) -> None:
    box = boxes(visible_seconds=3600.0)
    box.run(WAITS)
    assert box.platform.stop(FIRST) is StopReply.REQUESTED
    box.platform = box.another_controller()
    assert box.platform.stop(FIRST) is StopReply.REQUESTED, "it knows what was pushed before it started"
    show(box)
    box.until(lambda: box.platform.stop(FIRST) is StopReply.ENDED)
    with pytest.raises(KeyError):
        box.kaggle.kernel(FIRST)
    assert box.platform.stop(FIRST) is StopReply.ENDED
    assert box.kaggle.calls.count("DeleteKernel") == 1


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.SERVER_ERROR])
def test_a_stop_whose_answer_was_lost_may_be_asked_again(box: Box, fault: Fault) -> None:
    box.run(WAITS)
    box.kaggle.fail("DeleteKernel", fault)
    with pytest.raises(Transient):
        box.platform.stop(FIRST)
    box.until(lambda: box.platform.stop(FIRST) is StopReply.ENDED)
    assert box.see(FIRST) == ABSENT
    with pytest.raises(Rejected, match="stopped before"):
        box.platform.launch(box.order())


def test_a_stop_after_the_end_takes_nothing_away(box: Box) -> None:
    box.run_to_end()
    assert box.platform.stop(FIRST) is StopReply.ENDED
    assert box.platform.stop(FIRST) is StopReply.ENDED
    assert box.collect(FIRST).manifests


def test_only_stop_deletes_what_runs(box: Box) -> None:
    box.run(WAITS)
    with pytest.raises(Transient):
        box.platform.discard(FIRST)
    kernel = Leftover("kernel", FIRST, FIRST, RUN, "COMPLETE", alive=False)
    with pytest.raises(Transient):
        box.platform.remove(kernel)
    box.platform.prepare(box.order(total=1_000_000), box.materials_of(WAITS))
    with pytest.raises(Rejected):
        box.platform.prepare(box.order(total=3), box.materials())
    assert box.see(FIRST).sighting is Sighting.RUNNING
    assert box.staged() == ["materials"]
    assert box.kaggle.calls.count("DeleteKernel") == box.kaggle.calls.count("DeleteDataset") == 0
    assert box.platform.stop(FIRST) is StopReply.ENDED


@pytest.mark.parametrize("call", ["DeleteKernel", "DeleteDataset"])
@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.SERVER_ERROR])
def test_a_discard_that_failed_may_be_made_again(box: Box, call: str, fault: Fault) -> None:
    box.run(LEAVES)
    box.until_ended(FIRST)
    box.kaggle.fail(call, fault)
    with pytest.raises(Transient):
        box.platform.discard(FIRST)
    box.platform.discard(FIRST)
    box.platform.discard(FIRST)
    assert box.see(FIRST) == ABSENT
    assert box.platform.leftovers() == ()
    assert [path for path in (box.folder / "sessions").rglob("*") if path.name == FIRST] == []


# --- Access -----------------------------------------------------------------------------------------------


def test_revoked_credentials_need_a_human_whatever_is_asked(box: Box) -> None:
    order = box.run(WAITS)
    box.platform.survey()
    box.kaggle.revoke()
    found = raised(box, order)
    assert found.pop("launch") is Transient, "it was pushed, and may run"
    assert set(found.values()) == {AccessDenied}
    box.kaggle.revoke(revoked=False)
    assert box.see(FIRST).sighting is Sighting.RUNNING


@pytest.mark.parametrize("outage", ["unavailable", "refused"])
def test_an_outage_is_transient_whatever_is_asked(boxes: Boxes, outage: Any) -> None:
    box = boxes(Warts(outage=outage))
    order = box.run(WAITS)
    box.platform.survey()
    box.kaggle.outage()
    assert set(raised(box, order).values()) == {Transient}
    box.kaggle.outage(out=False)
    assert box.see(FIRST).sighting is Sighting.RUNNING


def raised(box: Box, order: Order) -> dict[str, type[OrchestratorError] | None]:
    """The error that every verb raises now for a running session."""
    platform = box.platform
    verbs: dict[str, Callable[[], object]] = {
        "survey": platform.survey,
        "checkup": platform.checkup,
        "leftovers": platform.leftovers,
        "prepare": lambda: platform.prepare(order, box.materials()),
        "launch": lambda: platform.launch(order),
        "observe": lambda: observed(platform, [FIRST, SECOND]),
        "collect": lambda: box.collect(FIRST),
        "discard": lambda: platform.discard(FIRST),
        "stop": lambda: platform.stop(FIRST),
    }
    found: dict[str, type[OrchestratorError] | None] = dict.fromkeys(verbs)
    for name, verb in verbs.items():
        try:
            verb()
        except OrchestratorError as error:
            found[name] = type(error)
    return found


# --- Secrets ----------------------------------------------------------------------------------------------


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files during this test."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_secrets_stay_here_unless_they_are_allowed_to_go(box: Box, scratch: Path) -> None:
    materials = replace(box.materials(), secrets={"WANDB_API_KEY": SECRET})
    with pytest.raises(Rejected, match="send_secrets: true") as refused:
        box.platform.prepare(box.order(secrets=("WANDB_API_KEY",)), materials)
    assert SECRET not in str(refused.value)
    assert box.kaggle.uploaded == []
    assert box.kaggle.calls.count("StartBlobUpload") == 0
    assert list(scratch.iterdir()) == []


def test_a_secret_is_in_one_private_dataset_and_nowhere_else(
    box: Box, scratch: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    spoken: list[bytes] = []
    answer = box.kaggle.answer

    def noted(rpc: str, request: dict[str, Any]) -> Any:
        reply = answer(rpc, request)
        spoken.append(repr((rpc, request, reply)).encode())
        return reply

    monkeypatch.setattr(box.kaggle, "answer", noted)
    box.use(send_secrets=True)
    order = box.order(command=("python", "-c", TELLING), secrets=("WANDB_API_KEY",))
    said: list[str] = []
    box.platform.prepare(order, replace(box.materials(), secrets={"WANDB_API_KEY": SECRET}, say=said.append))
    box.platform.launch(order)
    ended = box.until_ended(FIRST)
    assert ended.result is not None
    assert ended.result.outcome is Outcome.COMPLETED, ended
    box.collect(FIRST)
    box.platform.leftovers()

    kernel = box.kaggle.kernel(FIRST)
    texts = [
        *spoken,
        repr(box.kaggle.pushed).encode(),
        kernel.machine.log.text().encode(),
        repr(ended).encode(),
    ]
    texts += [caplog.text.encode(), repr(said).encode()]
    folders = (kernel.folder / "working", box.into(FIRST), box.folder / "sessions", scratch)
    texts += [path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert any(b"PRIVATE" in text or b"isPrivate" in text for text in texts), "the calls were noted"
    assert [text for text in texts if tells(text, SECRET)] == []
    uploads = [path.read_bytes() for path in box.kaggle.uploaded]
    assert [tells(data, SECRET) for data in uploads] == [True], "the scanner finds a secret that is there"
    assert [tells(text, box.kaggle.settings.key) for text in [*texts, *uploads]].count(True) == 0
    [mounted] = box.mounted()
    assert tells(mounted.read_bytes(), SECRET)
    [dataset] = box.datasets()
    assert box.kaggle.datasets.get({"ownerSlug": "ada", "datasetSlug": dataset})["isPrivate"] is True

    box.platform.discard(FIRST)
    kept = (box.folder / "kaggle" / name for name in ("datasets", "kernels"))
    left = [path for folder in kept for path in folder.rglob("*") if path.is_file()]
    assert [path for path in left if tells(path.read_bytes(), SECRET)] == []
    assert list(scratch.iterdir()) == []


def tells(data: bytes, secret: str) -> bool:
    """Whether the secret is in the data, plain or in base64 or hexadecimal."""
    plain = secret.encode()
    forms = [plain, plain.hex().encode(), plain[::-1]]
    for before in range(3):  # base64 depends on the offset
        padded = base64.b64encode(b"\0" * before + plain)
        forms.append(padded[4 if before else 0 : -4])
    return any(form in data for form in forms)


# --- What lies there --------------------------------------------------------------------------------------


def test_what_lies_there_is_listed_for_its_own_home_only(box: Box) -> None:
    other = box.another_controller("another-home")
    assert box.platform.leftovers() == ()
    box.run(WAITS)
    other.prepare(box.order(SECOND, generation=2), box.materials())
    foreign = box.kaggle.datasets.start_upload({"name": "data.csv", "contentLength": 0})["token"]
    name = f"{THIRD}-dx7f2"  # a name that ours could have
    theirs = {"slug": name, "title": name, "isPrivate": True, "files": [{"token": foreign}]}
    assert box.kaggle.datasets.create(theirs)["status"] == "ok"

    kernel, dataset = box.platform.leftovers()
    assert (kernel.kind, kernel.name, kernel.run, kernel.alive) == ("kernel", FIRST, RUN, True)
    [ours], [others] = box.datasets(FIRST), box.datasets(SECOND)
    assert (dataset.kind, dataset.name, dataset.run, dataset.alive) == ("dataset", ours, RUN, False)
    assert [each.name for each in other.leftovers()] == [others]
    box.platform.remove(kernel)
    box.platform.remove(dataset)
    box.platform.remove(dataset)
    assert box.platform.leftovers() == ()
    assert [each.name for each in other.leftovers()] == [others]
    box.platform.remove(replace(dataset, name=name))
    box.platform.remove(replace(dataset, name="data-of-mine"))
    box.platform.prepare(box.order(THIRD, generation=3), box.materials())
    box.platform.discard(THIRD)
    assert [path.name for path in box.mounted(THIRD)] == ["data.csv"]


def test_what_vanishes_meanwhile_hides_nothing_that_lies_there(box: Box) -> None:
    for number, session in enumerate((FIRST, SECOND), start=1):
        box.platform.prepare(box.order(session, generation=number), box.materials())
    box.kaggle.fail("ListDatasetFiles", Fault.NESTED)
    assert [each.name for each in box.platform.leftovers()] == box.datasets(SECOND)


def test_a_checkup_says_what_a_human_should_know(box: Box) -> None:
    key = Path(str(box.options["key_file"]))
    key.chmod(0o644)
    box.kaggle.use_up("gpu")
    found = {each.what: each for each in box.platform.checkup()}
    assert found["account"].health is Health.OK
    assert found["credentials"].advice == f"chmod 600 {key}"
    assert found["gpu quota"].health is Health.WARNING
    assert "30.0 of 30.0 hours" in found["gpu quota"].text
    assert found["tpu quota"].health is Health.OK
    key.chmod(0o600)
    assert "credentials" not in {each.what for each in box.platform.checkup()}


def test_without_credentials_every_verb_says_how_to_get_some(box: Box) -> None:
    key = Path(str(box.options["key_file"]))
    key.unlink()
    box.platform = box.another_controller()
    with pytest.raises(AccessDenied) as denied:
        box.platform.survey()
    assert str(key) in str(denied.value)
    with pytest.raises(AccessDenied):
        box.platform.checkup()
