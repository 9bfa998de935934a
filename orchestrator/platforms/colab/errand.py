"""One errand for Colab's command line: `python -I -u errand.py REQUEST ANSWER`.

Started by runner.py with the command line's own Python, so it uses only the standard library, colab_cli and
what that needs. Reads a request, a JSON file, and writes the answer, another one, atomically. The answer says
what happened: which requests were sent, with their status, and how it ended. Its exit code says nothing.

It runs the command line's own commands, with four changes. A session's machine belongs to a notebook that
follows from the session's name, instead of a random one. A session's record is made anew from Colab's answer,
so it depends on no file here. Every request has a time limit. And nothing is logged, because the command line
logs tokens. Must never write a token into an answer.
"""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

CONNECT_SECONDS = 10.0
FOLDER_BYTES_MAX = 4 << 20  # for over 10,000 names
ABOUT_BYTES_MAX = 1 << 16  # of what a machine says about a file beside its content
TAIL = 2000  # characters
_SECRETS = re.compile(r"(token=|Bearer |token['\"]?: ?['\"]?)[^&\s'\",}]+", re.IGNORECASE)
# A record is made anew before each use, so the command line need not ask for a fresh token. It would list all
# machines for that, and understand none if it does not know the accelerator of one.
NEVER = datetime(9999, 1, 1, tzinfo=UTC)
UNKNOWN = "UNKNOWN"  # the accelerator of a machine that Colab neither lists yet nor gave in this call
_XSSI = ")]}'\n"
Answer = dict[str, Any]


class Strange(Exception):
    """The command line's inside is not the one that this was written for."""


class Confused(Exception):
    """Colab does not tell notebooks apart, so what it shows may be a machine of the user's own."""


class Ended(Exception):
    """A command of the command line gave up; what it printed says why."""


class Seen:
    """The requests of this process: what was asked, and what came back."""

    def __init__(self, seconds: float, only_here: bool) -> None:
        self.requests: list[Answer] = []
        self._seconds = seconds
        self._only_here = only_here

    def watch(self) -> None:
        """From now on, gives each request a time limit and records it."""
        import requests

        send = requests.Session.send

        def sending(session: Any, request: Any, **options: Any) -> Any:
            parts = urlsplit(request.url)
            seen = {"host": parts.hostname, "path": parts.path, "method": request.method}
            if self._only_here and parts.hostname not in ("127.0.0.1", "localhost") and not _proxied():
                raise Strange(f"a request to {parts.hostname} in a test")
            if options.get("timeout") is None:
                options["timeout"] = (CONNECT_SECONDS, self._seconds)
            self.requests = [*self.requests[-30:], seen]
            try:
                response = send(session, request, **options)
            except Exception as error:
                seen["error"] = type(error).__name__
                raise
            seen["status"] = response.status_code
            if parts.path.startswith("/tun/m/assign") and not options.get("stream"):
                seen |= _said(response)
            return response

        requests.Session.send = sending  # type: ignore[assignment, method-assign]


def _proxied() -> bool:
    host = urlsplit(os.environ.get("HTTPS_PROXY", "")).hostname
    return host in ("127.0.0.1", "localhost")


def _said(response: Any) -> Answer:
    """What an answer about machines says beside its status."""
    try:
        body = decoded(response)
    except ValueError:
        return {}
    names = ("outcome", "accelerator", "endpoint")
    return {name: body[name] for name in names if isinstance(body.get(name), str | int)}


def decoded(response: Any) -> Answer:
    """The JSON object of an answer. Raises ValueError if there is none."""
    text = response.text
    found = json.loads(text[len(_XSSI) :] if text.startswith(_XSSI) else text)
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


@contextmanager
def _expected() -> Iterator[None]:
    """What the command line must have inside. Raises Strange."""
    try:
        yield
    except (ImportError, AttributeError, ValueError) as error:
        raise Strange(f"{type(error).__name__}: {error}") from error


# --- Colab ------------------------------------------------------------------------------------------------


