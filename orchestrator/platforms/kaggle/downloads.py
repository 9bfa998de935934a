"""Downloads a file from a signed URL: streamed, resumed and verified before it gets its name.

The SDK's own downloader saves error pages as files, keeps whole files in memory and trusts names
(docs/references/kaggle.md#output). Must never save anything but the file, send credentials, or repeat a URL.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import requests
from urllib3.exceptions import HTTPError as TransferError

from orchestrator.errors import BackendError, NotFound, Rejected
from orchestrator.files import draft_file
from orchestrator.platforms.kaggle.answers import Failure, Tries, of_error, of_response, told
from orchestrator.platforms.kaggle.client import KaggleClient

CHUNK_BYTES = 1 << 20
_EXPIRED = (400, 401, 403, 404, 410)  # answers to a signed URL that has expired; Google's is 400
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_PAGES = (".html", ".htm", ".xhtml")


class TooLarge(Rejected):
    """The file has more bytes than allowed."""


def download(client: KaggleClient, url: str, target: Path, *, size_max: int, sha256: str | None = None,
             renew: Callable[[], str] | None = None) -> None:  # fmt: skip
    """Leaves the complete file at `target`, or nothing. The target's folder must exist.

    Resumes a broken transfer as long as that brings new bytes. `renew` gives a new URL after this one has
    expired. Without `sha256`, the length must be the one that the server stated.
    Raises TooLarge for more than `size_max` bytes, Rejected for wrong content, NotFound, Transient, and
    OSError if the disk is full.
    """
    transfer = _Transfer(client, url, target.name, size_max, renew)
    with draft_file(target.parent) as draft:
        with draft.stream() as file:
            transfer.run(file)
            found = _sha256(file)
            if (
                sha256 is not None and found != sha256
            ):  # once more from the start: resumed pieces may not match
                transfer.restart(file)
                transfer.run(file)
                found = _sha256(file)
            if sha256 is not None and found != sha256:
                raise transfer.error(Rejected, f"its sha256 is {found[:12]}…, expected {sha256[:12]}…")
        draft.replace(target)


@dataclass
class _Transfer:
    """One transfer. `length` and `version` are what the first answer said about the file."""

    client: KaggleClient
    url: str
    name: str
    size_max: int
    renew: Callable[[], str] | None
    length: int | None = None
    version: str = ""
    renewed: bool = False

    def restart(self, file: BinaryIO) -> None:
        file.seek(0)
        file.truncate()
        self.length, self.version = None, ""

    def run(self, file: BinaryIO) -> None:
        tries = Tries(self.client.patience)
        while not self._complete(file):
            try:
                self._attempt(file)
                self.renewed = False
            except Failure as failure:
                if self._renewed(failure):
                    continue
                self._again(tries, failure, file.tell())

    def _complete(self, file: BinaryIO) -> bool:
        return self.length is not None and file.tell() == self.length

    def _renewed(self, failure: Failure) -> bool:
        """Whether there is a new URL. A second refusal in a row is not because of age."""
        if failure.status not in _EXPIRED or self.renew is None or self.renewed:
            return False
        self.url, self.renewed = self.renew(), True
        return True

    def _again(self, tries: Tries, failure: Failure, reached: int) -> None:
        try:
            tries.again(failure, reached)
        except Failure as last:
            if last.status in _EXPIRED:
                raise self.error(NotFound, str(last)) from None
            raise told(last, self._text(str(last)), **self._where) from None

    def _attempt(self, file: BinaryIO) -> None:
        """Downloads from the current end of the file as far as it gets. Raises Failure, Rejected."""
        start = file.tell()
        headers = {"Range": f"bytes={start}-", "If-Range": self.version} if start and self.version else {}
        try:
            with (
                self.client.session() as session,
                session.get(self.url, headers=headers, stream=True) as response,
            ):
                self._check(response, file, start if headers else 0)
                while piece := response.raw.read1(CHUNK_BYTES, decode_content=False):
                    self._keep(file, piece)
        except (requests.RequestException, TransferError) as error:
            raise of_error(error) from None
        if self.length is None:  # no length was stated: the last chunk ends the file
            self.length = file.tell()
        if file.tell() < self.length:
            raise Failure("the connection was cut")

    def _keep(self, file: BinaryIO, piece: bytes) -> None:
        """Raises TooLarge for more bytes than allowed. After a wrong length it starts again."""
        size = file.tell() + len(piece)
        if size > self.size_max:
            raise self.error(TooLarge, f"larger than the limit of {self.size_max} bytes")
        if self.length is not None and size > self.length:
            self.restart(file)
            raise Failure("the server sent more bytes than it announced")
        file.write(piece)

    def _check(self, response: requests.Response, file: BinaryIO, start: int) -> None:
        """Checks that the response is the file, from where ours ends. Raises Failure, Rejected."""
        if response.status_code == 416:
            self.restart(file)
            raise Failure("the requested part does not exist")
        if not response.ok:
            raise of_response(response, self.client.clock, with_message=False)
        if response.status_code not in (200, 206):
            raise Failure(f"HTTP {response.status_code}", status=400)
        if "html" in response.headers.get("Content-Type", "").lower() and not self._is_page():
            raise Failure("Kaggle sent a web page instead of the file")
        if response.status_code == 206:
            self._check_part(response, file, start)
        else:
            self.restart(file)  # the whole file: the server cannot resume, or the file has changed
            self.length = _length(response)
        self.version = self.version or _version(response)
        if self.length is not None and self.length > self.size_max:
            raise self.error(TooLarge, f"{self.length} bytes is more than the limit of {self.size_max}")

    def _check_part(self, response: requests.Response, file: BinaryIO, start: int) -> None:
        match = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        total = None if match is None or match[2] == "*" else int(match[2])
        if match is None or not start or int(match[1]) != start or total not in (None, self.length):
            self.restart(file)
            raise Failure("the server sent another part than the requested one")

    def _is_page(self) -> bool:
        return self.name.lower().endswith(_PAGES)

    def error(self, kind: type[BackendError], text: str) -> BackendError:
        return kind(self._text(text), **self._where)

    def _text(self, text: str) -> str:
        return f"{self.name!r} from Kaggle: {text}"

    @property
    def _where(self) -> dict[str, str]:
        return {"backend": self.client.backend, "operation": "download"}


def _length(response: requests.Response) -> int | None:
    """The length that the server states; None for chunked transfers, which mark their own end."""
    stated = response.headers.get("Content-Length", "")
    chunked = "chunked" in response.headers.get("Transfer-Encoding", "").lower()
    if chunked:
        return None
    if not stated.isdecimal():
        raise Failure("the server does not state the file's length")
    return int(stated)


def _version(response: requests.Response) -> str:
    """The value for If-Range: a strong tag, else a date."""
    tag = response.headers.get("ETag", "")
    return tag if tag.startswith('"') else response.headers.get("Last-Modified", "")


def _sha256(file: BinaryIO) -> str:
    file.seek(0)
    digest = hashlib.sha256()
    while piece := file.read(CHUNK_BYTES):
        digest.update(piece)
    return digest.hexdigest()
