"""Brings one file: what has arrived is kept across failures, Ctrl-C and crashes, and goes on from there.

Decides when to go on, when to begin again, and when to give up. The part and what is known of it lie beside
each other (`x`, `x.json`). Must never give a file out that is not whole.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import tenacity

from orchestrator.core.wording import size_text
from orchestrator.errors import AccessDenied, InputError, Transient
from orchestrator.fetching.web import Answer, Broken, Web, shown
from orchestrator.files import write_whole

ASKED = 4  # times, for lists
TRIES = 6  # in a row that bring next to nothing
PROGRESS_BYTES = 65536
WAIT_SECONDS_MAX = 60.0
SPARE_BYTES = 100_000_000  # left free on the disk
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_PACKED = (".gz", ".tgz", ".z", ".br", ".zst", ".deflate")
_PAGES = (".html", ".htm", ".xhtml")

T = TypeVar("T")
Progress = Callable[[str, int, int | None], None]  # name, bytes that are there, all bytes if known


@dataclass(frozen=True)
class Version:
    """What a server says of the version it has: its ETag or date, and its length."""

    tag: str = ""
    modified: str = ""
    size: int | None = None

    @property
    def known(self) -> bool:
        return bool(self.tag or self.modified)

    @property
    def condition(self) -> str:
        """For If-Range: a strong tag, else a date (RFC 9110, 13.1.5). Empty if a part cannot be continued:
        without its length, nobody would notice that its rest was cut, too."""
        if self.size is None:
            return ""
        return self.tag if self.tag.startswith('"') else "" if self.tag else self.modified


@dataclass(frozen=True)
class Wanted:
    """One file. `url` gives its address, anew for each try, because signed ones expire. `name`: for messages.
    `version`: of the copy that is here already; then `bring` returns None if it is still the same.
    `page`: a web page is not taken for a mistake."""

    url: Callable[[], str]
    name: str
    bytes_max: int
    token: str = ""
    version: Version = Version()
    page: bool = False
    sized: bool = False  # its length is known otherwise, so the server need not say it


class Transfers:
    """Brings files. `wait_seconds`: before the second try; it doubles."""

    def __init__(self, web: Web, progress: Progress = lambda *_: None, wait_seconds: float = 1.0) -> None:
        self._web = web
        self._progress = progress
        self._wait_seconds = wait_seconds

    def bring(self, wanted: Wanted, part: Path) -> Version | None:
        """Writes the whole file to `part`, whose folder exists. None if the copy that is here is the newest.

        Raises InputError for what trying again does not change, AccessDenied, and Transient.
        """
        one = _One(self._web, wanted, part, self._progress)
        stop = _NoProgress(one)
        tries = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Broken), stop=stop, wait=self._pause, sleep=self._sleep,
            reraise=True,
        )  # fmt: skip
        try:
            return tries(one.attempt)
        except Broken as error:
            here = f"; {size_text(one.reached)} are kept here, and the next try goes on from there"
            told = f"{one.label}: {error}{here if one.reached else ''}"
            failed = Unreached(told) if error.unreached else Transient(told, operation="fetch", retried=True)
            raise failed from None

    def look(self, url: str, token: str, name: str, bytes_max: int) -> Version:
        """The version that is there now, by the headers alone. Raises Broken, InputError, AccessDenied."""
        one = _One(
            self._web, Wanted(lambda: url, name, bytes_max, token, page=True), Path("nowhere"), self._progress
        )
        one.label = f"{name} ({shown(url)})"
        for method in ("HEAD", "GET"):  # signed addresses are for one method
            with self._web.open(url, {}, method=method, token=token) as answer:
                if method == "GET" or answer.status in (200, 401, 429):
                    return one.judged(answer)
        raise AssertionError("GET returns or raises")

    def again(self, ask: Callable[[], T]) -> T:
        """What `ask` returns, asked again while it raises Broken, a few times."""
        stop = tenacity.stop_after_attempt(ASKED)
        tries = tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda e: isinstance(e, Broken) and not e.unreached),
            stop=stop, wait=self._pause, sleep=self._sleep, reraise=True,
        )  # fmt: skip
        return tries(ask)

    def _pause(self, state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        asked = error.wait_seconds if isinstance(error, Broken) else 0.0
        backoff = tenacity.wait_random_exponential(self._wait_seconds, WAIT_SECONDS_MAX)
        return min(WAIT_SECONDS_MAX, max(asked, backoff(state)))

    def _sleep(self, seconds: float) -> None:
        self._web.clock.wait(threading.Event(), seconds)


class Unreached(Transient):
    """No server answered at all: this machine may be offline."""

    def __init__(self, text: str) -> None:
        super().__init__(text, operation="fetch", retried=True)


class _NoProgress:
    """Gives up after TRIES in a row that brought next to nothing."""

    def __init__(self, one: _One) -> None:
        self._one = one
        self._most, self._idle = 0, 0

    def __call__(self, state: tenacity.RetryCallState) -> bool:
        if self._one.reached >= self._most + PROGRESS_BYTES:
            self._most, self._idle = self._one.reached, 0
        self._idle += 1
        error = state.outcome.exception() if state.outcome is not None else None
        limit = 2 if isinstance(error, Broken) and error.unreached and not self._most else TRIES
        return self._idle >= limit


class _One:
    def __init__(self, web: Web, wanted: Wanted, part: Path, progress: Progress) -> None:
        self._web = web
        self._wanted = wanted
        self._part = part
        self._note = part.with_name(f"{part.name}.json")
        self._progress = progress
        self.label = wanted.name
        self.reached = _size(part)

    def attempt(self) -> Version | None:
        """One try, from the end of the part. Raises Broken if another may work."""
        before = _known(self._note)
        start = self.reached = _size(self._part) if before.condition else 0
        if start and before.size == start:  # it was whole, and the program ended just then
            return before
        url = self._wanted.url()
        self.label = f"{self._wanted.name} ({shown(url)})"
        headers = self._headers(before, start)
        with self._web.open(url, headers, token=self._wanted.token) as answer:
            if answer.status == 304 and self._wanted.version.known:
                return None
            version = self._judged(answer, before, start)
            if not start and self._wanted.version.known and version == self._wanted.version:
                return None
            resumes = answer.status == 206
            with self._part.open("r+b" if resumes else "wb") as file:
                file.seek(start if resumes else 0)
                file.truncate()
                self.reached = file.tell()
                write_whole(self._note, json.dumps(asdict(version)).encode(), sync=False)
                self._room(version)
                self._copy(answer, file, version)
        return version

    def judged(self, answer: Answer) -> Version:
        return self._judged(answer, Version(), 0)

    def _headers(self, before: Version, start: int) -> dict[str, str]:
        if start:
            return {"Range": f"bytes={start}-", "If-Range": before.condition}
        known = self._wanted.version
        if known.tag:
            return {"If-None-Match": known.tag}
        return {"If-Modified-Since": known.modified} if known.modified else {}

    def _judged(self, answer: Answer, before: Version, start: int) -> Version:
        """The version that an answer brings. Raises Broken, and errors for what stays wrong."""
        self._refusals(answer)
        if answer.status == 206:
            return self._part_judged(answer, before, start)
        kind = answer.headers.get("Content-Type", "").lower()
        path = shown(answer.url).removesuffix("?…").lower()
        if "text/html" in kind and not self._wanted.page and not path.endswith(_PAGES):
            raise InputError(
                f"{self.label}: the server sends a web page, perhaps for a login, not a file. If the page is "
                "meant, give its `sha256`"
            )
        coded = answer.headers.get("Content-Encoding", "identity").lower()
        if coded not in ("identity", "") and not path.endswith(_PACKED):
            raise InputError(
                f"{self.label}: the server sends it compressed ({coded[:20]}), though asked not to"
            )
        size = _length(answer)
        if size is None and not (self._wanted.page or self._wanted.sized) and not _marks_its_end(answer):
            raise InputError(
                f"{self.label}: the server does not say how long it is, so a cut file would look whole; give "
                "its `sha256`"
            )
        if size is not None and size > self._wanted.bytes_max:
            raise InputError(self._too_large(size_text(size)))
        return Version(_header(answer, "ETag"), _header(answer, "Last-Modified"), size)

    def _refusals(self, answer: Answer) -> None:
        status = answer.status
        if status in (200, 206):
            return
        if status == 416:
            self._forget()
            raise Broken("the server has no such part")
        if status in (408, 425, 429) or status >= 500:
            after = answer.headers.get("Retry-After", "")
            wait = float(after) if after.isdecimal() and len(after) < 6 else 0.0
            raise Broken(f"the server answers {status}", wait_seconds=wait)
        if status in (401, 403):
            given = "the token is refused" if self._wanted.token else "it needs a login"
            raise AccessDenied(
                f"{self.label}: the server answers {status}: {given}. Name a variable with a token that may "
                "read it: `token: env:NAME` at this input", operation="fetch"
            )  # fmt: skip
        why = "nothing is there" if status in (404, 410) else "it does not give the file"
        raise InputError(f"{self.label}: the server answers {status}: {why}")

    def _part_judged(self, answer: Answer, before: Version, start: int) -> Version:
        match = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        total = None if match is None or match[3] == "*" else int(match[3])
        tag = _header(answer, "ETag")
        same = tag in ("", before.tag) and total in (None, before.size)
        if match is None or int(match[1]) != start or not start or not same:
            self._forget()
            raise Broken("it changed while it was fetched, so it is fetched from the start")
        return before

    def _forget(self) -> None:
        self._note.unlink(missing_ok=True)
        self._part.unlink(missing_ok=True)
        self.reached = 0

    def _room(self, version: Version) -> None:
        needed = (version.size or 0) - self.reached
        free = shutil.disk_usage(self._part.parent).free
        if needed + SPARE_BYTES > free:
            raise InputError(
                f"{self.label}: {size_text(needed)} are to be fetched, but {self._part.parent} has "
                f"{size_text(free)} free; free some space, or set XDG_CACHE_HOME to a folder of a larger disk"
            )

    def _copy(self, answer: Answer, file: BinaryIO, version: Version) -> None:
        self._progress(self._wanted.name, self.reached, version.size)
        while piece := answer.read():
            if version.size is not None and self.reached + len(piece) > version.size:
                file.close()
                self._forget()
                raise Broken("the server sends more than it announced")
            if self.reached + len(piece) > self._wanted.bytes_max:
                file.close()
                self._forget()
                raise InputError(self._too_large("it"))
            file.write(piece)
            self.reached += len(piece)
            self._progress(self._wanted.name, self.reached, version.size)
        if version.size is not None and self.reached < version.size:
            raise Broken(f"cut after {self.reached:,} of {version.size:,} bytes")

    def _too_large(self, what: str) -> str:
        return (
            f"{self.label}: {what} is more than the limit of {size_text(self._wanted.bytes_max)}; if that is "
            "meant, raise `max_gb` at this input, or in the config: inputs: {max_gb: …}"
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _known(note: Path) -> Version:
    try:
        found = json.loads(note.read_bytes())
        tag, modified, size = found["tag"], found["modified"], found["size"]
        return Version(str(tag), str(modified), None if size is None else int(size))
    except (OSError, ValueError, KeyError, TypeError):
        return Version()


def _header(answer: Answer, name: str) -> str:
    found = answer.headers.get(name, "")
    return found if len(found) <= 1000 and found.isprintable() else ""


def _length(answer: Answer) -> int | None:
    stated = answer.headers.get("Content-Length", "")
    if _marks_its_end(answer) or not stated:
        return None
    if not stated.isdecimal() or len(stated) > 18 or len(answer.headers.get_all("Content-Length", [])) > 1:
        raise Broken("the length that the server states is none")
    return int(stated)


def _marks_its_end(answer: Answer) -> bool:
    """Whether it is chunked: then a cut is noticed."""
    return "chunked" in answer.headers.get("Transfer-Encoding", "").lower()
