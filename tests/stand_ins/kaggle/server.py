"""The local Kaggle: an HTTP server on loopback that speaks the recorded protocol to the real kaggle client.

Decides only which part answers a call, and which fault it shows. kernels.py and datasets.py decide the
answers. Reaches nothing outside this machine. The protocol is in docs/references/kaggle.md, and each
behaviour cites its heading.
"""

from __future__ import annotations

import base64
import math
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.stand_ins.kaggle.datasets import Datasets
from tests.stand_ins.kaggle.kernels import Kernels
from tests.stand_ins.kaggle.protocol import Listener, Reply, redirect
from tests.stand_ins.kaggle.session import KernelSession
from tests.stand_ins.kaggle.settings import Refusal, Settings, Warts
from tests.stand_ins.kaggle.troubles import Troubles

Rpc = Callable[[dict[str, Any]], dict[str, Any] | str]
_TICK_SECONDS = 0.02


class LocalKaggle(Troubles):
    """One account on a server. `pushed` has every SaveKernel request, `bugs` every bug of the stand-in
    itself."""

    def __init__(self, folder: Path, settings: Settings, warts: Warts, port: int = 0) -> None:
        super().__init__()
        self.settings = settings
        self.warts = warts
        self.bugs: list[str] = []
        self.closing = threading.Event()
        self.is_out = False
        self._is_revoked = False
        self._signed: dict[str, tuple[Path, float, float]] = {}  # token → the file, since when, until when
        self.datasets = Datasets(folder, settings, warts, self._sign)
        self._kernels = Kernels(folder, settings, warts, self.datasets, self._sign, self.lock)
        self.datasets.names_of_kernels = self._kernels.names
        self._rpcs = {
            **_rpcs(self._kernels, self.datasets),
            "security.OAuthService/IntrospectToken": self._introspect,
        }
        self._listener: Listener | None = Listener(self, port)
        self.port = self._listener.server_port
        self._ticker = threading.Thread(target=self._tick, daemon=True)
        self._ticker.start()

    @property
    def url(self) -> str:
        """The value for the client's private `_endpoint` (docs/references/kaggle.md#a-local-server)."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pushed(self) -> list[dict[str, Any]]:
        return self._kernels.pushed

    @property
    def sessions(self) -> list[KernelSession]:
        """Every session that was ever pushed, also those of deleted kernels."""
        return self._kernels.ever

    @property
    def uploaded(self) -> list[Path]:
        """The bytes of every blob ever uploaded, including incomplete ones."""
        return [blob.path for blob in self.datasets.blobs.values()]

    def kernel(self, slug: str) -> KernelSession:
        """The newest session of a kernel of this account. Raises KeyError if there is none."""
        with self.lock:
            try:
                return self._kernels.session(self.settings.username, slug)
            except Refusal:
                raise KeyError(slug) from None

    def use_up(self, kind: str, left_seconds: float = 0.0) -> None:
        """Simulates use that leaves only this much of the "gpu" or "tpu" quota. Ends
        sessions that exceed it."""
        with self.lock:
            self._kernels.quota.use_up(kind, left_seconds)
            self._kernels.advance()

    def rename(self, slug: str, title: str) -> None:
        """Gives a kernel another title, and so another slug, as its user may on the page."""
        with self.lock:
            self._kernels.rename(slug, title)

    def revoke(self, revoked: bool = True) -> None:
        """Makes the credentials invalid: every call except signed URLs gets a 401, or a 403 as in `warts`."""
        self._is_revoked = revoked

    def outage(self, out: bool = True) -> None:
        """Simulates an outage as `warts.outage` says: 503 for everything, or no server.
        Kernels keep running."""
        self.is_out = out
        if out and self.warts.outage == "refused" and self._listener is not None:
            self._listener.close()
            self._listener = None
        elif not out and self._listener is None:
            self._listener = Listener(self, self.port)

    def close(self) -> None:
        """Ends the server and, by process id, every process of every kernel."""
        self.closing.set()
        self._ticker.join()
        if self._listener is not None:
            self._listener.close()
        with self.lock:
            self._kernels.close()

    def admits(self, authorization: str) -> bool:
        """Basic (username, key), or the token if one is set (docs/references/kaggle.md#credentials)."""
        pair = f"{self.settings.username}:{self.settings.key}".encode()
        valid = {f"Basic {base64.b64encode(pair).decode()}"}
        if self.settings.token:
            valid.add(f"Bearer {self.settings.token}")
        return not self._is_revoked and authorization in valid

    def answer(self, rpc: str, request: dict[str, Any]) -> Reply:
        """`rpc` is "<Service>/<Method>". A bug of the stand-in becomes a 500 and is added to `bugs`."""
        with self.lock:
            method = self._rpcs.get(rpc)
            if method is None:
                return Reply.error(404, f"The local Kaggle does not know {rpc}", nested=False)
            try:
                self._kernels.advance()
                answer = self.take_refusal(rpc.rpartition("/")[2]) or method(request)
            except Refusal as refusal:
                nested = self.warts.nested_errors and "Kernels" in rpc
                return Reply.error(refusal.status, refusal.message, nested)
            except Exception:  # noqa: BLE001 a bug of the stand-in must be reported, not hang the client
                self.bugs.append(traceback.format_exc())
                return Reply.error(500, "a bug in the local Kaggle", nested=False)
        if isinstance(answer, str):
            return redirect(answer)
        if "createUrl" in answer:
            answer["createUrl"] = f"{self.url}/{answer['createUrl']}"
        return Reply.json(answer)

    def signed(self, token: str) -> Path | None:
        """The file of a signed URL; None if it is not there. Raises Refusal if the URL has expired."""
        path, since, until = self._signed.get(token, (None, 0.0, math.inf))
        if time.monotonic() >= until:
            raise Refusal(400, "ExpiredToken")
        return path if path is not None and path.is_file() and time.monotonic() >= since else None

    def session_at(self, owner: str, slug: str) -> KernelSession:
        """For its log; raises Refusal."""
        with self.lock:
            self._kernels.advance()
            return self._kernels.session(owner, slug)

    def _sign(self, path: Path, lag: float = 0.0, lasts: float = 0.0) -> str:
        token, now = uuid.uuid4().hex, time.monotonic()
        self._signed[token] = path, now + lag, now + lasts if lasts else math.inf
        return f"{self.url}/signed/{quote(path.name)}?X-Goog-Signature={token}"

    def _introspect(self, request: dict[str, Any]) -> dict[str, Any]:
        """The user of a token."""
        is_ours = self.admits(f"Bearer {request.get('token', '')}")
        return {"active": True, "username": self.settings.username} if is_ours else {"active": False}

    def _tick(self) -> None:
        while not self.closing.wait(_TICK_SECONDS):
            with self.lock:
                try:
                    self._kernels.advance()
                except Exception:  # noqa: BLE001 the thread must live on; local_kaggle raises it at the end
                    self.bugs.append(traceback.format_exc())


@contextmanager
def local_kaggle(
    folder: Path, settings: Settings | None = None, warts: Warts | None = None, port: int = 0
) -> Iterator[LocalKaggle]:
    """Serves until the block ends, and then ends all its processes. Raises the stand-in's own bugs there."""
    kaggle = LocalKaggle(folder.resolve(), settings or Settings(), warts or Warts(), port)
    try:
        yield kaggle
    finally:
        kaggle.close()
    if kaggle.bugs:
        raise AssertionError("the local Kaggle has bugs:\n" + "\n".join(kaggle.bugs))


def _rpcs(kernels: Kernels, datasets: Datasets) -> dict[str, Rpc]:
    of_kernels: dict[str, Rpc] = {
        "SaveKernel": kernels.save,
        "GetKernelSessionStatus": kernels.status,
        "ListKernelSessionOutput": kernels.output,
        "ListKernelFiles": kernels.list_files,
        "DownloadKernelOutput": kernels.download,
        "CancelKernelSession": kernels.cancel,
        "DeleteKernel": kernels.delete,
        "GetKernel": kernels.get,
        "ListKernels": kernels.list_kernels,
        "GetAcceleratorQuotaStatistics": kernels.statistics,
    }
    of_datasets: dict[str, Rpc] = {
        "CreateDataset": datasets.create,
        "CreateDatasetVersion": datasets.create_version,
        "GetDatasetStatus": datasets.status,
        "GetDataset": datasets.get,
        "ListDatasets": datasets.list_datasets,
        "ListDatasetFiles": datasets.list_files,
        "DeleteDataset": datasets.delete,
        "DownloadDataset": datasets.download,
    }
    return {
        "blobs.BlobApiService/StartBlobUpload": datasets.start_upload,
        **{f"kernels.KernelsApiService/{name}": method for name, method in of_kernels.items()},
        **{f"datasets.DatasetApiService/{name}": method for name, method in of_datasets.items()},
    }
