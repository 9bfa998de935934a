"""The keys of a training config and their checks. Must never know torch.

The config says what is trained, and on which data. Steps, batches, devices, precision and seed come from the
command line, because the orchestrator's profiles decide them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import yaml

_HERE = (
    "sources",
    "triples",
    "workers",
    "checkpoint_activations",
    "evaluation",
)  # sessions may differ in them


@dataclass(frozen=True)
class Data:
    """What is read, and how it becomes rows.

    `sources` are folders of Python source or names of importable packages; `standard_library` is the running
    interpreter's. With `triples`, a JSONL file of facts, `sources` is the code that those facts are about.
    Both may use environment variables: `$ORCHESTRATOR_INPUTS/facts.jsonl` is one of the job's inputs. `facts`
    limits the number of facts. `held_out` is a share of the modules. `curriculum` maps a number of finished
    steps to the columns of a row from then on, including the `leaves`. `mask_words` is the share of tokens to
    guess, always whole words, and `mask_nodes` the share of facts to guess.
    """

    sources: tuple[str, ...] = ("standard_library",)
    triples: str | None = None
    facts: int | None = None
    held_out: float = 0.1
    vocabulary: int = 12_288
    curriculum: Mapping[int, int] = field(default_factory=lambda: {0: 512, 15_000: 768})
    leaves: int = 10
    mask_words: float = 0.15
    mask_nodes: float = 0.20
    packed: bool = True
    workers: int = 2

    @property
    def phases(self) -> tuple[tuple[int, int], ...]:
        """(finished steps, length) in order; the first phase begins at 0."""
        return tuple(sorted(self.curriculum.items()))

    def length(self, step: int) -> int:
        """Columns of a row at step `step`, counted from 1."""
        return [length for done, length in self.phases if done < max(1, step)][-1]


@dataclass(frozen=True)
class Model:
    """Sizes of the encoder. `feed` is the fused width of SwiGLU: gate and value together."""

    width: int = 768
    layers: int = 12
    heads: int = 12
    feed: int = 3072
    checkpoint_activations: bool = False


@dataclass(frozen=True)
class Objectives:
    """Weights of the other losses. The losses of masked tokens and masked nodes have the weight 1."""

    truth: float = 0.2
    antisymmetry: float = 0.2
    acyclicity: float = 0.2
    contrastive: float = 0.1
    temperature: float = 0.07
    margin: float = 1.0
    group: int = 8


@dataclass(frozen=True)
class Optimizer:
    """AdamW and its learning rate: it rises for `warmup` steps, then follows a cosine to zero
    at the last step."""

    learning_rate: float = 3e-4
    warmup: int = 1500
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    epsilon: float = 1e-8
    clip: float = 1.0


@dataclass(frozen=True)
class Evaluation:
    """Evaluates after each `every` steps on `facts` held-out facts, and at the end on all. With `report`,
    baselines are trained at the end, and the final checkpoint holds report.json, report.md and curves.png."""

    every: int = 500
    facts: int = 1000
    report: bool = True


@dataclass(frozen=True)
class Config:
    """A step takes `step_seconds_min` at least: a demo then lasts for several sessions on any machine."""

    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    objectives: Objectives = field(default_factory=Objectives)
    optimizer: Optimizer = field(default_factory=Optimizer)
    evaluation: Evaluation = field(default_factory=Evaluation)
    deterministic: bool = True
    step_seconds_min: float = 0.0

    def __post_init__(self) -> None:
        faults = [text for wrong, text in _faults(self) if wrong]
        if faults:
            raise ValueError("; ".join(faults))

    def plain(self) -> dict[str, Any]:
        """The config as lists and dicts, which `from_plain` reads."""
        return {part: _plain(keys) for part, keys in asdict(self).items()}

    def decisive(self) -> dict[str, Any]:
        """The part of `plain` that decides what is learnt. It is the same in every session of a training.

        It does not say where the corpus came from, because the corpus travels in the checkpoint.
        """
        parts = {
            part: keys for part, keys in self.plain().items() if isinstance(keys, dict) and part not in _HERE
        }
        return {part: {k: v for k, v in keys.items() if k not in _HERE} for part, keys in parts.items()}


def read(path: Path) -> Config:
    """Reads a config file. Raises ValueError with the file and every wrong key."""
    try:
        with path.open(encoding="utf-8") as file:
            return from_plain(yaml.safe_load(file) or {})
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: {error}") from error


def from_plain(document: object) -> Config:
    """The config of a document. Raises ValueError with every wrong key."""
    faults: list[str] = []
    made = _made(Config, document, "", faults)
    if faults or not isinstance(made, Config):
        raise ValueError("; ".join(faults))
    return made


def _made(kind: type[Any], given: object, place: str, faults: list[str]) -> Any:
    """None if it cannot be built. A wrong key gets its default, so that the other keys are checked too."""
    if not isinstance(given, dict):
        faults.append(f"{place.removesuffix('.') or 'config'}: expected keys and values, not {given!r}")
        return None
    hints = get_type_hints(kind)
    known = [each.name for each in fields(kind)]
    if unknown := sorted(str(key) for key in given.keys() - set(known)):
        faults.append(f"unknown {', '.join(place + k for k in unknown)}; known are {', '.join(known)}")
    values = {}
    for key in (key for key in given if key in known):
        try:
            if is_dataclass(hints[key]):
                values[key] = _made(hints[key], given[key], f"{place}{key}.", faults)
            else:
                values[key] = _value(hints[key], given[key], f"{place}{key}")
        except ValueError as fault:
            faults.append(str(fault))
    try:
        return kind(**{key: value for key, value in values.items() if value is not None})
    except ValueError as fault:
        faults.append(str(fault))
        return None


def _value(hint: object, value: Any, place: str) -> Any:
    """Converts a value from YAML to the field's type: YAML reads `1e-8` as text, and a
    tuple is a list there."""
    try:
        if hint is float:
            return float(value)
        if hint == tuple[float, float]:
            one, other = value
            return float(one), float(other)
        if hint == tuple[str, ...]:
            return (value,) if isinstance(value, str) else tuple(map(str, value))
        if hint == Mapping[int, int]:
            return {int(done): int(length) for done, length in value.items()}
    except (AttributeError, TypeError, ValueError):
        raise ValueError(f"{place}: {value!r} is not a valid value") from None
    allowed = {int: int, bool: bool, int | None: int | None, str | None: str | None}[hint]  # type: ignore[index]
    if not isinstance(value, allowed) or (allowed is not bool and isinstance(value, bool)):
        raise ValueError(f"{place}: {value!r} is not a valid value")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _faults(config: Config) -> list[tuple[bool, str]]:
    data, model, aims, optimizer = config.data, config.model, config.objectives, config.optimizer
    shares = {
        "data.held_out": data.held_out,
        "data.mask_words": data.mask_words,
        "data.mask_nodes": data.mask_nodes,
    }
    positive = {
        "model.width": model.width, "model.layers": model.layers, "model.heads": model.heads,
        "model.feed": model.feed, "data.vocabulary": data.vocabulary, "data.leaves": data.leaves,
        "objectives.temperature": aims.temperature, "objectives.group": aims.group,
        "optimizer.learning_rate": optimizer.learning_rate, "optimizer.clip": optimizer.clip,
        "evaluation.every": config.evaluation.every, "evaluation.facts": config.evaluation.facts,
    }  # fmt: skip
    lengths = [length for _, length in data.phases]
    return [
        *((not 0 < share < 1, f"{key}: {share} is not between 0 and 1") for key, share in shares.items()),
        *((not value > 0, f"{key}: {value} is not positive") for key, value in positive.items()),
        (
            model.width % (2 * model.heads) != 0,
            f"model.width: {model.width} is not a multiple of 2 × model.heads ({model.heads})",
        ),
        (model.feed % 2 != 0, f"model.feed: {model.feed} is not even: it holds gate and value"),
        (not data.phases or data.phases[0][0] != 0, "data.curriculum: the first phase must begin at 0 steps"),
        (
            any(n % 8 or n < data.leaves + 16 for n in lengths),
            f"data.curriculum: {lengths}: use multiples of 8 with room for the leaves and 16 tokens",
        ),
        (
            data.triples is not None and len(data.sources) != 1,
            "data.sources: with data.triples, name the one folder of code that its facts are about",
        ),
        (optimizer.warmup < 0, f"optimizer.warmup: {optimizer.warmup} is negative"),
        (
            not 0 <= config.step_seconds_min <= 60,
            f"step_seconds_min: {config.step_seconds_min} is not between 0 and 60",
        ),
    ]  # fmt: skip
