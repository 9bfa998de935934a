"""A small Hugging Face on a local server: revisions, trees in pages, files (docs/references/inputs.md)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.fetching.servers import Handler, Site


@dataclass
class LocalHub:
    """One data set, `owner/data`. `commits`: its files by path, by commit; those named `*.bin` are in LFS."""

    site: Site
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    revisions: dict[str, str] = field(default_factory=dict)
    token: str = ""
    page: int = 2  # entries on a page

    def __post_init__(self) -> None:
        self.site.fallback = self.answer

    def commit(self, files: dict[str, bytes], revision: str = "main") -> str:
        sha = hashlib.sha1(repr(sorted(files.items())).encode(), usedforsecurity=False).hexdigest()
        self.commits[sha], self.revisions[revision] = files, sha
        return sha

    def answer(self, handler: Handler) -> None:
        url = urlsplit(handler.path)
        parts = unquote(url.path).strip("/").split("/")
        if self.token and handler.headers.get("Authorization") != f"Bearer {self.token}":
            handler.reply(401)
        elif parts[:4] == ["api", "datasets", "owner", "data"] and parts[4] == "revision":
            sha = self.revisions.get(parts[5], parts[5])
            self._json(handler, {"sha": sha} if sha in self.commits else None)
        elif parts[:4] == ["api", "datasets", "owner", "data"] and parts[4] == "tree":
            self._tree(handler, parts[5], "/".join(parts[6:]), parse_qs(url.query))
        elif parts[:4] == ["datasets", "owner", "data", "resolve"]:
            self._resolve(handler, parts[4], "/".join(parts[5:]))
        else:
            handler.reply(404)

    def _tree(self, handler: Handler, sha: str, path: str, query: dict[str, list[str]]) -> None:
        below = f"{path}/" if path else ""
        files = {name: data for name, data in self.commits[sha].items() if name.startswith(below)}
        found = [self._entry(name, data) for name, data in sorted(files.items())]
        if "recursive" not in query:
            found = [each for each in found if "/" not in each["path"].removeprefix(below)]
            folders = {
                name.removeprefix(below).split("/")[0] for name in files if "/" in name.removeprefix(below)
            }
            found += [
                {"type": "directory", "path": below + each, "oid": "0", "size": 0} for each in sorted(folders)
            ]
        start = int(query.get("cursor", ["0"])[0])
        more = f"{handler.path.split('?')[0]}?recursive=true&cursor={start + self.page}"
        link = {"Link": f'<{self.site.url}{more}>; rel="next"'} if start + self.page < len(found) else {}
        if "recursive" not in query:
            start, link = 0, {}
        page = found[start : start + self.page] if "recursive" in query else found
        self._json(handler, page or None, link)

    def _entry(self, name: str, data: bytes) -> dict[str, Any]:
        git = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
        entry: dict[str, object] = {
            "type": "file",
            "path": name,
            "oid": git,
            "size": len(data),
        }
        if name.endswith(".bin"):
            entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        return entry

    def _resolve(self, handler: Handler, sha: str, path: str) -> None:
        """Large files are elsewhere."""
        if path not in self.commits.get(sha, {}):
            handler.reply(404)
            return
        place = f"/cdn/{sha}/{path}"
        self.site.files[place] = self.commits[sha][path]
        if path.endswith(".bin"):
            handler.redirect(f"{self.site.url}{place}?signature=sesame")
        else:
            handler.file(place)

    def _json(self, handler: Handler, body: object, headers: dict[str, str] | None = None) -> None:
        if body is None:
            handler.reply(404)
        else:
            handler.reply(
                200, json.dumps(body).encode(), {"Content-Type": "application/json", **(headers or {})}
            )
