"""The messages for a wrong spec, and the job parsed from a right one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from orchestrator.core import wire
from orchestrator.core.job import (
    CatchUp,
    CostPhase,
    Input,
    Job,
    Kind,
    Mode,
    NoticeKind,
    Notify,
    Overlap,
    Precision,
    Prefer,
    Recurrence,
    Requirements,
    RuleEffect,
    Window,
)
from orchestrator.errors import InputError, SpecError
from orchestrator.spec import document, load, parse, schema
from tests.fuzz.spec_fuzz import fuzz
from tests.specs import GOOD, mistake, mistakes, with_

JOBS = Path(__file__).resolve().parents[1] / "jobs"


# --- The bundled jobs -----------------------------------------------------------------------------------


def test_the_bundled_jobs_validate() -> None:
    demo, full = load(JOBS / "graphmer_demo.yaml"), load(JOBS / "graphmer_50k.yaml")
    nightly = load(JOBS / "graphmer_nightly.yaml")
    assert demo.source == full.source == nightly.source == JOBS / "graphmer"
    assert nightly.job.work == full.job.work
    assert nightly.job.schedule is not None
    assert nightly.job.schedule.window == Window(22 * 60, 7 * 60)
    assert "demo" in demo.job.tags
    profile = dict(demo.job.profiles).get("cpu")
    assert profile is not None
    assert demo.job.work.accumulate(profile.micro_batch, 1) is not None
    assert {"T4x2", "H100", "TPUv5e-1", "TPUv6e-1"} <= dict(full.job.profiles).keys()
    for each in (full, nightly):
        assert {"T4", "L4", "A100", "gpu>=16GB", "gpu>=8GB"} <= dict(each.job.profiles).keys()
    assert full.job.requirements_on(Kind.TPU) == Requirements("requirements-tpu.txt")
    assert full.job.work.total == 50_000
    assert full.job.work.parameters == 80.3e6
    assert full.job.work.phases == (CostPhase(0, 16.08e12), CostPhase(15_000, 25.49e12))


def test_every_key_of_the_spec_reaches_the_job(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "code" / "requirements.txt").write_text("numpy\n")
    text = """\
name: whole
source: code
source_allow: [./token.json]
requirements: ./code/requirements.txt
command: sh -c "echo {{x}} {seed} {devices}"
seed: 7
tags: [a, b]
inputs: [{name: local, from: data}, {name: far, from: "kaggle:owner/data", sha256: "%s"}]
work: {total: 50e3, global_batch: 64, parameters: 80.3e6, flops_per_step: 25.7e12}
needs: {disk_gb: 5, memory_gb: 1.5, internet: true}
checkpoint: {interval: 10m, keep: {last: 2, best: {metric: loss, mode: min}}}
profiles:
  T4x2: {micro_batch: 16, precision: fp16, memory_gb: 12}
  default: {micro_batch: 4, precision: fp16}
route:
  prefer: cheapest
  platforms: [kaggle, docker]
  precision: fp16
  finish_within: 2h
  rules:
    - {name: nights, when: {hours_of_day: [22, 6], steps: {at_least: 10}, tags: [a]}, avoid: {metered: true}}
