"""What would have happened with another config: a ledger's last weeks, played again under it.

Decides what the other config means for recorded offers, and refuses what it cannot know. The playing is
`orchestrator.hindsight`'s. Asks no platform and changes nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from orchestrator import catalog
from orchestrator import config as configuration
from orchestrator.config import Config, PlatformConfig
from orchestrator.core.accelerator_words import unknown_accelerator
from orchestrator.core.job import Kind
from orchestrator.core.offer import Offer, Traits
from orchestrator.core.own_accelerators import own_named, row_named, row_of
from orchestrator.core.wording import count_text, span, unknown
from orchestrator.errors import InputError, SpecError
from orchestrator.hindsight.comparing import Compared, Comparison, Totals, compare
from orchestrator.hindsight.offering import Setting
from orchestrator.hindsight.playing import Played
from orchestrator.hindsight.reading import Recorder
from orchestrator.hindsight.recording import Recording
from orchestrator.platforms.catalog import TYPES
from orchestrator.spec.job import read_bytes

if TYPE_CHECKING:
    from orchestrator.client.client import Client

__all__ = ["Compared", "Comparison", "Played", "Totals", "recorded", "suppose"]
Progress = Callable[[str, int], None]
SLOTS_MAX = 1000
# Options whose meaning for an offer is known: of its slots by the kind of its accelerator, and of its traits.
_SLOTS = {
    Kind.GPU: ("gpu_slots", "slots"),
    Kind.TPU: ("tpu_slots", "slots"),
    Kind.CPU: ("cpu_slots", "slots"),
}
_LIMITS = {Kind.TPU: ("tpu_session_seconds", "session_seconds")}
_TRAITS = ("wall_margin_seconds", "setup_seconds", "poll_seconds", "collect_seconds", "slack_seconds")
_PLAYED = frozenset({
    "slots", "gpu_slots", "tpu_slots", "cpu_slots", "session_seconds", "tpu_session_seconds", *_TRAITS,
})  # fmt: skip


def suppose(
    client: Client,
    config: str | os.PathLike[str],
    since_seconds: float | None,
    offers: Sequence[str],
    progress: Progress | None,
) -> Comparison:
    """See `Past.suppose`."""
    said = progress or (lambda _what, _count: None)
    path = Path(config)
    supposed = configuration.parsed(client.home.path, read_bytes(path, "give the file of a config"), path)
    before = client.wired().config
    stated = [_stated(text, supposed) for text in offers]
    found = recorded(client, since_seconds, said)
    change = _change(found, before, supposed, stated)
    setting = Setting(
        tuple(each.name for each in supposed.platforms),
        supposed.rules,
        _utc_offset_seconds(supposed, found.until),
        found.unreachable,
        change.apply,
        change.added,
    )
    return compare(found, setting, change.told, said)


def recorded(client: Client, since_seconds: float | None, progress: Progress | None = None) -> Recording:
    """What this ledger recorded in that time. Raises InputError if that is nothing."""
    until = client.clock.now()
    since = 0.0 if since_seconds is None else until - since_seconds
    recorder = Recorder(since, until)
    with client.ledgers.runs() as ledger:
        store = ledger.first_store()
        for count, run in enumerate(ledger.under_way_since(since), start=1):
            recorder.add(run, ledger.entries(run), store)
            if progress is not None:
                progress("reading the journals", count)
        places = recorder.places()
        found = recorder.recording({place: ledger.lifetimes(*place) for place in places})
    if found.runs and found.readings:
        return found
    when = "" if since_seconds is None else f" in the last {span(since_seconds)}"
    unread = f"; {count_text(len(found.unread), 'journal')} could not be read" if found.unread else ""
    raise InputError(
        f"no run of this ledger trained anything{when}{unread}: give a longer time with --since, such as "
        "90d, or --all"
    )


# --- What the other config changes ----------------------------------------------------------------------


@dataclass
class _Change:
    """What the other config means for recorded offers. `told`: in sentences."""

    slots: dict[tuple[str, str], int] = field(default_factory=dict)
    traits: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    added: tuple[Offer, ...] = ()
    told: list[str] = field(default_factory=list)

    def apply(self, offer: Offer) -> Offer:
        place = offer.platform, offer.accelerator
        traits = replace(offer.traits, **self.traits.get(place, {}))
        return replace(offer, slots=self.slots.get(place, offer.slots), traits=traits)


def _change(
    recording: Recording, before: Config, supposed: Config, stated: Sequence[tuple[str, str, int]]
) -> _Change:
    change = _Change()
    names = {each.name for each in supposed.platforms}
    gone = [name for name in recording.platforms if name not in names]
    if gone:
        change.told.append(f"without {', '.join(gone)}")
    offers = {(o.platform, o.accelerator): o for reading in recording.readings for o in reading.offers}
    earlier = {each.name: each for each in before.platforms}
    for each in supposed.platforms:
        there = [offer for place, offer in offers.items() if place[0] == each.name]
        if there and each.name in earlier:
            options = _options(before, earlier[each.name]), _options(supposed, each)
            _compare_options(change, earlier[each.name], each, options, there)
    change.added = tuple(_added(recording, supposed, stated, offers, change.told))
    if before.stores != supposed.stores or before.home_store != supposed.home_store:
        change.told.append("the stores of the config differ: that is not played")
    return change


def _compare_options(
    change: _Change,
    before: PlatformConfig,
    supposed: PlatformConfig,
    options: tuple[Mapping[str, Any], Mapping[str, Any]],
    offers: Iterable[Offer],
) -> None:
    if before.type != supposed.type:
        change.told.append(f"{before.name} is of another type now: its recorded offers are kept")
        return
    old, new = options
    changed = sorted(name for name in new if old.get(name) != new[name])
    for name in changed:
        if name not in _PLAYED:
            change.told.append(f"{before.name}: `{name}` differs, which is not played")
    for offer in offers:
        row = row_of(offer)
        if row is None:  # it is not in this version's catalogue, so nothing runs there
            continue
        place, kind = (offer.platform, offer.accelerator), row.kind
        for name in _SLOTS[kind]:
            if name in changed and offer.slots == old[name]:
                change.slots[place] = new[name]
                change.told.append(f"{_at(offer)}: {count_text(new[name], 'slot')} instead of {old[name]}")
        limits = {}
        limit = next((name for name in _LIMITS.get(kind, ("session_seconds",)) if name in new), None)
        if limit in changed:
            limits["session_seconds"] = new[limit]
        limits |= {name: new[name] for name in _TRAITS if name in changed}
        if limits:
            change.traits[place] = limits
            words = (f"{name} {'none' if value is None else f'{value:g}'}" for name, value in limits.items())
            change.told.append(f"{_at(offer)}: {', '.join(words)}")


def _options(config: Config, given: PlatformConfig) -> Mapping[str, Any]:
    """A platform's options, defaults included. Raises SpecError with the config's line for wrong ones."""
    try:
        checked = catalog.checked("platform", given.name, given.type, given.options, TYPES)
    except InputError as error:
        mistakes = (config.mistake("platforms", given.name, message=line) for line in str(error).splitlines())
        raise SpecError(tuple(mistakes)) from error
    found: Mapping[str, Any] = vars(checked)
    return found


def _at(offer: Offer) -> str:
    return f"{offer.platform}/{offer.accelerator}"


# --- What was never asked -------------------------------------------------------------------------------


def _stated(text: str, supposed: Config) -> tuple[str, str, int]:
    """`NAME=ACCELERATOR[:SLOTS]`. Raises InputError."""
    name, _, rest = text.partition("=")
    accelerator, _, slots = rest.partition(":")
    known = [each.name for each in supposed.platforms]
    if name not in known:
        raise InputError(f"--offer {text}: {unknown(f'platform {name!r}', name, known)}")
    if row_named(accelerator, supposed.accelerators) is None:
        told = unknown_accelerator(f"accelerator {accelerator!r}", accelerator, own=supposed.accelerators)
        raise InputError(f"--offer {text}: {told}")
    count = int(slots) if re.fullmatch(r"[0-9]{1,4}", slots) else 0
    if ":" in rest and not 1 <= count <= SLOTS_MAX:
        raise InputError(f"--offer {text}: {slots!r} is not a number of slots; give 1 to {SLOTS_MAX}")
    return name, accelerator, count or 1


def _added(
    recording: Recording,
    supposed: Config,
    stated: Sequence[tuple[str, str, int]],
    offers: Mapping[tuple[str, str], Offer],
    told: list[str],
) -> Iterator[Offer]:
    """The offers of platforms that the recording does not have, and those stated beside recorded ones."""
    for each in supposed.platforms:
        options = _options(supposed, each)
        mine = [(accelerator, slots) for name, accelerator, slots in stated if name == each.name]
        known = {accelerator for name, accelerator in offers if name == each.name}
        if not mine and each.name not in recording.platforms:
            mine = [_of_options(each, options, supposed)]
        for accelerator, slots in mine:
            if accelerator in known:
                raise InputError(
                    f"--offer {each.name}={accelerator}: the ledger knows what it offered; state only others"
                )
            limit = options.get("session_seconds")
            given = {name: options[name] for name in _TRAITS if options.get(name) is not None}
            traits = Traits(session_seconds=limit, internet=True, custom_images=True, **given)
            wall = "no session limit" if limit is None else f"sessions of {span(limit)}"
            told.append(
                f"{each.name}/{accelerator} was never asked: {count_text(slots, 'slot')}, {wall} and no "
                "quota are assumed"
            )
            own = own_named(accelerator, supposed.accelerators)
            yield Offer(each.name, accelerator, traits, slots, own=own)


def _of_options(given: PlatformConfig, options: Mapping[str, Any], supposed: Config) -> tuple[str, int]:
    """What a platform has, if its options say so. Raises InputError that asks for it."""
    accelerator, slots = options.get("accelerator"), options.get("slots")
    known = isinstance(accelerator, str) and row_named(accelerator, supposed.accelerators) is not None
    if isinstance(accelerator, str) and known and isinstance(slots, int):
        return accelerator, slots
    raise InputError(
        f"the ledger does not know what the platform {given.name!r} offers, because it was not in use: state "
        f"it with --offer {given.name}=ACCELERATOR or {given.name}=ACCELERATOR:SLOTS"
    )


def _utc_offset_seconds(config: Config, at: float) -> float:
    offset = datetime.fromtimestamp(at, ZoneInfo(config.timezone)).utcoffset()
    return offset.total_seconds() if offset else 0.0
