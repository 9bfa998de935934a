"""Which files a data set of Hugging Face has, at one commit, and where each is (docs/references/inputs.md).

Plain HTTPS: HF_ENDPOINT and HF_TOKEN count as in Hugging Face's own programs.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from orchestrator.errors import AccessDenied, InputError
from orchestrator.fetching.sources import COMMIT, Source
from orchestrator.fetching.tree import Entry
from orchestrator.fetching.web import Broken, Web, shown

ENDPOINT = "https://huggingface.co"
_ANSWER_BYTES_MAX = 20_000_000
_PAGES_MAX = 200
_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="next"')
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Hub:
    """One data set. Raises Broken, InputError, AccessDenied."""

    def __init__(self, web: Web) -> None:
        self._web = web
        self.endpoint = os.environ.get("HF_ENDPOINT", ENDPOINT).rstrip("/") or ENDPOINT
        self.token = os.environ.get("HF_TOKEN", "").strip()

    def commit(self, source: Source) -> str:
        """The commit that the source's revision is now."""
        revision = quote(source.version or "main", safe="")
        found, _ = self._json(f"{self.endpoint}/api/datasets/{source.place}/revision/{revision}", source)
        commit = found.get("sha") if isinstance(found, dict) else None
        if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
            raise Broken("the answer has no commit")
        return commit

    def entries(self, source: Source) -> tuple[Entry, ...]:
        """The files below the source's path, at its commit. One without a folder is that file alone."""
        above, _, name = source.path.rpartition("/")
        if not source.path:
            return tuple(self._listed(source, "", recursive=True))
        beside = list(self._listed(source, above, recursive=False, folders=True))
        found = next((each for each in beside if each.path == source.path), None)
        if found is None:
            names = ", ".join(each.path for each in beside[:10])
            raise InputError(f"{source}: it has no {name} there; it has: {names or 'nothing'}")
        if not found.folder:
            return (found,)
        below = tuple(self._listed(source, source.path, recursive=True))
        if not all(each.path.startswith(f"{source.path}/") for each in below):
            raise Broken("the list has files that are not in the folder that was asked for")
        return below

    def url(self, source: Source, path: str) -> str:
        return f"{self.endpoint}/datasets/{source.place}/resolve/{source.version}/{quote(path)}"

    def _listed(
        self, source: Source, path: str, *, recursive: bool, folders: bool = False
    ) -> Iterator[Entry]:
        url = f"{self.endpoint}/api/datasets/{source.place}/tree/{source.version}"
        url += (f"/{quote(path)}" if path else "") + ("?recursive=true" if recursive else "")
        for _ in range(_PAGES_MAX):
            found, link = self._json(url, source)
            if not isinstance(found, list):
                raise Broken("the answer is no list of files")
            yield from (each for each in map(_entry, found) if folders or not each.folder)
            if not link:
                return
            url = self._following(url, link)
        raise InputError(f"{source}: the list of its files does not end; name one folder of it")

    def _following(self, url: str, link: str) -> str:
        try:
            following = urljoin(url, link)
            same = urlsplit(following).netloc == urlsplit(self.endpoint).netloc
        except ValueError:
            raise Broken("the list of files goes on at an address that is none") from None
        if not same:
            raise Broken("the list of files goes on at another host")
        return following

    def _json(self, url: str, source: Source) -> tuple[Any, str]:
        with self._web.open(url, {}, token=self.token) as answer:
            if answer.status in (401, 403):
                raise AccessDenied(
                    f"{source}: Hugging Face does not show it; if it is private or gated, set HF_TOKEN to a "
                    "token that may read it, and accept its terms on its page", operation="fetch"
                )  # fmt: skip
            if answer.status == 404:
                raise InputError(f"{source}: Hugging Face has no such data set, revision or folder")
            if answer.status != 200:
                raise Broken(f"{shown(url)} answers {answer.status}")
            try:
                found = json.loads(answer.text(_ANSWER_BYTES_MAX))
            except (ValueError, RecursionError):
                raise Broken("the answer cannot be read") from None
            match = _NEXT.search(answer.headers.get("Link", ""))
            return found, match[1] if match else ""


def _entry(given: Any) -> Entry:
    try:
        lfs = given.get("lfs") or {}
        size, sha256 = int(lfs.get("size", given.get("size", 0))), str(lfs.get("oid") or "")
        if size < 0 or (sha256 and not _SHA256.fullmatch(sha256)):
            raise ValueError
        return Entry(
            str(given["path"]), size, sha256=sha256, git=str(given.get("oid") or "") if not lfs else "",
            folder=given["type"] == "directory",
        )  # fmt: skip
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        raise Broken("the answer lists something that is no file") from None
