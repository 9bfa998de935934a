"""`doctor --measure`: what it prints for the config, and what it says where nothing can be measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from orchestrator import config
from orchestrator.client import measuring
from orchestrator.core.own_accelerators import row_named
from orchestrator.core.wording import number_text
from tests.cli.calls import Caller

LAB = {
    "torch": "2.9.0", "lack": "",
    "devices": [
        {"name": "NVIDIA Lab 9000", "memory_gb": 31.5, "arch": "sm_89",
         "teraflops": {"fp16": 80.123, "bf16": 79.9, "fp32": 40.0}},
        {"name": "NVIDIA Lab 9000", "memory_gb": 31.5, "arch": "sm_89", "teraflops": {"fp32": 40.0}},
        {"name": "NVIDIA GeForce RTX 4090", "memory_gb": 25.4, "arch": "sm_89", "teraflops": {"fp32": 70.0}},
        {"name": "", "memory_gb": 1, "arch": "sm_89", "teraflops": {"fp32": 1}},
        {"name": "Odd", "memory_gb": -1, "arch": "sm_89", "teraflops": {"fp32": 1}},
        {"name": "Odd", "memory_gb": 1, "arch": "sm_89", "teraflops": {"fp32": "fast"}},
    ],
}  # fmt: skip


def python(folder: Path, body: str) -> str:
    """An environment whose Python has torch and answers with this; for VIRTUAL_ENV."""
    place = folder / "env" / "bin"
    place.mkdir(parents=True)
    (place / "python").write_text(f'#!/bin/sh\ncase "$2" in *find_spec*) exit 0;; esac\n{body}\n')
    (place / "python").chmod(0o755)
    return str(folder / "env")


def test_it_measures_a_cpu_with_the_torch_that_is_here(user: Caller) -> None:
    found = user("doctor", "--measure", "here", "--json").json
    [device] = found["devices"]
    assert device["catalogue"] == device["arch"] == "cpu"
    assert device["teraflops"]["fp32"] > 0
    assert "torch sees no GPU" in found["lack"]


def test_what_it_prints_for_an_unknown_gpu_can_be_pasted_into_the_config(user: Caller) -> None:
    env = python(user.folder, f"echo 'a warning'; echo '{json.dumps(LAB)}'")
    lab, known = user("doctor", "--measure", "--json", VIRTUAL_ENV=env).json["devices"]
    assert (known["catalogue"], lab["catalogue"]) == ("RTX4090", None)
    row = yaml.safe_load(lab["yaml"])
    written = user.home / "config.yaml"
    written.write_text(written.read_text() + lab["yaml"])
    own = config.load(user.home).accelerators
    assert list(row["accelerators"]) == list(own) == ["my-lab-9000"]
    found = row_named("my-lab-9000x2", own)
    assert found is not None
    assert (found.devices, found.memory_gb, found.gpu_names) == (2, 31.5, ("NVIDIA Lab 9000",))
    text = user("doctor", "--measure", VIRTUAL_ENV=env).out
    assert "add to" in text
    assert "needs no row: its accelerator is RTX4090" in text
    assert number_text(80.1) in text


def test_a_named_platforms_own_python_measures(user: Caller) -> None:
    env = python(user.folder, f"echo '{json.dumps(LAB)}'")
    written = user.home / "config.yaml"
    written.write_text(f"platforms: {{lab: {{type: process, python: {json.dumps(env)}}}}}\n")
    assert user("doctor", "--measure", "lab", "--json").json["python"] == f"{env}/bin/python"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('echo \'{"without": "ModuleNotFoundError: no torch"}\'', "has no torch"),
        ("echo broken >&2; exit 3", "the measurement failed"),
        ("echo nonsense", "the measurement failed"),
    ],
)
def test_what_cannot_be_measured_is_said(user: Caller, body: str, words: str) -> None:
    assert words in user("doctor", "--measure", code=2, VIRTUAL_ENV=python(user.folder, body)).err


def test_it_measures_this_machine_only(user: Caller) -> None:
    assert "did you mean 'here'?" in user("doctor", "--measure", "hare", code=2).err
    assert "--clean and --measure are different things" in user("doctor", "--measure", "--clean", code=2).err


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("NVIDIA Lab 9000", "my-lab-9000"),
        ("Tesla T4", "my-tesla-t4"),
        ("T4", "my-t4"),
        ("Box x2", "my-box-x2-1"),
        ("é", "my-device-1"),
    ],
)
def test_the_name_of_a_row_is_one_that_the_config_takes(title: str, name: str) -> None:
    assert measuring.row_name(title) == name
