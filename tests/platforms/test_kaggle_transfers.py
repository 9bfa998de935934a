"""Files to and from signed URLs over a network that breaks, and the log's stream."""

from __future__ import annotations

import hashlib
import json
import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import BackendError, NotFound, Refused, Rejected, Transient
from orchestrator.platforms.kaggle.downloads import download
from orchestrator.platforms.kaggle.logs import events
from orchestrator.platforms.kaggle.uploads import upload
from tests.platforms.kaggle_wire import (
    BROKEN,
    LIMITED,
    LOST,
    PAGE,
    PATIENT,
    SIGNATURE,
    SILENT,
    Answer,
    Request,
    Wire,
    client,
    said,
    timeout,
    wire,
)

CONTENT = bytes(range(256)) * 1024
SHA256 = hashlib.sha256(CONTENT).hexdigest()
MANY = 1 << 30
DENIED = Answer(403, b"<Error><Message>expired</Message></Error>", {"Content-Type": "application/xml"})


@pytest.fixture
def server() -> Iterator[Wire]:
    with wire() as made:
        yield made


# --- Downloads ------------------------------------------------------------------------------------------


def stored(
    content: bytes = CONTENT, tag: str = '"v1"', step: int | None = None
) -> Callable[[Request], Answer]:
    """The file as a storage serves it, with ranges. If `step` is given, each answer breaks off after that
    many bytes."""

    def answer(request: Request) -> Answer:
        asked = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", ""))
        start = int(asked[1]) if asked and request.headers.get("If-Range") == tag else 0
        body = content[start:]
        headers = {"ETag": tag, "Content-Type": "application/octet-stream"}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        cut = None if step is None or step >= len(body) else step
        return Answer(206 if start else 200, body, headers, cut=cut)

    return answer


def fetch(server: Wire, folder: Path, name: str = "model.pt", **options: Any) -> bytes:
    given = {"size_max": MANY, "sha256": SHA256, **options}
    limit = given.pop("timeout", PATIENT)
    download(client(server, timeout=limit), f"{server.url}/file?{SIGNATURE}", folder / name, **given)
    return (folder / name).read_bytes()


def check_nothing_saved(folder: Path) -> None:
    assert list(folder.iterdir()) == []


def test_a_file_is_downloaded_without_credentials(server: Wire, tmp_path: Path) -> None:
    server.always("file", stored())
    assert fetch(server, tmp_path) == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]
    assert "Authorization" not in server.requests[0].headers


@pytest.mark.parametrize("sha256", [SHA256, None])
def test_a_download_goes_on_where_it_broke_off(server: Wire, tmp_path: Path, sha256: str | None) -> None:
    server.always("file", stored(step=30_000))
    assert fetch(server, tmp_path, sha256=sha256) == CONTENT
    starts = [request.headers.get("Range") for request in server.requests]
    assert starts == [None, *(f"bytes={start}-" for start in range(30_000, len(CONTENT), 30_000))]


def test_tries_without_progress_are_counted(server: Wire, tmp_path: Path) -> None:
    server.then("file", stored(step=30_000))
    server.always("file", BROKEN)
    with pytest.raises(Transient, match="HTTP 500"):
        fetch(server, tmp_path)
    assert len(server.requests) == 4
    check_nothing_saved(tmp_path)


@pytest.mark.parametrize("fault", [SILENT, LIMITED, BROKEN, LOST, PAGE, Answer(503)])
def test_a_download_survives_a_fault(server: Wire, tmp_path: Path, fault: Answer) -> None:
    server.then("file", fault, stored(step=9), fault)
    server.always("file", stored())
    assert fetch(server, tmp_path, timeout=timeout(fault)) == CONTENT


def test_a_file_that_changed_meanwhile_is_taken_whole(server: Wire, tmp_path: Path) -> None:
    server.then("file", stored(b"old " * 40_000, tag='"v0"', step=50_000))
    server.always("file", stored())
    assert fetch(server, tmp_path, sha256=None) == CONTENT


def test_a_server_without_ranges_sends_it_whole(server: Wire, tmp_path: Path) -> None:
    whole = Answer(200, CONTENT, {"ETag": '"v1"'})
    server.then("file", Answer(200, CONTENT, {"ETag": '"v1"'}, cut=100_000), whole)
    assert fetch(server, tmp_path) == CONTENT


