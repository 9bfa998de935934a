"""The kernels, datasets and quota of one Kaggle account.

Decides what each refusal means to the caller; nothing about sessions. Requests and their retries are in
connection.py, the wire format is in values.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import requests

from orchestrator.errors import BackendError, NotFound, Refused, Rejected, Transient
from orchestrator.platforms.kaggle import sdk
from orchestrator.platforms.kaggle.answers import Failure
from orchestrator.platforms.kaggle.connection import Connection
from orchestrator.platforms.kaggle.values import (
    Listed,
    Output,
    OutputFile,
    Push,
    Pushed,
    Quotas,
    Status,
    Upload,
    decode_dataset_state,
    decode_listed,
    decode_output,
    decode_pushed,
    decode_quotas,
    decode_refusal,
    decode_sizes,
    decode_source,
    decode_status,
    decode_upload,
    encode_push,
)

PROVEN_SECONDS = 60.0
FORBIDDEN_SECONDS = 600.0
OUTPUT_PAGE = 200  # the most there may be: docs/references/kaggle.md#output
PAGE = 100
_KERNELS = "kernels.KernelsApiService"
_DATASETS = "datasets.DatasetApiService"
# Kaggle reports a full account with HTTP 200, but may also use an error status.
_FULL = ("quota", "session count")
T = TypeVar("T")


class KaggleClient(Connection):
    """Every verb raises Transient, Refused, AccessDenied or Rejected with `backend` and the operation.

    Kaggle also answers 401 or 403 for things that do not exist (docs/references/kaggle.md#missing-or-denied).
    In that case we ask for the quota. If that fails too, access is denied; otherwise the thing is missing
    (None, or NotFound).
    """

    _proven_until = -1.0
    _forbidden: tuple[float, float] | None = None  # when a 403 to the quota came first, and last

    # --- The account ------------------------------------------------------------------------------------

    def quota(self) -> Quotas:
        """What is used, reserved and allowed now. Raises AccessDenied if the credentials are invalid."""
        request = sdk.kernels.ApiGetAcceleratorQuotaStatisticsRequest()
        try:
            found = self._read(f"{_KERNELS}/GetAcceleratorQuotaStatistics", request, decode_quotas,
                               again=lambda failure: failure.passing or failure.status == 403)  # fmt: skip
        except Failure as failure:
            raise self._denied_for_good(failure) from None
        self._proven_until = self.clock.monotonic() + PROVEN_SECONDS
        self._forbidden = None
        return found

    def _denied_for_good(self, failure: Failure) -> BackendError:
        """A 403 to a request that needs only credentials may still pass: it is believed if it came again and
        again for a while."""
        denied = self._denied(failure, "quota")
        if failure.status != 403:
            return denied
        now = self.clock.monotonic()
        first, last = self._forbidden or (now, now)
        if now - last >= FORBIDDEN_SECONDS:  # nobody asked in between
            first = now
        self._forbidden = first, now
        if now - first >= FORBIDDEN_SECONDS:
            return denied
        return Transient(str(denied), backend=self.backend, operation="quota", retried=True)

    def kernels(self) -> tuple[Listed, ...]:
        """Our own kernels, all pages."""
        request = sdk.kernels.ApiListKernelsRequest()
        request.group = sdk.kernel_enums.KernelsListViewType.PROFILE
        request.page_size = PAGE
        return self._own(f"{_KERNELS}/ListKernels", request, "kernels")

    def datasets(self) -> tuple[Listed, ...]:
        """Our own datasets, all pages."""
        request = sdk.datasets.ApiListDatasetsRequest()
        request.group = sdk.dataset_enums.DatasetSelectionGroup.DATASET_SELECTION_GROUP_MY
        request.page_size = PAGE
        return self._own(f"{_DATASETS}/ListDatasets", request, "datasets")

    # --- Kernels ----------------------------------------------------------------------------------------

    def status(self, slug: str) -> Status | None:
        """Status of the newest version (docs/references/kaggle.md#status). None if the kernel is missing."""
        request = self._of_kernel(sdk.kernels.ApiGetKernelSessionStatusRequest(), slug)
        return self._found(f"{_KERNELS}/GetKernelSessionStatus", request, decode_status, "status")

    def push(self, push: Push) -> Pushed:
        """Saves a private kernel and runs it (docs/references/kaggle.md#push).

        Raises Transient if it is unknown whether that worked: look before you push again. A refusal is
        returned as `error` or `invalid`.
        """
        request = encode_push(sdk.kernels.ApiSaveKernelRequest(), self.username(), push)
        try:
            return self._write(f"{_KERNELS}/SaveKernel", request, decode_pushed)
        except Failure as failure:
            if 400 <= failure.status < 500 and any(word in str(failure).lower() for word in _FULL):
                return Pushed(0, str(failure), ())
            raise self._refused(failure, "push") from None

    def source(self, slug: str) -> str | None:
        """The text of a kernel's newest version. None if the kernel is missing."""
        request = self._of_kernel(sdk.kernels.ApiGetKernelRequest(), slug)
        return self._found(f"{_KERNELS}/GetKernel", request, decode_source, "source")

    def cancel(self, session_id: int) -> bool:
        """Asks Kaggle to end a running session, which keeps its output. Returns whether Kaggle accepted that:
        it does so only for the user who started the session
        (docs/references/kaggle.md#cancelling-and-deleting). A wrong id is refused in any way."""
        request = sdk.kernels.ApiCancelKernelSessionRequest()
        request.kernel_session_id = session_id
        rpc = f"{_KERNELS}/CancelKernelSession"
        try:
            return self._write(rpc, request, lambda body: not body.get("errorMessage"))
        except Failure as failure:
            told = self._told(failure, "cancel")
        if isinstance(told, Refused | Rejected):
            return False
        raise told

    def output(self, slug: str) -> Output | None:
        """The files and the log of the newest version, all pages. None if the kernel is missing.

        Names are the server's and may lead anywhere. The log is empty while the kernel runs.
        """
        request = self._of_kernel(sdk.kernels.ApiListKernelSessionOutputRequest(), slug)
        request.page_size = OUTPUT_PAGE
        rpc = f"{_KERNELS}/ListKernelSessionOutput"
        pages = self._missing_is_none("output", lambda: list(self._pages(rpc, request, decode_output)))
        if pages is None:
            return None
        files: list[OutputFile] = [file for page in pages for file in page.files]
        return Output(tuple(files), next((page.log for page in pages if page.log), ""))

    def delete_kernel(self, slug: str) -> bool:
        """Ends and removes a kernel with all its outputs. Returns whether Kaggle confirms that; False if
        nothing shows such a kernel. Raises Transient if it stays."""
        request = self._of_kernel(sdk.kernels.ApiDeleteKernelRequest(), slug)
        rpc = f"{_KERNELS}/DeleteKernel"
        return self._removed(rpc, request, "delete_kernel", lambda: self._shows(slug))

    def _shows(self, slug: str) -> bool:
        return self.status(slug) is not None or any(each.slug == slug for each in self.kernels())

    def log_response(self, slug: str) -> requests.Response | None:
        """The log as a stream, which the caller closes. None if the kernel is missing.

        While the kernel runs it has server-sent events, afterwards a JSON array
        (docs/references/kaggle.md#log).
        """
        path = f"kernels/logs/stream/{quote(self.username())}/{quote(slug)}"
        again = self.patience.retrying(lambda failure: failure.passing)
        return self._missing_is_none("logs", lambda: again(self._stream, path))

    # --- Datasets ---------------------------------------------------------------------------------------

    def dataset_status(self, slug: str) -> str | None:
        """Such as `ready`, `blobs_received` or `failed`. None if the dataset does not exist (yet)."""
        request = self._of_dataset(sdk.datasets.ApiGetDatasetStatusRequest(), slug)
        return self._found(f"{_DATASETS}/GetDatasetStatus", request, decode_dataset_state, "dataset_status")

    def dataset_files(self, slug: str) -> Mapping[str, int | None]:
        """Names and sizes in bytes of the files in its newest version, all pages. None: Kaggle does not say.
        Raises NotFound."""
        request = self._of_dataset(sdk.datasets.ApiListDatasetFilesRequest(), slug)
        request.page_size = OUTPUT_PAGE
        try:
            pages = list(self._pages(f"{_DATASETS}/ListDatasetFiles", request, decode_sizes))
        except Failure as failure:
            raise self._told(failure, "dataset_files") from None
        return {name: size for page in pages for name, size in page.items()}

    def create_dataset(self, slug: str, tokens: Sequence[str]) -> None:
        """Creates a private dataset of uploaded files. Raises Refused if Kaggle does not.

        Kaggle silently drops files that did not arrive (docs/references/kaggle.md#uploads): compare
        `dataset_files`. Raises Transient if it is unknown whether the dataset was created.
        """
        request = sdk.datasets.ApiCreateDatasetRequest()
        request.owner_slug, request.slug, request.title = self.username(), slug, slug
        request.license_name, request.is_private = "other", True
        request.files = [sdk.datasets.ApiDatasetNewFile.from_dict({"token": token}) for token in tokens]
        try:
            refused = self._write(f"{_DATASETS}/CreateDataset", request, decode_refusal)
        except Failure as failure:
            raise self._refused(failure, "create_dataset") from None
        if refused:
            raise self._error(Refused, "create_dataset", f"Kaggle did not create dataset {slug}: {refused}")

    def delete_dataset(self, slug: str) -> None:
        """Removes a dataset. No error if nothing shows it; Transient if it stays."""
        request = self._of_dataset(sdk.datasets.ApiDeleteDatasetRequest(), slug)
        rpc = f"{_DATASETS}/DeleteDataset"
        self._removed(rpc, request, "delete_dataset", lambda: self._has_dataset(slug))

    def _has_dataset(self, slug: str) -> bool:
        return self.dataset_status(slug) is not None or any(each.slug == slug for each in self.datasets())

    def start_upload(self, name: str, size: int, modified: float) -> Upload:
        """Where to put a file of `size` bytes, last modified at `modified` (unix seconds)."""
        request = sdk.blobs.ApiStartBlobUploadRequest()
        request.type = sdk.blobs.ApiBlobType.DATASET
        request.name, request.content_length = name, size
        request.last_modified_epoch_seconds = int(modified)
        try:
            return self._read("blobs.BlobApiService/StartBlobUpload", request, decode_upload)
        except Failure as failure:
            raise self._refused(failure, "upload") from None

    # --- How it is asked --------------------------------------------------------------------------------

    def _of_kernel(self, request: Any, slug: str) -> Any:
        request.user_name, request.kernel_slug = self.username(), slug
        return request

    def _of_dataset(self, request: Any, slug: str) -> Any:
        request.owner_slug, request.dataset_slug = self.username(), slug
        return request

    def _own(self, rpc: str, request: Any, key: str) -> tuple[Listed, ...]:
        owner = self.username()
        try:
            pages = list(self._pages(rpc, request, lambda body: decode_listed(body, key, owner)))
        except Failure as failure:
            told = self._told(failure, key)
            if isinstance(told, NotFound):  # the account has such a list, so this passes
                told = self._error(Transient, key, f"Kaggle does not show the list of {key}: {failure}")
            raise told from None
        return tuple({each.slug: each for page in pages for each in page}.values())

    # --- What an answer means ---------------------------------------------------------------------------

    def _found(
        self, rpc: str, request: Any, decode: Callable[[dict[str, Any]], T], operation: str
    ) -> T | None:
        return self._missing_is_none(operation, lambda: self._read(rpc, request, decode))

    def _missing_is_none(self, operation: str, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except Failure as failure:
            told = self._told(failure, operation)
        if isinstance(told, NotFound):
            return None
        raise told

    def _removed(self, rpc: str, request: Any, operation: str, is_there: Callable[[], bool]) -> bool:
        """Deletes once: a second deletion could hit a new thing of the same name. Returns whether Kaggle
        confirms it.

        Kaggle's refusal looks like "not found" (docs/references/kaggle.md#missing-or-denied), so `is_there`
        checks whether it still exists.
        """
        done = self._missing_is_none(operation, lambda: self._write(rpc, request, lambda _: True))
        if done is None and is_there():
            raise self._error(Transient, operation, "Kaggle did not remove it: it still exists")
        return done is not None

    def _told(self, failure: Failure, operation: str) -> BackendError:
        """The error to raise. Raises AccessDenied or Transient itself if the quota is refused too."""
        if failure.status in (401, 403, 404):
            if failure.status != 404:
                self._prove(operation, fresh=failure.status == 401)
            return self._error(
                NotFound, operation, f"not found in the Kaggle account of {self.username()}: {failure}"
            )
        return self._failed(failure, operation)

    def _refused(self, failure: Failure, operation: str) -> BackendError:
        """Like `_told`, for a request that creates something: "not found" then means "not allowed now", which
        may pass, such as a conflict."""
        told = self._told(failure, operation)
        if isinstance(told, NotFound):
            return self._error(
                Refused, operation, f"Kaggle does not allow this for {self.username()}: {failure}"
            )
        return told

    def _prove(self, operation: str, *, fresh: bool) -> None:
        """Checks that the credentials are valid, by asking for the quota now or a moment ago."""
        if not fresh and self.clock.monotonic() < self._proven_until:
            return
        try:
            self.quota()
        except BackendError as error:
            error.operation = operation
            raise