class Colab:
    """The account, through the command line's own login."""

    def __init__(self, auth: str, seconds: float, seen: Seen) -> None:
        self._limit = (CONNECT_SECONDS, seconds)
        self._seen = seen
        with _expected():
            from colab_cli import auth as auth_module  # type: ignore[import-not-found]
            from colab_cli import common
            from colab_cli.state import SessionState, StateStore  # type: ignore[import-not-found]

            self.state = common.state
            self.state.auth_provider = auth_module.AuthProvider(auth)
            self.SessionState, self.StateStore = SessionState, StateStore
            type(self.state).client  # noqa: B018 - it is only read once somebody may log in

    def log_in(self) -> None:
        """Gets the login; on a terminal, asks for one. Without one, raises EOFError."""
        # Otherwise a scope that comes back under another name fails the login. `login` looks itself.
        os.environ["OAUTHLIB_RELAX_TOKEN_SCOPE"] = "1"
        client = self.state.client
        with _expected():
            self.web, self.domain = client.session, client.colab_domain

    def get(self, path: str, **parameters: str) -> Answer:
        url = urljoin(self.domain, f"/tun/m/{path}")
        headers = {"Accept": "application/json", "X-Colab-Client-Agent": "colab-cli"}
        response = self.web.get(
            url, params={"authuser": "0", **parameters}, headers=headers, timeout=self._limit
        )
        response.raise_for_status()
        return decoded(response)

    def listed(self) -> Answer:
        """Endpoint → the machine, as Colab describes it."""
        return {str(each["endpoint"]): each for each in self.get("assignments").get("assignments") or ()}

    def given(self, endpoint: str) -> Answer:
        """A machine that is not listed yet, as Colab described it when it gave it."""
        said = (each for each in self._seen.requests if each.get("endpoint") == endpoint)
        accelerator = next((each["accelerator"] for each in said if "accelerator" in each), UNKNOWN)
        return {"endpoint": endpoint, "accelerator": accelerator}

    def of_notebook(self, notebook: str) -> Answer | None:
        """The notebook's machine. Raises Confused rather than return another's."""
        answer = self._assigned(notebook)
        if answer is not None:
            self.check_notebooks(answer["endpoint"])
        return answer

    def _assigned(self, notebook: str) -> Answer | None:
        """Asking this way allocates nothing: only a POST does."""
        answer = self.get("assign", nbh=notebook.replace("-", "_") + "." * (44 - len(notebook)))
        return answer if "endpoint" in answer else None

    def check_notebooks(self, endpoint: str | None = None) -> None:
        """Asks for the machine of a notebook that does not exist. Raises Confused if it has this one, or
        any."""
        answer = self._assigned(str(uuid.uuid4()))
        if answer is not None and endpoint in (None, answer["endpoint"]):
            raise Confused(
                f"Colab shows the machine {answer['endpoint']} for a notebook that does not exist. So "
                "sessions cannot be told from your own notebooks, and nothing was changed; please report this"
            )

    def store(self, session: Answer) -> Any:
        return self.StateStore(session["record"])

    def find(self, session: Answer, listed: Answer) -> Answer | None:
        """The session's machine: the one on record if Colab lists it, otherwise its notebook's."""
        record = self.store(session).get(session["name"])
        if record is not None and record.endpoint in listed:
            machine: Answer = listed[record.endpoint]
            return machine
        return self.of_notebook(session["notebook"])

    def record(self, session: Answer, machine: Answer) -> None:
        """Writes the record that the command line's commands go by. Keeps its kernel."""
        store = self.store(session)
        old = store.get(session["name"])
        proxy = machine["runtimeProxyInfo"]
        new = self.SessionState(
            name=session["name"], token=proxy["token"], url=proxy["url"], endpoint=machine["endpoint"],
            token_expires_at=NEVER,
        )  # fmt: skip
        if old is not None and old.endpoint == new.endpoint:
            new.kernel_id, new.session_id = old.kernel_id, old.session_id
        store.add(new)

    def run(self, session: Answer, words: list[str]) -> None:
        """One of the command line's own commands. Raises what it raises."""
        with _expected():
            from colab_cli import cli
            from colab_cli.commands import session as commands  # type: ignore[import-not-found]

            for module, name in ((cli, "setup_logging"), (cli, "app"), (commands, "uuid")):
                getattr(module, name)
        cli.setup_logging = lambda _: None
        notebook = uuid.UUID(session["notebook"])
        commands.uuid = type("uuid", (), {"uuid4": staticmethod(lambda: notebook)})
        command, *others = words
        auth = str(self.state.auth_provider.value)
        line = ["--auth", auth, "--config", session["record"], command, "-s", session["name"], *others]
        code = cli.app(line, standalone_mode=False)
        if code:
            raise Ended(f"{command} ended with {code}")


# --- Errands ----------------------------------------------------------------------------------------------


def new(colab: Colab, request: Answer, answer: Answer) -> None:
    """Allocates a machine, or finds the session's own. After an error looks once more, because the request
    may have taken effect."""
    session = request["session"]
    failed = None
    colab.check_notebooks()  # the command line takes whatever it is shown
    try:
        colab.run(session, request["words"])
    except Exception as error:  # noqa: BLE001 - raised below, unless there is a machine
        failed = error
    if failed is not None:
        machine = _tried(lambda: colab.of_notebook(session["notebook"]))
        if machine is None:
            raise failed
        colab.record(session, machine)
    record = colab.store(session).get(session["name"])
    answer["machine"] = colab.listed().get(record.endpoint) or colab.given(record.endpoint)
    answer["machine"].pop("runtimeProxyInfo", None)


