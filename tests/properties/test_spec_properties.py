"""With generated specs: the schema accepts what the parser accepts, and no key's value is lost or changed."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from orchestrator.core.accelerators import catalogue
from orchestrator.errors import SpecError
from orchestrator.spec import document, parse, schema
from orchestrator.spec.commands import PLACEHOLDERS

VALIDATOR = Draft202012Validator(schema())


def _is_text(value: str) -> bool:
    """The dumper leaves `1e3` unquoted because YAML 1.1 reads it as text."""
    return isinstance(document.resolve(value), str)


names = st.from_regex(r"[a-z0-9]{1,6}(-[a-z0-9]{1,6}){0,3}", fullmatch=True).filter(_is_text)
variables = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True).filter(
    lambda name: not name.upper().startswith("ORCHESTRATOR_") and not name.upper().endswith(
        ("KEY", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS", "TOKEN"))
)  # fmt: skip
printable = st.characters(categories=("L", "N", "P", "S"), include_characters=" ")
texts = st.text(printable, min_size=1, max_size=20).filter(_is_text).filter(lambda text: text.strip() == text)
positive = st.floats(1e-3, 1e20) | st.integers(1, 10**15)
amounts = st.floats(0, 1e6) | st.integers(0, 10**6)
durations = (
    st.integers(1, 10**6)
    | st.floats(0.5, 1e6)
    | st.builds("{}{}".format, st.integers(1, 999), st.sampled_from(["s", "m", "h", "d", " h"]))
    | st.builds("{:.1f}{}".format, st.floats(0.1, 99), st.sampled_from("smhd"))
)
words = st.sampled_from(
    ["train.py", "--flag", "--steps", "{steps}", "{micro_batch}", "{accumulate}", "{devices}", "{precision}",
     "{seed}", "{resume}", "a={seed}", "{{}}", "'two words'", "x\\ y", "é", "HOME"]
)  # fmt: skip
commands = (
    st.lists(words, max_size=8).map(lambda rest: " ".join(["python", *rest]))
    | st.lists(words | st.just("$HOME"), min_size=1, max_size=8)
    | st.fixed_dictionaries({"shell": texts.map("python {}".format)})
)


def some(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keys)


@st.composite
def ranges(draw: st.DrawFn) -> dict[str, Any]:
    low, high = sorted([draw(amounts), draw(amounts)])
    return draw(st.sampled_from([{"at_least": low}, {"at_most": high}, {"at_least": low, "at_most": high}]))


def one_or_many(item: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return item | st.lists(item, min_size=1, max_size=3)


patterns = some(
    platform=one_or_many(names),
    accelerator=one_or_many(st.sampled_from(sorted(catalogue))),
    owned=st.booleans(),
    metered=st.booleans(),
).filter(bool)
whens = some(
    expected_hours=ranges(),
    parameters=ranges(),
    steps=ranges(),
    quota_left_hours=ranges(),
    hours_of_day=st.lists(st.floats(0, 23.99) | st.integers(0, 23), min_size=2, max_size=2),
    tags=st.lists(names, max_size=2),
)


@st.composite
def rules(draw: st.DrawFn) -> dict[str, Any]:
    rule = draw(some(name=texts, when=whens))
    return rule | {draw(st.sampled_from(["require", "avoid", "prefer"])): draw(patterns)}


@st.composite
def works(draw: st.DrawFn) -> dict[str, Any]:
    group = draw(st.sampled_from([1, 2, 4, 8]))
    total = draw(st.integers(10, 10**6))
    work: dict[str, Any] = {
        "total": total,
        "global_batch": group * 8 * draw(st.integers(1, 40)),
        "group": group,
    }
    work |= draw(some(unit=st.just("steps"), parameters=positive, flops_per_step=positive))
    starts = sorted(draw(st.sets(st.integers(1, total - 1), max_size=3)))
    if starts:
        work["phases"] = [{"from": start, "flops_per_step": draw(positive)} for start in [0, *starts]]
    return work


@st.composite
def claims(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "steps_per_second": sorted([draw(positive), draw(positive)]),
        "batch": draw(st.integers(1, 512)),
        "on": draw(texts),
        "source": draw(texts),
        "date": draw(st.dates()).isoformat(),
    }


origins = st.sampled_from(["kaggle:a/b", "https://x.org/y", "hf:a/b", "data/x"])
inputs = st.fixed_dictionaries({"name": names, "from": origins}, optional={"sha256": st.just("0" * 64)})
best = st.fixed_dictionaries({"metric": texts}, optional={"mode": st.sampled_from(["max", "min"])})


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    work = draw(works())
    profiles = {}
    for name in draw(st.sets(st.sampled_from([*sorted(catalogue), "default"]), min_size=1, max_size=4)):
        profile = {"micro_batch": work["group"], "precision": draw(st.sampled_from(["fp32", "bf16", "fp16"]))}
        profiles[name] = profile | draw(some(memory_gb=positive, claim=claims()))
    precisions = sorted({str(profile["precision"]) for profile in profiles.values()})
    spec = {"name": draw(names), "source": "code", "command": draw(commands)}
    return spec | {"work": work, "profiles": profiles} | draw(
        some(
            seed=st.integers(0, 2**32 - 1),
            source_allow=st.lists(texts, max_size=2),
            image=st.sampled_from(["./images/x", "debian:12", "ghcr.io/a/b@sha256:" + "0" * 64]),
            requirements=st.just("code/requirements.txt")
            | st.dictionaries(st.sampled_from(["default", "cpu", "gpu", "tpu"]), texts, min_size=1),
            tags=st.lists(names, unique=True, max_size=3),
            inputs=st.lists(inputs, max_size=3, unique_by=lambda entry: str(entry["name"])),
            needs=some(disk_gb=amounts, memory_gb=amounts, internet=st.booleans()),
            checkpoint=some(
                interval=durations | st.just("auto"),
                keep=some(last=st.integers(1, 1000), best=best),
            ),
            route=some(
                prefer=st.sampled_from(["fastest", "cheapest"]),
                platforms=st.lists(names, max_size=3),
                precision=st.sampled_from(["any", *precisions]),
                finish_within=durations,
                rules=st.lists(rules(), max_size=3),
            ),
            retry=some(without_progress=st.integers(1, 1000)),
            env=st.dictionaries(variables.map("X_{}".format), texts, max_size=3),
            secrets=st.lists(variables, unique=True, max_size=3),
        )
    )  # fmt: skip


common = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@settings(common, max_examples=60)
@given(specs(), st.booleans())
def test_what_the_parser_accepts_the_schema_accepts(spec: dict[str, Any], flow: bool) -> None:
    text = yaml.safe_dump(spec, allow_unicode=True, default_flow_style=flow, sort_keys=False).encode()
    job = parse(text, "job.yaml", None).job
    VALIDATOR.validate(document.read(text, "job.yaml").tree)
    assert job.name == spec["name"]
    assert (job.work.total, job.work.global_batch) == (spec["work"]["total"], spec["work"]["global_batch"])
    assert [(phase.start, phase.flops_per_step) for phase in job.work.phases] == [
        (phase["from"], phase["flops_per_step"]) for phase in spec["work"].get("phases", ())
    ]
    assert {name: profile.micro_batch for name, profile in job.profiles} == {
        name: profile["micro_batch"] for name, profile in spec["profiles"].items()
    }
    assert dict(job.env) == spec.get("env", {})
    assert [rule.effect.value for rule in job.route.rules] == [
        next(key for key in rule if key in ("require", "avoid", "prefer"))
        for rule in spec.get("route", {}).get("rules", ())
    ]
    filled = dict.fromkeys(PLACEHOLDERS, 1)
    assert job.shell or all(word.format_map(filled) for word in job.command)


@settings(common, max_examples=30)
@given(specs(), st.data())
def test_one_unknown_key_anywhere_is_found_where_it_is(spec: dict[str, Any], data: st.DataObject) -> None:
    places: list[tuple[str, dict[str, Any]]] = [("", spec), ("work", spec["work"])]
    places += [(key, spec[key]) for key in ("needs", "checkpoint", "route", "retry") if key in spec]
    place, table = data.draw(st.sampled_from(places))
    table["zzz"] = 1
    text = yaml.safe_dump(spec, allow_unicode=True, sort_keys=False)
    with pytest.raises(SpecError) as caught:
        parse(text.encode(), "job.yaml", None)
    (mistake,) = caught.value.mistakes
    assert mistake.path == f"{place}.zzz".lstrip(".")
    assert "zzz" in text.splitlines()[mistake.line - 1]
    assert not VALIDATOR.is_valid(document.read(text.encode(), "job.yaml").tree)


@settings(common, max_examples=150)
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_get_an_answer(data: bytes) -> None:
    with pytest.raises(SpecError) as caught:
        parse(data, "job.yaml", None)
    assert str(caught.value).isprintable() or "\n" in str(caught.value)
