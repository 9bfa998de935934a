"""Brings one input from the network into the cache, pinned to its sha256, whatever its source.

Decides when nothing has to be fetched: the content is known and here, or the source has not changed. Must
never use content whose sha256 it has not computed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from orchestrator.clock import utc_text
from orchestrator.core.wording import size_text
from orchestrator.errors import InputError, Transient
from orchestrator.fetching import sources, tree
from orchestrator.fetching.cache import Cache, Kept
from orchestrator.fetching.hub import Hub
from orchestrator.fetching.sources import Kind, Source
from orchestrator.fetching.transfer import Transfers, Unreached, Version, Wanted
from orchestrator.fetching.tree import Entry
from orchestrator.fetching.web import Broken, Web
from orchestrator.files.hashing import digest, walked


class KaggleData(Protocol):
    """The data sets of Kaggle, by owner/name, as an account sees them. Raises BackendError."""

    def newest(self, place: str) -> int:
        """The number of its newest version."""

    def files(self, place: str, version: int) -> Mapping[str, int | None]:
        """Bytes of each file by its path; None: not known."""

    def url(self, place: str, version: int, file: str) -> str:
        """A signed address of one file, which expires."""


@dataclass(frozen=True)
class Wish:
    """One input as the job has it. `token`: for its first host; `bytes_max`: more is refused."""

    name: str
    origin: str
    bytes_max: int
    sha256: str | None = None
    token: str = ""


@dataclass(frozen=True)
class Fetched:
    """An input from the network. `source`: pinned, without what may be secret. `sha256`, `size`: None if not
    known before the fetch. `here`: it is in the cache. `warning`: a sentence, or empty."""

    name: str
    source: str
    sha256: str | None
    size: int | None
    here: bool
    files: int = 1
    warning: str = ""


class Fetcher:
    """`kaggle` makes the account's data sets on first use."""

    def __init__(
        self, cache: Cache, web: Web, transfers: Transfers, kaggle: Callable[[], KaggleData]
    ) -> None:
        self._cache = cache
        self._web = web
        self._transfers = transfers
        self._kaggle = kaggle

    def bring(self, wish: Wish) -> Fetched:
        """The input, in the cache and verified. Fetches it if it is not there, or has changed at its source.

        Raises InputError, AccessDenied, or Transient, after which the next try goes on from what has arrived.
        """
        source = sources.parse(wish.origin)
        found = self._known(wish)
        if found is not None:
            return found
        key = self._cache.key(f"{wish.origin} {wish.token}")
        with self._cache.held(key), _said(wish):
            kept, warning = self._bring(wish, source, key)
            if wish.sha256 not in (None, kept.sha256):
                raise InputError(
                    f"input {wish.name!r}: {kept.pinned} has the sha256 {kept.sha256} "
                    f"({size_text(kept.size)}), not {wish.sha256}: it has changed, or the job's "
                    "sha256 is wrong"
                )
            if kept.size > wish.bytes_max:
                size, limit = size_text(kept.size), size_text(wish.bytes_max)
                raise InputError(f"{kept.pinned}: {size} is more than the limit of {limit}")
            self._cache.note(key, kept)
        self._cache.tidy(kept.sha256)
        return _fetched(wish, kept, warning)

    def look(self, wish: Wish) -> Fetched:
        """What `bring` would fetch, without fetching it."""
        source = sources.parse(wish.origin)
        known = None if wish.sha256 is None else self._cache.find_content(wish.sha256)
        if known is not None:
            return _fetched(wish, known)
        kept = self._cache.find(self._cache.key(f"{wish.origin} {wish.token}"))
        if wish.sha256 is not None and kept is not None and kept.sha256 != wish.sha256:
            kept = None
        with _said(wish):
            try:
                return self._looked(wish, source, kept)
            except (Broken, Unreached) as error:
                if kept is not None:
                    return _fetched(wish, kept, _unchecked(wish, kept, error))
                return Fetched(wish.name, str(source), wish.sha256, None, False, warning=f"{source}: {error}")

    def _known(self, wish: Wish) -> Fetched | None:
        """Without the network: content of the job's sha256."""
        kept = None if wish.sha256 is None else self._cache.find_content(wish.sha256)
        return None if kept is None or not self._cache.whole(kept.sha256) else _fetched(wish, kept)

    def _bring(self, wish: Wish, source: Source, key: str) -> tuple[Kept, str]:
        kept = self._cache.find(key)
        if kept is not None and not (wish.sha256 in (None, kept.sha256) and self._cache.whole(kept.sha256)):
            kept = None
        try:
            if source.kind is Kind.WEB:
                return self._bring_file(wish, source, key, kept), ""
            pinned = source if source.pinned else source.at(self._version(source))
            if kept is not None and kept.pinned == str(pinned):
                return kept, ""
            return self._bring_tree(wish, pinned, key), ""
        except (Broken, Unreached) as error:
            if kept is None:
                if isinstance(error, Broken):
                    raise Transient(f"{source}: {error}", operation="fetch", retried=True) from None
                raise
            return kept, _unchecked(wish, kept, error)

    def _bring_file(self, wish: Wish, source: Source, key: str, kept: Kept | None) -> Kept:
        part = self._cache.part(key)
        known = Version() if kept is None else kept.version
        wanted = Wanted(
            lambda: source.place, f"input {wish.name!r}", wish.bytes_max, wish.token, known,
            page=wish.sha256 is not None,
        )  # fmt: skip
        version = self._transfers.bring(wanted, part)
        if version is None:
            assert kept is not None, "there was a version to compare with"
            return kept
        return self._keep(wish, str(source), key, part, version)

    def _keep(self, wish: Wish, pinned: str, key: str, path: Path, version: Version | None = None) -> Kept:
        files = list(walked(path)) if path.is_dir() else [path]
        size = sum(each.stat().st_size for each in files)
        now = self._web.clock.now()
        kept = Kept(
            str(sources.parse(wish.origin)), pinned, digest(path), size, len(files), version or Version(), now
        )
        self._cache.keep(key, path, kept)
        self._cache.drop_part(key)
        return kept

    # --- Data sets --------------------------------------------------------------------------------------

    def _version(self, source: Source) -> str:
        if source.kind is Kind.HUB:
            return self._transfers.again(lambda: Hub(self._web).commit(source))
        return str(self._kaggle().newest(source.place))

    def _entries(self, source: Source) -> tuple[Entry, ...]:
        if source.kind is Kind.HUB:
            return self._transfers.again(lambda: Hub(self._web).entries(source))
        listed = self._kaggle().files(source.place, int(source.version))
        found = tuple(Entry(path, size) for path, size in sorted(listed.items()))
        if not source.path:
            return found
        below = tuple(
            each for each in found if each.path == source.path or each.path.startswith(f"{source.path}/")
        )
        if not below:
            names = ", ".join(each.path for each in found[:10])
            raise InputError(f"{source}: it has no {source.path}; it has: {names or 'nothing'}")
        return below

    def _bring_tree(self, wish: Wish, source: Source, key: str) -> Kept:
        """One file of a data set, or several as a folder."""
        entries = self._entries(source)
        label = f"input {wish.name!r}: {source}"
        tree.check(label, entries, wish.bytes_max)
        if len(entries) == 1 and entries[0].sha256 and self._cache.whole(entries[0].sha256):
            one = entries[0]
            return Kept(
                str(sources.parse(wish.origin)),
                str(source),
                one.sha256,
                one.size or 0,
                at=self._web.clock.now(),
            )
        single = len(entries) == 1 and entries[0].path == source.path
        place = self._cache.part(f"{key}.{self._cache.key(str(source))[:12]}.tree")
        place.mkdir(mode=0o700, exist_ok=True)
        hub, kaggle = Hub(self._web), self._kaggle

        def url(path: str) -> str:
            if source.kind is Kind.HUB:
                return hub.url(source, path)
            return kaggle().url(source.place, int(source.version), path)

        token = hub.token if source.kind is Kind.HUB else ""
        wanted = Wanted(lambda: "", label, wish.bytes_max, token)
        part = lambda path: self._cache.part(f"{place.name}.{self._cache.key(path)[:12]}.part")  # noqa: E731
        tree.bring(self._transfers, wanted, entries, url, place, part)
        for stray in set(walked(place)) - {place / each.path for each in entries}:
            stray.unlink()
        inside = place / source.path if source.path else place
        return self._keep(wish, str(source), key, inside if single or source.path else place)

    # --- Looking ----------------------------------------------------------------------------------------

    def _looked(self, wish: Wish, source: Source, kept: Kept | None) -> Fetched:
        if source.kind is Kind.WEB:
            return self._looked_web(wish, source, kept)
        pinned = source if source.pinned else source.at(self._version(source))
        if kept is not None and kept.pinned == str(pinned):
            return _fetched(wish, kept)
        entries = self._entries(pinned)
        total = tree.check(f"input {wish.name!r}: {pinned}", entries, wish.bytes_max)
        known = None if any(each.size is None for each in entries) else total
        sha256 = entries[0].sha256 or None if len(entries) == 1 else None
        return Fetched(wish.name, str(pinned), wish.sha256 or sha256, known, False, len(entries))

    def _looked_web(self, wish: Wish, source: Source, kept: Kept | None) -> Fetched:
        version = self._transfers.look(source.place, wish.token, f"input {wish.name!r}", wish.bytes_max)
        if kept is not None and version.known and version == kept.version:
            return _fetched(wish, kept)
        return Fetched(wish.name, str(source), wish.sha256, version.size, False)


def _fetched(wish: Wish, kept: Kept, warning: str = "") -> Fetched:
    return Fetched(wish.name, kept.pinned, kept.sha256, kept.size, True, kept.files, warning)


def _unchecked(wish: Wish, kept: Kept, error: Exception) -> str:
    return (
        f"input {wish.name!r}: {kept.source} is not reached ({error}), so the copy that was fetched at "
        f"{utc_text(kept.at)} is used"
    )


@contextlib.contextmanager
def _said(wish: Wish) -> Iterator[None]:
    """Says which input an error is about."""
    try:
        yield
    except InputError as error:
        text = str(error)
        raise InputError(
            text if f"input {wish.name!r}" in text else f"input {wish.name!r}: {text}"
        ) from error