def _tried(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception:  # noqa: BLE001 - whatever the command line raises
        return None


def command(colab: Colab, request: Answer, answer: Answer) -> None:
    """A command that needs the session's machine."""
    session = request["session"]
    machine = colab.find(session, colab.listed())
    answer["has_machine"] = machine is not None
    if machine is not None:
        colab.record(session, machine)
        colab.run(session, request["words"])


def stop(colab: Colab, request: Answer, answer: Answer) -> None:
    """Gives the machine back, and looks whether it is gone. It may be gone although the command failed, and
    the other way round."""
    session = request["session"]
    machine = colab.find(session, colab.listed())
    answer["has_machine"] = machine is not None
    if machine is None:
        return
    failed = None
    colab.record(session, machine)
    try:
        colab.run(session, request["words"])
    except Exception as error:  # noqa: BLE001 - whatever the command line raises
        failed = error
    colab.record(session, machine)  # the command removed it, but Colab may list the machine for a while
    answer["has_machine"] = colab.find(session, colab.listed()) is not None
    is_known = getattr(getattr(failed, "response", None), "status_code", None) != 404
    if answer["has_machine"] and failed is not None and is_known:
        raise failed


def read(colab: Colab, request: Answer, answer: Answer) -> None:
    listed = colab.listed()
    if request["units"]:
        answer["units"] = colab.get("ccu-info")
    machines = {each["name"]: colab.find(each, listed) for each in request["sessions"]}
    answer["endpoints"] = {name: machine["endpoint"] for name, machine in machines.items() if machine}
    wanted = [(name, has, paths) for name, paths in request["files"].items() if (has := machines[name])]
    answer["found"] = contents_of_all(wanted, request)
    hidden = {"runtimeProxyInfo"}
    answer["assignments"] = [
        {key: value for key, value in each.items() if key not in hidden} for each in listed.values()
    ]


def download(colab: Colab, request: Answer, answer: Answer) -> None:
    machine = colab.find(request["session"], colab.listed())
    answer["has_machine"] = machine is not None
    if machine is None:
        return
    found = contents(machine, [request["path"]], request)
    data = found["files"].get(request["path"])
    answer |= {"problem": found["problem"], "too_large": found["too_large"], "found": data is not None}
    if data is not None:
        with open(request["target"], "wb") as file:  # noqa: PTH123
            file.write(base64.b64decode(data))


def login(colab: Colab, request: Answer, answer: Answer) -> None:  # noqa: ARG001
    """Logging in has asked the person already: this proves that they agreed to everything, and that Colab
    accepts it. A consent in part is raised as oauthlib does it, for callers that know its words."""
    with _expected():
        asked, granted = colab.web.credentials.scopes, colab.web.credentials.granted_scopes
    if granted is not None and lacking(asked, granted):  # None: all of it (RFC 6749 section 5.1)
        answer["phase"] = "login"
        raise Warning(f'Scope has changed from "{" ".join(asked)}" to "{" ".join(granted)}".')
    colab.get("ccu-info")


def lacking(asked: Iterable[str], granted: Iterable[str]) -> list[str]:
    """The scopes that were asked for and not granted, by their last word: Google calls the same one `email`
    or `https://www.googleapis.com/auth/userinfo.email`."""
    given = {each.rpartition("/")[2].removeprefix("userinfo.") for each in granted}
    words = [each.rpartition("/")[2].removeprefix("userinfo.") for each in asked]
    return [each for each in words if each not in given]


ERRANDS = {each.__name__: each for each in (new, command, stop, read, download, login)}


# --- Files of a machine -----------------------------------------------------------------------------------


def contents_of_all(wanted: list[tuple[str, Answer, list[str]]], request: Answer) -> Answer:
    """Session → what is at these paths of its machine, all read at once. Time limits of requests are for each
    read, so a machine that sends a byte a second keeps them all. It is left alone after `machines_seconds`,
    and its thread ends with this process."""
    found: Answer = {}

    def one(name: str, machine: Answer, paths: list[str]) -> None:
        found[name] = contents(machine, paths, request)

    threads = [threading.Thread(target=one, args=each, daemon=True) for each in wanted]
    ends = time.monotonic() + request["machines_seconds"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, ends - time.monotonic()))
    late = {**_nothing(), "problem": f"not read within {request['machines_seconds']:g} s"}
    return {name: found.get(name, late) for name, _, _ in wanted}


def _nothing() -> Answer:
    return {"files": {}, "folders": {}, "too_large": {}, "problem": ""}


