"""What a store in Drive makes of refusals in Google's newer form, in both forms at once, and in neither."""

from __future__ import annotations

import pytest

from orchestrator.errors import AccessDenied, BackendError, Rejected, Transient
from orchestrator.stores.drive.store import DriveStore
from orchestrator.stores.retrying import RetryingStore
from tests.conformance.drives import drive, home, store
from tests.conformance.store_suite import KEY
from tests.stand_ins.drive import LocalDrive

__all__ = ["drive", "home", "store"]  # fixtures

NEWER: dict[str, tuple[type[BackendError], str]] = {
    "new-off": (AccessDenied, "enable the Google Drive API"),
    "both-off": (AccessDenied, "enable the Google Drive API"),
    "new-scope": (AccessDenied, "leave every box ticked"),
    "new-billing": (AccessDenied, "enable billing"),
    "new-denied": (AccessDenied, "check who may write to the folder"),
    "new-unknown": (AccessDenied, "MOON_IS_FULL PERMISSION_DENIED Come back at dawn"),
    "new-bad": (Rejected, "Precondition check failed"),
    "new-rate": (Transient, "Quota exceeded"),
    "both-rate": (Transient, "Quota exceeded"),
    "new-spent": (Transient, "Quota exceeded"),
}


@pytest.mark.parametrize("kind", NEWER)
def test_google_s_newer_errors_are_told_apart(drive: LocalDrive, store: DriveStore, kind: str) -> None:
    expected, words = NEWER[kind]
    drive.fail(kind, "list")
    with pytest.raises(BackendError, match=words) as caught:
        store.stat(KEY)
    assert type(caught.value) is expected


def test_only_what_passes_is_asked_for_again(drive: LocalDrive, store: DriveStore) -> None:
    patient = RetryingStore(store, attempts=3, sleep=lambda _: None)
    drive.fail("new-rate", "list", times=2)
    assert patient.stat(KEY) is None
    for kind in ("new-bad", "new-off"):
        drive.requests.clear()
        drive.fail(kind, "list")
        with pytest.raises(BackendError):
            patient.stat(KEY)
        assert drive.requests.count("list") == 1


ODD = {  # error → what it means with a 403
    '"access_denied"': Transient,
    '{"code": 403, "message": "Forbidden"}': AccessDenied,
    '{"details": {"reason": "SERVICE_DISABLED"}, "status": "PERMISSION_DENIED"}': AccessDenied,
    '{"details": ["RATE_LIMIT_EXCEEDED", {"reason": [1]}], "status": "PERMISSION_DENIED"}': AccessDenied,
    '{"details": 7, "errors": {"reason": "x"}, "status": {}, "message": []}': Transient,
    '{"details": [{"reason": "RATE_LIMIT_EXCEEDED"}], "errors": [{}], "status": 3}': Transient,
    '{"details": [{"reason": "BILLING_DISABLED"}], "errors": ["forbidden"]}': AccessDenied,
}


@pytest.mark.parametrize("error", ODD)
def test_a_refusal_of_an_odd_shape_is_understood_as_far_as_it_goes(
    drive: LocalDrive, store: DriveStore, error: str
) -> None:
    """A page of something in between is asked for again; what Drive itself refuses is told."""
    drive.fail(f"forbidden {error}", "list")
    with pytest.raises(ODD[error]) as caught:
        store.stat(KEY)
    assert type(caught.value) is ODD[error]
