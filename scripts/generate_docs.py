"""Writes the pages of docs/ that are generated from code; tests/test_docs.py fails if one is out of date."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # as a program, it would find its own folder only

from orchestrator.client.metrics import families  # noqa: E402
from orchestrator.core import bounds, lifecycle  # noqa: E402
from scripts import reference  # noqa: E402

DOCS = ROOT / "docs"


@functools.cache
def pages() -> dict[str, str]:
    """File name in docs/ → its whole text."""
    own = {"bounds.md": bounds_page(), "lifecycle.md": lifecycle_page(), "metrics.md": metrics_page()}
    return own | reference.pages()


def bounds_page() -> str:
    rows = "\n".join(f"| {what} | {limit} | {beyond} |" for what, limit, beyond in bounds.TABLE)
    return f"""# Bounds

Generated from the table in `orchestrator/core/bounds.py` by `make docs`; do not edit.

What a session, a platform or a store says is checked against limits where it enters: first by the agent, then
again by the controller, because a training script can write into the session's folder too. If something is
outside its limit, only that one thing is lost, and a note in `show` and `why` names it. The rest of the
session is used, and other runs are not affected.

| what | limit | outside it |
|---|---|---|
{rows}

A session's file is read only if it is a plain file and no part of its path is a link. A folder, a link, a
FIFO, a socket, a device or an unreadable file is skipped, with a note. Reading never waits for any of them.

## Disk and log

| option of a platform | default | meaning |
|---|---|---|
| `disk_gb` | 50 | disk space for a session's `work/` and `outbox/`; `needs.disk_gb` if that is more |
| `log_gb` | 0.064 | how much of its log a session keeps: the beginning and the newest part |
| `image_disk_gb` | not bounded | Docker only: what a container writes outside its session folder |

The agent measures every ten seconds what is really on the disk. A session that takes more than its limit is
asked to save and leave; one that takes twice its limit is killed at once. `disk_gb: null` turns this off.

Docker supports `image_disk_gb` on some storage drivers only, such as overlay2 on XFS with `pquota`. With
other drivers the engine refuses to create the container, and the session does not start. Docker keeps up to
20 MB of what a container's agent itself prints. On Kaggle, Kaggle's own limit on output applies.
"""


def lifecycle_page() -> str:
    final = ", ".join(f"*{phase.value}*" for phase in lifecycle.Phase if phase.final)
    staying = ", ".join(f"`{kind.value}`" for kind in lifecycle.EVERYWHERE)
    rows = [
        f"| {phase.value} | {moves(row, phase)} | {stays(row, phase)} |"
        for phase, row in lifecycle.TABLE.items()
    ]
    return f"""# The lifecycle of a run

Generated from the table in `orchestrator/core/lifecycle.py` by `make docs`; do not edit.

    queued → preparing → launching → running → stopping → collecting → done, failed
      ↑                                                       │        or cancelled
      └───────────────── the next session ────────────────────┘

A run is over when it is {final}. It begins as *queued*, and a person or a fault can
make it *held*. These are all transitions:

| phase | event → next phase | events that change no phase |
|---|---|---|
{chr(10).join(rows)}

Possible in every phase: {staying}. Any other event is a bug and raises `IllegalTransition`.
"""


def moves(row: Mapping[lifecycle.Kind, lifecycle.Phase], phase: lifecycle.Phase) -> str:
    found = [f"`{kind.value}` → {after.value}" for kind, after in row.items() if after is not phase]
    return "<br>".join(found) or "–"


def stays(row: Mapping[lifecycle.Kind, lifecycle.Phase], phase: lifecycle.Phase) -> str:
    kinds = [kind for kind, after in row.items() if after is phase and kind not in lifecycle.EVERYWHERE]
    return ", ".join(f"`{kind.value}`" for kind in kinds) or "–"


def metrics_page() -> str:
    rows = "\n".join(
        f"| `{families.PREFIX}{each.name}` | {', '.join(f'`{label}`' for label in each.labels) or '–'} | "
        f"{'counter' if each.counts else 'gauge'} | {each.what} |"
        for each in families.TABLE
    )
    return f"""# Metrics

Generated from the table in `orchestrator/client/metrics/families.py` by `make docs`; do not edit.

The controller serves figures for [Prometheus](https://prometheus.io) if the config says so:

    metrics: {{port: 9464}}

They are then at `http://127.0.0.1:9464/metrics`, and only this machine reaches them. `address: 0.0.0.0`
serves them to the network: they hold names of platforms and of this machine, but no name of a run and no
secret. A request must name an IP address, `localhost` or one of `hosts: [box.local]` as its host. So no web
page that you visit can read them.

| metric | labels | type | what |
|---|---|---|---|
{rows}
| `{families.PREFIX}{families.TICK}` | – | histogram | {families.TICK_WHAT} |

Useful time is that of steps which are in an accepted checkpoint for the first time. Lost time comes after
the last accepted checkpoint of a session; redone time is spent on steps that an earlier checkpoint already
had; set-up comes before the first step. A session is counted when it ends. Counters start at 0 when a
controller takes over, which `rate()` and `increase()` allow for.

A metric has at most {families.SERIES_MAX} series; what comes later is added up under the label
`{families.OTHER}`. A tick never waits for a scrape: it leaves a snapshot, and a thread reads what is in the
ledger every 15 seconds. If the port is taken, the controller says so in its log, goes on, and tries again.

[grafana.json](examples/grafana.json) is a dashboard for Grafana: *Dashboards, New, Import*. Useful alerts:

| alert | expression |
|---|---|
| the controller does not tick | `time() - orchestrator_last_tick_timestamp_seconds > 60` or `up == 0` |
| a run waits for a person | `orchestrator_runs{{phase="held"}} > 0` |
| a schedule is late | `time() - orchestrator_schedule_next_fire_timestamp_seconds > 300` |
| the disk is nearly full | `orchestrator_home_free_bytes < 2e9` |
"""


def main() -> int:
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
        print(f"docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
