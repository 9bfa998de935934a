"""Which checkpoints of an outbox are worth shipping: the newest, and the best one if retention keeps it.
At the end also the session's outputs.

A slow connection then never begins a checkpoint that a newer one has replaced. But one that has begun is
finished first: otherwise saves that come faster than uploads would leave halves in the store, and nothing
whole. Knows no store and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path

from orchestrator.core.checkpoint import CheckpointRef, Manifest, decode
from orchestrator.core.order import Order
from orchestrator.errors import CorruptCheckpoint
from orchestrator.files import Odd
from orchestrator.session.layout import CHECKPOINTS
from orchestrator.session.outbox import REFUSED, Growth, Outbox


class Latest:
    """Implements `Outbox`: another outbox, of which it shows only the checkpoints to ship now.

    `incarnation` and `order` say which are the session's own. `published` are in the store, by name, and
    `begun` are half there. `scratch` is the uplink's. While `held`, it shows no checkpoint at all.
    """

    def __init__(self, inner: Outbox, order: Order, incarnation: str, scratch: Path) -> None:
        self._inner = inner
        self._best = order.keep.best
        self._own = (order.generation, incarnation)
        self._scratch = scratch
        self._metrics: dict[str, Mapping[str, float] | None] = {}  # of each manifest; None: unreadable
        self._chosen: Container[str] = ()
        self.published: Mapping[str, Manifest] = {}
        self.begun: Mapping[str, Manifest] = {}
        self.held = False
        self.small, self.manifest, self.blob = inner.small, inner.manifest, inner.blob

    def growing(self, here: Path, folder: Path) -> Growth:
        return self._inner.growing(here, folder)

    def checkpoints(self) -> Iterable[str]:
        chosen = () if self.held else tuple(self.begun) or tuple(self._choose())
        self._chosen = chosen
        return chosen

    def wants(self, manifest: Manifest) -> bool:
        """Whether this checkpoint, which was copied now or earlier, is still worth shipping."""
        return manifest.name in self._chosen

    def _choose(self) -> Iterable[str]:
        """The newest one that is not in the store, unless a newer one is. One that could not be copied does
        not keep the one before it from being shipped."""
        own = tuple(filter(self._is_own, self._inner.checkpoints()))
        there = sorted((name for name in own if not _holds_outputs(name)), key=_step, reverse=True)
        newest = max((_step(name) for name in self.published if not _holds_outputs(name)), default=-1)
        for name in there:
            if _step(name) <= newest:
                break
            if self._read(name) is not None:
                yield name
                if not (self._scratch / CHECKPOINTS / name / REFUSED).exists():
                    break
        best = self._best_of(there)
        if best is not None and best not in self.published and _step(best) <= newest:
            yield best
        yield from (name for name in own if _holds_outputs(name) and name not in self.published)

    def _is_own(self, name: str) -> bool:
        ref = CheckpointRef.parse(name)
        return ref is not None and (ref.generation, ref.incarnation) == self._own

    def _best_of(self, there: list[str]) -> str | None:
        if self._best is None:
            return None
        metric, sign = self._best.metric, 1.0 if self._best.mode == "max" else -1.0
        found = {name: metrics for name in there if (metrics := self._read(name)) and metric in metrics}
        found |= {name: each.metrics for name, each in self.published.items() if metric in each.metrics}
        newest_first = sorted(found, key=_step, reverse=True)
        return max(newest_first, key=lambda name: sign * found[name][metric], default=None)

    def _read(self, name: str) -> Mapping[str, float] | None:
        """The metrics in a manifest; None if it cannot be read."""
        if self._metrics.get(name) is None:
            self._metrics[name] = _metrics(self._inner.manifest, name)
        return self._metrics[name]


def _step(name: str) -> int:
    ref = CheckpointRef.parse(name)
    return -1 if ref is None else ref.step


def _holds_outputs(name: str) -> bool:
    ref = CheckpointRef.parse(name)
    return ref is not None and ref.outputs


def _metrics(read: Callable[[str], bytes | None], name: str) -> Mapping[str, float] | None:
    try:
        data = read(name)
        return None if data is None else decode(name, data).metrics
    except (Odd, CorruptCheckpoint):
        return None
