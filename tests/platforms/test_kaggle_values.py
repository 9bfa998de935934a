"""The parts of the Kaggle platform that need no network: names, pushes, refusals, endings, offers."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.clock import SystemClock
from orchestrator.core import wire
from orchestrator.core.offer import NEVER, Offer, UntilKind, Uplink
from orchestrator.core.order import Order, Outcome, Result, run_of
from orchestrator.errors import QuotaExhausted, Refused, Rejected
from orchestrator.platforms.kaggle import endings, kernel, refusals
from orchestrator.platforms.kaggle.kernel import SLUG_MAX, TIMEOUT_MARGIN_SECONDS, StagedFile, slug
from orchestrator.platforms.kaggle.options import HOUR, KaggleOptions
from orchestrator.platforms.kaggle.platform import KagglePlatform
from orchestrator.platforms.kaggle.surveying import offers
from orchestrator.platforms.kaggle.values import Pool, Push, Quotas, Status
from orchestrator.spec.fields import NAME_LENGTH_MAX
from tests.conformance.test_platforms import any_order

TEXT_BYTES_MAX = 900_000  # Kaggle refuses about 1 MB: docs/references/kaggle.md#push
OPTIONS = KaggleOptions()
NOW = 1_790_000_000.0
SATURDAY = NOW + 2 * 86400.0
QUOTAS = Quotas(SATURDAY, Pool(9 * HOUR, 0.0, 30 * HOUR), Pool(0.0, 0.0, 20 * HOUR))
USED_UP = replace(QUOTAS, gpu=Pool(30 * HOUR, 0.0, 30 * HOUR))
FILE = StagedFile("materials", "a" * 12, "b" * 12, "c" * 64)


# --- Names ------------------------------------------------------------------------------------------------


def test_a_session_keeps_its_name_on_kaggle() -> None:
    assert slug("graphmer-50k-7f3kq2vd-s03") == "graphmer-50k-7f3kq2vd-s03"


def test_a_long_name_is_shortened_where_it_tells_least() -> None:
    long = slug(f"{'a-very-long-name-of-a-job' * 3}-7f3kq2vd-s03")
    assert len(long) <= SLUG_MAX
    assert long.endswith("-7f3kq2vd-s03")
    assert "--" not in long
    assert kernel.is_kernel_of(long, long)
    assert run_of(long) == long.removesuffix("-s03")


def test_a_dataset_is_never_named_like_a_kernel() -> None:
    """They may share their names, and a deleted name may stay taken (docs/references/kaggle.md#datasets)."""
    for session in ("graphmer-50k-7f3kq2vd-s03", f"{'a-very-long-name-of-a-job' * 3}-7f3kq2vd-s03"):
        name, again = kernel.dataset_slug(session, "x7f2"), slug(session, attempt=2)
        assert len({slug(session), name, again}) == 3
        assert max(len(name), len(again)) <= SLUG_MAX
        assert kernel.is_dataset_of(name, session)
        assert kernel.is_kernel_of(again, session)


def test_the_kernel_of_a_job_with_the_longest_name_is_called_like_its_session() -> None:
    """Also that of an earlier version, which is then found after an upgrade."""
    session = f"{'a' * NAME_LENGTH_MAX}-7f3kq2vd-s01"
    assert slug(session) == session


def test_what_was_staged_is_told_by_its_name() -> None:
    assert StagedFile.parse(FILE.name) == FILE
    for strange in ("data.csv", FILE.name + ".zip", FILE.name.replace("materials", "anything")):
        assert StagedFile.parse(strange) is None
    other = any_order("a-7f3kq2vd-s01", 10, 1)
    assert kernel.fingerprint(other) != kernel.fingerprint(replace(other, seed=8))


# --- What is pushed ---------------------------------------------------------------------------------------


def push_of(order: Order, hand_over: str | None = None, options: KaggleOptions = OPTIONS) -> Push:
    return kernel.push(
        options, order, name=slug(order.session), home="a" * 12, datasets=("a-7f3kq2vd-s02-dx7f2",),
        files=(FILE,), hand_over=hand_over,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("accelerator", "shape", "gpu", "tpu", "hours"),
    [
        ("T4x2", "NvidiaTeslaT4", True, False, 12),
        ("T4", "NvidiaTeslaT4", True, False, 12),
        ("TPUv5e-8", "TpuV5E8", False, True, 9),
        ("cpu", "", False, False, 12),
    ],
)
def test_the_machine_is_always_said_in_full(
    accelerator: str, shape: str, gpu: bool, tpu: bool, hours: int
) -> None:
    order = replace(any_order("a-7f3kq2vd-s02", 10, 2), accelerator=accelerator)
    push = push_of(order)
    seconds = hours * 3600 - TIMEOUT_MARGIN_SECONDS
    assert (push.machine_shape, push.gpu, push.tpu, push.timeout_seconds) == (shape, gpu, tpu, seconds)
    assert push.internet is False
    assert push_of(replace(order, internet=True)).internet
    needs = replace(order, requirements="requirements.txt")
    assert push_of(needs).internet, "what is installed comes from there"


def test_only_its_own_dataset_and_the_kernel_before_are_mounted() -> None:
    order = replace(any_order("a-7f3kq2vd-s02", 10, 2), resume="000000005-g01-aaaa")
    alone = push_of(order)
    assert (alone.datasets, alone.kernels) == (("a-7f3kq2vd-s02-dx7f2",), ())
    handed = push_of(order, "a-7f3kq2vd-s01")
    assert handed.kernels == ("a-7f3kq2vd-s01",)
    assert "000000005-g01-aaaa" in handed.text
    assert "000000005-g01-aaaa" not in alone.text


def test_the_pushed_text_is_small_and_needs_the_standard_library_only() -> None:
    order = any_order("a-7f3kq2vd-s02", 10, 2, env=(("KEY", 'it\'s \\ a "value"\n'),))
    text = push_of(order).text
    assert len(text.encode()) < TEXT_BYTES_MAX
    for node in ast.walk(ast.parse(text)):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert all(name.split(".")[0] in sys.stdlib_module_names for name in names), names


def test_a_kernel_whose_materials_did_not_come_leaves_a_result_that_sends_the_run_on(tmp_path: Path) -> None:
    order = any_order("a-7f3kq2vd-s02", 10, 2)
    at_once = OPTIONS.model_copy(update={"mount_seconds": 0.0})
    text = push_of(order, options=at_once).text.replace("/kaggle/", f"{tmp_path}/")
    (tmp_path / "input" / "old").mkdir(parents=True)
    (tmp_path / "input" / "old" / FILE.name).write_text("stale")
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    outbox = tmp_path / "working" / "outbox"
    result = wire.decode(Result, (outbox / "result.json").read_bytes())
    assert result.outcome is Outcome.LOST
    assert "was changed on the way" in result.message
    assert result.incarnation == (outbox / "incarnation").read_text().strip()
    assert "cannot start" in done.stdout


# --- Refusals, in Kaggle's own words (docs/references/kaggle.md#refusals) ---------------------------------


@pytest.mark.parametrize(
    ("error", "until"),
    [
        ("Maximum batch GPU session count of 2 reached.", NOW + refusals.SLOT_SECONDS),
        ("Maximum weekly GPU quota of 30.00 hours reached.", SATURDAY),
        (
            "Session cannot start because currently running sessions are projected to exceed maximum weekly "
            "GPU quota of 30.00 hours.",
            NOW + refusals.PROJECTED_SECONDS,
        ),
    ],
)
def test_what_passes_is_waited_for(error: str, until: float) -> None:
    refused = refusals.refusal(error, now=NOW, quotas=USED_UP, pool="gpu", backend="kaggle")
    assert isinstance(refused, QuotaExhausted)
    assert refused.until == until
    assert error in str(refused)


def test_a_sentence_that_nobody_recorded_may_pass() -> None:
    refused = refusals.refusal("Notebook not found", now=NOW, quotas=None, pool="gpu", backend="kaggle")
    assert isinstance(refused, Refused)
    assert refused.until is None
    assert "Notebook not found" in str(refused)
    assert "dataset ada/x" in str(refusals.invalid(("dataset ada/x",), backend="kaggle"))


# --- Endings ----------------------------------------------------------------------------------------------


def log(seconds: float, *lines: str) -> str:
    entries = [{"stream_name": "stdout", "time": seconds, "data": f"{line}\n"} for line in lines]
    return json.dumps(entries)


TOO_LONG = "exceeded the max allowed execution duration"


@pytest.mark.parametrize(
    ("state", "message", "said", "quotas", "outcome", "words"),
    [
        ("CANCEL_ACKNOWLEDGED", "", log(12 * HOUR - 60, "x"), QUOTAS, Outcome.LOST, "session limit"),
        ("CANCEL_ACKNOWLEDGED", "", log(3 * HOUR, "x"), QUOTAS, Outcome.LOST, "cancelled on Kaggle"),
        ("CANCEL_ACKNOWLEDGED", "", "", QUOTAS, Outcome.LOST, "cancelled on Kaggle"),
        ("ERROR", f"It {TOO_LONG}.", "", QUOTAS, Outcome.LOST, "session limit"),
        ("ERROR", "", log(60, "a", "Traceback", "boom"), QUOTAS, Outcome.CRASHED, "Traceback\nboom"),
        ("ERROR", "machine failure", "not json", QUOTAS, Outcome.CRASHED, "machine failure"),
        ("CANCEL_ACKNOWLEDGED", "", log(3 * HOUR, "x"), USED_UP, Outcome.QUOTA_EXHAUSTED, "GPU quota"),
        ("ERROR", "", "", USED_UP, Outcome.QUOTA_EXHAUSTED, "GPU quota"),
    ],
)  # fmt: skip
def test_how_it_ended_is_told_apart(
    state: str, message: str, said: str, quotas: Quotas, outcome: Outcome, words: str
) -> None:
    ending, detail = endings.how(Status(state, message), said, 12 * HOUR, quotas)
    assert ending is outcome
    assert words in detail


# --- Offers -----------------------------------------------------------------------------------------------


def offer(accelerator: str, quotas: Quotas = QUOTAS) -> Offer:
    return next(each for each in offers("kaggle", OPTIONS, quotas, NOW) if each.accelerator == accelerator)


def test_a_job_with_secrets_is_only_taken_where_they_may_travel() -> None:
    assert not offer("T4").traits.secrets
    told = KaggleOptions(send_secrets=True)
    assert offers("kaggle", told, QUOTAS, NOW)[0].traits.secrets


def test_gpus_spend_one_quota_and_a_cpu_none() -> None:
    both, one, cpu = offer("T4x2"), offer("T4"), offer("cpu")
    assert both.quota is not None
    assert (both.quota.left_seconds, both.quota.refresh_at, both.quota.pool) == (21 * HOUR, SATURDAY, "gpu")
    assert one.quota == both.quota
    assert (cpu.quota, cpu.traits.metered, cpu.slots) == (None, False, 5)


def test_a_session_is_lost_with_its_machine_and_leaves_before_its_wall() -> None:
    traits = offer("T4x2").traits
    assert traits.uplink is Uplink.NONE
    assert not traits.durable_mid_run
    assert traits.session_seconds == 12 * HOUR
    assert traits.session_seconds - traits.wall_margin_seconds == 11.25 * HOUR
    assert offer("TPUv5e-8").traits.session_seconds == 9 * HOUR


def test_a_quota_that_is_used_up_says_until_when() -> None:
    gone = offer("T4x2", USED_UP).unavailable
    assert gone is not None
    assert (gone.until.kind, gone.until.at) == (UntilKind.TIME, SATURDAY)
    assert "30.0 of 30.0 hours" in gone.reason
    assert offer("cpu", USED_UP).unavailable is None
    none = offer("TPUv5e-8", Quotas(None, QUOTAS.gpu, None)).unavailable
    assert none is not None
    assert "no TPU quota" in none.reason


@pytest.mark.parametrize(("accelerator", "instead"), [("P100", "T4 or T4x2"), ("TPUv3-8", "TPUv5e-8")])
def test_what_kaggle_has_retired_is_refused_with_the_reason(accelerator: str, instead: str) -> None:
    retired = offer(accelerator).unavailable
    assert retired is not None
    assert retired.until == NEVER
    assert "retired" in retired.reason
    assert f"ask for {instead}" in retired.reason


# --- Options ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {"username": "ada"},
        {"key_file": "/k"},
        {"username": "ada", "key_file": "/k", "token_file": "/t"},
        {"username": "ada", "key_file": "here/k"},
        {"wall_margin_seconds": 12 * HOUR},
        {"endpoint": "ftp://somewhere"},
        {"usrname": "ada"},
        {"accelerators": []},
    ],
)
def test_options_that_cannot_work_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        KaggleOptions.model_validate(given)


def test_what_an_account_without_internet_cannot_do_is_refused_before_anything_is_asked(
    tmp_path: Path,
) -> None:
    nobody: Any = None  # no client: the order itself is wrong
    platform = KagglePlatform("kaggle", KaggleOptions(internet=False), nobody, tmp_path, SystemClock())
    order = replace(any_order("a-7f3kq2vd-s01", 10, 1), platform="kaggle", requirements="requirements.txt")
    with pytest.raises(Rejected, match="requirements need the internet"):
        platform.launch(order)
