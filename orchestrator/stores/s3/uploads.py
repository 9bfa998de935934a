"""Lists and aborts the multipart uploads of a bucket, which obstore can do neither of.

Decides what is believed of a listing: it must be S3's, and keys outside our prefix are ignored. Ages are the
service's own `Initiated` against its own `Date`, because this machine's clock may be off. Must never know
which uploads may go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import unquote
from xml.etree import ElementTree

from orchestrator.errors import NotFound, Transient
from orchestrator.stores.s3.clients import Clients
from orchestrator.stores.s3.faults import HTML, answer_in
from orchestrator.stores.store import Upload, is_key

PAGE_UPLOADS = 1000
_PAGES_MAX = 100  # the next listing finds the rest
_ROOT = "ListMultipartUploadsResult"


@dataclass(frozen=True)
class _Page:
    """One answer: (key, name, begun at) of each upload, and the parameters that ask for the next answer;
    empty if this is the last."""

    entries: tuple[tuple[str, str, float | None], ...]
    following: Mapping[str, str]


def listed(clients: Clients) -> tuple[Upload, ...]:
    """The unfinished uploads below our prefix, live ones too. Raises Rejected, NotFound or AccessDenied if
    the service does not list them, or not to us."""
    root = f"{clients.place.prefix}/" if clients.place.prefix else ""
    return tuple(
        Upload(key.removeprefix(root), name, age)
        for key, name, age in _entries(clients, root)
        if key.startswith(root) and is_key(key.removeprefix(root))
    )


def abort(clients: Clients, upload: Upload) -> None:
    """Removes its parts. No error if it is gone or finished."""
    reply = clients.ask("abort", "DELETE", upload.key, {"uploadId": upload.name})
    if answer_in(reply.status, reply.body).code != "NoSuchUpload":
        with suppress(NotFound):
            clients.check(reply, "abort", upload.key)


def _entries(clients: Clients, root: str) -> Iterator[tuple[str, str, float]]:
    """(key in the bucket, name, age in seconds), page by page."""
    query = {"uploads": "", "prefix": root, "encoding-type": "url", "max-uploads": str(PAGE_UPLOADS)}
    following: Mapping[str, str] = {}
    for _ in range(_PAGES_MAX):
        reply = clients.ask("list uploads", "GET", None, {**query, **following})
        clients.check(reply, "list uploads")
        page = _read(reply.body)
        if page is None or (page.following and page.following == following):
            raise Transient(f"list uploads: {HTML}", backend=clients.backend, operation="list uploads")
        for key, name, begun in page.entries:
            known = reply.at is not None and begun is not None
            yield key, name, reply.at - begun if known else 0.0  # type: ignore[operator]
        following = page.following
        if not following:
            return


def _read(body: str) -> _Page | None:
    """None unless the body is S3's listing. S3 declares no document type, so nobody can define entities."""
    if "<!DOCTYPE" in body:
        return None
    try:
        root = ElementTree.fromstring(body)
    except ElementTree.ParseError:
        return None
    if root.tag.rpartition("}")[2] != _ROOT:
        return None
    is_quoted = _text(root, "EncodingType") == "url"

    def key_of(element: ElementTree.Element, name: str) -> str:
        text = _text(element, name)
        return unquote(text) if is_quoted else text

    found = [
        (key_of(each, "Key"), _text(each, "UploadId"), _time(_text(each, "Initiated")))
        for each in root.iterfind("{*}Upload")
    ]
    entries = tuple(each for each in found if each[0] and each[1])
    if _text(root, "IsTruncated").lower() != "true" or not entries:
        return _Page(entries, {})
    # A service that says only one of the two wants only this one: SeaweedFS has an order of its own.
    said = {
        "key-marker": key_of(root, "NextKeyMarker"),
        "upload-id-marker": _text(root, "NextUploadIdMarker"),
    }
    given = {name: value for name, value in said.items() if value}
    key, name, _ = entries[-1]
    return _Page(entries, given or {"key-marker": key, "upload-id-marker": name})


def _text(element: ElementTree.Element, name: str) -> str:
    return (element.findtext(f"{{*}}{name}") or "").strip()


def _time(text: str) -> float | None:
    """Unix seconds; None for what is no time, or has no time zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if found.tzinfo is None else found.timestamp()