@pytest.mark.parametrize("header", ["bytes 5-9/10", "bytes 9-262143/77", "nonsense"])
def test_a_part_that_was_not_asked_for_is_not_joined(server: Wire, tmp_path: Path, header: str) -> None:
    server.then("file", stored(step=30_000), Answer(206, b"x" * 30, {"Content-Range": header}))
    server.always("file", stored())
    assert fetch(server, tmp_path, sha256=None) == CONTENT


@pytest.mark.parametrize("code", [401, 403, 404, 410])
def test_an_expired_url_is_renewed(server: Wire, tmp_path: Path, code: int) -> None:
    server.then("file", stored(step=30_000), Answer(code, DENIED.body, DENIED.headers))
    server.always("newer", stored())
    assert fetch(server, tmp_path, renew=lambda: f"{server.url}/newer") == CONTENT
    assert server.requests[-1].headers["Range"] == "bytes=30000-"


def test_a_url_that_stays_refused_is_given_up(server: Wire, tmp_path: Path) -> None:
    server.always("file", DENIED)
    with pytest.raises(NotFound, match="HTTP 403"):
        fetch(server, tmp_path, renew=lambda: f"{server.url}/file")
    assert len(server.requests) == 2
    check_nothing_saved(tmp_path)


def test_an_error_is_never_saved_as_the_file(server: Wire, tmp_path: Path) -> None:
    server.always("file", PAGE)
    with pytest.raises(Transient, match="a web page"):
        fetch(server, tmp_path, sha256=None)
    server.always("file", Answer(200, b"half", {}, length=False))
    with pytest.raises(Transient, match="does not state"):
        fetch(server, tmp_path, sha256=None)
    server.always("file", Answer(302, b"", {}))
    with pytest.raises(Rejected, match="HTTP 302"):
        fetch(server, tmp_path, sha256=None)
    check_nothing_saved(tmp_path)


def test_a_page_that_is_the_file_is_saved(server: Wire, tmp_path: Path) -> None:
    server.always("file", PAGE)
    assert fetch(server, tmp_path, "report.html", sha256=None) == PAGE.body


def test_chunks_without_a_length_are_whole_or_tried_again(server: Wire, tmp_path: Path) -> None:
    server.then("file", Answer(pieces=(b"ab", b"c"), ends=False, cut=3), Answer(pieces=(b"ab", b"cd")))
    assert fetch(server, tmp_path, sha256=None) == b"abcd"


def test_an_empty_file_is_one(server: Wire, tmp_path: Path) -> None:
    server.always("file", stored(b""))
    assert fetch(server, tmp_path, sha256=hashlib.sha256().hexdigest()) == b""


@pytest.mark.parametrize("answer", [stored(), Answer(pieces=(CONTENT[:9], CONTENT[:99]))])
def test_more_than_was_allowed_is_refused(server: Wire, tmp_path: Path, answer: Any) -> None:
    server.always("file", answer)
    with pytest.raises(Rejected, match="100"):
        fetch(server, tmp_path, size_max=100)
    assert len(server.requests) == 1
    check_nothing_saved(tmp_path)


def test_another_content_is_fetched_anew_once_and_then_refused(server: Wire, tmp_path: Path) -> None:
    server.then("file", stored(b"other"))
    server.always("file", stored())
    assert fetch(server, tmp_path) == CONTENT
    server.always("file", stored(b"other"))
    with pytest.raises(Rejected, match="sha256"):
        fetch(server, tmp_path, "again")
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_what_was_there_stays_until_the_new_one_is_whole(server: Wire, tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"before")
    server.always("file", BROKEN)
    with pytest.raises(Transient):
        fetch(server, tmp_path)
    assert (tmp_path / "model.pt").read_bytes() == b"before"


# --- Uploads --------------------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "bundle.zip"
    path.write_bytes(CONTENT)
    return path


def places(server: Wire) -> None:
    """Each started upload gets its own address."""

    def answer(_: Request) -> Answer:
        number = len(server.calls("StartBlobUpload"))
        return said({"token": f"t{number}", "createUrl": f"{server.url}/put{number}?{SIGNATURE}"})

    server.always("StartBlobUpload", answer)


def incomplete(last: int | None) -> Answer:
    return Answer(308, headers={} if last is None else {"Range": f"bytes=0-{last}"})


