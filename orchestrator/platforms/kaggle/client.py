"""One Kaggle account over the real `kaggle` package: its endpoint, timeouts, credentials and retries.

Decides which answers are worth asking again, and what each refusal means to the caller; nothing about
sessions. Must never log in by itself, read KAGGLE_* variables or files, print, or repeat a secret. Every
request has a connection of its own: threads share nothing, and no idle one is cut under a push.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from random import Random
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import requests
from requests.adapters import HTTPAdapter

from orchestrator.clock import Clock, SystemClock
from orchestrator.errors import AccessDenied, BackendError, InputError, NotFound, Rejected, Transient
from orchestrator.platforms.kaggle import sdk
from orchestrator.platforms.kaggle.answers import Failure, Patience, clean, of_error, of_response
from orchestrator.platforms.kaggle.credentials import SETTINGS, Credentials
from orchestrator.platforms.kaggle.options import PRODUCTION
from orchestrator.platforms.kaggle.values import (
    Output,
    OutputFile,
    Push,
    Pushed,
    Quotas,
    Status,
    Upload,
    decode_dataset_state,
    decode_output,
    decode_pushed,
    decode_quotas,
    decode_refs,
    decode_refusal,
    decode_sizes,
    decode_status,
    decode_upload,
    decode_username,
    encode_push,
)

NO_PRODUCTION = "ORCHESTRATOR_NO_PRODUCTION"  # set: only endpoints on this machine's loopback
PROVEN_SECONDS = 60.0
OUTPUT_PAGE = 200  # facts/kaggle.md §3
PAGE = 100
_KERNELS = "kernels.KernelsApiService"
_DATASETS = "datasets.DatasetApiService"
# Kaggle says of a full account with HTTP 200 what it may say with an error's status, too.
_FULL = ("quota", "session count")
T = TypeVar("T")


class _Json:
    """The answer as it came: the SDK's own decoder fails on what it does not know (facts/kaggle.md §1)."""

    @staticmethod
    def prepare_from(response: requests.Response) -> dict[str, Any]:
        body = response.json()
        if not isinstance(body, dict):
            raise ValueError
        code = body.get("code")
        if isinstance(body.get("error"), dict) or (isinstance(code, int) and code >= 400):
            raise requests.HTTPError(response=response)  # also where the status says 200
        return body


class _Redacted(logging.Filter):
    """urllib3 logs every path with its query, where signatures stand; some of it as a warning."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = clean(record.getMessage()), ()
        return True


logging.getLogger("urllib3.connectionpool").addFilter(_Redacted())


class _Timeouts(HTTPAdapter):
    """The SDK sets none, and the socket's default is not used (facts/kaggle.md §1)."""

    def __init__(self, timeout: tuple[float, float]) -> None:
        self._timeout = timeout
        super().__init__(max_retries=0)

    def send(self, request, stream=False, timeout=None, verify=True, cert=None, proxies=None):  # type: ignore[no-untyped-def]  # fmt: skip
        _keep_home(request.url)
        return super().send(request, stream, timeout or self._timeout, verify, cert, proxies)


