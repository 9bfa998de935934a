"""Values beside tensors, and components that save and load in their own way."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from orchestrator.training import Training


def resumed(folder: Path, given: Any, into: Any = None) -> Any:
    """What a component becomes after a save and a resume; `into` is the component that is loaded."""
    saved = Training(folder).save(1, {"x": given}, required=True)
    rest = Training(folder / "next", resume_from=saved).resume({} if into is None else {"x": into})
    return rest.get("x", into)


@pytest.mark.parametrize(
    "value",
    [
        b"\x00bytes", b"", {1, 2.5, "x", None, (1, "y")}, frozenset({"a"}), set(),
        {"deep": [{"set": {3}}, b"x"]}, {"$set": "not a tag"}, {"$array": 1, "$bytes": 2},
    ],
)  # fmt: skip
def test_a_value_comes_back(tmp_path: Path, value: object) -> None:
    found = resumed(tmp_path, value)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "array",
    [
        numpy.arange(12, dtype=numpy.int32).reshape(3, 4), numpy.linspace(0, 1, 5000), numpy.zeros((0, 3)),
        numpy.array(7.5, dtype=numpy.float16), numpy.array(["a", "bcd"]), numpy.array([True, False]),
        numpy.arange(2000, dtype=">u8").reshape(20, 100), numpy.asfortranarray(numpy.arange(6).reshape(2, 3)),
        numpy.array(["2026-11-26"], dtype="datetime64[D]"), numpy.arange(6)[::2],
        numpy.array([1 + 2j, 3]), numpy.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])["a"],
    ],
)  # fmt: skip
def test_an_array_comes_back_with_its_type_and_shape(tmp_path: Path, array: numpy.ndarray[Any, Any]) -> None:
    found = resumed(tmp_path, {"deep": array})["deep"]
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert numpy.array_equal(found, array)
    if found.size:
        found.flat[0] = found.flat[-1]  # its own memory, which may be written


@pytest.mark.parametrize("scalar", [numpy.float32(0.1), numpy.int64(-5), numpy.bool_(True), numpy.str_("é")])
def test_a_scalar_comes_back(tmp_path: Path, scalar: Any) -> None:
    found = resumed(tmp_path, [scalar])[0]
    assert found == scalar


GENERATORS: dict[str, tuple[Any, Any]] = {
    "torch": (
        lambda seed: torch.Generator().manual_seed(seed),
        lambda g: torch.rand(3, generator=g).tolist(),
    ),
    "numpy": (numpy.random.default_rng, lambda g: g.normal(size=3).tolist()),
    "philox": (
        lambda seed: numpy.random.Generator(numpy.random.Philox(seed)),
        lambda g: g.random(3).tolist(),
    ),
    "legacy": (numpy.random.RandomState, lambda g: g.normal(size=3).tolist()),
    "python": (random.Random, lambda g: [g.gauss(0, 1) for _ in range(3)]),
}


@pytest.mark.parametrize("name", list(GENERATORS))
def test_a_generator_goes_on_where_it_was(tmp_path: Path, name: str) -> None:
    """As a component it is set in place; inside other values it comes back as a new one."""
    make, draw = GENERATORS[name]
    generator: Any = make(3)
    draw(generator)
    saved = Training(tmp_path).save(1, {"own": generator, "deep": {"g": generator}}, required=True)
    expected = draw(generator)
    other: Any = make(99)
    rest = Training(tmp_path / "next", resume_from=saved).resume({"own": other})
    assert draw(other) == expected
    assert draw(rest["deep"]["g"]) == expected


def test_a_generator_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"another random generator \(numpy PCG64\)"):
        resumed(tmp_path, numpy.random.default_rng(1), torch.Generator())


class Odd(torch.Tensor):
    """A kind of tensor of its own."""


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (torch.ones(3).as_subclass(Odd), r"tests\.training\.test_values\.Odd, a kind of tensor of its own"),
        (numpy.array([object()], dtype=object), "a numpy array of object"),
        ({1, (2, frozenset())}, "a set with a frozenset in it"),
        (3 + 4j, "cannot save a complex"),
        (Path("/"), "cannot save a PosixPath"),
    ],
)
def test_what_cannot_be_saved_is_named(tmp_path: Path, value: object, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        Training(tmp_path).save(1, {"x": {"deep": value}})


def test_a_compiled_module_has_the_names_of_the_plain_one(tmp_path: Path) -> None:
    plain = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    compiled: Any = torch.compile(plain, backend="eager")
    saved = Training(tmp_path).save(1, {"model": compiled}, required=True)
    assert saved is not None
    other = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    training = Training(tmp_path / "a", resume_from=saved)
    assert set(training.saved("model")) == set(other.state_dict())
    training.resume({"model": other})
    assert all(torch.equal(one, two) for one, two in zip(plain.parameters(), other.parameters(), strict=True))
    again: Any = torch.compile(
        torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)), backend="eager"
    )
    Training(tmp_path / "b", resume_from=saved).resume({"model": again})
    assert all(torch.equal(one, two) for one, two in zip(plain.parameters(), again.parameters(), strict=True))
