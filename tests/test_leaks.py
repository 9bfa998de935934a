"""The scanner for secrets finds what is planted, in every form and place, and nothing else."""

from __future__ import annotations

import base64
import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import sqlite3
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from orchestrator.stores.memory import MemoryStore
from tests.leaks import Leak, Leaks

SECRET = 'wJalr/XUtn+K7 "MDENG"&bPx-näh'
OTHER = "1//refresh-0123456789"
LINES = "\n".join(
    ["-----BEGIN PRIVATE KEY-----", *(f"MIIEvQIBADANBgkqhkiG9w0BAQE{n}FAASC" for n in range(3))]
)
LEAKS = Leaks({"secret": SECRET, "other": OTHER, "key": LINES})


def in_zip(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inside", data)
    return buffer.getvalue()


def in_tar(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member = tarfile.TarInfo("inside")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def in_database(data: bytes) -> bytes:
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE events (body BLOB)")
        database.execute("INSERT INTO events VALUES (?)", (zlib.compress(data),))
        database.commit()
        return database.serialize()


WRITTEN: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "JSON": json.dumps,
    "JSON in JSON": lambda text: json.dumps({"a": json.dumps([text])}),
    "JSON with slashes escaped": lambda text: json.dumps(text).replace("/", "\\/"),
    "Python": repr,
    "a URL's path": quote,
    "a URL's query": quote_plus,
    "a URL with small digits": lambda text: re.sub("%..", lambda found: found[0].lower(), quote(text)),
    "hex": lambda text: text.encode().hex(),
}
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "base64": base64.b64encode,
    "base64 after a byte": lambda data: base64.b64encode(b"x" + data + b"yz"),
    "base64 after two bytes": lambda data: base64.urlsafe_b64encode(b"xy" + data),
    "base64 in lines": base64.encodebytes,
    "base64 of base64": lambda data: base64.b64encode(b"a" * 40 + base64.b64encode(data)),
    "UTF-16": lambda data: data.decode().encode("utf-16"),
    "zip": in_zip,
    "a program with a zip behind it": lambda data: b"#!/bin/sh\n" + in_zip(data),
    "tar.gz": in_tar,
    "gzip, cut off": lambda data: gzip.compress(data + os.urandom(4096))[:-2000],
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "a zip in a tar": lambda data: in_tar(in_zip(data)),
    "base64 of a zip in JSON": lambda data: json.dumps(base64.encodebytes(in_zip(data)).decode()).encode(),
    "a database": in_database,
    "a database in a zip": lambda data: in_zip(in_database(data)),
}


@pytest.mark.parametrize("write", WRITTEN.values(), ids=WRITTEN)
def test_every_way_to_write_a_secret_is_known(write: Callable[[str], str]) -> None:
    assert LEAKS.in_text("log", f"a line\n{write(SECRET)}, and so on") == [Leak("secret", "log")]
    assert LEAKS.in_text("log", write(OTHER + "?") + write(SECRET)) == [
        Leak("other", "log"),
        Leak("secret", "log"),
    ]


@pytest.mark.parametrize("pack", PACKED.values(), ids=PACKED)
def test_every_way_to_pack_a_secret_is_known(pack: Callable[[bytes], bytes]) -> None:
    found = LEAKS.in_data("file", pack(f"key={SECRET};".encode()))
    assert {leak.secret for leak in found} == {"secret"}
    assert {leak.where.partition("!")[0] for leak in found} == {"file"}
    assert LEAKS.in_data("file", pack(b"nothing that anybody must not see, and long enough")) == []


def test_a_line_of_a_key_is_enough() -> None:
    assert LEAKS.in_text("log", f"> {LINES.splitlines()[2]}") == [Leak("key", "log")]
    assert LEAKS.in_text("log", LINES.splitlines()[0]) == [], "the kind of the key may be shown"


def test_each_file_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "login.json").write_text(json.dumps({"token": OTHER}))
    (tmp_path / "deep" / "source.zip").write_bytes(in_zip(SECRET.encode()))
    (tmp_path / "link").symlink_to(f"/nowhere/{OTHER.replace('/', '_')}/{OTHER}")
    (tmp_path / f"{LINES.splitlines()[1]}.txt").touch()
    os.mkfifo(tmp_path / "pipe")
    assert LEAKS.in_folder(tmp_path) == [
        Leak("key", f"{LINES.splitlines()[1]}.txt"),
        Leak("other", "deep/er/login.json"),
        Leak("other", "link"),
        Leak("secret", "deep/source.zip!inside"),
    ]


def test_what_a_database_in_use_has_only_in_its_log_is_found(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE events (body TEXT)")
        database.execute("INSERT INTO events VALUES (?)", ("x" * 5000 + json.dumps(SECRET) + "x" * 5000,))
        database.commit()
        assert Leak("secret", "ledger.sqlite!events") in LEAKS.in_folder(tmp_path)


def test_processes_that_name_a_folder_are_looked_into(tmp_path: Path) -> None:
    wait = "import sys; print(flush=True); sys.stdin.read()"
    for given, environment, where in (
        ([OTHER, str(tmp_path)], {}, "cmdline"),
        ([str(tmp_path)], {"TOKEN": OTHER}, "environ"),
        ([], {"TOKEN": OTHER, "HOME": str(tmp_path)}, "environ"),
    ):
        command = [sys.executable, "-c", wait, *given]
        with subprocess.Popen(command, env=environment, stdin=-1, stdout=-1) as process:
            assert process.stdout is not None
            process.stdout.readline()
            [leak] = LEAKS.in_processes(tmp_path)
            assert leak.secret == "other"
            assert leak.where.startswith(f"{where} of {sys.executable}")
            assert LEAKS.in_processes(tmp_path / "elsewhere") == []


def test_a_deleted_file_that_is_still_open_is_read(tmp_path: Path) -> None:
    (tmp_path / "store.json").write_text(SECRET)
    script = (
        "import os, sys; f = open('store.json'); os.unlink('store.json'); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        [leak] = LEAKS.in_processes(tmp_path)
        assert leak.where.startswith("open file of ")
    assert LEAKS.in_folder(tmp_path) == []


def test_objects_and_registers_of_a_store_are_read(tmp_path: Path) -> None:
    store = MemoryStore()
    data = gzip.compress(SECRET.encode())
    (tmp_path / "object").write_bytes(data)
    store.put("runs/a/deposit", tmp_path / "object", hashlib.sha256(data).hexdigest())
    assert store.registers is not None
    store.registers.swap("runs/a/heartbeat", json.dumps(OTHER).encode(), None)
    assert LEAKS.in_store(store) == [
        Leak("other", "runs/a/heartbeat"),
        Leak("secret", "runs/a/deposit!unpacked"),
    ]