def contents(machine: Answer, paths: list[str], request: Answer) -> Answer:
    """What is at these paths of the machine. The first error ends it, because the next would take as long."""
    found = _nothing()
    try:
        for path in paths:
            _add(found, path, machine["runtimeProxyInfo"], request)
    except Exception as error:  # noqa: BLE001 - one machine must not spoil the others' part
        found["problem"] = hidden(f"{type(error).__name__}: {error}")
    return found


class _TooLarge(Exception):
    """The answer is longer than it may be. The rest was not read."""


def _add(found: Answer, path: str, proxy: Answer, request: Answer) -> None:
    is_folder, bytes_max = path.endswith("/"), request["bytes_max"]
    kind = {"type": "directory"} if is_folder else {"type": "file", "format": "base64"}
    limit = FOLDER_BYTES_MAX if is_folder else int(bytes_max * 1.4) + ABOUT_BYTES_MAX
    try:
        body = _get(proxy, path, {**kind, "content": "1"}, request, limit)
        if body is None:
            return
        if is_folder:
            entries = body.get("content") or ()
            names = ("name", "type", "size", "last_modified")
            found["folders"][path] = [{name: each.get(name) for name in names} for each in entries]
            return
        data = _bytes(body)
        if len(data) > bytes_max:
            raise _TooLarge
        found["files"][path] = base64.b64encode(data).decode()
    except _TooLarge:
        about = _get(proxy, path, {"type": kind["type"], "content": "0"}, request, ABOUT_BYTES_MAX)
        if about is not None:
            found["too_large"][path] = int(about.get("size") or 0)


def _get(proxy: Answer, path: str, parameters: Answer, request: Answer, limit: int) -> Answer | None:
    """The answer about one path, of at most `limit` bytes; None if there is nothing. Raises _TooLarge."""
    import requests

    url = f"{proxy['url'].rstrip('/')}/api/contents/{quote(path.strip('/'), safe='/')}"
    headers = {"X-Colab-Runtime-Proxy-Token": proxy["token"], "X-Colab-Client-Agent": "colab-cli"}
    asked = {"authuser": "0", **parameters}
    seconds = request["file_seconds"]
    with requests.get(
        url, params=asked, headers=headers, timeout=(seconds, seconds), stream=True
    ) as response:
        if response.status_code == 404:
            return None
        response.raise_for_status()
        text = bytearray()
        for chunk in response.iter_content(1 << 16):
            text += chunk
            if len(text) > limit:
                raise _TooLarge(f"the machine answers with more than {limit} bytes")
    body: Answer = json.loads(text)
    return body


def _bytes(body: Answer) -> bytes:
    """A file's content, which is text only if the machine ignores the format that was asked for."""
    text = str(body.get("content") or "")
    return text.encode() if body.get("format") == "text" else base64.b64decode(text)


def hidden(text: str) -> str:
    return _SECRETS.sub(r"\1…", text)[-TAIL:]


# --- The program ------------------------------------------------------------------------------------------


def main(words: list[str]) -> int:
    with open(words[0], encoding="utf-8") as file:  # noqa: PTH123
        request = json.load(file)
    answer: Answer = {"kind": "done", "version": version(), "phase": "login"}
    seen = Seen(request["seconds"], bool(os.environ.get("ORCHESTRATOR_NO_PRODUCTION")))
    try:
        colab = Colab(request["auth"], request["seconds"], seen)
        seen.watch()
        colab.log_in()
        answer["phase"] = "errand"
        ERRANDS[request["errand"]](colab, request, answer)
    except Strange as error:
        answer |= {"kind": "strange", "error": "Strange", "message": hidden(str(error))}
    except Confused as error:
        answer |= {"kind": "confused", "message": str(error)}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the answer tells it
        names = [each.__name__ for each in type(error).__mro__]
        answer |= {"kind": "failed", "error": names[0], "kinds": names, "message": hidden(str(error))}
        if request["errand"] != "login":  # a person would see it
            sys.stderr.write(hidden(traceback.format_exc()))
    answer["requests"] = seen.requests
    write(words[1], answer)
    return 0


def warm() -> None:
    """Imports what errands need. Nothing that is read from files or variables may be kept."""
    import importlib.metadata  # noqa: F401

    import requests  # noqa: F401
    from colab_cli import auth, cli, common, state  # noqa: F401
    from colab_cli.commands import execution, files, session  # noqa: F401


def version() -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("google-colab-cli")
    except PackageNotFoundError:
        return "none"


def write(path: str, answer: Answer) -> None:
    with open(f"{path}.part", "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump(answer, file)
    os.replace(f"{path}.part", path)  # noqa: PTH105


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C on a terminal ends it without a traceback
    sys.exit(main(sys.argv[1:]))
