"""One file from a server: resumed, bounded, checked; and the ways in which a server may be odd or hostile."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from orchestrator.clock import SystemClock
from orchestrator.errors import AccessDenied, InputError, OrchestratorError, SpecError, Transient
from orchestrator.fetching.addresses import Allowed
from orchestrator.fetching.transfer import Transfers, Unreached, Version, Wanted
from orchestrator.fetching.web import Web
from orchestrator.spec import parse
from tests.fetching.servers import Handler, Site, certificate, raw, site

CONTENT = bytes(range(256)) * 1000
LOCAL = Allowed.of(["127.0.0.1"])


@pytest.fixture
def server() -> Iterator[Site]:
    with site() as made:
        made.files["/data.bin"] = CONTENT
        yield made


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def transfers(allowed: Allowed = LOCAL, stall_seconds: float = 20.0) -> Transfers:
    return Transfers(Web(allowed, SystemClock(), stall_seconds=stall_seconds), wait_seconds=0.001)


def bring(url: str, part: Path, using: Transfers | None = None, **given: object) -> Version | None:
    wanted = replace(Wanted(lambda: url, "input 'x'", 10**9), **given)  # type: ignore[arg-type]
    return (using or transfers()).bring(wanted, part)


def refused(url: str, part: Path, using: Transfers | None = None, **given: object) -> str:
    with pytest.raises(OrchestratorError) as caught:
        bring(url, part, using, **given)
    return str(caught.value)


# --- Whole ------------------------------------------------------------------------------------------------


def test_a_file_arrives_whole_with_its_version(server: Site, tmp_path: Path) -> None:
    said: list[tuple[str, int, int | None]] = []
    using = Transfers(Web(LOCAL, SystemClock()), lambda *each: said.append(each))
    version = bring(f"{server.url}/data.bin", tmp_path / "part", using)
    assert version == Version(server.tag("/data.bin"), "", len(CONTENT))
    assert (tmp_path / "part").read_bytes() == CONTENT
    assert said[0] == ("input 'x'", 0, len(CONTENT))
    assert said[-1] == ("input 'x'", len(CONTENT), len(CONTENT))
    _, _, headers = server.asked[0]
    assert headers["Accept-Encoding"] == "identity"


def test_what_has_not_changed_is_not_sent_again(server: Site, tmp_path: Path) -> None:
    version = bring(f"{server.url}/data.bin", tmp_path / "part")
    sent = server.sent
    assert bring(f"{server.url}/data.bin", tmp_path / "other", version=version) is None
    assert server.sent == sent
    server.files["/data.bin"] = b"new"
    assert bring(f"{server.url}/data.bin", tmp_path / "other", version=version) != version
    assert (tmp_path / "other").read_bytes() == b"new"


def test_over_https_the_certificate_must_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = certificate(tmp_path)
    with site(file) as server:
        server.files["/a"] = b"a"
        assert "certificate does not hold" in refused(f"{server.url}/a", tmp_path / "part")
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        assert bring(f"{server.url}/a", tmp_path / "part") is not None


# --- Cut, and gone on with --------------------------------------------------------------------------------


def test_a_cut_transfer_goes_on_where_it_was(server: Site, tmp_path: Path) -> None:
    server.cuts = [1000, 100_000, 0, 5]
    bring(f"{server.url}/data.bin", tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == CONTENT
    assert server.sent == len(CONTENT), "no byte came twice"
    ranges = [headers.get("Range") for _, _, headers in server.asked]
    assert ranges == [None, "bytes=1000-", "bytes=101000-", "bytes=101000-", "bytes=101005-"]
    assert {headers.get("If-Range") for _, _, headers in server.asked[1:]} == {server.tag("/data.bin")}


def test_a_part_outlives_a_program_that_was_killed(server: Site, tmp_path: Path) -> None:
    class Stop(BaseException):
        pass

    def stop(_name: str, done: int, _all: int | None) -> None:
        if done:
            raise Stop

    server.cuts = [1234]
    with pytest.raises(Stop):
        bring(f"{server.url}/data.bin", tmp_path / "part", Transfers(Web(LOCAL, SystemClock()), stop))
    assert (tmp_path / "part").stat().st_size == 1234
    bring(f"{server.url}/data.bin", tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == CONTENT
    assert server.sent == len(CONTENT)


def test_a_server_that_cannot_resume_sends_all_of_it_again(server: Site, tmp_path: Path) -> None:
    server.resumes, server.cuts = False, [1000, 3]
    bring(f"{server.url}/data.bin", tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == CONTENT


def test_content_that_changed_in_between_is_fetched_from_the_start(server: Site, tmp_path: Path) -> None:
    server.cuts = [1000]
    url, part = f"{server.url}/data.bin", tmp_path / "part"
    server.answers["/data.bin"] = lambda handler: _changed_after_one(server, handler)
    version = bring(url, part)
    assert part.read_bytes() == CONTENT[::-1]
    assert version is not None
    assert version.tag == server.tag("/data.bin")


def _changed_after_one(server: Site, handler: Handler) -> None:
    handler.file("/data.bin")
    server.files["/data.bin"] = CONTENT[::-1]


def test_a_part_of_something_else_is_not_taken(server: Site, tmp_path: Path) -> None:
    """A server that ignores If-Range and mixes two versions."""
    server.cuts = [1000]

    def mixed(handler: Handler) -> None:
        if "Range" in handler.headers:
            handler.reply(206, b"x" * 50, {"Content-Range": f"bytes 1000-1049/{1050}", "ETag": '"other"'})
        else:
            handler.file("/data.bin")

    server.answers["/data.bin"] = mixed
    bring(f"{server.url}/data.bin", tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == CONTENT


def test_without_its_length_a_part_is_not_gone_on_with(server: Site, tmp_path: Path) -> None:
    """A cut of the rest would not be noticed, because its range says nothing of the whole either."""
    cuts = [4096]

    def answer(handler: Handler) -> None:
        start = int(handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        headers = {"ETag": '"a"', "Content-Length": str(len(CONTENT))}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(CONTENT) - 1}/*"
            handler.reply(206, b"y" * 50, headers)
            return
        handler.send_response(200)
        handler.send_header("ETag", '"a"')
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        piece = CONTENT[: cuts.pop()] if cuts else CONTENT
        whole = b"0\r\n\r\n" * (piece == CONTENT)
        handler.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" + whole)
        handler.close_connection = True

    server.answers["/chunked"] = answer
    bring(f"{server.url}/chunked", tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == CONTENT


def test_a_server_that_is_busy_is_asked_again_and_one_that_stays_so_is_told(
    server: Site, tmp_path: Path
) -> None:
    answers = [503, 429, 500]

    def busy(handler: Handler) -> None:
        status = answers.pop(0) if answers else 200
        handler.reply(status, b"" if status != 200 else b"done", {"Retry-After": "0"})

    server.answers["/busy"] = busy
    bring(f"{server.url}/busy", tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == b"done"
    server.answers["/down"] = lambda handler: handler.reply(503)
    with pytest.raises(Transient, match="answers 503"):
        bring(f"{server.url}/down", tmp_path / "other")


def test_what_never_comes_whole_is_never_given_out(server: Site, tmp_path: Path) -> None:
    server.answers["/short"] = lambda handler: handler.reply(
        200, b"abc", {"Content-Length": "10", "ETag": '"a"'}
    )
    with pytest.raises(Transient, match=r"input 'x' .*/short\): cut after 3 of 10 bytes; 3 B are kept"):
        bring(f"{server.url}/short", tmp_path / "part")


def test_no_server_is_an_error_of_its_own(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(Unreached, match="cannot be reached"):
        bring(f"http://127.0.0.1:{port}/x", tmp_path / "part")


# --- Refused ----------------------------------------------------------------------------------------------


def test_too_large_is_refused_by_its_headers_and_while_it_comes(server: Site, tmp_path: Path) -> None:
    part = tmp_path / "part"
    assert "256 kB is more than the limit of 1.0 kB" in refused(
        f"{server.url}/data.bin", part, bytes_max=1000
    )
    assert server.sent == 0 or not part.exists()

    def endless(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        while not server.closing.is_set():
            handler.wfile.write(b"1000\r\n" + b"x" * 4096 + b"\r\n")

    server.answers["/endless"] = endless
    assert "more than the limit of 1.0 MB" in refused(f"{server.url}/endless", part, bytes_max=10**6)
    assert not part.exists()


@pytest.mark.parametrize(
    ("status", "kind", "told"),
    [(404, InputError, "nothing is"), (410, InputError, "nothing is"), (400, InputError, "answers 400"),
     (401, AccessDenied, "it needs a login"), (403, AccessDenied, "token: env:NAME")],
)  # fmt: skip
def test_a_refusal_is_told_once_without_the_query(
    server: Site, tmp_path: Path, status: int, kind: type[Exception], told: str
) -> None:
    server.answers["/x"] = lambda handler: handler.reply(status)
    with pytest.raises(kind) as caught:
        bring(f"{server.url}/x?sig=sesame", tmp_path / "part")
    assert told in str(caught.value)
    assert "/x?…" in str(caught.value)
    assert "sesame" not in str(caught.value)
    assert len(server.asked) == 1


def test_a_web_page_and_a_compressed_answer_are_no_files(server: Site, tmp_path: Path) -> None:
    page = {"Content-Type": "text/html; charset=utf-8"}
    server.answers["/x"] = lambda handler: handler.reply(200, b"<html>", page)
    server.answers["/x.html"] = lambda handler: handler.reply(200, b"<html>", page)
    server.answers["/z"] = lambda handler: handler.reply(200, b"zz", {"Content-Encoding": "gzip"})
    server.answers["/z.gz"] = lambda handler: handler.reply(200, b"zz", {"Content-Encoding": "gzip"})
    assert "sends a web page" in refused(f"{server.url}/x", tmp_path / "part")
    assert bring(f"{server.url}/x", tmp_path / "a", page=True) is not None
    assert bring(f"{server.url}/x.html", tmp_path / "b") is not None
    assert "compressed (gzip)" in refused(f"{server.url}/z", tmp_path / "c")
    assert bring(f"{server.url}/z.gz", tmp_path / "d") is not None


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"nonsense\r\n\r\n", "BadStatusLine"),
        (b"HTTP/1.1 200 OK\r\n" + b"X-A: " + b"a" * 100_000 + b"\r\n\r\n", "LineTooLong"),
        (b"HTTP/1.1 200 OK\r\n" + b"X-A: a\r\n" * 200 + b"\r\n", "more than 100 headers"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\nabc", "the length that the server states is none"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", "states is none"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc", "IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\n\r\nabc", "does not say how long it is"),
        (b"HTTP/1.1 302 Found\r\n\r\n", "redirects to nowhere"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://a b/\r\n\r\n", "redirects to nowhere"),
    ],
)
def test_an_answer_that_is_none_is_told(tmp_path: Path, answer: bytes, told: str) -> None:
    with raw(lambda connection, _: connection.sendall(answer)) as url:
        assert told in refused(f"{url}/x", tmp_path / "part")


@pytest.mark.parametrize(
    "head", [b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"]
)
def test_a_slow_drip_does_not_hold_us_for_ever(tmp_path: Path, head: bytes) -> None:
    def drip(connection: socket.socket, closing: Event) -> None:
        connection.sendall(head)
        while not closing.wait(0.02):
            connection.sendall(head if b"100" in head else b"x")

    with raw(drip) as url:
        told = refused(f"{url}/x", tmp_path / "part", transfers(stall_seconds=0.1))
    assert "nearly nothing came for" in told


# --- Redirects and addresses ------------------------------------------------------------------------------


def test_redirects_are_followed_and_the_token_stays_with_the_first_host(server: Site, tmp_path: Path) -> None:
    with site() as other:
        other.files["/there"] = b"content"
        server.answers["/a"] = lambda handler: handler.redirect("/b?x=1")
        server.answers["/b"] = lambda handler: handler.redirect(f"{other.url}/there")
        bring(f"{server.url}/a", tmp_path / "part", token="sesame")
        assert (tmp_path / "part").read_bytes() == b"content"
        assert [headers.get("Authorization") for _, _, headers in server.asked] == ["Bearer sesame"] * 2
        assert [headers.get("Authorization") for _, _, headers in other.asked] == [None]
        other.answers["/back"] = lambda handler: handler.redirect(f"{server.url}/data.bin")
        server.answers["/c"] = lambda handler: handler.redirect(f"{other.url}/back")
        bring(f"{server.url}/c", tmp_path / "part2", token="sesame")
        assert "Authorization" not in server.asked[-1][2]


@pytest.mark.parametrize(
    ("to", "told"),
    [
        ("/loop", "more than 10 redirects"), ("file:///etc/passwd", "redirects to file:"),
        ("ftp://example.org/x", "redirects to ftp:"), ("https://169.254.169.254/latest", "a link-local"),
        ("http://8.8.8.8/x", "without https anybody"), ("https://me:pw@127.0.0.1/x", "a login is not used"),
        ("https://[::1]/x", "this machine itself"), ("https://[::ffff:10.0.0.1]/x", "a private or reserved"),
        ("https://0x0a000001/x", "10.0.0.1, a private"), ("https://167772161/x", "10.0.0.1, a private"),
        ("https://[evil/x", "an address that cannot be read"), ("//[::1", "that cannot be read"),
        ("https://x:99999/", "its port is none"), ("https://127%2e0.0.1/x", "is not a host's name"),
        ("https://[::127.0.0.1]/x", "a private or"), ("https://[::ffff:0:7f00:1]/x", "a private or"),
        ("https://[64:ff9b::a00:1]/x", "a private or reserved"), ("https://[fd00::1]/x", "a private or"),
        ("https://224.0.0.1/x", "a multicast address"), ("https://10.1/x", "10.0.0.1, a private"),
    ],
)  # fmt: skip
def test_a_redirect_leads_nowhere_else(server: Site, tmp_path: Path, to: str, told: str) -> None:
    server.answers["/loop"] = lambda handler: handler.redirect(to)
    said = refused(f"{server.url}/loop", tmp_path / "part")
    assert told in said
    assert "pw" not in said


@pytest.mark.parametrize("origin", ["https://[x/y", "https://x:99999/y", "https://[::1]:y/"])
def test_a_spec_tells_about_an_address_that_cannot_be_read(origin: str) -> None:
    text = f"name: a\nsource: .\ncommand: python a.py\ninputs: [{{name: a, from: '{origin}'}}]\n"
    with pytest.raises(SpecError, match=r"job.yaml:4: inputs\[0\].from: not an origin .*https://host/path"):
        parse(text.encode(), "job.yaml", None)


def test_without_leave_nothing_is_fetched_from_this_machine(server: Site, tmp_path: Path) -> None:
    nobody = transfers(Allowed())
    for host in ("127.0.0.1", "localhost", "[::1]", "2130706433", "127.1", "[::ffff:127.0.0.1]"):
        told = refused(f"https://{host}:{server.port}/data.bin", tmp_path / "part", nobody)
        assert "this machine itself" in told
        assert "allow_private: [" in told
    assert "without https" in refused(f"{server.url}/data.bin", tmp_path / "part", nobody)
    assert server.asked == []
    named = transfers(Allowed.of(["localhost"]))
    assert bring(f"http://localhost:{server.port}/data.bin", tmp_path / "part", named) is not None
    assert "without https" in refused(f"{server.url}/data.bin", tmp_path / "other", named)


def test_through_a_proxy_it_resolves_and_private_addresses_stay_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))

    def proxy(connection: socket.socket, _closing: Event) -> None:
        connection.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")

    with raw(proxy) as url:
        monkeypatch.setenv("HTTPS_PROXY", url.replace("http://", "http://me:sesame@"))
        told = refused("https://data.example/x", tmp_path / "part")
        assert "the proxy 127.0.0.1" in told
        assert "sesame" not in told
        assert "this machine itself" in refused(
            "https://localhost/x", tmp_path / "part", transfers(Allowed())
        )
        for host in ("[::1]", "127.0.0.1.", "0x7f.1", "\uff11\uff12\uff17.0.0.1"):
            told = refused(f"https://{host}/x", tmp_path / "part", transfers(Allowed()))
            assert "this machine itself" in told
        assert "not a host's name" in refused("https://127%2e0.0.1/x", tmp_path / "part")
        monkeypatch.setenv("HTTPS_PROXY", "http://me:sesame@proxy:many")
        told = refused("https://data.example/x", tmp_path / "part")
        assert "HTTPS_PROXY or ALL_PROXY cannot be read" in told
        assert "sesame" not in told
        monkeypatch.setenv("HTTPS_PROXY", "socks5://127.0.0.1:1")
        assert "begins with socks5://" in refused("https://data.example/x", tmp_path / "part")
    with site(file) as server:  # what the config allows is reached without the proxy
        server.files["/a"] = b"a"
        assert bring(f"{server.url}/a", tmp_path / "part") is not None


def test_the_sha256_of_what_was_resumed_is_that_of_the_file(server: Site, tmp_path: Path) -> None:
    server.cuts = [7, 70_000]
    bring(f"{server.url}/data.bin", tmp_path / "part")
    found = hashlib.sha256((tmp_path / "part").read_bytes()).hexdigest()
    assert found == hashlib.sha256(CONTENT).hexdigest()