retry: {without_progress: 5}
env: {B: "2", A: "1"}
secrets: [WANDB_API_KEY]
""" % ("a" * 64)
    parsed = parse(text.encode(), "job.yaml", tmp_path)
    job = parsed.job
    assert job.command == ("sh", "-c", "echo {{x}} {seed} {devices}")
    assert (job.seed, job.tags, job.bundle) == (7, ("a", "b"), "")
    assert job.inputs == (
        Input("local", str(tmp_path / "data")), Input("far", "kaggle:owner/data", "a" * 64),
    )  # fmt: skip
    assert (job.work.total, job.work.group) == (50_000, 1)
    assert (job.needs.disk_gb, job.needs.memory_gb, job.needs.internet) == (5.0, 1.5, True)
    assert job.checkpoint.interval_seconds == 600.0
    assert job.checkpoint.keep.last == 2
    assert job.checkpoint.keep.best is not None
    assert job.checkpoint.keep.best.mode == "min"
    assert dict(job.profiles)["T4x2"].precision is Precision.FP16
    assert (job.route.prefer, job.route.precision) == (Prefer.CHEAPEST, Precision.FP16)
    assert (job.route.platforms, job.route.finish_within_seconds) == (("kaggle", "docker"), 7200.0)
    (rule,) = job.route.rules
    assert (rule.name, rule.effect, rule.origin) == ("nights", RuleEffect.AVOID, "job")
    assert rule.offers.metered is True
    assert (rule.when.hours_of_day, rule.when.steps, rule.when.tags) == ((22, 6), (10, None), ("a",))
    assert (job.without_progress, job.env) == (5, (("A", "1"), ("B", "2")))
    assert job.secrets == ("WANDB_API_KEY",)
    assert (parsed.source, parsed.source_allow) == (tmp_path / "code", ("token.json",))
    assert job.requirements == "requirements.txt"
    assert parsed.also == {"requirements.txt": tmp_path / "code" / "requirements.txt"}


def test_requirements_outside_the_source_get_a_place_in_the_bundle() -> None:
    parsed = parse(with_(requirements="codex/requirements.txt").encode(), "job.yaml", None)
    assert parsed.job.requirements == ".orchestrator/requirements.txt"
    assert list(parsed.also.values()) == [Path("codex/requirements.txt")]


def test_requirements_may_differ_by_the_kind_of_accelerator(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    for name in ("code/a.txt", "code/b.txt", "c.txt"):
        (tmp_path / name).write_text("numpy\n")
    text = with_(requirements="{default: code/a.txt, tpu: code/b.txt, cpu: c.txt}")
    parsed = parse(text.encode(), "job.yaml", tmp_path)
    on = {kind: needed.file for kind in Kind if (needed := parsed.job.requirements_on(kind))}
    assert on == {Kind.GPU: "a.txt", Kind.TPU: "b.txt", Kind.CPU: ".orchestrator/requirements-cpu.txt"}
    locked = parsed.locked({"default": b"one", "tpu": b"two"})
    assert locked.job.requirements_on(Kind.TPU) == Requirements(
        "b.txt", ".orchestrator/requirements-tpu.lock"
    )
    assert locked.job.requirements_on(Kind.GPU) == Requirements("a.txt", ".orchestrator/requirements.lock")
    assert locked.also == {
        "a.txt": tmp_path / "code" / "a.txt",
        "b.txt": tmp_path / "code" / "b.txt",
        ".orchestrator/requirements-cpu.txt": tmp_path / "c.txt",
        ".orchestrator/requirements.lock": b"one",
        ".orchestrator/requirements-tpu.lock": b"two",
    }
    only = parse(with_(requirements="{tpu: b.txt}").encode(), "job.yaml", None).job
    assert only.requirements_on(Kind.GPU) is None
    assert only.requirements is None


@pytest.mark.parametrize(
    ("requirements", "path", "told"),
    [
        ("{tpu: gone.txt}", "requirements.tpu", "does not exist"),
        ("{xpu: here.txt}", "requirements.xpu", "default, or a kind of accelerator: cpu, gpu or tpu"),
        ("{tpu: [a]}", "requirements.tpu", "a requirements file, relative to this file"),
        ("{}", "requirements", "or a mapping of such files"),
        ("3", "requirements", "a requirements file, such as requirements.txt"),
    ],
)
def test_what_is_wrong_with_requirements_is_told_with_its_line(
    tmp_path: Path, requirements: str, path: str, told: str
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    (tmp_path / "here.txt").write_text("")
    text = with_(requirements=requirements)
    found = mistake(text, tmp_path)
    assert (found.path, found.line) == (path, len(text.splitlines()))
    assert told in found.message


# --- All mistakes at once ---------------------------------------------------------------------------------


def test_all_mistakes_are_told_at_once_in_line_order_with_lines_and_paths() -> None:
    text = """\
name: Bad Name
comand: x
command: python {stepz}
source: code
tags: &t [x]
work:
  total: many
  global_batch: 65
  group: 8
profiles:
  T4x99: {micro_batch: 8, precision: fp17}
  cpu:
