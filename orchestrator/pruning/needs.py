"""What the ledger's runs still need in the home. Read after the listing, and again before a removal.

A run is in the ledger before anything for it is prepared, and a run that is over comes back only for a
schedule, whose job is needed, too. So a thing that the newer of two readings does not need is not needed.
Must never know the contents of the home.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from orchestrator.core.job import Input, frozen_image
from orchestrator.core.run import RunRecord
from orchestrator.freeze import inputs
from orchestrator.ledger import Ledger
from orchestrator.pruning.rules import Kind, Needs, RunFacts, newest_of_each_job


def read(ledger: Ledger | None, *, keep: int, shared: str = "") -> Needs:
    """What this ledger needs. Without a ledger, everything may still be needed.

    A record that cannot be read may need anything, too.
    """
    if ledger is None:
        return Needs(shared=shared or "there is no ledger here")
    summaries = ledger.summaries()
    records = {record.run: record for record in ledger.records(each.run for each in summaries)}
    damaged = {each.run: each.unreadable for each in summaries if each.unreadable} | dict(ledger.unreadable)
    # Runs that are over, but still have something on a platform, count as live.
    live = {each.run for each in records.values() if each.session is not None or each.strays} | damaged.keys()
    runs = {
        each.run: RunFacts(
            each.run, each.name, each.phase.final and each.run not in live, each.ended_at,
            damaged.get(each.run, ""),
        )
        for each in summaries
    }  # fmt: skip
    kept = newest_of_each_job(runs.values(), keep)
    wanted = (record for run, record in records.items() if not runs[run].over or run in kept)
    content = frozenset((*_content(wanted), *_content_of_schedules(ledger)))
    unread = (why for run, why in damaged.items() if run not in records)
    doubts = (*unread, *ledger.schedules.unreadable().values())
    return Needs(runs, content, kept, shared, next(iter(doubts), ""))


def _content_of_schedules(ledger: Ledger) -> Iterator[tuple[Kind, str]]:
    for schedule in ledger.schedules.all():
        yield from _named(schedule.job.bundle, schedule.job.image, schedule.job.inputs)


def _content(records: Iterable[RunRecord]) -> Iterator[tuple[Kind, str]]:
    for record in records:
        yield from _named(record.job.bundle, record.job.image, record.job.inputs)
        if record.session is not None:
            order = record.session.order
            yield from _named(order.bundle, order.image, order.inputs)


def _named(bundle: str, image: str | None, given: tuple[Input, ...]) -> Iterator[tuple[Kind, str]]:
    yield Kind.SOURCE, bundle
    frozen = frozen_image(image)
    if frozen is not None:
        yield Kind.IMAGE, frozen
    if given:
        yield Kind.INPUT, inputs.key(given)
