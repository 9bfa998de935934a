"""When each platform is asked for its offers, and what it answered last.

In memory only. `survey` asks one platform, in a worker; `Surveys` never does. Must never know runs, or what
our sessions use: `orchestrator.engine.market` subtracts that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.core.offer import Offer, Rejection, UntilKind, until_human, until_time
from orchestrator.core.plausible import unusable
from orchestrator.errors import AccessDenied, BackendError, OrchestratorError, Preparing
from orchestrator.platforms.platform import Platform
from orchestrator.unforeseen import Unforeseen, raise_again, sentence

SURVEY_SECONDS = 60.0
START_SECONDS = 10.0  # while a person may be about to start a machine
OUTAGE_SECONDS = 60.0
FIRST_ANSWER_SECONDS = 15.0  # wait this long for a platform's first answer before runs go elsewhere


@dataclass(frozen=True)
class Surveyed:
    """A platform's answer to survey: its offers, or why there are none. `denied` and `preparing`: a person
    must act, or wait for an installation here; `trouble` says so."""

    platform: str
    offers: tuple[Offer, ...] = ()
    trouble: str | None = None
    denied: bool = False
    preparing: bool = False


def survey(name: str, platform: Platform, unforeseen: Unforeseen = raise_again) -> Surveyed:
    """Asks a platform for its offers. Blocks. Every error becomes an answer, even an unexpected one."""
    try:
        offers = platform.survey()
        wrong = next(filter(None, map(unusable, offers)), "")
        if wrong:
            return Surveyed(name, trouble=f"its survey cannot be used: {wrong}")
        return Surveyed(name, offers)
    except AccessDenied as error:
        return Surveyed(name, trouble=str(error), denied=True)
    except (BackendError, OrchestratorError, OSError) as error:
        return Surveyed(name, trouble=str(error), preparing=isinstance(error, Preparing))
    except Exception as error:  # noqa: BLE001 the barrier: reported, and its offers are closed
        doing = f"survey of {name}"
        unforeseen(doing, error)
        return Surveyed(name, trouble=sentence(doing, error))


def waits_for_start(offer: Offer) -> bool:
    """Whether a person could start a machine for it."""
    return offer.unavailable is not None and offer.unavailable.until.kind is UntilKind.START


class Surveys:
    """The last answers of these platforms. Not thread-safe.

    `as_of`: when the last answered survey of a platform was asked for, in unix seconds.
    """

    def __init__(self, platforms: Sequence[str]) -> None:
        self._platforms = tuple(platforms)
        self._offers: dict[str, tuple[Offer, ...]] = {}
        self._outages: dict[str, Surveyed] = {}
        self._asked_at: dict[str, float] = {}  # monotonic
        self._asking: dict[str, float] = {}  # under way, by the wall clock
        self._as_of: dict[str, float] = {}

    def due(self, now: float, monotonic: float) -> list[str]:
        """Platforms to ask now. Marks each as asked, so that no platform is asked twice at a time."""
        due = [
            name
            for name in self._platforms
            if name not in self._asking
            and (name not in self._asked_at or monotonic - self._asked_at[name] >= self._pause(name))
        ]
        self._asked_at.update(dict.fromkeys(due, monotonic))
        self._asking.update(dict.fromkeys(due, now))
        return due

    def _pause(self, name: str) -> float:
        return START_SECONDS if any(map(waits_for_start, self._offers.get(name, ()))) else SURVEY_SECONDS

    def hasten(self, name: str) -> None:
        """The platform is to be asked anew at once."""
        self._asked_at.pop(name, None)

    def take(self, surveyed: Surveyed, now: float) -> bool:
        """Remembers an answer; returns whether it differs from the one before."""
        name = surveyed.platform
        before = (self._offers.get(name), name in self._outages)
        if surveyed.trouble is None:
            self._outages.pop(name, None)
            self._offers[name] = surveyed.offers
        else:
            self.close(surveyed)
        self._as_of[name] = self._asking.pop(name, now)
        return before != (self._offers.get(name), name in self._outages)

    def close(self, why: Surveyed) -> None:
        """Removes a platform's offers until its next survey. This is not an answer to a survey: one that is
        under way still counts from when it was asked."""
        self._outages[why.platform] = why
        self._offers.pop(why.platform, None)

    def revise(self, revised: Callable[[tuple[Offer, ...]], tuple[Offer, ...]]) -> None:
        """Changes what is known of the offers, besides what their platforms say."""
        self._offers = {name: revised(offers) for name, offers in self._offers.items()}

    @property
    def offers(self) -> tuple[Offer, ...]:
        """Of all platforms, as they were answered."""
        return tuple(offer for offers in self._offers.values() for offer in offers)

    @property
    def as_of(self) -> Mapping[str, float]:
        """See the class."""
        return self._as_of

    @property
    def complete(self) -> bool:
        """Whether every platform has answered, if only with an error."""
        return all(name in self._as_of for name in self._platforms)

    @property
    def failing(self) -> bool:
        """Whether any platform's last answer was an error."""
        return bool(self._outages)

    def expectant(self, now: float) -> bool:
        """Whether a platform may be about to give its first answer. The platform that answers first is not
        necessarily the best place for a long run."""
        never_heard = [asked for name, asked in self._asking.items() if name not in self._as_of]
        return any(0.0 <= now - asked < FIRST_ANSWER_SECONDS for asked in never_heard)

    def troubles(self, now: float) -> Iterator[Rejection]:
        """Why the platforms that answered with an error offer nothing."""
        for name, surveyed in self._outages.items():
            trouble = surveyed.trouble or "no answer"
            until = until_time(now + OUTAGE_SECONDS)
            if surveyed.denied:
                until = until_human(f"orchestrator doctor {name}")
            yield Rejection(name, "any", trouble, until)