route: {finish_within: 0, rules: [{require: {}}]}
name: again
"""
    found = [(each.line, each.path) for each in mistakes(text)]
    assert found == [
        (1, "name"),
        (2, "comand"),
        (3, "command"),
        (5, "tags"),
        (7, "work.total"),
        (9, "work.group"),
        (11, "profiles.T4x99"),
        (11, "profiles.T4x99.precision"),
        (12, "profiles.cpu"),
        (13, "route.finish_within"),
        (13, "route.rules[0].require"),
        (14, "name"),
    ]


@pytest.mark.parametrize(
    ("change", "path", "told"),
    [
        ({"sourc": "x"}, "sourc", ["unknown key", "did you mean 'source'?", "valid: name, command"]),
        ({"name": "Ünïcode"}, "name", ["'Ünïcode'", "lower-case letters"]),
        ({"name": "a" * 37}, "name", ["at most 36"]),
        ({"name": "12"}, "name", ["given 12", "quotes"]),
        ({"seed": "1.5"}, "seed", ["given 1.5", "whole number from 0"]),
        ({"seed": "0123"}, "seed", ["given '0123'", "whole number"]),
        ({"seed": "1_000"}, "seed", ["given '1_000'"]),
        ({"seed": "-1"}, "seed", ["given -1"]),
        ({"seed": "yes"}, "seed", ["given 'yes'"]),
        ({"seed": "true"}, "seed", ["given true"]),
        ({"seed": "9" * 5000}, "seed", ["5002 characters"]),
        ({"seed": ""}, "seed", ["given nothing", "whole number"]),
        ({"needs": "{internet: yes}"}, "needs.internet", ["given 'yes'", "true or false"]),
        ({"needs": "{disk_gb: .inf}"}, "needs.disk_gb", ["given inf", "zero or more"]),
        ({"needs": "{disk_gb: .nan}"}, "needs.disk_gb", ["given nan"]),
        ({"needs": "{disk_gb: 1e999}"}, "needs.disk_gb", ["given inf"]),
        ({"needs": "[]"}, "needs", ["given a list", "a mapping"]),
        ({"tags": "demo"}, "tags", ["given 'demo'", "a list"]),
        ({"tags": "[a, a]"}, "tags", ["given twice: a"]),
        ({"checkpoint": "{interval: 5 weeks}"}, "checkpoint.interval", ["'5 weeks'", "auto", "90s, 10m, 2h"]),
        ({"checkpoint": "{interval: 190:20:30}"}, "checkpoint.interval", ["'190:20:30'"]),
        ({"checkpoint": "{keep: {last: 0}}"}, "checkpoint.keep.last", ["given 0", "from 1"]),
        ({"retry": "{without_progress: 0}"}, "retry.without_progress", ["given 0", "from 1"]),
        ({"route": "{prefer: quickest}"}, "route.prefer", ["'quickest'", "fastest or cheapest"]),
        ({"route": "{precision: bf16}"}, "route.precision", ["no profile has", "any, fp32"]),
        ({"route": "{precision: fp64}"}, "route.precision", ["'fp64'", "any, or one of fp32"]),
        ({"secrets": "[1A]"}, "secrets[0]", ["not shown", "environment variable"]),
        ({"env": "{ORCHESTRATOR_X: a}"}, "env.ORCHESTRATOR_X", ["set by the agent"]),
        ({"env": "{A-B: a}"}, "env.A-B", ["environment variable"]),
        ({"inputs": "[{name: a, from: 'ftp://x/y'}]"}, "inputs[0].from", ["'ftp://x/y'", "a file or folder"]),
        ({"inputs": "[{name: a, from: 'https://me:pw@x/y'}]"}, "inputs[0].from", ["without a user"]),
        ({"inputs": "[{name: a, from: 'hf:data'}]"}, "inputs[0].from", ["hf:owner/dataset", "@revision"]),
        ({"inputs": "[{name: a, from: x, token: abc}]"}, "inputs[0].token", ["env:NAME"]),
        ({"inputs": "[{name: a, from: x, max_gb: 0}]"}, "inputs[0].max_gb", ["above zero"]),
        ({"inputs": "[{name: a, from: 'kaggle:x'}]"}, "inputs[0].from", ["kaggle:owner/dataset"]),
        ({"inputs": "[{name: a, from: x, sha256: abc}]"}, "inputs[0].sha256", ["64 hexadecimal"]),
        ({"image": "UPPER/case"}, "image", ["'UPPER/case'", "ghcr.io/me/it:tag"]),
        ({"schedule": "{cron: '0 1 * * *', window: '22:00'}"}, "schedule.window", ["'22:00'", "22:00–07:00"]),
        ({"schedule": "{cron: '0 1 * * *', window: '7:00-07:00'}"}, "schedule.window", ["two different"]),
        ({"schedule": "{cron: '0 12 * * *', window: '22:00-07:00'}"}, "schedule.window", ["never fires"]),
        ({"schedule": "{cron: '0 0 30 2 *'}"}, "schedule.cron", ["never fires", "no such date"]),
        ({"schedule": "{cron: '@nightly'}"}, "schedule.cron", ["unknown nickname", "@daily"]),
        ({"schedule": "{cron: '0 1 * * *', overlap: replace}"}, "schedule.overlap", ["mode: fresh"]),
        ({"schedule": "{cron: '0 1 * * *', jitter: 5 weeks}"}, "schedule.jitter", ["'5 weeks'", "10m"]),
        ({"notify": "{on: [], url: env:X}"}, "notify.on", ["given a list", "a list of done, failed"]),
        ({"notify": "{on: [quota_low], url: env:X}"}, "notify.on[0]", ["'quota_low'", "done, failed"]),
        ({"notify": "{on: [done], url: file:/etc/passwd}"}, "notify.url", ["not shown", "env:NAME"]),
        ({"notify": "{on: [done]}"}, "notify.url", ["missing", "env:NAME"]),
    ],
)  # fmt: skip
def test_a_mistake_says_what_was_given_and_what_is_valid(
    change: dict[str, str], path: str, told: list[str]
) -> None:
    found = mistake(with_(**change))
    assert found.path == path
    assert found.line == with_(**change).count("\n")
    for words in told:
        assert words in found.message


def test_a_job_may_say_what_it_wants_told_and_where() -> None:
    job = parse(
        with_(notify="{on: [failed, moved, failed], url: env:NOTIFY_URL}").encode(), "job.yaml", None
    ).job
    assert job.notify == Notify((NoticeKind.FAILED, NoticeKind.MOVED), "env:NOTIFY_URL")
    assert wire.decode(Job, wire.encode(job)) == job


def test_schedule_and_notify_are_validated_besides() -> None:
    text = with_(
        schedule="{cron: '61 1 * *', timezone: Mars/Olympus, mode: x}",
        notify="{on: [never], url: 'https://u:p@h'}",
    )
    found = {each.path: each.message for each in mistakes(text)}
    assert set(found) == {
        "schedule.cron", "schedule.timezone", "schedule.mode",
        "notify.on[0]", "notify.url",
    }  # fmt: skip
    assert "4 fields" in found["schedule.cron"]
    assert "'61 1 * *'" in found["schedule.cron"]
    assert "u:p" not in found["notify.url"]


def test_a_schedule_is_read_with_all_its_values() -> None:
    text = with_(
        schedule="{cron: ' 0   1 * * MON-FRI', timezone: Europe/Berlin, mode: fresh, overlap: replace, "
        "catch_up: all, jitter: 10m, window: 22:00 – 7:00}"
    )
    assert parse(text.encode(), "job.yaml", None).job.schedule == Recurrence(
        "0 1 * * MON-FRI", "Europe/Berlin", Mode.FRESH, Overlap.REPLACE, CatchUp.ALL, 600.0,
        Window(22 * 60, 7 * 60),
    )  # fmt: skip
    assert parse(with_(schedule="{cron: '@daily'}").encode(), "job.yaml", None).job.schedule == Recurrence(
        "@daily"
    )


def test_no_message_grows_with_what_was_given() -> None:
    long = "a" * 1_000  # longer keys are no YAML
    claim = f"{{steps_per_second: [1, 2], batch: 1, on: x, source: y, date: {long}}}"
    text = with_(
        name=long, command=f"{long}=1 {{{long}}}", source=long, seed=long, tags=f"[{long}]",
        env=f"{{{long}-: 1}}", inputs=f"[{{name: {long}, from: 'x:{long}'}}]", image=f"UPPER{long}",
        requirements=long,
        profiles=f"{{{long}: {{micro_batch: 8, precision: fp32, claim: {claim}}}}}",
        route=f"{{platforms: [{long}_], rules: [{{require: {{accelerator: {long}}}}}]}}",
        schedule=f"{{cron: '{long} {long}', timezone: {long}}}",
    )  # fmt: skip
    found = mistakes(text + f"{long}: 1\n", JOBS)
    assert len(found) > 15
    assert [str(each) for each in found if long[:100] in str(each)] == []


def test_missing_keys_are_named_with_what_they_should_hold() -> None:
    found = {each.path: each.message for each in mistakes("seed: 1\n")}
    assert set(found) == {"name", "command", "source", "work", "profiles"}
    assert all(message.startswith("missing; valid: ") for message in found.values())
    assert found["profiles"] != found["work"]


def test_an_image_that_holds_the_code_needs_no_source() -> None:
    text = with_(image="ghcr.io/owner/image:1").replace("source: code\n", "")
    assert parse(text.encode(), "job.yaml", None).job.image == "ghcr.io/owner/image:1"


# --- The command ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("python {stepz}", ["unknown placeholder 'stepz'", "did you mean 'steps'?", "micro_batch"]),
        ("python {a} {b}", ["'a'", "'b'"]),
        ("python {}", ["unknown placeholder ''"]),
        ("python {0}", ["unknown placeholder '0'"]),
        ("python {steps.real}", ["unknown placeholder 'steps.real'"]),
        ("python {steps:5}", ["takes no format", "{steps}"]),
        ("python {steps!r}", ["takes no format"]),
        ("python {steps", ["{{"]),
        ("python steps}", ["}}"]),
        ("python '{steps}", ["no closing quotation"]),
        ("''", ["missing", "program"]),
        ("cd x && python y", ["works only in a shell", "&&", "{shell: "]),
        ("A=1 python x", ["A=…", "`env`"]),
    ],
)
def test_a_command_that_cannot_be_filled_is_told(command: str, told: list[str]) -> None:
    if command == "''":
        command = ""
        told = ["empty"]
    found = mistake(with_(command=yaml.safe_dump(command, default_style='"').strip()))
    assert found.path == "command"
    for words in told:
        assert words in found.message


def test_a_command_keeps_quoted_words_and_escaped_braces() -> None:
    text = with_(
        command=""">-
  python -c 'print("a b")' --json {{"k":{steps}}} x\\ y"""
    )
    job = parse(text.encode(), "job.yaml", None).job
    assert job.command == ("python", "-c", 'print("a b")', "--json", "{{k:{steps}}}", "x y")
    assert job.command[4].format_map({"steps": 3}) == "{k:3}"


# --- Divisibility ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("work", "profile", "path", "told"),
    [
        ("global_batch: 64, group: 3", "cpu: {micro_batch: 3, precision: fp32}", "work.group",
         ["does not divide global_batch 64"]),
        ("global_batch: 64, group: 8", "cpu: {micro_batch: 24, precision: fp32}", "profiles.cpu.micro_batch",
         ["not a whole multiple of 24", "valid: 8, 16, 32, 64"]),
        ("global_batch: 64, group: 8", "cpu: {micro_batch: 4, precision: fp32}", "profiles.cpu.micro_batch",
         ["work.group 8", "valid: 8, 16, 32, 64"]),
        ("global_batch: 64", "T4x2: {micro_batch: 64, precision: fp16}", "profiles.T4x2.micro_batch",
         ["64 × 2 devices", "valid: 1, 2, 4, 8, 16, 32"]),
        ("global_batch: 63", "T4x2: {micro_batch: 1, precision: fp16}", "profiles.T4x2.micro_batch",
         ["no value is valid on 2 devices"]),
        ("global_batch: 64", "default: {micro_batch: 5, precision: fp32}", "profiles.default.micro_batch",
         ["valid: 1, 2, 4, 8, 16, 32, 64"]),
        ("global_batch: 64", "TPUv5e1: {micro_batch: 8, precision: bf16}", "profiles.TPUv5e1",
         ["unknown accelerator", "did you mean 'TPUv5e-1'?"]),
        ("global_batch: 64, phases: [{from: 1, flops_per_step: 1}]", "cpu: {micro_batch: 8, precision: fp32}",
         "work.phases[0].from", ["given 1", "valid: 0"]),
        ("global_batch: 64, phases: [{from: 0, flops_per_step: 1}, {from: 0, flops_per_step: 1}]",
         "cpu: {micro_batch: 8, precision: fp32}", "work.phases[1].from", ["given 0 after 0"]),
        ("global_batch: 64, phases: [{from: 0, flops_per_step: 1}, {from: 100, flops_per_step: 1}]",
         "cpu: {micro_batch: 8, precision: fp32}", "work.phases[1].from", ["before work.total, 100"]),
        ("global_batch: 2147483647", "cpu: {micro_batch: 65536, precision: fp32}", "profiles.cpu.micro_batch",
         ["valid: 1"]),
    ],
)  # fmt: skip
def test_what_does_not_divide_is_told_with_what_would(
    work: str, profile: str, path: str, told: list[str]
) -> None:
    found = mistake(with_(work=f"{{total: 100, {work}}}", profiles=f"{{{profile}}}"))
    assert found.path == path
    for words in told:
        assert words in found.message


# --- Secrets --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        with_(env="{WANDB_API_KEY: 0123456789abcdef}"),
        with_(env="{ANYTHING: ghp_0123456789abcdef0123}"),
        with_(env="{A: 1234123412341234}"),
        with_(secrets="['value 0123456789abcdef']"),
        with_(notify="{on: [done], url: https://hook/0123456789abcdef}"),
        with_(env="{A: [0123456789abcdef]}"),
    ],
)
def test_no_message_repeats_a_secret(text: str) -> None:
    told = "\n".join(map(str, mistakes(text)))
    assert "0123456789abcdef" not in told
    assert "1234123412341234" not in told


# --- Files ----------------------------------------------------------------------------------------------


def test_files_that_are_not_there_are_told_with_the_folder_looked_in(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "no-dockerfile").mkdir()
    text = with_(source="file", requirements="no-dockerfile", image="./no-dockerfile",
                 inputs="[{name: a, from: gone}]")  # fmt: skip
    found = {each.path: each.message for each in mistakes(text, tmp_path)}
    assert set(found) == {"source", "requirements", "image", "inputs[0].from"}
    assert "is not a folder" in found["source"]
    assert "is not a file" in found["requirements"]
    assert "no Dockerfile" in found["image"]
    assert str(tmp_path) in found["inputs[0].from"]
    assert "does not exist" in mistake(with_(source="gone"), tmp_path).message
    assert "does not exist" in mistake(with_(source="x" * 3000), tmp_path / "code").message


def test_an_image_folder_is_found_by_its_dockerfile(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    (tmp_path / "images" / "graphmer").mkdir(parents=True)
    (tmp_path / "images" / "graphmer" / "Dockerfile").write_text("FROM scratch\n")
    parsed = parse(with_(image="images/graphmer").encode(), "job.yaml", tmp_path)
    assert parsed.image == tmp_path / "images" / "graphmer"
    assert parsed.job.image == str(parsed.image)


def test_load_names_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        load(tmp_path / "gone.yaml")
    with pytest.raises(InputError, match="not a file"):
        load(tmp_path)
    (tmp_path / "big.yaml").write_bytes(b"a" * 10_000_000)
    with pytest.raises(SpecError, match="256 KiB"):
        load(tmp_path / "big.yaml")


# --- The JSON Schema, and the fuzzer's share ------------------------------------------------------------


def test_the_schema_is_one_and_catches_what_it_can() -> None:
    validator = jsonschema.Draft202012Validator
    validator.check_schema(schema())
    for path in sorted(JOBS.glob("*.yaml")):
        validator(schema()).validate(document.read(path.read_bytes(), path.name).tree)
    wrong: list[dict[str, Any]] = [{"seed": "x"}, {"unknown": 1}, {"name": "A B"}, {"profiles": {"T5": {}}}]
    for change in wrong:
        tree = yaml.safe_load(GOOD) | change
        assert not validator(schema()).is_valid(tree)


def test_the_schema_lists_what_it_cannot_express() -> None:
    told = schema()["description"]
    for topic in ("global_batch", "phases", "placeholders", "source", "aliases"):
        assert topic in told


@pytest.mark.timeout(120)
def test_mutated_specs_get_an_answer() -> None:
    count, accepted = fuzz(seed=20261120, cases=400)
    assert count == 400
    assert accepted > 0
