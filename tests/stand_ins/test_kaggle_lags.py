"""What the local Kaggle keeps, renames, refuses or writes otherwise: datasets, names, quotas and its clock.

Seen through the real client. settings.py cites the source of each wart.
"""

from __future__ import annotations

import io
import tarfile
import time
from datetime import UTC
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest
import requests

from orchestrator.platforms.kaggle import sdk
from tests.stand_ins.kaggle import LocalKaggle, Settings, Warts, local_kaggle
from tests.stand_ins.kaggle_user import User, write_all
from tests.waiting import wait_until

FOREVER = "import threading\nthreading.Event().wait()\n"
FINDS = """
import os, pathlib, time
root = pathlib.Path('/kaggle/input')
found = lambda: [each for each in os.walk(root, followlinks=True) if each[2]]
while not found():
    time.sleep(0.01)
print([os.path.islink(root / 'datasets/ada/my-data'), sorted(found()[0][2])])
"""


def uploads(kaggle: LocalKaggle, folder: Path, slug: str = "my-data", **files: bytes) -> Any:
    write_all(folder, (files or {"one": b"1"}).items())
    return User(kaggle).create_dataset(folder, slug)


def pushes(kaggle: LocalKaggle, slug: str = "the-kernel", text: str = FOREVER, **values: Any) -> Any:
    return User(kaggle).push(slug, text, "", **values)


def kernels(user: User) -> list[str]:
    return [each.ref.removeprefix("ada/") for each in user.kernels_list(mine=True)]


def datasets(user: User) -> list[str]:
    return [each.ref.removeprefix("ada/") for each in user.dataset_list(mine=True)]


def deletes(user: User, slug: str) -> None:
    request = sdk.datasets.ApiDeleteDatasetRequest()
    request.owner_slug, request.dataset_slug = "ada", slug
    user.datasets.delete_dataset(request)


def asked(kaggle: LocalKaggle) -> requests.Response:
    """The quota, undecoded."""
    url = f"{kaggle.url}/api/v1/kernels.KernelsApiService/GetAcceleratorQuotaStatistics"
    return requests.post(url, json={}, auth=("ada", kaggle.settings.key))


# --- Datasets ---------------------------------------------------------------------------------------------


def test_a_ready_dataset_may_list_no_files_and_no_sizes(tmp_path: Path) -> None:
    with local_kaggle(tmp_path / "kaggle", warts=Warts(files_lag_seconds=3600)) as kaggle:
        uploads(kaggle, tmp_path / "up")
        user = User(kaggle)
        assert user.dataset_status("ada/my-data") == "ready"
        assert list(user.dataset_list_files("ada/my-data").dataset_files) == []
        kaggle.warts.files_lag_seconds, kaggle.warts.sizes_are_omitted = 0, True
        [file] = user.dataset_list_files("ada/my-data").dataset_files
        assert (file.name, file.total_bytes) == ("one", 0)


def test_a_ready_dataset_may_not_be_found_by_a_push(tmp_path: Path) -> None:
    with local_kaggle(tmp_path / "kaggle", warts=Warts(attach_lag_seconds=3600)) as kaggle:
        uploads(kaggle, tmp_path / "up")
        answer = pushes(kaggle, dataset_data_sources=["ada/my-data"])
        assert list(answer.invalid_dataset_sources) == ["ada/my-data"]
        kaggle.warts.attach_lag_seconds = 0
        answer = pushes(kaggle, "another-one", dataset_data_sources=["ada/my-data"])
        assert list(answer.invalid_dataset_sources) == []


def test_inputs_may_be_mounted_while_the_script_runs(tmp_path: Path) -> None:
    with local_kaggle(tmp_path / "kaggle", warts=Warts(mount_lag_seconds=60)) as kaggle:
        uploads(kaggle, tmp_path / "up")
        pushes(kaggle, dataset_data_sources=["ada/my-data"])
        session = kaggle.kernel("the-kernel")
        assert session.pid is not None
        assert list((session.folder / "input").iterdir()) == []
        kaggle.warts.mount_lag_seconds = 0.1
        pushes(kaggle, "waits-for-it", FINDS, dataset_data_sources=["ada/my-data"])
        user = User(kaggle)
        assert user.ends("waits-for-it") == "COMPLETE"
        assert user.printed("waits-for-it") == "[False, ['one']]\n"


def test_inputs_may_be_behind_links(tmp_path: Path) -> None:
    with local_kaggle(tmp_path / "kaggle", warts=Warts(inputs_are_links=True)) as kaggle:
        uploads(kaggle, tmp_path / "up")
        pushes(kaggle, text=FINDS, dataset_data_sources=["ada/my-data"])
        user = User(kaggle)
        assert user.ends("the-kernel") == "COMPLETE"
        assert user.printed("the-kernel") == "[True, ['one']]\n"


