"""The order of a session: what depends on the chosen accelerator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core import wire
from orchestrator.core.assign import assign
from orchestrator.core.event import Submitted
from orchestrator.core.job import Job, Requirements
from orchestrator.core.run import submit
from tests.core.runs import NOW, OFFER, RUN, choice, job

VARIANTS = (("tpu", Requirements("tpu.txt", "tpu.lock")),)


@pytest.mark.parametrize(
    ("accelerator", "requirements", "lock"),
    [
        ("TPUv5e-1", "tpu.txt", "tpu.lock"),
        ("TPUv6e-1", "tpu.txt", "tpu.lock"),
        ("T4x2", "all.txt", "all.lock"),
        ("cpu", "all.txt", "all.lock"),
    ],
)
def test_the_order_has_the_requirements_of_its_kind_of_accelerator(
    accelerator: str, requirements: str, lock: str
) -> None:
    needs = job(requirements="all.txt", requirements_lock="all.lock", variants=VARIANTS)
    record = submit(Submitted(RUN, wire.decode(Job, wire.encode(needs)), NOW))
    order = assign(record, choice(replace(OFFER, accelerator=accelerator)))
    assert (order.requirements, order.requirements_lock) == (requirements, lock)


def test_a_job_with_requirements_for_tpus_only_has_none_elsewhere() -> None:
    record = submit(Submitted(RUN, job(variants=VARIANTS), NOW))
    assert assign(record, choice(replace(OFFER, accelerator="T4"))).requirements is None
