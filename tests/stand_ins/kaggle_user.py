"""The real kaggle client, which tests drive against the local Kaggle. It cannot reach any other.

It is a subclass of KaggleApi with another endpoint (docs/references/kaggle.md#a-local-server).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from requests.adapters import HTTPAdapter

from orchestrator.platforms.kaggle import sdk
from tests.stand_ins.kaggle import LocalKaggle
from tests.waiting import wait_until

T = TypeVar("T")
TIMEOUT_SECONDS = 240.0  # on a machine that others use as well


class User(sdk.KaggleApi):  # type: ignore[misc]
    """The account of a local Kaggle, with short forms of common calls."""

    def __init__(self, kaggle: LocalKaggle, *, timeout: float = TIMEOUT_SECONDS, token: str = "") -> None:
        super().__init__()
        assert kaggle.url.startswith("http://127.0.0.1:")
        self._url = kaggle.url
        self._timeout = timeout
        self._token = token
        self._owner = kaggle.settings.username
        self.config_values = {
            self.CONFIG_NAME_USER: kaggle.settings.username,
            self.CONFIG_NAME_KEY: kaggle.settings.key,
        }

    def build_kaggle_client(self) -> Any:
        user, key = self.config_values[self.CONFIG_NAME_USER], self.config_values[self.CONFIG_NAME_KEY]
        client = sdk.kagglesdk.KaggleClient(
            sdk.kagglesdk.KaggleEnv.LOCAL, username=user, password=key, api_token=self._token or None
        )
        http = client.http_client()
        http._endpoint = self._url
        http._init_session()
        http._session.mount("http://", _Timeout(self._timeout))
        return client

    @property
    def kernels(self) -> Any:
        return self.build_kaggle_client().kernels.kernels_api_client

    @property
    def datasets(self) -> Any:
        return self.build_kaggle_client().datasets.dataset_api_client

    def push(
        self, slug: str, text: str, machine_shape: str = "NvidiaTeslaT4", *, owner: str = "", **values: Any
    ) -> Any:
        """A private script. Its slug is also its title."""
        request = sdk.kernels.ApiSaveKernelRequest()
        request.slug, request.new_title = f"{owner or self._owner}/{slug}", slug.replace("-", " ")
        request.text = text
        request.language, request.kernel_type, request.machine_shape = "python", "script", machine_shape
        request.is_private, request.enable_internet = True, False
        for name, value in values.items():
            setattr(request, name, value)
        return self.kernels.save_kernel(request)

    def status(self, slug: str, label: str = "") -> Any:
        request = _of(sdk.kernels.ApiGetKernelSessionStatusRequest(), self._owner, slug)
        request.version_label = label
        return self.kernels.get_kernel_session_status(request)

    def state(self, slug: str) -> str:
        return str(self.status(slug).status.name)

    def ends(self, slug: str) -> str:
        """Waits for the session's end and returns its final state."""
        ended = {"COMPLETE", "ERROR", "CANCEL_ACKNOWLEDGED"}
        return wait_until(lambda: state if (state := self.state(slug)) in ended else None, f"{slug} to end")

    def output(self, slug: str, **values: Any) -> Any:
        request = _of(sdk.kernels.ApiListKernelSessionOutputRequest(), self._owner, slug)
        for name, value in values.items():
            setattr(request, name, value)
        return self.kernels.list_kernel_session_output(request)

    def names(self, slug: str) -> list[str]:
        return [each.file_name for each in self.output(slug).files]

    def printed(self, slug: str) -> str:
        """The script's standard output, from the kept log."""
        events = json.loads(self.output(slug).log)
        return "".join(each["data"] for each in events if each["stream_name"] == "stdout")

    def delete(self, slug: str) -> None:
        self.kernels.delete_kernel(_of(sdk.kernels.ApiDeleteKernelRequest(), self._owner, slug))

    def create_dataset(self, folder: Path, slug: str, *, new: bool = True) -> Any:
        """Creates it from all files of a folder, with the client's own upload."""
        metadata = {"id": f"{self._owner}/{slug}", "title": slug, "licenses": [{"name": "other"}]}
        (folder / "dataset-metadata.json").write_text(json.dumps(metadata))
        if new:
            return self.dataset_create_new(str(folder), quiet=True)
        return self.dataset_create_version(str(folder), "again", quiet=True)


class _Timeout(HTTPAdapter):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def send(self, *args: Any, **kwargs: Any) -> Any:
        return super().send(*args, **{**kwargs, "timeout": self._seconds})


def _of(request: Any, owner: str, slug: str) -> Any:
    request.user_name, request.kernel_slug = owner, slug
    return request


def write_all(folder: Path, files: Iterable[tuple[str, bytes]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files:
        (folder / name).write_bytes(content)
    return folder