def test_an_archive_may_be_known_by_its_content(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("in.txt")
        archive.addfile(member)
    bare = packed.getvalue()
    with local_kaggle(tmp_path / "kaggle", warts=Warts(archives="content")) as kaggle:
        uploads(kaggle, tmp_path / "up", bare=bare, sealed=b"a header".ljust(64) + bare)
        names = [each.name for each in User(kaggle).dataset_list_files("ada/my-data").dataset_files]
        assert names == ["bare.unpacked/in.txt", "sealed"]


def test_a_list_of_files_may_come_in_short_pages(tmp_path: Path) -> None:
    with local_kaggle(tmp_path / "kaggle", warts=Warts(page_items_max=2)) as kaggle:
        uploads(kaggle, tmp_path / "up", a=b"1", b=b"2", c=b"3")
        page = User(kaggle).dataset_list_files("ada/my-data", page_size=200)
        assert [each.name for each in page.dataset_files] == ["a", "b"]
        page = User(kaggle).dataset_list_files("ada/my-data", page_token=page.next_page_token, page_size=200)
        assert ([each.name for each in page.dataset_files], page.next_page_token) == (["c"], "")


# --- Names ------------------------------------------------------------------------------------------------


def test_a_kernel_may_get_another_name_than_asked_for(tmp_path: Path) -> None:
    with local_kaggle(tmp_path, warts=Warts(slug_ending="-2")) as kaggle:
        answer = pushes(kaggle)
        assert answer.ref == "/code/ada/the-kernel-2"
        user = User(kaggle)
        assert user.state("the-kernel-2") == "RUNNING"
        assert [(each.ref, each.title) for each in user.kernels_list(mine=True)] == [
            ("ada/the-kernel-2", "the kernel")
        ]
        with pytest.raises(requests.HTTPError):
            user.state("the-kernel")


def test_a_deleted_name_may_stay_taken(tmp_path: Path) -> None:
    with local_kaggle(tmp_path / "kaggle", warts=Warts(deleted_stay_reserved=True)) as kaggle:
        user = User(kaggle)
        uploads(kaggle, tmp_path / "up")
        pushes(kaggle)
        user.delete("the-kernel")
        deletes(user, "my-data")
        assert "already in use" in pushes(kaggle).error
        assert "already in use" in uploads(kaggle, tmp_path / "up").error
        kaggle.warts.deleted_stay_reserved = False
        assert pushes(kaggle).error == uploads(kaggle, tmp_path / "up").error == ""


def test_kernels_and_datasets_may_share_their_names(tmp_path: Path) -> None:
    with local_kaggle(tmp_path / "kaggle", warts=Warts(names_are_shared=True)) as kaggle:
        pushes(kaggle, "same-name")
        assert "already in use" in uploads(kaggle, tmp_path / "up", "same-name").error
        uploads(kaggle, tmp_path / "up", "other-name")
        assert "already in use" in pushes(kaggle, "other-name").error
        kaggle.warts.names_are_shared = False
        assert pushes(kaggle, "other-name").error == ""


def test_what_was_deleted_may_linger(tmp_path: Path) -> None:
    with local_kaggle(tmp_path / "kaggle", warts=Warts(delete_lag_seconds=3600)) as kaggle:
        user = User(kaggle)
        uploads(kaggle, tmp_path / "up")
        pushes(kaggle)
        user.delete("the-kernel")
        deletes(user, "my-data")
        assert (kernels(user), datasets(user)) == (["the-kernel"], ["my-data"])
        assert user.state("the-kernel") == "CANCEL_ACKNOWLEDGED"
        pid = kaggle.kernel("the-kernel").pid
        assert not Path(f"/proc/{pid}").exists(), "it does not run any more"
        assert "already in use" in pushes(kaggle).error, "its name is not free"
        kaggle.warts.delete_lag_seconds = 0.05
        pushes(kaggle, "another-one")
        user.delete("another-one")
        wait_until(lambda: kernels(user) == ["the-kernel"], "the end of the other")


# --- The account ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "written"),
    [
        ("seconds", "108000.000s"),
        ("iso", "PT30H0M0.000S"),
        ("object", {"seconds": "108000", "nanos": 0}),
        ("number", 108000.0),
        ("missing", None),
    ],
)
def test_quotas_may_be_written_otherwise(tmp_path: Path, shape: Any, written: object) -> None:
    with local_kaggle(tmp_path, warts=Warts(quota_shape=shape)) as kaggle:
        assert asked(kaggle).json()["gpuQuota"].get("totalTimeAllowed") == written
        assert "timeUsed" in asked(kaggle).json()["gpuQuota"]


def test_the_servers_clock_may_be_ahead(tmp_path: Path) -> None:
    with local_kaggle(tmp_path, Settings(window_seconds=60), Warts(clock_ahead_seconds=600)) as kaggle:
        before = time.time()
        answer = asked(kaggle)
        told = parsedate_to_datetime(answer.headers["Date"]).timestamp()
        assert before + 599 <= told <= time.time() + 601
        refresh = sdk.kernels.ApiGetAcceleratorQuotaStatisticsResponse.from_dict(answer.json())
        naive = refresh.quota_refresh_time
        assert naive.replace(tzinfo=UTC).timestamp() - before > 590


def test_revoked_credentials_may_be_403(tmp_path: Path) -> None:
    with local_kaggle(tmp_path, warts=Warts(revoked_is_403=True)) as kaggle:
        kaggle.revoke()
        with pytest.raises(requests.HTTPError, match="Unauthenticated") as error:
            User(kaggle).quota_view()
        assert error.value.response.status_code == 403
