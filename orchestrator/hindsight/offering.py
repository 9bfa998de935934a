"""What a recorded time offers to a play of it: recording × setting × our played use × now → surveys.

Pure. Between two readings the last one holds. A date in it is believed: then an offer is open again, or a
quota is refreshed. A platform that did not answer is taken to answer again after an hour.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from orchestrator.core.charges import window_began_at
from orchestrator.core.estimate import WINDOW_SECONDS, rolled_over
from orchestrator.core.job import Rule
from orchestrator.core.offer import Offer, Quota, Unavailable, UntilKind, until_time
from orchestrator.engine.surveying import Surveyed
from orchestrator.hindsight.recording import Place, Recording, Refused

SILENT_SECONDS = 3600.0
SAME_QUOTA_SECONDS = 60.0  # readings whose quotas differ by less say the same
_REFUSED = "it refused sessions then"


def _as_it_is(offer: Offer) -> Offer:
    return offer


@dataclass(frozen=True)
class Setting:
    """The config that a recording is played under. `platforms` are those that it has. `changed` is given each
    recorded offer, and `added` are offers that were not recorded."""

    platforms: tuple[str, ...]
    rules: tuple[Rule, ...] = ()
    utc_offset_seconds: float = 0.0
    unreachable: Mapping[tuple[str, str], str] = field(default_factory=dict)
    changed: Callable[[Offer], Offer] = _as_it_is
    added: tuple[Offer, ...] = ()

    @classmethod
    def recorded(cls, recording: Recording) -> Setting:
        """The config as it was."""
        return cls(recording.platforms, recording.rules, recording.utc_offset_seconds, recording.unreachable)


@dataclass(frozen=True)
class Use:
    """A played session at a place: when it ran, in unix seconds (`until` inf: it still does)."""

    place: Place
    began_at: float
    until: float


@dataclass(frozen=True)
class _Answer:
    """What one platform offered from `at` on; with `trouble`, why it did not answer."""

    at: float
    offers: tuple[Offer, ...] = ()
    trouble: str = ""


class Offering:
    """The surveys of a recorded time under a setting."""

    def __init__(self, recording: Recording, setting: Setting) -> None:
        self._since = recording.since
        self._refusals: dict[Place, list[Refused]] = {}
        for refused in recording.refusals:
            self._refusals.setdefault(refused.place, []).append(refused)
        self._answers = {name: _answers(recording, setting, name) for name in setting.platforms}
        for offer in setting.added:
            before = self._answers.get(offer.platform) or [_Answer(recording.since)]
            self._answers[offer.platform] = [replace(each, offers=(*each.offers, offer)) for each in before]

    @property
    def platforms(self) -> tuple[str, ...]:
        """Those that ever offer anything or are silent."""
        return tuple(name for name, answers in self._answers.items() if answers)

    def surveys(self, now: float, used: Iterable[Use]) -> list[Surveyed]:
        """Every platform's answer at this time, if our sessions used so much until then."""
        by_platform: dict[str, list[Use]] = {}
        for use in used:
            by_platform.setdefault(use.place[0], []).append(use)
        return [self._survey(name, now, by_platform.get(name, ())) for name in self.platforms]

    def changes(self, until: float) -> tuple[float, ...]:
        """When the offers change by themselves, up to a time; in order."""
        return tuple(sorted({at for at in self._changes(until) if self._since < at <= until}))

    def _changes(self, until: float) -> Iterator[float]:
        for answers in self._answers.values():
            for number, each in enumerate(answers):
                yield each.at
                if each.trouble:
                    yield each.at + SILENT_SECONDS
                for offer in each.offers:
                    last = number == len(answers) - 1
                    yield from _dates(offer, until if last else answers[number + 1].at)
        for several in self._refusals.values():
            for refused in several:
                yield refused.since
                yield refused.until

    def _survey(self, name: str, now: float, used: Iterable[Use]) -> Surveyed:
        answers = self._answers[name]
        number = max(0, bisect_right(answers, now, key=lambda each: each.at) - 1)
        found = answers[number]
        if found.trouble and now < found.at + SILENT_SECONDS:
            return Surveyed(name, trouble=found.trouble)
        if found.trouble:  # it answers again, as before or as next
            near = [*reversed(answers[:number]), *answers[number + 1 :]]
            found = next((each for each in near if not each.trouble), found)
        uses = tuple(used)
        return Surveyed(name, tuple(self._offer(offer, found.offers, now, uses) for offer in found.offers))

    def _offer(self, offer: Offer, offers: Iterable[Offer], now: float, used: Iterable[Use]) -> Offer:
        offer = _reopened(rolled_over(offer, now), now)
        place = offer.platform, offer.accelerator
        refused = next((r for r in self._refusals.get(place, ()) if r.since <= now < r.until), None)
        if refused is not None and offer.unavailable is None:
            offer = replace(offer, unavailable=Unavailable(_REFUSED, until_time(refused.until)))
        quota = offer.quota
        if quota is None:
            return offer
        rates = {o.accelerator: o.quota for o in offers if o.quota is not None and o.quota.pool == quota.pool}
        since = max(self._since, window_began_at(quota) or 0.0)
        taken = sum(_taken(rates.get(use.place[1]), use, since, now) for use in used)
        left = max(0.0, quota.left_seconds - quota.lasts(taken))
        return replace(offer, quota=replace(quota, left_seconds=left))


def _answers(recording: Recording, setting: Setting, name: str) -> list[_Answer]:
    """The readings of one platform that say something new."""
    found: list[_Answer] = []
    for reading in recording.readings:
        offers = tuple(setting.changed(each) for each in reading.offers if each.platform == name)
        trouble = reading.silent.get(name, "")
        if (offers or trouble) and not (found and _same(found[-1], offers, trouble)):
            found.append(_Answer(reading.at, offers, "" if offers else trouble))
    return found


def _same(before: _Answer, offers: tuple[Offer, ...], trouble: str) -> bool:
    if trouble or before.trouble or len(before.offers) != len(offers):
        return bool(trouble and before.trouble)
    return all(_alike(one, other) for one, other in zip(before.offers, offers, strict=True))


def _alike(one: Offer, other: Offer) -> bool:
    if one.quota is None or other.quota is None:
        return one == other
    near = abs(one.quota.left_seconds - other.quota.left_seconds) < SAME_QUOTA_SECONDS
    same = replace(other, quota=replace(other.quota, left_seconds=one.quota.left_seconds))
    return near and one == same


def _dates(offer: Offer, until: float) -> Iterator[float]:
    """The dates in an offer that come before another reading."""
    if offer.unavailable is not None and offer.unavailable.until.at is not None:
        yield offer.unavailable.until.at
    quota = offer.quota
    at = None if quota is None else quota.refresh_at
    while quota is not None and at is not None and at <= until:
        yield at
        at += max(3600.0, quota.window_seconds or WINDOW_SECONDS)


def _reopened(offer: Offer, now: float) -> Offer:
    """The offer, open again if the platform said until when it is closed."""
    closed = offer.unavailable
    if closed is None or closed.until.kind is not UntilKind.TIME or closed.until.at is None:
        return offer
    return replace(offer, unavailable=None) if closed.until.at <= now else offer


def _taken(quota: Quota | None, use: Use, since: float, now: float) -> float:
    if quota is None:
        return 0.0
    return quota.taken(max(0.0, min(use.until, now) - max(use.began_at, since)))
