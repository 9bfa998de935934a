"""The codec reads back what it wrote, and names what is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from orchestrator.core import wire
from orchestrator.core.event import Cooldown, Event, Noted, Submitted, Wished, Withdrawn
from orchestrator.core.job import Best, Input, Job, Keep, Precision, Profile, RouteWish, Rule, Work
from orchestrator.core.job import OfferPattern as Pattern
from orchestrator.core.job import RuleEffect as Effect
from orchestrator.core.lifecycle import Kind, Wish
from orchestrator.core.order import AgentStatus, Order, Outcome, Result

ORDER = Order(
    run="demo-7f3kq2vd", session="demo-7f3kq2vd-s01", generation=1, platform="here", accelerator="cpu",
    devices=1, command=("python", "-m", "train", "--text", "ä\n\u2028"), bundle="ab" * 32, global_batch=64,
    micro_batch=8, precision=Precision.BF16, steps_total=100, seed=7, keep=Keep(3, Best("mrr")),
    budget_seconds=40, inputs=(Input("corpus", "/data"),), env=(("A", "1"), ("B", "")), secrets=("TOKEN",),
)  # fmt: skip
JOB = Job(
    name="demo", command=("python", "{steps}"), work=Work(total=10, global_batch=8),
    profiles=(("default", Profile(8, Precision.FP32)),),
    route=RouteWish(rules=(Rule("own", Effect.PREFER, Pattern(owned=True)),)),
)  # fmt: skip


@dataclass(frozen=True)
class Bag:
    counts: Mapping[str, int] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    pair: tuple[float | None, str] = (None, "")


@pytest.mark.parametrize(
    "value",
    [
        ORDER,
        JOB,
        Result("abc", Outcome.STOPPED, 75, None, "saved", "tail\x00\ud800"),
        AgentStatus("abc", 3, 1.5, "training", step=4, warnings=("loss is nan at step 3",)),
        Bag({"a": 1}, frozenset({"x", "y"}), (2.5, "z")),
        Bag(),
    ],
)
def test_what_is_written_is_read_back(value: object) -> None:
    again = wire.decode(type(value), wire.encode(value))
    assert again == value
    assert wire.decode(type(value), wire.to_json(value)) == value


@pytest.mark.parametrize(
    "event",
    [
        Submitted("r", JOB, 1.0),
        Withdrawn(2.0, "full", Cooldown("here", "cpu", 9.0, "full")),
        Wished(3.0, Wish.HOLD),
        Noted(4.0, "x"),
    ],
)
def test_a_union_is_told_apart_by_its_literal_field(event: Event) -> None:
    again = wire.decode(Event, wire.encode(event))
    assert again == event
    assert type(again) is type(event)


def test_keys_of_a_newer_writer_are_ignored_and_missing_ones_take_their_default() -> None:
    document = wire.to_json(ORDER) | {"invented_later": {"x": 1}}
    del document["resume"]
    assert wire.decode(Order, document) == ORDER


def test_a_whole_number_is_a_number_but_not_the_other_way() -> None:
    order = wire.decode(Order, wire.to_json(ORDER) | {"budget_seconds": 40})
    assert isinstance(order.budget_seconds, float)
    assert wire.decode(Order, wire.to_json(replace(ORDER, budget_seconds=None))).budget_seconds is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"devices": "1"}, "Order.devices: expected a whole number, found '1'"),
        ({"devices": True}, "Order.devices: expected a whole number, found True"),
        ({"devices": 1.0}, "Order.devices: expected a whole number, found 1.0"),
        ({"internet": 0}, "Order.internet: expected true or false, found 0"),
        ({"budget_seconds": float("inf")}, "Order.budget_seconds: expected a finite number, found inf"),
        ({"budget_seconds": 10**400}, "Order.budget_seconds: expected a finite number, found 1000"),
        ({"command": "python"}, "Order.command: expected a list, found 'python'"),
        ({"command": ["a", 2]}, "Order.command[1]: expected text, found 2"),
        ({"env": [["A"]]}, "Order.env[0]: expected a list of 2, found ['A']"),
        ({"keep": {"last": None}}, "Order.keep.last: expected a whole number, found None"),
        ({"keep": {"best": {}}}, "Order.keep.best: metric missing"),
        ({"keep": 3}, "Order.keep: expected an object, found 3"),
        ({"precision": "fp8"}, "Order.precision: expected one of 'fp32', 'bf16', 'fp16', found 'fp8'"),
        ({"precision": ["fp32"]}, "Order.precision: expected one of 'fp32', 'bf16', 'fp16', found ['fp32']"),
    ],
)
def test_a_wrong_type_is_named_with_its_path(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as raised:
        wire.decode(Order, wire.to_json(ORDER) | change)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not JSON"),
        (b'{"run": "x"', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "expected an object"),
        (b'{"incarnation": NaN}', "NaN is not a finite number"),
        (b"[" * 100_000, "nested too deeply"),
        (b"{}", "incarnation, outcome, exit_code, step, message missing"),
    ],
)
def test_bytes_that_are_no_value_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wire.decode(Result, data)


def test_an_event_of_no_known_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"kind: expected one of submitted, .*, found 'wondered'"):
        wire.decode(Event, {"kind": "wondered", "at": 1.0})
    with pytest.raises(ValueError, match="kind: expected one of 'noted'"):
        wire.decode(Noted, {"kind": Kind.WISHED.value, "at": 1.0, "text": ""})


def test_a_number_that_is_not_finite_is_not_written() -> None:
    with pytest.raises(ValueError):
        wire.encode(AgentStatus("abc", 1, 0.0, "training", loss=float("nan")))


def test_the_bytes_are_plain_ascii_json() -> None:
    assert json.loads(wire.encode(ORDER).decode("ascii"))["command"][-1] == "ä\n\u2028"
