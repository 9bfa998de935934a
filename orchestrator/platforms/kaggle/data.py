"""The data sets of Kaggle that a job reads: their versions, files and addresses, as an account sees them.

Through the account's own client, which `client` gives. Must never download anything itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import requests

from orchestrator.errors import BackendError, InputError, NotFound, Transient
from orchestrator.platforms.kaggle import sdk
from orchestrator.platforms.kaggle.answers import Failure, of_error, of_response
from orchestrator.platforms.kaggle.client import OUTPUT_PAGE, KaggleClient
from orchestrator.platforms.kaggle.values import decode_sizes

_DATASETS = "datasets.DatasetApiService"
_REDIRECTS = (301, 302, 303, 307, 308)
T = TypeVar("T")


class AccountData:
    """`place` is `owner/name`. Raises InputError for what Kaggle does not show, and BackendError."""

    def __init__(self, client: Callable[[], KaggleClient]) -> None:
        self._client = client

    def newest(self, place: str) -> int:
        """The number of its newest version."""
        request = _of(sdk.datasets.ApiGetDatasetRequest(), place)
        found = self._asked(
            place, lambda client: client._read(f"{_DATASETS}/GetDataset", request, lambda body: body)
        )
        number = found.get("currentVersionNumber")
        if not isinstance(number, int) or not 0 < number < 10**9:
            raise Transient(f"Kaggle does not say which version kaggle:{place} has", operation="fetch")
        return number

    def files(self, place: str, version: int) -> Mapping[str, int | None]:
        """Bytes of each file by its path; None: Kaggle does not say."""
        request = _of(sdk.datasets.ApiListDatasetFilesRequest(), place)
        request.dataset_version_number = version
        request.page_size = OUTPUT_PAGE
        pages = self._asked(
            f"{place}/{version}",
            lambda client: list(client._pages(f"{_DATASETS}/ListDatasetFiles", request, decode_sizes)),
        )
        return {name: size for page in pages for name, size in page.items()}

    def url(self, place: str, version: int, file: str) -> str:
        """The signed address of one file."""
        request = _of(sdk.datasets.ApiDownloadDatasetRequest(), place)
        request.dataset_version_number, request.file_name = version, file

        def again(client: KaggleClient) -> str:
            retrying = client.patience.retrying(lambda failure: failure.passing)
            found: str = retrying(_redirected, client, request)
            return found

        return self._asked(f"{place}/{version}/{file}", again)

    def _asked(self, place: str, ask: Callable[[KaggleClient], T]) -> T:
        client = self._client()
        try:
            return ask(client)
        except Failure as failure:
            try:
                told: BackendError = client._told(failure, "fetch")
            except BackendError as error:
                told = error
        if isinstance(told, NotFound):
            raise InputError(
                f"Kaggle does not show kaggle:{place} to {client.username()}: look for a typing error, and "
                "whether the account may see it"
            )
        raise told


def _of(request: Any, place: str) -> Any:
    request.owner_slug, _, request.dataset_slug = place.partition("/")
    return request


def _redirected(client: KaggleClient, request: Any) -> str:
    """Where Kaggle sends a download. Does not follow it, because the file may be large."""
    try:
        with client.build_kaggle_client() as kaggle:
            http = kaggle.http_client()
            prepared = http._prepare_request(_DATASETS, "DownloadDataset", request)
            settings = http._session.merge_environment_settings(prepared.url, {}, True, None, None)
            with http._session.send(prepared, allow_redirects=False, **settings) as response:
                if response.status_code in _REDIRECTS and response.headers.get("Location"):
                    return str(requests.compat.urljoin(prepared.url, response.headers["Location"]))
                raise of_response(response, client.clock, secrets=client._credentials.secrets)
    except requests.RequestException as error:
        raise of_error(error) from None
