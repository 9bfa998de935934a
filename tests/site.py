"""Reads a built site as a browser would: its pages, their links, and what they load.

Decides nothing about which pages there should be. Knows neither Sphinx nor the sources of the pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED = {"script": "src", "img": "src", "link": "href", "source": "src", "iframe": "src", "object": "data"}
_VOID = frozenset(
    {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
)
_CSS_LOADS = re.compile(r"""(?:url\(\s*|@import\s+)["']?((?:https?:)?//[^"')\s]+)""")
_HOST = re.compile(r"(?:[a-z0-9-]+\.)+[a-z]{2,}|localhost|127\.0\.0\.1|\[::1\]", re.IGNORECASE)


@dataclass(frozen=True)
class Link:
    """`article`: it is in the page's own text, not in the navigation around it."""

    target: str
    text: str
    article: bool


@dataclass
class Page(HTMLParser):
    """What is in one HTML file."""

    html: str = field(repr=False)
    anchors: set[str] = field(default_factory=set)
    links: list[Link] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[str] = []
        self._link: tuple[str, list[str]] | None = None
        self.feed(self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self._link = (given["href"], [])
        if (loaded := given.get(_LOADED.get(tag, ""))) and given.get("rel") not in (
            "next",
            "prev",
            "index",
            "search",
        ):
            self.loads.append(loaded)
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag == "a" and self._link is not None:
            target, words = self._link
            self.links.append(Link(target, " ".join("".join(words).split()), "article" in self._open))
            self._link = None
        while tag in self._open and self._open.pop() != tag:
            pass  # closed by what is around it, such as a paragraph

    def handle_data(self, data: str) -> None:
        if self._link is not None:
            self._link[1].append(data)
        if "article" in self._open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


@dataclass(frozen=True)
class Site:
    """A folder of HTML files."""

    folder: Path
    pages: dict[Path, Page]

    @classmethod
    def read(cls, folder: Path) -> Site:
        files = sorted(folder.rglob("*.html"))
        return cls(folder, {path: Page(path.read_text(encoding="utf-8")) for path in files})

    def page(self, name: str) -> Page:
        return self.pages[self.folder / name]

    def leads_to(self, page: Path, target: str) -> tuple[Path, str] | None:
        """The file and anchor that an internal link on `page` names; None if it leaves the site."""
        parts = urlsplit(target)
        if parts.scheme or parts.netloc:
            return None
        path = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        return path, unquote(parts.fragment)

    def dead_links(self) -> Iterator[str]:
        """A line for every link to a file or heading that is not there."""
        for path, page in self.pages.items():
            for link in page.links:
                found = self.leads_to(path, link.target)
                if found is None:
                    continue
                target, anchor = found
                where = f"{path.relative_to(self.folder)}: {link.target!r}"
                if not target.is_file():
                    yield f"{where} leads to no file"
                elif anchor and target in self.pages and anchor not in self.pages[target].anchors:
                    yield f"{where} leads to no heading"

    def odd_addresses(self) -> Iterator[str]:
        """A line for every link out of the site that no browser could follow."""
        for path, page in self.pages.items():
            for link in page.links:
                parts = urlsplit(link.target)
                if parts.scheme == "mailto" or self.leads_to(path, link.target) is not None:
                    continue
                whole = not re.search(r"[\s<>{}]", link.target)
                if (
                    parts.scheme not in ("http", "https")
                    or not _HOST.fullmatch(parts.hostname or "")
                    or not whole
                ):
                    yield f"{path.relative_to(self.folder)}: {link.target!r}"

    def remote_loads(self) -> Iterator[str]:
        """A line for everything that a page or style sheet would load from another server."""
        for path, page in self.pages.items():
            for loaded in page.loads:
                if self.leads_to(path, loaded) is None and not loaded.startswith("data:"):
                    yield f"{path.relative_to(self.folder)}: {loaded}"
        for path in [*self.folder.rglob("*.css"), *self.folder.rglob("*.svg"), *self.pages]:
            for address in _CSS_LOADS.findall(path.read_text(encoding="utf-8")):
                yield f"{path.relative_to(self.folder)}: {address}"

    def clicks(self, start: str, words: list[str]) -> tuple[Path, str]:
        """Where one arrives who clicks, in the text of each page, on the link with these words. Raises
        LookupError if there is none."""
        path, anchor = self.folder / start, ""
        for said in words:
            links = [link for link in self.pages[path].links if link.article and link.text == said]
            found = self.leads_to(path, links[0].target) if links else None
            if found is None:
                raise LookupError(f"{path.relative_to(self.folder)} has no link {said!r}")
            path, anchor = found
        return path, anchor
