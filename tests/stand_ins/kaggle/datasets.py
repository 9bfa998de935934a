"""Datasets and their blobs: upload, versions, processing, listing, and mounting in a kernel.

The protocol is in docs/references/kaggle.md#uploads and docs/references/kaggle.md#datasets. Knows nothing of
HTTP except the status codes of its answers.
"""

from __future__ import annotations

import shutil
import tarfile
import time
import uuid
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.stand_ins.kaggle.listing import iso_now, missing, page
from tests.stand_ins.kaggle.settings import Refusal, Settings, Warts

Request = dict[str, Any]
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
_FILES_MAX = 50


@dataclass(frozen=True)
class Blob:
    """An upload, complete or not: `length` bytes are announced, and `path` holds those that have arrived."""

    token: str
    name: str
    length: int
    path: Path

    @property
    def received(self) -> int:
        return self.path.stat().st_size

    @property
    def is_complete(self) -> bool:
        return self.received == self.length


@dataclass(frozen=True)
class Version:
    """One version as kernels see it, in `folder`. It can be used from `ready_at` on (monotonic)."""

    number: int
    folder: Path
    ready_at: float
    created: str

    def files(self) -> list[tuple[str, Path]]:
        found = (path for path in sorted(self.folder.rglob("*")) if path.is_file())
        return [(path.relative_to(self.folder).as_posix(), path) for path in found]


@dataclass
class Dataset:
    id: int
    slug: str
    title: str
    is_private: bool
    versions: list[Version] = field(default_factory=list)
    was_asked: bool = False
    gone_at: float | None = None  # when it disappears after its deletion