def test_a_file_is_put_whole_and_without_credentials(server: Wire, source: Path) -> None:
    places(server)
    server.then("put1", Answer(200))
    assert upload(client(server), source) == "t1"
    started, put = server.calls("StartBlobUpload")[0].json, server.calls("put1")[0]
    assert (started["type"], started["name"], started["contentLength"]) == (
        "DATASET",
        "bundle.zip",
        len(CONTENT),
    )
    assert started["lastModifiedEpochSeconds"] == int(source.stat().st_mtime)
    assert put.body == CONTENT
    assert put.headers["Content-Length"] == str(len(CONTENT))
    assert not {"Authorization", "Content-Type", "Transfer-Encoding", "Content-Range"} & set(put.headers)


@pytest.mark.parametrize("fault", [Answer(503), LOST, SILENT, BROKEN, LIMITED])
def test_an_upload_goes_on_from_where_the_server_got_to(server: Wire, source: Path, fault: Answer) -> None:
    places(server)
    server.then("put1", fault, incomplete(99_999), Answer(201))
    assert upload(client(server, timeout=timeout(fault)), source) == "t1"
    _, probe, tail = server.calls("put1")
    assert (probe.headers["Content-Range"], probe.body) == (f"bytes */{len(CONTENT)}", b"")
    assert tail.headers["Content-Range"] == f"bytes 100000-{len(CONTENT) - 1}/{len(CONTENT)}"
    assert tail.body == CONTENT[100_000:]


def test_an_upload_of_which_nothing_arrived_starts_over(server: Wire, source: Path) -> None:
    places(server)
    server.then("put1", Answer(503), incomplete(None), Answer(200))
    assert upload(client(server), source) == "t1"
    assert server.calls("put1")[-1].body == CONTENT


def test_an_upload_whose_answer_was_lost_is_not_repeated(server: Wire, source: Path) -> None:
    places(server)
    server.then("put1", LOST, Answer(200))
    assert upload(client(server), source) == "t1"
    assert [len(request.body) for request in server.calls("put1")] == [len(CONTENT), 0]


def test_a_question_that_fails_is_asked_again(server: Wire, source: Path) -> None:
    places(server)
    server.then("put1", Answer(503), LOST, Answer(503), incomplete(9), Answer(200))
    assert upload(client(server), source) == "t1"


def test_an_upload_that_is_not_finished_yet_is_waited_for(server: Wire, source: Path) -> None:
    places(server)
    server.then("put1", Answer(503), incomplete(len(CONTENT) - 1), Answer(200))
    assert upload(client(server), source) == "t1"
    assert [len(request.body) for request in server.calls("put1")] == [len(CONTENT), 0, 0]


@pytest.mark.parametrize("code", [401, 403, 404, 410])
def test_an_expired_upload_starts_from_scratch(server: Wire, source: Path, code: int) -> None:
    places(server)
    server.then("put1", Answer(503), incomplete(9), Answer(503), Answer(code))
    server.then("put2", Answer(200))
    assert upload(client(server), source) == "t2"
    assert server.calls("put2")[0].body == CONTENT


@pytest.mark.parametrize(
    ("code", "places_tried", "error"),
    [(400, 1, Rejected), (401, 2, Refused), (403, 2, Refused), (409, 1, Refused), (413, 1, Rejected)],
)
def test_a_refused_upload_raises(
    server: Wire, source: Path, code: int, places_tried: int, error: type[BackendError]
) -> None:
    places(server)
    for place in ("put1", "put2"):
        server.always(place, Answer(code, b"<Error>StringToSign deadbeef</Error>"))
    with pytest.raises(error, match=f"HTTP {code}") as caught:
        upload(client(server), source)
    assert type(caught.value) is error
    assert (caught.value.backend, caught.value.operation) == ("box", "upload")
    assert [len(server.calls(each)) for each in ("put1", "put2")] == [1, places_tried - 1]


def test_an_upload_without_progress_is_given_up(server: Wire, source: Path) -> None:
    places(server)
    server.always("put1", Answer(503))
    with pytest.raises(Transient, match="HTTP 503"):
        upload(client(server, attempts=3), source)
    assert len(server.calls("put1")) == 3


def test_an_upload_with_progress_is_not(server: Wire, source: Path) -> None:
    places(server)
    for arrived in range(0, len(CONTENT), 20_000):
        server.then("put1", Answer(503), incomplete(arrived))
    server.then("put1", Answer(200))
    assert upload(client(server, attempts=3), source) == "t1"


def test_an_empty_file_is_uploaded(server: Wire, source: Path) -> None:
    source.write_bytes(b"")
    places(server)
    server.then("put1", Answer(503), incomplete(None), Answer(200))
    assert upload(client(server), source) == "t1"
    assert server.calls("put1")[0].headers["Content-Length"] == "0"


