"""Datasets on the local Kaggle, seen through the real client: uploads, versions, processing, mounts.

The expected behaviour is in docs/references/kaggle.md#uploads and docs/references/kaggle.md#datasets. For
what a kernel sees, it is in docs/references/kaggle.md#inputs.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests

from orchestrator.platforms.kaggle import sdk
from tests.stand_ins.kaggle import Fault, LocalKaggle, Settings, Warts, local_kaggle
from tests.stand_ins.kaggle_user import User, write_all

LISTS = (
    "from pathlib import Path\n"
    "root = Path('/kaggle/input/')\n"
    "for path in sorted(root.rglob('*')):\n"
    "    if path.is_file(): print(path.relative_to(root), path.read_text())\n"
)


def uploads(kaggle: LocalKaggle, folder: Path, *, slug: str = "my-data", **files: bytes) -> Any:
    write_all(folder, files.items())
    return User(kaggle).create_dataset(folder, slug)


def mounted(kaggle: LocalKaggle, *sources: str, kind: str = "dataset", slug: str = "reads-it") -> str:
    """What a kernel with these sources finds under /kaggle/input: one line per file, with its content."""
    user = User(kaggle)
    values: dict[str, Any] = {f"{kind}_data_sources": list(sources)}
    answer = user.push(slug, LISTS, **values)
    assert answer.error == ""
    assert user.ends(slug) == "COMPLETE", user.output(slug).log
    return user.printed(slug)


def deletes(user: User, slug: str) -> None:
    request = sdk.datasets.ApiDeleteDatasetRequest()
    request.owner_slug, request.dataset_slug = "ada", slug
    user.datasets.delete_dataset(request)


def test_a_dataset_is_uploaded_listed_and_mounted(tmp_path: Path) -> None:
    with local_kaggle(tmp_path / "kaggle") as kaggle:
        made = uploads(kaggle, tmp_path / "up", one=b"1", empty=b"")
        assert (made.status, made.error) == ("ok", "")
        user = User(kaggle)
        assert user.dataset_status("ada/my-data") == "ready"
        listed = user.dataset_list_files("ada/my-data").dataset_files
        assert {each.name: each.total_bytes for each in listed} == {"one": 1, "empty": 0}
        assert [each.ref for each in user.dataset_list(mine=True, search="my")] == ["ada/my-data"]
        assert list(user.dataset_list(mine=True, search="other")) == []
        assert mounted(kaggle, "ada/my-data") == "datasets/ada/my-data/empty \ndatasets/ada/my-data/one 1\n"
        assert sorted(path.read_bytes() for path in kaggle.uploaded) == [b"", b"1"]
        user.dataset_download_files("ada/my-data", path=str(tmp_path / "down"))
        assert sorted(zipfile.ZipFile(tmp_path / "down/my-data.zip").namelist()) == ["empty", "one"]


def test_a_second_creation_is_an_answer_with_an_error(tmp_path: Path) -> None:
    with local_kaggle(tmp_path / "kaggle") as kaggle:
        uploads(kaggle, tmp_path / "up", one=b"1")
        request = sdk.datasets.ApiCreateDatasetRequest()
        request.owner_slug, request.slug, request.title = "ada", "my-data", "my-data"
        again = User(kaggle).datasets.create_dataset(request)
        assert again.status == "error"
        assert "already in use" in again.error


def test_versions_add_up_and_the_newest_is_mounted(tmp_path: Path) -> None:
    with local_kaggle(tmp_path / "kaggle", warts=Warts(stale_mount=True)) as kaggle:
        uploads(kaggle, tmp_path / "up", one=b"old")
        write_all(tmp_path / "up", [("one", b"new")])
        assert User(kaggle).create_dataset(tmp_path / "up", "my-data", new=False).status == "ok"
        assert mounted(kaggle, "ada/my-data", slug="sees-stale") == "datasets/ada/my-data/one old\n"
        kaggle.warts.stale_mount = False
        assert mounted(kaggle, "ada/my-data") == "datasets/ada/my-data/one new\n"
        assert mounted(kaggle, "ada/my-data/1", slug="sees-one") == "datasets/ada/my-data/one old\n"


def test_a_version_is_processed_before_it_is_ready(tmp_path: Path) -> None:
    with local_kaggle(tmp_path / "kaggle", Settings(ready_seconds=3600)) as kaggle:
        uploads(kaggle, tmp_path / "up", one=b"1")
        user = User(kaggle)
        assert user.dataset_status("ada/my-data") == "blobs_received"
        early = user.push("too-early", LISTS, dataset_data_sources=["ada/my-data"])
        assert list(early.invalid_dataset_sources) == ["ada/my-data"]
        with pytest.raises(requests.HTTPError) as error:
            user.create_dataset(tmp_path / "up", "my-data", new=False)
        assert error.value.response.status_code == 403
        kaggle.warts.busy_dataset_is_403 = False
        assert user.create_dataset(tmp_path / "up", "my-data", new=False).status == "ok"
        versions = kaggle.datasets._all["my-data"].versions
        versions[:] = [replace(each, ready_at=0.0) for each in versions]
        assert user.dataset_status("ada/my-data") == "ready"
        assert mounted(kaggle, "ada/my-data") == "datasets/ada/my-data/one 1\n"


def test_processing_may_fail_and_the_first_status_may_be_denied(tmp_path: Path) -> None:
    warts = Warts(dataset_end="FAILED", first_dataset_status_is_403=True)
    with local_kaggle(tmp_path / "kaggle", warts=warts) as kaggle:
        uploads(kaggle, tmp_path / "up", one=b"1")
        user = User(kaggle)
        with pytest.raises(requests.HTTPError, match=r"datasets\.get"):
            user.dataset_status("ada/my-data")
        assert user.dataset_status("ada/my-data") == "failed"


@pytest.mark.parametrize(
    ("layout", "seen"),
    [("folder", "pack/in.txt tar\nzipped/in.txt zip\n"), ("kept", "pack.tgz"), ("flat", "in.txt ")],
)
def test_archives_are_unpacked_unless_kept(tmp_path: Path, layout: Any, seen: str) -> None:
    tar, zipped = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w:gz") as archive:
        member = tarfile.TarInfo("in.txt")
        member.size = 3
        archive.addfile(member, io.BytesIO(b"tar"))
    with zipfile.ZipFile(zipped, "w") as other:
        other.writestr("in.txt", "zip")
    write_all(tmp_path / "up", [("pack.tgz", tar.getvalue()), ("zipped.zip", zipped.getvalue())])
    with local_kaggle(tmp_path / "kaggle", warts=Warts(archives=layout)) as kaggle:
        User(kaggle).create_dataset(tmp_path / "up", "my-data")
        names = [each.name for each in User(kaggle).dataset_list_files("ada/my-data").dataset_files]
        expected = {"folder": ["pack/in.txt", "zipped/in.txt"], "kept": ["pack.tgz", "zipped.zip"]}
        assert names == expected.get(layout, ["in.txt"])
        if layout != "kept":
            lines = mounted(kaggle, "ada/my-data").replace("datasets/ada/my-data/", "")
            assert lines.startswith(seen)


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.CUT, Fault.LOST_REPLY])
def test_an_interrupted_upload_is_resumed(tmp_path: Path, fault: Fault) -> None:
    content = bytes(range(256)) * 4000
    with local_kaggle(tmp_path / "kaggle") as kaggle:
        kaggle.fail("upload", fault)
        assert uploads(kaggle, tmp_path / "up", big=content).status == "ok"
        assert kaggle.calls.count("StartBlobUpload") == 1
        assert kaggle.calls.count("upload") > 1
        assert [path.read_bytes() for path in kaggle.uploaded] == [content]


def test_a_probe_says_how_much_has_arrived(tmp_path: Path) -> None:
    with local_kaggle(tmp_path / "kaggle") as kaggle:
        request = sdk.blobs.ApiStartBlobUploadRequest()
        request.type, request.name, request.content_length = sdk.blobs.ApiBlobType.DATASET, "big", 10
        url = User(kaggle).build_kaggle_client().blobs.blob_api_client.start_blob_upload(request).create_url
        probe = requests.put(url, headers={"Content-Range": "bytes */10"})
        assert (probe.status_code, probe.headers.get("Range")) == (308, None)
        kaggle.fail("upload", Fault.UNAVAILABLE)
        assert requests.put(url, data=b"0123456789").status_code == 503
        probe = requests.put(url, headers={"Content-Range": "bytes */10"})
        assert (probe.status_code, probe.headers["Range"]) == (308, "bytes=0-4")
        tail = requests.put(url, data=b"56789", headers={"Content-Range": "bytes 5-9/10"})
        assert (tail.status_code, kaggle.uploaded[0].read_bytes()) == (200, b"0123456789")


def test_of_a_denied_upload_no_dataset_is_made(tmp_path: Path) -> None:
    with local_kaggle(tmp_path / "kaggle") as kaggle:
        kaggle.fail("upload", Fault.NESTED)
        with pytest.raises(ValueError, match=r"Upload unsuccessful: (one|two)"):
            uploads(kaggle, tmp_path / "up", one=b"1", two=b"2")
        with pytest.raises(requests.HTTPError):
            User(kaggle).dataset_list_files("ada/my-data")


def test_what_is_not_there_is_not_mounted(tmp_path: Path) -> None:
    with local_kaggle(tmp_path / "kaggle") as kaggle:
        uploads(kaggle, tmp_path / "up", one=b"1")
        user = User(kaggle)
        deletes(user, "my-data")
        with pytest.raises(requests.HTTPError):
            user.dataset_status("ada/my-data")
        sources = ["ada/my-data", "bob/his-data"]
        answer = user.push(
            "starts-bare", LISTS, dataset_data_sources=sources, kernel_data_sources=["ada/none"]
        )
        assert list(answer.invalid_dataset_sources) == sources
        assert list(answer.invalid_kernel_sources) == ["ada/none"]
        assert user.ends("starts-bare") == "COMPLETE"
        assert user.printed("starts-bare") == ""


def test_the_output_of_a_kernel_is_mounted(tmp_path: Path) -> None:
    with local_kaggle(tmp_path / "kaggle") as kaggle:
        user = User(kaggle)
        user.push("writes-it", "open('/kaggle/working/out.txt', 'w').write('x')")
        assert user.ends("writes-it") == "COMPLETE"
        seen = mounted(kaggle, "ada/writes-it", kind="kernel")
        assert seen == "notebooks/ada/writes-it/out.txt x\n"


def test_inputs_may_lie_where_they_once_did(tmp_path: Path) -> None:
    with local_kaggle(tmp_path / "kaggle", warts=Warts(old_input_layout=True)) as kaggle:
        uploads(kaggle, tmp_path / "up", one=b"1")
        assert mounted(kaggle, "ada/my-data") == "my-data/one 1\n"
