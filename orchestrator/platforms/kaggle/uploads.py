"""Uploads a file to Kaggle: one streamed PUT to a signed URL, resumed where it broke off.

Up to 2.2.4 the client's own upload silently dropped a refused file (docs/references/kaggle.md#uploads).
Must never send credentials to a signed URL, or repeat such a URL.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import requests

from orchestrator.errors import Rejected
from orchestrator.platforms.kaggle.answers import Failure, Tries, of_error, of_response, told
from orchestrator.platforms.kaggle.client import KaggleClient
from orchestrator.platforms.kaggle.values import Upload

_DONE = (200, 201)
_INCOMPLETE = 308
_EXPIRED = (404, 410)
_PERHAPS_EXPIRED = (401, 403)  # may mean that a signed URL has expired: assumed once
_RECEIVED = re.compile(r"bytes=0-(\d+)")
_SAID_PERCENT = 10


def upload(client: KaggleClient, path: Path, say: Callable[[str], None] = lambda _: None) -> str:
    """Uploads the file and returns the token with which a dataset refers to it. `say` gets progress texts.

    Resumes a broken upload as long as that brings new bytes, and starts again if the URL has expired. Raises
    Refused if Kaggle refuses the upload, Rejected if the file is wrong or changes meanwhile, else Transient.
    """
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        return _Transfer(client, file, path.name, found.st_size, found.st_mtime, say).run()


@dataclass
class _Transfer:
    """One upload. `arrived`: bytes that the server is known to have."""

    client: KaggleClient
    file: BinaryIO
    name: str
    size: int
    modified: float
    say: Callable[[str], None]
    arrived: int = 0
    renewed: bool = False

    def run(self) -> str:
        tries = Tries(self.client.patience)
        place = self._start()
        fresh = True
        while True:
            try:
                if fresh or not self._complete(place):
                    self._put(place)
                return place.token
            except Failure as failure:
                perhaps = failure.status in _PERHAPS_EXPIRED and not self.renewed
                fresh = failure.status in _EXPIRED or perhaps
                self.renewed |= perhaps
                told = Failure("the upload URL has expired", after=failure.after) if fresh else failure
                self._again(tries, told)
                if fresh:
                    place = self._start()

    def _start(self) -> Upload:
        self.arrived = 0
        return self.client.start_upload(self.name, self.size, self.modified)

    def _put(self, place: Upload) -> None:
        """Uploads the rest of the file. Raises Failure."""
        headers = {}
        if self.arrived:
            headers["Content-Range"] = f"bytes {self.arrived}-{self.size - 1}/{self.size}"
        self.file.seek(self.arrived)
        rest = _Rest(self.file, self.size, self._spoken) if self.size else b""
        response = self._send(place, rest, headers)
        if response.status_code not in _DONE:
            raise self._refused(response)

    def _complete(self, place: Upload) -> bool:
        """Asks how much has arrived. Returns whether the upload is complete. Raises Failure."""
        response = self._send(place, b"", {"Content-Range": f"bytes */{self.size}"})
        if response.status_code in _DONE:
            return True
        if response.status_code != _INCOMPLETE:
            raise self._refused(response)
        match = _RECEIVED.fullmatch(response.headers.get("Range", ""))
        self.arrived = min(self.size, int(match[1]) + 1) if match else 0
        if self.size and self.arrived == self.size:
            raise Failure("all bytes have arrived, but the upload is not finished yet")
        return False

    def _send(self, place: Upload, body: bytes | _Rest, headers: dict[str, str]) -> requests.Response:
        try:
            with self.client.session() as session:
                return session.put(place.url, data=body, headers=headers, allow_redirects=False)
        except requests.RequestException as error:
            raise of_error(error) from None

    def _refused(self, response: requests.Response) -> Failure:
        if response.status_code < 400:
            return Failure("only a part has arrived")
        return of_response(response, self.client.clock, with_message=False)

    def _again(self, tries: Tries, failure: Failure) -> None:
        try:
            tries.again(failure, self.arrived)
        except Failure as last:
            text = f"the upload of {self.name!r} to Kaggle failed: {last}"
            raise told(last, text, backend=self.client.backend, operation="upload") from None
        self.say(f"uploading {self.name}: {failure}; trying again")

    def _spoken(self, position: int) -> None:
        percent = position * 100 // self.size
        if percent // _SAID_PERCENT > self._said // _SAID_PERCENT:
            self.say(f"uploading {self.name}: {percent} %")
        self._said = max(self._said, percent)

    _said: int = 0


class _Rest:
    """The rest of a file. It has a known length, so that `requests` does not send it in chunks."""

    def __init__(self, file: BinaryIO, size: int, told: Callable[[int], None]) -> None:
        self._file = file
        self._size = size
        self._told = told

    def __len__(self) -> int:
        return self._size - self._file.tell()

    def read(self, count: int = -1) -> bytes:
        """Raises Rejected if the file got shorter. Ignores what was appended."""
        left = len(self)
        piece = self._file.read(left if count < 0 else min(count, left))
        if left and count and not piece:
            raise Rejected("the file got shorter while it was uploaded", operation="upload")
        self._told(self._file.tell())
        return piece