def test_progress_is_told(server: Wire, source: Path) -> None:
    places(server)
    server.then("put1", Answer(503), incomplete(99_999), Answer(200))
    said_so: list[str] = []
    upload(client(server), source, said_so.append)
    assert "uploading bundle.zip: 100 %" in said_so
    assert any("HTTP 503" in text for text in said_so)
    assert not any("deadbeef" in text for text in said_so)


def test_a_file_that_gets_shorter_meanwhile_is_refused(server: Wire, source: Path) -> None:
    places(server)
    server.then("put1", Answer(503), incomplete(9), Answer(200))

    def shorten(_: str) -> None:
        source.write_bytes(b"short")

    with pytest.raises(Rejected, match="shorter"):
        upload(client(server), source, shorten)


# --- The log --------------------------------------------------------------------------------------------

SSE = {"Content-Type": "text/event-stream"}


def event(data: str) -> bytes:
    return b"data: " + json.dumps({"stream_name": "stdout", "time": 1.0, "data": data}).encode() + b"\n\n"


def look(server: Wire, quiet_seconds: float = 0.2, at_most_seconds: float = 240.0) -> list[str]:
    return events(client(server), "x-s01", quiet_seconds=quiet_seconds, at_most_seconds=at_most_seconds)


def test_a_running_kernels_log_is_read_until_it_falls_silent(server: Wire) -> None:
    whole = event("grün\n")
    server.then(
        "x-s01", Answer(headers=SSE, pieces=(event("a"), b": ping\n", whole[:40], whole[40:]), ends=False)
    )
    assert look(server, quiet_seconds=5.0) == ["a", "grün\n"]
    assert server.requests[0].path == "/api/v1/kernels/logs/stream/ada/x-s01"
    assert server.requests[0].headers["Authorization"]


def test_a_log_that_does_not_fall_silent_is_read_for_so_long(server: Wire) -> None:
    server.then("x-s01", Answer(headers=SSE, pieces=(event("a"),), ends=False))
    assert look(server, quiet_seconds=1000.0, at_most_seconds=3.0) == ["a"]


def test_a_log_ends_with_its_mark(server: Wire) -> None:
    pieces = (event("END_OF_LOG"), b"data: plain\n\ndata: END_OF_LOG\n\n", event("b"))
    server.then("x-s01", Answer(headers=SSE, pieces=pieces, ends=False))
    assert look(server, quiet_seconds=1000.0, at_most_seconds=1000.0) == ["END_OF_LOG", "plain"]


def test_a_log_that_breaks_off_counts_until_there(server: Wire) -> None:
    server.then("x-s01", Answer(headers=SSE, pieces=(event("a"), b"data: {"), ends=False, cut=9))
    assert look(server) == ["a"]


def test_a_stream_with_a_plain_length_is_read_too(server: Wire) -> None:
    server.then("x-s01", Answer(200, event("a") + event("b"), SSE))
    assert look(server) == ["a", "b"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [(b"", []), (b"[]", []), (b'[{"data": "a"}, {"data": "b"}]', ["a", "b"]), (b'{"data": "a"}', ["a"])],
)
def test_an_ended_kernels_log_is_whole(server: Wire, body: bytes, expected: list[str]) -> None:
    server.then("x-s01", Answer(200, body, {"Content-Type": "application/octet-stream"}))
    assert look(server) == expected


# --- Secrets --------------------------------------------------------------------------------------------


def test_no_signed_url_is_shown(server: Wire, source: Path, tmp_path: Path) -> None:
    places(server)
    with wire() as gone:
        pass
    server.always(
        "StartBlobUpload", said({"token": "blob-token", "createUrl": f"{gone.url}/put?{SIGNATURE}"})
    )
    failed: list[BackendError] = []
    with pytest.raises(Transient, match="connection refused") as refused:
        upload(client(server), source)
    failed.append(refused.value)
    with pytest.raises(Transient, match="connection refused") as refused:
        download(client(server), f"{gone.url}/file?{SIGNATURE}", tmp_path / "x", size_max=1)
    failed.append(refused.value)
    server.always("file", DENIED)
    with pytest.raises(NotFound) as missing:
        fetch(server, tmp_path)
    failed.append(missing.value)
    for error in failed:
        text = "".join(traceback.format_exception(error)) + repr(error)
        assert "deadbeef" not in text
        assert "blob-token" not in text
