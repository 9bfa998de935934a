"""What an input's `from` may name outside this machine: its grammar, and how it is pinned and shown.

Must never fetch anything. A pinned source has no query, because that may be a secret: what was fetched is
found by its sha256.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from urllib.parse import urlsplit

from orchestrator.errors import InputError

WEB = re.compile(r"https?://[^/\s@?#\\]+(/[^\s#]*)?")
KAGGLE = re.compile(r"kaggle:([A-Za-z0-9_-]+)/([A-Za-z0-9_.-]+)(?:/([0-9]{1,9}))?(?:/(\S.*))?")
HUB = re.compile(r"hf:([A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+)(?:@([A-Za-z0-9_.-]+))?(?:/(\S.*))?")
COMMIT = re.compile(r"[0-9a-f]{40}")


class Kind(StrEnum):
    WEB = "https"
    KAGGLE = "kaggle"
    HUB = "hf"


_SCHEMES = frozenset({"http", *Kind})


@dataclass(frozen=True)
class Source:
    """`place`: an address; or owner/name of a data set, with a version, revision or commit, and the path of
    one file or folder in it (empty: all)."""

    kind: Kind
    place: str
    version: str = ""
    path: str = ""

    def __str__(self) -> str:
        """As it is shown and pinned."""
        if self.kind is Kind.WEB:
            parts = urlsplit(self.place)
            return f"{parts.scheme}://{parts.netloc}{parts.path}{'?…' if parts.query else ''}"
        mark = "@" if self.kind is Kind.HUB else "/"
        version = f"{mark}{self.version}" if self.version else ""
        return f"{self.kind}:{self.place}{version}{f'/{self.path}' if self.path else ''}"

    @property
    def pinned(self) -> bool:
        """Whether what it names can never change."""
        if self.kind is Kind.HUB:
            return COMMIT.fullmatch(self.version) is not None
        return self.kind is Kind.KAGGLE and self.version != ""

    def at(self, version: str) -> Source:
        return replace(self, version=version)


def is_fetched(origin: str) -> bool:
    """Whether an input comes from the network."""
    return origin.partition(":")[0] in _SCHEMES


def parse(origin: str) -> Source:
    """Raises InputError for what the spec's grammar does not allow."""
    if WEB.fullmatch(origin):
        try:
            urlsplit(origin)
        except ValueError:
            raise InputError("an address that cannot be read") from None
        return Source(Kind.WEB, origin)
    if match := KAGGLE.fullmatch(origin):
        return Source(Kind.KAGGLE, f"{match[1]}/{match[2]}", match[3] or "", match[4] or "")
    if match := HUB.fullmatch(origin):
        return Source(Kind.HUB, match[1], match[2] or "", match[3] or "")
    raise InputError(f"{origin.partition(':')[0]}: is no source of an input")