class Datasets:
    """All datasets of the account. Its methods are the client's RPCs, with JSON in and out."""

    def __init__(self, folder: Path, settings: Settings, warts: Warts, sign: Callable[[Path], str]) -> None:
        self._folder = folder
        self._settings = settings
        self._warts = warts
        self._sign = sign
        self._all: dict[str, Dataset] = {}
        self._deleted: set[str] = set()
        self.names_of_kernels: Callable[[], set[str]] = set
        self.blobs: dict[str, Blob] = {}
        self._made = 0

    def start_upload(self, request: Request) -> Request:
        token = uuid.uuid4().hex
        path = self._folder / "blobs" / token
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self.blobs[token] = Blob(
            token, Path(request["name"]).name, int(request.get("contentLength", 0)), path
        )
        return {"token": token, "createUrl": f"upload/{token}"}

    def create(self, request: Request) -> Request:
        slug, title = request.get("slug", ""), request.get("title", "")
        if slug in self._all or self._is_taken(slug):
            return _error(f'The requested title "{title}" is already in use by a dataset.')
        self._made += 1
        made = Dataset(self._made, slug, title, request.get("isPrivate", False))
        answer = self._add(made, request.get("files", []))
        if answer["status"] == "ok":
            self._all[slug] = made
        return answer

    def create_version(self, request: Request) -> Request:
        found = self._find(request["ownerSlug"], request["datasetSlug"])
        if self._warts.busy_dataset_is_403 and not self._is_ready(found.versions[-1]):
            raise Refusal(403, "Permission 'datasets.update' was denied: the dataset is being processed")
        return self._add(found, request.get("body", {}).get("files", []))

    def rename(self, slug: str, name: str) -> None:
        found = self._all.pop(slug)
        folder = (self._folder / "datasets" / slug).rename(self._folder / "datasets" / name)
        found.slug = found.title = name
        found.versions = [replace(each, folder=folder / str(each.number)) for each in found.versions]
        self._all[name] = found

    def names(self) -> set[str]:
        return set(self._all)

    def _is_taken(self, slug: str) -> bool:
        reserved = self._warts.deleted_stay_reserved and slug in self._deleted
        return reserved or (self._warts.names_are_shared and slug in self.names_of_kernels())

    def attached(self, source: str) -> Version | None:
        """What a push finds: like what is mounted, but perhaps later."""
        version = self.version_for_kernel(source)
        if version is None or time.monotonic() < version.ready_at + self._warts.attach_lag_seconds:
            return None
        return version

    def status(self, request: Request) -> Request:
        found = self._find(request["ownerSlug"], request["datasetSlug"])
        if self._warts.first_dataset_status_is_403 and not found.was_asked:
            found.was_asked = True
            raise Refusal(403, "Permission 'datasets.get' was denied")
        ended = self._warts.dataset_end
        return {"status": ended if self._is_ready(found.versions[-1]) else "BLOBS_RECEIVED"}

    def get(self, request: Request) -> Request:
        return self._describe(self._find(request["ownerSlug"], request["datasetSlug"]))

    def list_datasets(self, request: Request) -> Request:
        """Lists `mine` or those of a user. There are no public ones here."""
        self._forget_deleted()
        is_mine = "MY" in request.get("group", "") or request.get("user") == self._settings.username
        wanted = request.get("search", "").lower()
        found = [
            each for each in self._all.values() if is_mine and wanted in f"{each.slug} {each.title}".lower()
        ]
        items, token = page(found, request, self._warts)
        return {"datasets": [self._describe(each) for each in items], "nextPageToken": token}

    def list_files(self, request: Request) -> Request:
        version = self._version(request)
        is_listed = time.monotonic() >= version.ready_at + self._warts.files_lag_seconds
        items, token = page(version.files() if is_listed else [], request, self._warts)
        files = [
            {"name": name, "totalBytes": path.stat().st_size, "creationDate": version.created}
            for name, path in items
        ]
        for each in files if self._warts.sizes_are_omitted else ():
            del each["totalBytes"]
        return {"datasetFiles": files, "nextPageToken": token}

    def delete(self, request: Request) -> Request:
        found = self._find(request["ownerSlug"], request["datasetSlug"])
        self._deleted.add(found.slug)
        found.gone_at = found.gone_at or time.monotonic() + self._warts.delete_lag_seconds
        self._forget_deleted()
        return {}

    def _forget_deleted(self) -> None:
        for dataset in list(self._all.values()):
            if dataset.gone_at is not None and time.monotonic() >= dataset.gone_at:
                del self._all[dataset.slug]
                shutil.rmtree(self._folder / "datasets" / dataset.slug)

    def download(self, request: Request) -> str:
        """The signed URL of one file, or of a zip of all files."""
        version = self._version(request)
        if name := request.get("fileName"):
            path = dict(version.files()).get(name)
            if path is None:
                raise Refusal(404, "Not found")
            return self._sign(path)
        return self._sign(
            Path(shutil.make_archive(str(version.folder.with_suffix(".all")), "zip", version.folder))
        )

    def version_for_kernel(self, source: str) -> Version | None:
        """The version that `owner/slug` or `owner/slug/number` mounts: the newest ready one, unless stale."""
        owner, slug, number = [*source.split("/"), "", ""][:3]
        found = self._all.get(slug) if owner == self._settings.username else None
        ready = [each for each in found.versions if self._is_ready(each)] if found else []
        if number:
            return next((each for each in ready if str(each.number) == number), None)
        if self._warts.stale_mount:
            ready = ready[:-1] or ready
        return ready[-1] if ready else None

    def _add(self, dataset: Dataset, files: list[Request]) -> Request:
        blobs = [self.blobs.get(each.get("token", "")) for each in files]
        arrived = [blob for blob in blobs if blob is not None and blob.is_complete]
        if not arrived or len(arrived) < len(blobs):
            return _error("Some of the files were not uploaded")
        if len(arrived) > _FILES_MAX:
            return _error(f"A dataset holds at most {_FILES_MAX} top-level files")
        number = len(dataset.versions) + 1
        folder = self._folder / "datasets" / dataset.slug / str(number)
        for blob in arrived:
            self._lay_out(blob, folder)
        ready_at = time.monotonic() + self._settings.ready_seconds
        dataset.versions.append(Version(number, folder, ready_at, iso_now()))
        ref = f"{self._settings.username}/{dataset.slug}"
        return {"ref": f"/{ref}", "url": f"https://www.kaggle.com/datasets/{ref}", "status": "ok"}

    def _lay_out(self, blob: Blob, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        suffix = next((each for each in _ARCHIVES if blob.name.lower().endswith(each)), "")
        by_content = self._warts.archives == "content" and _is_archive(blob.path)
        if not (suffix or by_content) or self._warts.archives == "kept":
            shutil.copyfile(blob.path, folder / blob.name)
            return
        name = blob.name.removesuffix(suffix) if suffix else f"{blob.name}.unpacked"
        into = folder if self._warts.archives == "flat" else folder / name
        if zipfile.is_zipfile(blob.path):
            with zipfile.ZipFile(blob.path) as archive:
                archive.extractall(into)
        else:
            with tarfile.open(blob.path) as archive:
                archive.extractall(into, filter="data")

    def _version(self, request: Request) -> Version:
        versions = self._find(request["ownerSlug"], request["datasetSlug"]).versions
        wanted = request.get("datasetVersionNumber") or len(versions)
        if wanted > len(versions):
            raise Refusal(404, "Not found")
        return versions[wanted - 1]

    def _find(self, owner: str, slug: str) -> Dataset:
        self._forget_deleted()
        found = self._all.get(slug) if owner == self._settings.username else None
        if found is None:
            raise missing("datasets.get", self._warts)
        return found

    def _is_ready(self, version: Version) -> bool:
        return time.monotonic() >= version.ready_at

    def _describe(self, dataset: Dataset) -> Request:
        newest = dataset.versions[-1]
        return {
            "id": dataset.id,
            "ref": f"{self._settings.username}/{dataset.slug}",
            "title": dataset.title,
            "isPrivate": dataset.is_private,
            "ownerName": self._settings.username,
            "ownerRef": self._settings.username,
            "currentVersionNumber": newest.number,
            "lastUpdated": newest.created,
            "totalBytes": sum(path.stat().st_size for _, path in newest.files()),
        }


def _is_archive(path: Path) -> bool:
    return tarfile.is_tarfile(path) or zipfile.is_zipfile(path)


def _error(words: str) -> Request:
    return {"status": "error", "error": words}
