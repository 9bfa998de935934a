"""What Colab refuses and what breaks on the way: each failure of the real command line, and its meaning.

The rows are those of docs/references/colab.md#refusals.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from orchestrator.errors import (
    AccessDenied,
    BackendError,
    NoCapacity,
    NotFound,
    QuotaExhausted,
    Rejected,
    Transient,
)
from tests.platforms.colab_cli_box import FIRST, Box, Boxes, box, boxes
from tests.stand_ins.colab import Fault
from tests.waiting import wait_until

__all__ = ["box", "boxes"]

POST = "POST /tun/m/assign"


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        ({"machines_max": 0}, NoCapacity, "too many are in use, a usage limit, or no capacity"),
        ({"none_left": ("T4",)}, NoCapacity, "no capacity"),
        ({"gpus": ()}, Rejected, "may not have"),
        ({"outcome": 1}, QuotaExhausted, "outcome 1"),
        ({"outcome": 2}, QuotaExhausted, "outcome 2"),
        ({"outcome": 5}, AccessDenied, "barred"),
        ({"login_is_revoked": True}, AccessDenied, "orchestrator colab login colab"),
    ],
    ids=str,
)
def test_no_machine(boxes: Boxes, settings: Mapping[str, Any], kind: type[BackendError], words: str) -> None:
    box = boxes(**settings)
    with pytest.raises(BackendError, match=words) as refusal:
        box.cli.new(FIRST, "T4")
    assert type(refusal.value) is kind
    assert (refusal.value.backend, refusal.value.operation) == ("colab", "new")
    assert box.colab.account.allocated == []


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault.UNAVAILABLE, Transient),
        (Fault.FORBIDDEN, AccessDenied),
        (Fault.RATE_LIMIT, Transient),
        (Fault.HTML, Transient),
        (Fault.NONSENSE, Transient),
    ],
)
def test_a_request_for_a_machine_that_fails(box: Box, fault: Fault, kind: type[BackendError]) -> None:
    box.colab.fail(POST, fault, times=9)
    with pytest.raises(BackendError) as refusal:
        box.cli.new(FIRST, "T4")
    assert type(refusal.value) is kind
    assert box.colab.account.allocated == []


def once_unavailable(box: Box) -> None:
    box.colab.fail(POST, Fault.UNAVAILABLE)


def late(box: Box) -> None:
    """The machine is there, the answer is not."""
    box.colab.fail(POST, Fault.LOST_REPLY, times=9)


def other(box: Box) -> None:
    """The command line rejects the answer, but there is a machine."""
    box.colab.use(substitute="K80")


@pytest.mark.parametrize(("trouble", "accelerator"), [(once_unavailable, "T4"), (late, "T4"), (other, "K80")])
def test_a_machine_in_spite_of_it(box: Box, trouble: Callable[[Box], None], accelerator: str) -> None:
    trouble(box)
    assert box.cli.new(FIRST, "T4").accelerator == accelerator
    assert len(box.colab.account.allocated) == 1


@pytest.mark.parametrize(
    ("start", "fault", "kind"),
    [
        ("POST /token", Fault.UNAVAILABLE, Transient),
        ("GET /tun/m/assignments", Fault.UNAUTHORIZED, AccessDenied),
        ("GET /tun/m/assignments", Fault.ERROR, Transient),
        ("GET /tun/m/assignments", Fault.NONSENSE, Transient),
        ("GET /tun/m/assignments", Fault.HANGS, Transient),
    ],
)
def test_a_reading_that_fails(box: Box, start: str, fault: Fault, kind: type[BackendError]) -> None:
    box.colab.fail(start, fault, times=9)
    with pytest.raises(BackendError) as refusal:
        box.patient(request=1.0 if fault is Fault.HANGS else 60.0).read()
    assert type(refusal.value) is kind


def test_a_file_that_the_machine_refuses(boxes: Boxes) -> None:
    box = boxes(upload_bytes_max=1000)
    box.allocate()
    (box.folder / "large").write_bytes(bytes(2000))
    with pytest.raises(Rejected, match="400"):
        box.cli.upload(FIRST, box.folder / "large", "content/large")
    machine = box.machine()
    assert not any(token in str(box.colab.requests) for token in machine.tokens)


def test_a_token_that_ends_during_a_call_is_replaced_by_the_next_one(box: Box) -> None:
    machine = box.allocate()
    box.cli.read(names=(FIRST,))
    (box.folder / "sent").write_bytes(b"sent")
    box.colab.fail("PUT /api/contents", Fault.UNAUTHORIZED)
    with pytest.raises(Transient, match="no longer takes this token"):
        box.cli.upload(FIRST, box.folder / "sent", "content/sent")
    box.cli.upload(FIRST, box.folder / "sent", "content/sent")
    box.colab.fail("GET /api/contents", Fault.UNAUTHORIZED)
    files = {FIRST: ("content/sent",)}
    assert "401" in box.cli.read(files=files).found[FIRST].problem
    assert box.cli.read(files=files).found[FIRST].files == {"content/sent": b"sent"}
    assert box.colab.account.living() == [machine]


def test_a_machine_that_vanishes_while_a_cell_starts(box: Box) -> None:
    """The client waits for a kernel that is gone, so the time limit ends it."""
    machine = box.allocate()
    cell = box.silent_cell("import threading\nopen('begun', 'x').close()\nthreading.Event().wait(600)")
    cancelled, errors = threading.Event(), list[BackendError]()

    def start() -> None:
        try:
            box.cli.start(FIRST, cell, seconds_max=200, cancelled=cancelled)
        except BackendError as error:
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    wait_until(lambda: (machine.content / "begun").exists(), "the cell")
    box.colab.vanish(machine.endpoint)
    assert not machine.running()
    cancelled.set()
    thread.join()
    assert [type(each) for each in errors] == [Transient]
    wait_until(lambda: box.clients() == 0, "the client's end")
    with pytest.raises(NotFound, match="no machine"):
        box.cli.start(FIRST, cell, seconds_max=200)


def test_giving_a_machine_back_although_it_seems_to_fail(box: Box) -> None:
    box.allocate()
    box.colab.fail("POST /tun/m/unassign", Fault.ERROR)
    with pytest.raises(Transient):
        box.cli.stop(FIRST)
    box.colab.fail("POST /tun/m/unassign", Fault.LOST_REPLY)
    assert box.cli.stop(FIRST)
    assert box.colab.account.living() == []


def test_a_process_that_takes_too_long_is_killed(box: Box) -> None:
    box.colab.fail("GET /tun/m/assignments", Fault.HANGS)
    with pytest.raises(Transient, match="no answer within 4 s"):
        box.patient(call=4.0).read()
    wait_until(lambda: box.clients() == 0, "the client's end")
