"""Every metric of the controller, in one table, and how a snapshot becomes their values.

Values in, text out. The number of label values is bounded, whatever names the config, a platform or a ledger
has. Must never read a clock, the ledger or a platform. docs/metrics.md is generated from the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType

from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from orchestrator.core.charges import Spent

PREFIX = "orchestrator_"
SERIES_MAX = 100  # of one metric; what comes later is counted as OTHER
LABEL_CHARACTERS_MAX = 64
OTHER = "other"
TICK = "tick_seconds"
TICK_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
USES = tuple(each.name for each in fields(Spent) if each.name != "open")
NONE: Mapping[tuple[str, ...], float] = MappingProxyType({})


@dataclass(frozen=True)
class Family:
    """One metric. `name` without the prefix, as a query writes it. `labels` in their order."""

    name: str
    what: str
    labels: tuple[str, ...] = ()
    counts: bool = False


TABLE = (
    Family("controller_info", "Always 1; its labels say which controller this is.", ("version", "host")),
    Family("controller_started_timestamp_seconds", "When this controller took over, in unix seconds."),
    Family("runs", "Runs in the ledger, by the phase that people see.", ("phase",)),
    Family("sessions", "Sessions that hold a slot now.", ("platform", "accelerator")),
    Family("quota_left_seconds", "Session time left of a quota, less what our sessions may still use.",
           ("platform", "accelerator")),
    Family("offers_closed", "Offers that take no session now.", ("platform",)),
    Family("session_seconds_total", "Time of sessions that ended since the controller took over, by use: "
           "set_up, redone, useful, lost.", ("platform", "use"), counts=True),
    Family("sessions_ended_total", "Sessions that ended since the controller took over.",
           ("platform", "outcome"), counts=True),
    Family("errors_total", "Errors since the controller took over, by class: unforeseen, ledger, action, "
           "journal (a run held, failed or faulted).", ("class",), counts=True),
    Family("schedule_next_fire_timestamp_seconds", "When the next schedule is due, in unix seconds; absent: "
           "none is."),
    Family("notifications", "Notifications in the outbox.", ("state",)),
    Family("ledger_bytes", "Size of the ledger on disk."),
    Family("home_free_bytes", "Free space on the disk of the home."),
    Family("last_tick_timestamp_seconds", "When the last tick ended, in unix seconds."),
)  # fmt: skip
# Else the histogram has one more series, which no dashboard needs.
disable_created_metrics()  # type: ignore[no-untyped-call]
TICK_WHAT = "How long a tick took."


@dataclass(frozen=True)
class Snapshot:
    """Metric → label values → value. Immutable, so that one thread publishes it and others read it."""

    values: Mapping[str, Mapping[tuple[str, ...], float]] = field(default_factory=dict)


class Families(Collector):
    """The metrics of one controller. `publish` may be called from any thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.tick = Histogram(PREFIX + TICK, TICK_WHAT, registry=self.registry, buckets=TICK_BUCKETS)
        self._snapshots: dict[str, Snapshot] = {}
        self.registry.register(self)

    def publish(self, source: str, snapshot: Snapshot) -> None:
        """Replaces what this source published before."""
        self._snapshots = {**self._snapshots, source: snapshot}

    def collect(self) -> Iterator[Metric]:
        snapshots = self._snapshots.values()
        for family in TABLE:
            found = [each.values[family.name] for each in snapshots if family.name in each.values]
            if not found:
                continue
            made: CounterMetricFamily | GaugeMetricFamily
            if family.counts:
                made = CounterMetricFamily(PREFIX + family.name, family.what, labels=family.labels)
            else:
                made = GaugeMetricFamily(PREFIX + family.name, family.what, labels=family.labels)
            for labels, value in bounded({k: v for values in found for k, v in values.items()}).items():
                made.add_metric(labels, value)
            yield made

    def text(self) -> bytes:
        """What a scrape gets."""
        return generate_latest(self.registry)


def bounded(values: Mapping[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    """At most SERIES_MAX series with short printable labels; the others are added up as OTHER."""
    found: dict[tuple[str, ...], float] = {}
    for labels, value in values.items():
        key = tuple(_printable(label) for label in labels)
        if key not in found and len(found) >= SERIES_MAX:
            key = tuple(OTHER for _ in key)
        found[key] = found.get(key, 0.0) + value
    return found


def _printable(label: str) -> str:
    cut = label[:LABEL_CHARACTERS_MAX]
    return cut if cut.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in cut)
