"""Random weather for a local Kaggle: which of its settings, warts and faults are drawn, and how they change.

Every draw lets every run succeed. So it has no outputs that are lost for ever, no session that stays RUNNING
for ever, no revoked credentials, no limit of the listed files and no other hardware than ordered; each of
those has its own test. All times are shorter than those of OPTIONS.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields
from random import Random
from typing import Any

from orchestrator.clock import Clock
from tests.stand_ins.kaggle import Fault, LocalKaggle, Settings, State, Warts

WALL_SECONDS = 16.0
BLIND_SECONDS = 9.0  # longer than visibility_seconds
HIDDEN_SECONDS = 24.0  # longer than an output is waited for: publish_seconds + saving_seconds
OPTIONS: Mapping[str, Any] = {
    "type": "kaggle", "username": Settings().username, "threads": 1, "accelerators": ["cpu", "T4"],
    "session_seconds": WALL_SECONDS, "wall_margin_seconds": 7.0, "slack_seconds": 20.0,
    "visibility_seconds": 4.0, "absence_seconds": 15.0, "poll_seconds": 0.4, "setup_seconds": 1.0,
    "report_seconds": 0.4, "ready_seconds": 20.0, "listed_seconds": 6.0, "mount_seconds": 10.0,
    "publish_seconds": 6.0, "saving_seconds": 5.0, "hand_over_bytes": 0,
}  # fmt: skip
RARE, OFTEN = 0.05, 0.25  # how likely a wart is to show
KINDS = {"warts": 20, "outage": 3, "death": 1, "cancel": 1, "quota": 2, "hidden": 2, "blind": 4}
FAULTS = [each for each in Fault if each is not Fault.TIMEOUT]  # that one takes the client a minute
RATES = (0.0, 0.05, 0.15, 0.3)  # at which any request fails
CALLS = (  # most of them are rare, so that faults at random seldom meet them
    "SaveKernel", "DeleteKernel", "CreateDataset", "DeleteDataset", "GetDatasetStatus", "ListDatasetFiles",
    "StartBlobUpload", "upload", "ListKernels", "GetKernelSessionStatus", "ListKernelSessionOutput",
    "download", "logs", "GetAcceleratorQuotaStatistics",
)  # fmt: skip

_Draw = Callable[[Random], object]


def _seconds(most: float) -> _Draw:
    return lambda random: random.uniform(0.0, most)


def _one(*values: object) -> _Draw:
    return lambda random: random.choice(values)


WARTS: Mapping[str, tuple[float, _Draw]] = {
    "missing_is_403": (OFTEN, _one(False)),
    "camel_case_status": (OFTEN, _one(True)),
    "queued_is_omitted": (OFTEN, _one(False)),
    "unknown_status": (RARE, _one("PREEMPTED")),
    "nested_errors": (OFTEN, _one(True)),
    "api_version": (OFTEN, _one("9.9.9")),
    "stream_events_max": (OFTEN, _one(1, 3, 10)),
    "log_lag_seconds": (OFTEN, _seconds(2.0)),
    "output_lag_seconds": (OFTEN, _seconds(2.0)),
    "hostile_output_name": (OFTEN, _one("../../evil", "outbox/../../evil")),
    "wall_end": (OFTEN, _one("ERROR")),
    "quota_end": (OFTEN, _one("ERROR")),
    "death_keeps_outputs": (1.0, _one(True)),
    "cancel_works": (OFTEN, _one(True)),
    "cancel_refusal": (OFTEN, _one(400, 404)),
    "timeout_shrinks_reservation": (OFTEN, _one(True)),
    "archives": (OFTEN, _one("flat", "kept", "content")),
    "old_input_layout": (OFTEN, _one(True)),
    "stale_mount": (OFTEN, _one(True)),
    "first_dataset_status_is_403": (OFTEN, _one(True)),
    "busy_dataset_is_403": (OFTEN, _one(False)),
    "dataset_end": (RARE, _one("FAILED")),
    "output_grows_seconds": (OFTEN, _seconds(3.0)),
    "url_lag_seconds": (OFTEN, _seconds(3.0)),
    "url_seconds": (OFTEN, _one(0.05, 0.5)),
    "page_items_max": (OFTEN, _one(1, 2, 7)),
    "saves_while_running": (OFTEN, _one(True)),
    "status_glitch": (
        RARE,
        _one(
            "403", "404", "QUEUED", "RUNNING", "COMPLETE", "ERROR", "CANCEL_REQUESTED", "CANCEL_ACKNOWLEDGED"
        ),
    ),
    "slug_ending": (OFTEN, _one("-2", "x7")),
    "push_lag_seconds": (OFTEN, _seconds(2.0)),
    "beyond_slots": (OFTEN, _one("queued")),
    "files_lag_seconds": (OFTEN, _seconds(2.0)),
    "sizes_are_omitted": (OFTEN, _one(True)),
    "attach_lag_seconds": (RARE, _seconds(2.0)),
    "mount_lag_seconds": (OFTEN, _seconds(1.0)),
    "inputs_are_links": (OFTEN, _one(True)),
    "deleted_stay_reserved": (OFTEN, _one(True)),
    "names_are_shared": (OFTEN, _one(True)),
    "delete_lag_seconds": (OFTEN, _seconds(2.0)),
    "quota_shape": (OFTEN, _one("iso", "object", "number", "missing")),
    "clock_ahead_seconds": (OFTEN, _one(600.0, -600.0)),
    "log_is_endless": (OFTEN, _one(True)),
    "log_is_unchunked": (OFTEN, _one(True)),
    "log_has_no_newlines": (OFTEN, _one(True)),
    "outage": (OFTEN, _one("refused")),
}
NEVER_DRAWN = {  # these keep a run from its end, or its session from what it holds
    "output_files_max", "wall_loses_outputs", "wall_is_not_enforced", "stays_running", "quota_loses_outputs",
    "error_loses_outputs", "cancel_loses_outputs", "substitute_gpu", "tpu_is_missing", "revoked_is_403",
}  # fmt: skip


def settings(random: Random) -> Settings:
    """An account with a quota of seconds, and slots that do not suffice."""
    return Settings(
        wall_seconds=WALL_SECONDS,
        tpu_wall_seconds=WALL_SECONDS,
        gpu_quota_seconds=random.uniform(20.0, 60.0),
        window_seconds=random.uniform(20.0, 40.0),
        reserve_seconds=random.choice([1.0, WALL_SECONDS]),
        gpu_slots=random.choice([1, 2, 3]),
        cpu_slots=random.choice([2, 3, 5]),
        queue_seconds=random.choice([0.0, random.uniform(0.0, 1.0)]),
        publish_seconds=random.choice([0.0, random.uniform(0.0, 2.0)]),
        ready_seconds=random.choice([0.0, random.uniform(0.0, 1.0)]),
        visible_seconds=random.choice([0.0, random.uniform(0.0, 1.0)]),
        retry_after_seconds=0.05,
    )


class Weather:
    """Changes one local Kaggle. `seen` counts the changes by kind. `hid`: outputs were hidden for longer than
    they are waited for."""

    def __init__(self, kaggle: LocalKaggle, random: Random, clock: Clock) -> None:
        self.seen: Counter[str] = Counter()
        self._kaggle = kaggle
        self._random = random
        self._clock = clock
        self._hidden_until = self._blind_until = 0.0

    @property
    def hid(self) -> bool:
        return self.seen["hidden"] > 0

    def change(self) -> None:
        """One random change. It lasts until the next one, or for as long as its kind needs."""
        kind = self._random.choices(list(KINDS), list(KINDS.values()))[0]
        now = self._clock.monotonic()
        self.seen[kind] += 1
        self._kaggle.outage(False)
        if kind == "hidden":
            self._hidden_until = now + HIDDEN_SECONDS
        elif kind == "blind":
            self._blind_until = now + BLIND_SECONDS
        with self._kaggle.lock:
            self._draw(now)
            self._order_faults()
            if kind == "quota":
                self._kaggle.use_up("gpu", self._random.uniform(0.0, 10.0))
            elif kind in ("death", "cancel"):
                self._end_one(kind)
        if kind == "outage":
            self._kaggle.outage()

    def calm(self) -> None:
        """No fault and no wart any more."""
        self._kaggle.outage(False)
        self._kaggle.heal()
        with self._kaggle.lock:
            self._reset()

    def _reset(self) -> None:
        for each in fields(Warts):
            setattr(self._kaggle.warts, each.name, each.default)

    def _draw(self, now: float) -> None:
        self._reset()
        for name, (likely, draw) in WARTS.items():
            if self._random.random() < likely:
                setattr(self._kaggle.warts, name, draw(self._random))
        if now < self._hidden_until:
            self._kaggle.warts.output_lag_seconds = 1e9
        if now < self._blind_until:
            self._kaggle.warts.status_glitch = self._random.choice(["403", "404"])

    def _order_faults(self) -> None:
        self._kaggle.chaos(self._random.getrandbits(32), self._random.choice(RATES))
        for call in CALLS:
            if self._random.random() < RARE:
                self._kaggle.fail(call, self._random.choice(FAULTS), self._random.choice([1, 1, 2, 5]))

    def _end_one(self, how: str) -> None:
        running = [each for each in self._kaggle.sessions if each.state is State.RUNNING]
        if running:
            session = self._random.choice(running)
            session.kill() if how == "death" else session.cancel()
