"""The login and the folder of a store in Drive: what ends, what is missing, and what a person then reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from orchestrator.errors import AccessDenied, Rejected
from orchestrator.stores.drive.opening import carried
from orchestrator.stores.drive.store import DriveStore
from tests.conformance.drives import DATA, configured, drive, home, objects, parts, store, stubborn
from tests.conformance.store_suite import KEY, Source, sha256, source
from tests.stand_ins.drive import LocalDrive, local_drive
from tests.stand_ins.drive.tokens import REFRESH, write_login

NO_REFRESH = """{"_class": "OAuth2Credentials", "_module": "oauth2client.client", "access_token": "a",
"client_id": "c", "client_secret": "s", "refresh_token": null, "token_expiry": "2020-01-01T00:00:00Z",
"token_uri": "http://127.0.0.1:1/", "user_agent": null, "invalid": false}"""

__all__ = ["drive", "home", "parts", "source", "store"]  # fixtures


def test_an_access_token_that_ends_is_renewed_in_silence(
    drive: LocalDrive, parts: DriveStore, source: Source, tmp_path: Path
) -> None:
    path, digest = source(DATA)
    parts.put(KEY, path, digest)
    before = drive.tokens.count
    drive.tokens.expire()
    parts.get(KEY, tmp_path / "target", digest)
    assert drive.tokens.count == before + 1


def test_a_consent_that_ended_needs_a_person_and_no_restart(
    drive: LocalDrive, home: Path, store: DriveStore
) -> None:
    assert store.stat(KEY) is None
    login = (home / "drive-credentials.json").read_bytes()
    drive.tokens.expire()
    drive.tokens.is_revoked = True
    for _ in range(2):
        with pytest.raises(AccessDenied, match=r"init drive.*Testing.*7 days: publish it") as caught:
            store.stat(KEY)
        assert REFRESH not in str(caught.value)
    assert (home / "drive-credentials.json").read_bytes() == login, (
        "an error of theirs changes no file of ours"
    )
    drive.tokens.is_revoked = False
    assert store.stat(KEY) is None


@pytest.mark.parametrize("kind", ["drop", "html", "html-ok", "503", "empty"])
def test_a_login_server_in_trouble_is_worth_another_try(
    drive: LocalDrive, store: DriveStore, kind: str
) -> None:
    drive.fail(kind, "token", times=2)
    stubborn(lambda: store.stat(KEY))
    drive.tokens.expire()
    drive.fail(kind, "token", times=2)
    stubborn(lambda: store.stat(KEY))
    assert drive.faults.left == 0


@pytest.mark.parametrize("text", [None, "", "{}", "[]", '{"_class": 1}', "\0", NO_REFRESH])
def test_a_login_that_is_missing_or_broken_is_told_with_its_remedy(
    drive: LocalDrive, home: Path, store: DriveStore, text: str | None
) -> None:
    path = home / "drive-credentials.json"
    path.unlink()
    if text is not None:
        path.write_text(text)
        path.chmod(0o600)
    with pytest.raises(AccessDenied, match="init drive"):
        store.stat(KEY)
    write_login(path, drive.url)
    assert store.stat(KEY) is None


def test_a_login_that_others_may_read_is_refused(home: Path, store: DriveStore) -> None:
    (home / "drive-credentials.json").chmod(0o640)
    with pytest.raises(AccessDenied, match="chmod 600"):
        store.stat(KEY)


@pytest.mark.parametrize("what", ["missing", "file", "trash"])
def test_a_folder_that_cannot_be_used_is_told(drive: LocalDrive, store: DriveStore, what: str) -> None:
    folder = drive.disk.files[drive.disk.folder]
    if what == "missing":
        del drive.disk.files[drive.disk.folder]
    elif what == "file":
        folder.fields["mimeType"] = "text/plain"
    else:
        folder.is_trashed = True
    with pytest.raises(Rejected if what == "file" else AccessDenied):
        store.stat(KEY)


def test_a_folder_in_the_trash_is_no_empty_store(
    drive: LocalDrive, store: DriveStore, source: Source
) -> None:
    store.put(KEY, *source(b"bytes"))
    drive.disk.files[drive.disk.folder].is_trashed = True
    with pytest.raises(AccessDenied, match="trash"):
        store.stat("another")


@pytest.mark.filterwarnings("ignore:sign:DeprecationWarning")  # oauth2client signs with an old call
def test_a_service_account_needs_a_shared_drive(
    drive: LocalDrive, home: Path, source: Source, tmp_path: Path
) -> None:
    key = home / "key.json"
    key.write_text(json.dumps(service_key(drive.url)))
    key.chmod(0o600)
    store = configured(drive, home, service_account="key.json")
    with pytest.raises(Rejected, match="shared drive"):
        store.put(KEY, *source(b"bytes"))
    drive.disk.shared_drive = "0Ashared"
    store = configured(drive, home, service_account="key.json")
    store.put(KEY, *source(b"bytes"))
    store.get(KEY, tmp_path / "target", sha256(b"bytes"))
    assert [stat.key for stat in store.list("")] == [KEY]
    given = store.portable()
    for text in ("", "not a key"):
        key.write_text(text)
        with pytest.raises(AccessDenied, match=r"key\.json is not the key file.*download a new key"):
            configured(drive, home, service_account="key.json").stat(KEY)
    carried(given).get(KEY, tmp_path / "in a session", sha256(b"bytes"))
    assert store.registers.swap("a", b"1", None)
    drive.disk.trash_only = True
    with pytest.raises(AccessDenied, match="Manager"):
        store.delete(KEY)
    assert len(objects(drive)) == 1


def service_key(url: str) -> dict[str, str]:
    """A key file as Google Cloud gives it, with a key of our own."""
    private = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "type": "service_account",
        "client_email": "robot@local",
        "client_id": "1",
        "private_key_id": "1",
        "private_key": private.decode(),
        "token_uri": f"{url}/token",
    }


OVER_TLS = """
import sys
from pathlib import Path
from orchestrator.errors import Transient
from orchestrator.stores import catalog
home, digest = Path(sys.argv[3]), sys.argv[4]
store = catalog.build("mine", "drive", {"folder": sys.argv[1], "endpoint": sys.argv[2]}, home)
try:
    store.put("a", home / "source", digest)
    store.get("a", home / "target", digest)
    version = store.registers.swap("a", b"1", None)
    store.registers.swap("a", b"2", version)
    print(store.registers.read("a").value.decode())
except Transient as error:
    print(error)
"""


@pytest.mark.parametrize("trusted", [True, False])
def test_over_tls_as_drive_itself_is(tmp_path: Path, trusted: bool) -> None:
    """Each kind of request, on connections that are used again and on those that are used once."""
    certificate = self_signed(tmp_path / "certificate.pem")
    (tmp_path / "source").write_bytes(DATA)
    environ = {**os.environ, **({"HTTPLIB2_CA_CERTS": str(certificate)} if trusted else {})}
    with local_drive(certificate) as drive:
        write_login(tmp_path / "drive-credentials.json", drive.url)
        command = [sys.executable, "-c", OVER_TLS, drive.disk.folder, drive.url, str(tmp_path), sha256(DATA)]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.strip() == (
        "2" if trusted else "Drive: the connection failed (SSLCertVerificationError)"
    )


def self_signed(path: Path) -> Path:
    """A certificate for this machine with its key."""
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    day = datetime(2026, 1, 1, tzinfo=UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(day)
        .not_valid_after(day + timedelta(days=36500))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
    return path