def _without_credentials(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Set as a session's auth, it keeps `requests` from sending what ~/.netrc holds."""
    return request


class KaggleClient(sdk.KaggleApi):  # type: ignore[misc]
    """The account's kernels, datasets and quota; safe to use from several threads.

    `timeout`: seconds to connect, and between two bytes. Every verb raises Transient, AccessDenied or
    Rejected with `backend` and the operation. Where Kaggle says 401 or 403, which it also says of what is
    not there (facts/kaggle.md §2), the quota is asked: without it, access is denied; with it, the thing is
    missing (None, or NotFound). Reads are tried `attempts` times, writes only where they took no effect.
    """

    args: tuple[str, ...] = ()
    config_values: Mapping[str, str] = {}

    def __init__(self, credentials: Credentials, *, endpoint: str = PRODUCTION,
                 timeout: tuple[float, float] = (10.0, 60.0), attempts: int = 4, backend: str = "kaggle",
                 clock: Clock | None = None,
                 sleep: Callable[[float], None] | None = None) -> None:  # fmt: skip
        """Raises InputError for an endpoint that must not be used."""
        self.endpoint = _checked(endpoint)
        self.backend = backend
        self.clock = clock or SystemClock()
        self.patience = Patience(attempts, sleep or self._sleep, Random())
        self._credentials = credentials
        self._timeout = timeout
        self._proven_until = -1.0

    def build_kaggle_client(self) -> Any:
        """The SDK's client of this account, its session ready: no variable and no file has a say in it."""
        production = self.endpoint == PRODUCTION
        env = sdk.kagglesdk.KaggleEnv.PROD if production else sdk.kagglesdk.KaggleEnv.LOCAL
        client = sdk.kagglesdk.KaggleClient(env=env)
        http = client.http_client()
        http._endpoint = self.endpoint
        http._signed_in = True  # or it would look for credentials by itself
        http._init_session()
        http._session.auth = self._auth()
        self._mount(http._session)
        return client

    def session(self) -> requests.Session:
        """For one request to a signed URL: the timeouts, without the credentials. The caller closes it."""
        session = requests.Session()
        session.auth = _without_credentials
        session.headers["Accept-Encoding"] = "identity"  # lengths and ranges count what is stored
        self._mount(session)
        return session

    # --- The account ------------------------------------------------------------------------------------

    def quota(self) -> Quotas:
        """What is used, reserved and allowed now. AccessDenied where the credentials are not valid."""
        request = sdk.kernels.ApiGetAcceleratorQuotaStatisticsRequest()
        try:
            found = self._read(f"{_KERNELS}/GetAcceleratorQuotaStatistics", request, decode_quotas)
        except Failure as failure:
            raise self._denied(failure, "quota") from None
        self._proven_until = self.clock.monotonic() + PROVEN_SECONDS
        return found

    def kernels(self) -> tuple[str, ...]:
        """The slugs of our own kernels, all pages."""
        request = sdk.kernels.ApiListKernelsRequest()
        request.group = sdk.kernel_enums.KernelsListViewType.PROFILE
        request.page_size = PAGE
        return self._own(f"{_KERNELS}/ListKernels", request, "kernels")

    def datasets(self) -> tuple[str, ...]:
        """The slugs of our own datasets, all pages."""
        request = sdk.datasets.ApiListDatasetsRequest()
        request.group = sdk.dataset_enums.DatasetSelectionGroup.DATASET_SELECTION_GROUP_MY
        request.page_size = PAGE
        return self._own(f"{_DATASETS}/ListDatasets", request, "datasets")

    # --- Kernels ----------------------------------------------------------------------------------------

    def status(self, slug: str) -> Status | None:
        """Of the newest version (facts/kaggle.md §3); None where there is no such kernel."""
        request = self._of_kernel(sdk.kernels.ApiGetKernelSessionStatusRequest(), slug)
        return self._found(f"{_KERNELS}/GetKernelSessionStatus", request, decode_status, "status")

    def push(self, push: Push) -> Pushed:
        """Saves a private kernel and runs it. Transient where nobody knows whether it did: look before
        pushing again (facts/kaggle.md §6.3). What Kaggle refuses comes as `error` or `invalid`."""
        request = encode_push(sdk.kernels.ApiSaveKernelRequest(), self.owner, push)
        try:
            return self._write(f"{_KERNELS}/SaveKernel", request, decode_pushed)
        except Failure as failure:
            if 400 <= failure.status < 500 and any(word in str(failure).lower() for word in _FULL):
                return Pushed(0, str(failure), ())
            raise self._told(failure, "push") from None

    def output(self, slug: str) -> Output | None:
        """The files and the log of the newest version, all pages; None where there is no such kernel.
        Names are as the server says: see `downloads.safe`. The log is empty while it runs."""
        request = self._of_kernel(sdk.kernels.ApiListKernelSessionOutputRequest(), slug)
        request.page_size = OUTPUT_PAGE
        rpc = f"{_KERNELS}/ListKernelSessionOutput"
        pages = self._missing_is_none("output", lambda: list(self._pages(rpc, request, decode_output)))
        if pages is None:
            return None
        files: list[OutputFile] = [file for page in pages for file in page.files]
        return Output(tuple(files), next((page.log for page in pages if page.log), ""))

    def delete_kernel(self, slug: str) -> None:
        """Ends and removes it with all its outputs; nothing where it is not there."""
        request = self._of_kernel(sdk.kernels.ApiDeleteKernelRequest(), slug)
        self._removed(f"{_KERNELS}/DeleteKernel", request, "delete_kernel")

    def log_response(self, slug: str) -> requests.Response | None:
        """The log as a stream, which the caller closes: server-sent events while the kernel runs, a JSON
        array after (facts/kaggle.md §3). None where there is no such kernel."""
        path = f"kernels/logs/stream/{quote(self.owner)}/{quote(slug)}"
        again = self.patience.retrying(lambda failure: failure.passing)
        return self._missing_is_none("logs", lambda: again(self._stream, path))

    # --- Datasets ---------------------------------------------------------------------------------------

    def dataset_status(self, slug: str) -> str | None:
        """As `ready`, `blobs_received` or `failed`; None where there is none, or none yet."""
        request = self._of_dataset(sdk.datasets.ApiGetDatasetStatusRequest(), slug)
        return self._found(f"{_DATASETS}/GetDatasetStatus", request, decode_dataset_state, "dataset_status")

    def dataset_files(self, slug: str) -> Mapping[str, int]:
        """Names and bytes of its newest version, all pages. Raises NotFound."""
        request = self._of_dataset(sdk.datasets.ApiListDatasetFilesRequest(), slug)
        request.page_size = OUTPUT_PAGE
        try:
            pages = list(self._pages(f"{_DATASETS}/ListDatasetFiles", request, decode_sizes))
        except Failure as failure:
            raise self._told(failure, "dataset_files") from None
        return {name: size for page in pages for name, size in page.items()}

    def create_dataset(self, slug: str, tokens: Sequence[str]) -> None:
        """A private dataset of uploaded files. Kaggle drops what did not arrive without a word
        (facts/kaggle.md §4): compare `dataset_files`. Transient where nobody knows whether it was made."""
        request = sdk.datasets.ApiCreateDatasetRequest()
        request.owner_slug, request.slug, request.title = self.owner, slug, slug
        request.license_name, request.is_private = "other", True
        request.files = [sdk.datasets.ApiDatasetNewFile.from_dict({"token": token}) for token in tokens]
        try:
            refused = self._write(f"{_DATASETS}/CreateDataset", request, decode_refusal)
        except Failure as failure:
            raise self._told(failure, "create_dataset") from None
        if refused:
            raise self._error(Rejected, "create_dataset", f"Kaggle made no dataset {slug}: {refused}")

    def delete_dataset(self, slug: str) -> None:
        """Nothing where it is not there."""
        request = self._of_dataset(sdk.datasets.ApiDeleteDatasetRequest(), slug)
        self._removed(f"{_DATASETS}/DeleteDataset", request, "delete_dataset")

    def start_upload(self, name: str, size: int, modified: float) -> Upload:
        """Where to put a file of `size` bytes, last modified at `modified` (unix seconds)."""
        request = sdk.blobs.ApiStartBlobUploadRequest()
        request.type = sdk.blobs.ApiBlobType.DATASET
        request.name, request.content_length = name, size
        request.last_modified_epoch_seconds = int(modified)
        try:
            return self._read("blobs.BlobApiService/StartBlobUpload", request, decode_upload)
        except Failure as failure:
            raise self._told(failure, "upload") from None

    # --- How it is asked --------------------------------------------------------------------------------

    def _name(self) -> str:
        """The account's name, asked for once where a token came without one."""
        if self._credentials.username:
            return self._credentials.username
        request = sdk.oauth.IntrospectTokenRequest()
        request.token = self._credentials.token
        try:
            name = self._read("security.OAuthService/IntrospectToken", request, decode_username)
        except Failure as failure:
            if not failure.passing:
                failure.status = 401  # of a token it does not know it says 400 or 404, too
            raise self._denied(failure, "login") from None
        if not name:
            raise self._denied(Failure("the token is not active", status=401), "login")
        return name

    owner = cached_property(_name)

    def _auth(self) -> Any:
        if self._credentials.token:
            bearer = sdk.http_client.KaggleHttpClient.BearerAuth
            return bearer(self._credentials.token)
        return (self._credentials.username, self._credentials.key)

    def _mount(self, session: requests.Session) -> None:
        session.headers["Connection"] = "close"
        session.trust_env = self.endpoint == PRODUCTION  # proxies; a local server is reached without any
        for scheme in ("https://", "http://"):
            session.mount(scheme, _Timeouts(self._timeout))

    def _sleep(self, seconds: float) -> None:
        self.clock.wait(threading.Event(), seconds)

    def _of_kernel(self, request: Any, slug: str) -> Any:
        request.user_name, request.kernel_slug = self.owner, slug
        return request

    def _of_dataset(self, request: Any, slug: str) -> Any:
        request.owner_slug, request.dataset_slug = self.owner, slug
        return request

    def _read(self, rpc: str, request: Any, decode: Callable[[dict[str, Any]], T]) -> T:
        again = self.patience.retrying(lambda failure: failure.passing)
        answer: T = again(self._call, rpc, request, decode)
        return answer

    def _write(self, rpc: str, request: Any, decode: Callable[[dict[str, Any]], T]) -> T:
        again = self.patience.retrying(lambda failure: failure.untouched)
        answer: T = again(self._call, rpc, request, decode)
        return answer

    def _call(self, rpc: str, request: Any, decode: Callable[[dict[str, Any]], T]) -> T:
        """One RPC, once. Raises Failure only."""
        service, _, method = rpc.partition("/")
        try:
            with self.build_kaggle_client() as kaggle:
                return decode(kaggle.http_client().call(service, method, request, _Json))
        except requests.HTTPError as error:
            raise of_response(error.response, self.clock, secrets=self._credentials.secrets) from None
        except (KeyError, TypeError, ValueError, AttributeError):  # `requests` calls bad JSON a ValueError
            raise Failure("an answer that cannot be read") from None
        except requests.RequestException as error:
            raise of_error(error) from None

    def _stream(self, path: str) -> requests.Response:
        base = self.endpoint if self.endpoint == PRODUCTION else f"{self.endpoint}/api"
        headers = {"Accept": "text/event-stream, */*", "Content-Type": None}
        try:
            with self.build_kaggle_client() as kaggle:
                session = kaggle.http_client()._session
                response: requests.Response = session.get(f"{base}/v1/{path}", stream=True, headers=headers)
        except requests.RequestException as error:
            raise of_error(error) from None
        if response.ok and "html" not in response.headers.get("Content-Type", "").lower():
            return response
        with response:
            if response.ok:
                raise Failure("a page instead of a log")
            raise of_response(response, self.clock, secrets=self._credentials.secrets)

    def _pages(self, rpc: str, request: Any, decode: Callable[[dict[str, Any]], T]) -> Iterator[T]:
        seen = {""}
        while True:
            page, token = self._read(
                rpc, request, lambda body: (decode(body), str(body.get("nextPageToken") or ""))
            )
            yield page
            if not token:
                return
            if token in seen:
                raise Failure("its pages do not end")
            seen.add(token)
            request.page_token = token

    def _own(self, rpc: str, request: Any, key: str) -> tuple[str, ...]:
        owner = self.owner
        try:
            pages = list(self._pages(rpc, request, lambda body: decode_refs(body, key)))
        except Failure as failure:
            raise self._told(failure, key) from None
        mine = (ref.partition("/") for page in pages for ref in page)
        return tuple(dict.fromkeys(slug for whose, _, slug in mine if whose.lower() == owner.lower()))

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

    def _removed(self, rpc: str, request: Any, operation: str) -> None:
        """Once: a second deletion could hit what was made anew under the same name."""
        self._missing_is_none(operation, lambda: self._write(rpc, request, lambda _: None))

    def _told(self, failure: Failure, operation: str) -> BackendError:
        """The error to raise; itself raises AccessDenied or Transient where the quota is refused, too."""
        if failure.status in (401, 403, 404):
            if failure.status != 404:
                self._prove(operation, fresh=failure.status == 401)
            return self._error(NotFound, operation, f"Kaggle has no such thing of {self.owner}: {failure}")
        return self._error(Transient if failure.passing else Rejected, operation, f"Kaggle: {failure}")

    def _prove(self, operation: str, *, fresh: bool) -> None:
        """That the credentials are valid: the quota says so, or said so a moment ago."""
        if not fresh and self.clock.monotonic() < self._proven_until:
            return
        try:
            self.quota()
        except BackendError as error:
            error.operation = operation
            raise

    def _denied(self, failure: Failure, operation: str) -> BackendError:
        if failure.status not in (401, 403):
            return self._error(Transient if failure.passing else Rejected, operation, f"Kaggle: {failure}")
        whose = f" of {self._credentials.username}" if self._credentials.username else ""
        return self._error(
            AccessDenied,
            operation,
            f"Kaggle refuses the credentials{whose} ({failure}): make a new token at {SETTINGS}",
        )

    def _error(self, kind: type[BackendError], operation: str, text: str) -> BackendError:
        return kind(text, backend=self.backend, operation=operation)


def _checked(endpoint: str) -> str:
    """Credentials go to Kaggle, or to a server on this machine. Raises InputError."""
    _keep_home(endpoint)
    if urlsplit(endpoint).scheme != "https" and not _on_loopback(endpoint):
        raise InputError(f"{_host(endpoint)!r} would get the credentials in the clear; use https")
    return endpoint.rstrip("/")


def _keep_home(url: str) -> None:
    """Raises InputError for what is not on this machine, where NO_PRODUCTION is set."""
    if os.environ.get(NO_PRODUCTION) and not _on_loopback(url):
        raise InputError(f"{NO_PRODUCTION} is set and {_host(url)!r} is not on this machine's loopback")


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


def _on_loopback(url: str) -> bool:
    try:
        return ipaddress.ip_address(_host(url)).is_loopback
    except ValueError:
        return _host(url) == "localhost"
