"""Builds a frozen chain of images on one engine, or pulls an image by name, if the engine lacks it.

Decides whether there is anything to build, and what a failure means to the caller. Must never know jobs,
sessions or the folders on this machine. It takes an archive (orchestrator.freeze.images defines its content)
and returns the id of an image. Every function blocks. Raises Transient, AccessDenied or Rejected.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import tarfile
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import docker
import requests
import urllib3
from docker.credentials.errors import StoreError
from docker.errors import APIError, DockerException, NotFound

from orchestrator.core import build_arguments
from orchestrator.errors import AccessDenied, BackendError, Rejected, Transient

Say = Callable[[str], None]

LABEL = "orchestrator.image"
HOME_LABEL = "orchestrator.image.home"  # not the containers' label: a container inherits its image's labels
_CHAIN = "chain.json"
_BASE = "BASE"
_VARIANT = "VARIANT"
# After so long without output the engine counts as lost. Quiet steps (a large wheel) take minutes.
_SILENCE_SECONDS = 1800
_LINES_MAX = 15
_COMMAND_CHARS_MAX = 100
_STEP = re.compile(r"Step (\d+)/(\d+) : (.*)", re.DOTALL)
# Lines by the engine itself: layers, cache hits and the containers of its steps.
_REMARKS = (" ---> ", "Removing intermediate container ", "Successfully ")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LOGIN = re.compile(r"://[^/\s@]+@")
_EXIT_CODE = re.compile(r"returned a non-zero code: (\d+)")
_KILLED = 128
_NO_ROOM = ("no space left on device", "disk quota exceeded")
_BUSY = ("toomanyrequests", "too many requests", "rate limit")
_DENIED = ("access denied", "access forbidden", "unauthorized", "authentication required", "denied:",
           "no basic auth credentials", "incorrect username or password")  # fmt: skip
_MISSING = ("manifest unknown", "not found", "name unknown", "does not exist", "no matching manifest",
            "no such image", "invalid reference", "must be lowercase")  # fmt: skip
_LOST = (requests.RequestException, urllib3.exceptions.HTTPError, http.client.HTTPException, ConnectionError)


@dataclass(frozen=True)
class _Image:
    """One image of a chain. `digest` covers the name, mode and content of every file of its context."""

    number: int
    name: str
    arguments: Mapping[str, str | None]
    origins: tuple[str, ...]
    digest: str

    @property
    def prefix(self) -> str:
        return f"{self.number}/"


def build(
    client: docker.DockerClient,
    archive: Path,
    arguments: Mapping[str, str],
    say: Say,
    *,
    network: str | None = None,
    home: str = "",
) -> str:
    """Builds every image of the chain that this engine lacks. Returns the id of the last one.

    Two images are the same if their files, the build arguments that they declare and their parent images are
    the same. The tag is `orchestrator/<name>:<variant>-<12 hex digits of those>`. `network` is docker's
    network mode for build steps. `say` gets every step and every line of output. Each built image is
    labelled with the id of its `home`.
    """
    _check(arguments)
    images = _chain(archive)
    site = _Site(client, archive, _variant(images, arguments), say, network, home)
    below: str | None = None
    for image in images:
        below = _ensure(site, image, _given(image, arguments, below))
    if below is None:
        raise Rejected(f"the frozen image {archive.name} is empty: submit again")
    return below


def tags(client: docker.DockerClient, archive: Path, arguments: Mapping[str, str]) -> frozenset[str] | None:
    """The tags that `build` finds or makes for this archive. Builds and pulls nothing.

    None if the engine lacks a parent image: the tags are then unknown.
    """
    images = _chain(archive)
    site = _Site(client, archive, _variant(images, arguments), lambda _: None, None)
    found: set[str] = set()
    below: str | None = None
    for image in images:
        if found and below is None:
            return None
        given = _given(image, arguments, below)
        references = [_filled(written, image, given) for written in image.origins]
        origins = {each: _inspect(client, each) for each in references if each}
        if not all(references) or not all(origins.values()):
            return None
        ids = {name: str(attributes["Id"]) for name, attributes in origins.items() if attributes}
        tag = site.tag(image, _fingerprint(image, given, ids))
        found.add(tag)
        there = _inspect(client, tag)
        below = None if there is None else str(there["Id"])
    return frozenset(found)


def pull(client: docker.DockerClient, reference: str, say: Say) -> str:
    """Resolves an image name to `name@sha256:…`, or to its id if only this engine has the image.

    Pulls the image if the engine lacks it.
    """
    found = _inspect(client, reference)
    if found is None:
        _pull(client, reference, say)
        found = _inspect(client, reference)
        if found is None:
            raise Transient(f"{reference} was pulled, but the engine has already lost it")
    digests: list[str] = found.get("RepoDigests") or []
    own = [each for each in digests if each.partition("@")[0] == _repository(reference)]
    return next(iter([*own, *digests]), str(found["Id"]))


# --- What there is to build -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Site:
    """Where the images of one chain are built, and who is told about progress."""

    client: docker.DockerClient
    archive: Path
    variant: str
    say: Say
    network: str | None
    home: str = ""

    def title(self, image: _Image) -> str:
        return f"{image.name} ({self.variant})"

    def tag(self, image: _Image, sha256: str) -> str:
        variant = re.sub(r"[^A-Za-z0-9_.-]", "-", self.variant)
        return f"orchestrator/{image.name}:{variant}-{sha256[:12]}"


def _variant(images: list[_Image], arguments: Mapping[str, str]) -> str:
    defaults = (default for image in images if (default := image.arguments.get(_VARIANT)))
    return arguments.get(_VARIANT) or next(defaults, "plain")


def _given(image: _Image, arguments: Mapping[str, str], below: str | None) -> dict[str, str]:
    """The build arguments of one image: those that it declares, and the id of the image below."""
    given = {name: arguments[name] for name in image.arguments if name in arguments}
    return given if below is None else {**given, _BASE: below}


def _fingerprint(image: _Image, given: Mapping[str, str], origins: Mapping[str, str]) -> str:
    inputs = json.dumps([image.digest, dict(given), dict(origins)], sort_keys=True)
    return hashlib.sha256(inputs.encode()).hexdigest()


def _check(arguments: Mapping[str, str]) -> None:
    """Refuses logins in build arguments: anyone who has an image can read its build arguments."""
    for name, value in arguments.items():
        if _LOGIN.search(value):
            raise Rejected(
                f"build argument {name}: the address contains a login, which would stay readable in the "
                "image; use an index that needs no login"
            )


def _chain(archive: Path) -> list[_Image]:
    try:
        with tarfile.open(archive) as files:
            described = json.load(_opened(files, files.getmember(_CHAIN)))["images"]
            digests = [hashlib.sha256() for _ in described]
            for member in files:
                number, _, name = member.name.partition("/")
                if name:
                    content = hashlib.sha256(_opened(files, member).read()).hexdigest()
                    digests[int(number)].update(f"{name}\0{member.mode}\0{content}\0".encode())
        return [
            _Image(number, each["name"], each["arguments"], tuple(each["from"]), digest.hexdigest())
            for number, (each, digest) in enumerate(zip(described, digests, strict=True))
        ]
    except (OSError, EOFError, tarfile.TarError, ValueError, KeyError, IndexError) as error:
        raise Rejected(f"the frozen image {archive.name} cannot be read ({error}): submit again") from error


def _opened(files: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    stream = files.extractfile(member)
    if stream is None:
        raise tarfile.TarError(f"{member.name} is not a file")
    return stream


@contextmanager
def _context(archive: Path, image: _Image) -> Iterator[IO[bytes]]:
    """The image's own files as a tar archive in a file: the client sends bytes slowly
    (docs/references/engines.md#sending-an-archive)."""
    with tempfile.TemporaryFile() as stream:
        with (
            tarfile.open(archive) as files,
            tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as context,
        ):
            for member in files:
                if member.name.startswith(image.prefix):
                    content = _opened(files, member)
                    member.name = member.name.removeprefix(image.prefix)
                    context.addfile(member, content)
        stream.seek(0)
        yield stream


def _filled(reference: str, image: _Image, given: Mapping[str, str]) -> str:
    """A reference with its arguments filled in, as the engine would."""
    values = {name: value for name, value in image.arguments.items() if value is not None}
    values.update(given)
    try:
        return build_arguments.reference(reference, values)
    except build_arguments.TooLong as error:
        raise Rejected(f"image {image.name}: FROM {reference[:_COMMAND_CHARS_MAX]} is {error}") from error


# --- Building -------------------------------------------------------------------------------------------


def _ensure(site: _Site, image: _Image, given: Mapping[str, str]) -> str:
    title = site.title(image)
    origins: dict[str, str] = {}
    for written in image.origins:
        reference = _filled(written, image, given)
        if not reference:
            raise Rejected(f"image {title}: FROM {written} needs a build argument that is not set")
        origins[reference] = _origin(site, reference, title)
    tag = site.tag(image, _fingerprint(image, given, origins))
    found = _inspect(site.client, tag)
    if found is None:
        _build(site, image, given, tag)
        found = _inspect(site.client, tag)
    if found is None:
        raise Transient(f"image {title}: the engine ended the build without an image or an error")
    return str(found["Id"])


def _origin(site: _Site, reference: str, title: str) -> str:
    """The id of the parent image. We pull it ourselves so that the error says why a pull failed."""
    try:
        pull(site.client, reference, site.say)
    except (Transient, AccessDenied, Rejected) as error:
        raise type(error)(f"image {title} builds on {reference}: {error}") from error
    found = _inspect(site.client, reference)
    if found is None:
        raise Transient(f"image {title} builds on {reference}, but the engine has already lost it")
    return str(found["Id"])


@dataclass
class _Watch:
    """Output of a build so far: its step, the step's command and its newest lines."""

    title: str
    say: Say
    step: str = ""
    command: str = ""
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LINES_MAX))
    begun: str = ""

    def hear(self, text: str) -> None:
        match = _STEP.match(text)
        if match is not None:
            number, count, command = match.groups()
            self.step, self.command = f"step {number}/{count}", " ".join(command.split())
            self.lines.clear()
            self.begun = ""
            shown = self.command
            if len(shown) > _COMMAND_CHARS_MAX:
                shown = shown[: _COMMAND_CHARS_MAX - 1] + "…"
            self.say(f"building {self.title}: {self.step}: {shown}")
            return
        if text.startswith(_REMARKS):
            self.end()
            return
        *whole, self.begun = re.split(r"[\r\n]+", _COLOUR.sub("", self.begun + text))
        for line in whole:
            self._line(line)

    def end(self) -> None:
        """Reports the last line even if it has no line break."""
        self._line(self.begun)
        self.begun = ""

    def _line(self, line: str) -> None:
        if line.strip():
            self.lines.append(line.rstrip())
            self.say(f"building {self.title}: {self.step}: {line.strip()}")


def _build(site: _Site, image: _Image, given: Mapping[str, str], tag: str) -> None:
    watch = _Watch(site.title(image), site.say)
    labels = {LABEL: image.name} | ({HOME_LABEL: site.home} if site.home else {})
    with _told(f"image {watch.title}"), _context(site.archive, image) as context:
        events = site.client.api.build(
            fileobj=context, custom_context=True, tag=tag, buildargs=dict(given), rm=True, forcerm=True,
            decode=True, timeout=_SILENCE_SECONDS, network_mode=site.network, labels=labels,
        )  # fmt: skip
        error = ""
        # Read to the end: only then is the connection released.
        for event in events:
            if "stream" in event:
                watch.hear(str(event["stream"]))
            elif "error" in event:
                error = str(event["error"]).strip()
            elif "status" in event:
                site.say(f"building {watch.title}: {watch.step}: {_progress(event)}")
    watch.end()
    if error:
        raise _failed(site.client, watch, error)


def _failed(client: docker.DockerClient, watch: _Watch, message: str) -> BackendError:
    said = "\n".join(f"  | {line}" for line in watch.lines)
    title = f"image {watch.title}"
    if no_room(f"{message}\n{said}"):
        return Transient(f"{title}: {watch.step}: {full(message)}")
    code = int(match.group(1)) if (match := _EXIT_CODE.search(message)) else None
    if (code is None or code > _KILLED) and not _answers(client):
        return Transient(f"{title}: the engine was lost at {watch.step}: {message}")
    if code is None and not watch.step.strip():
        return Rejected(f"{title}: {message}")
    why = message if code is None else f"exit code {code}"
    killed = "; killed, maybe because the engine ran out of memory" if code == _KILLED + 9 else ""
    last = f"; its last lines:\n{said}" if said else ""
    cure = "fix its folder and submit again (this run keeps its frozen copy)"
    return Rejected(f"{title}: {watch.step} failed: {watch.command} ({why}{killed}); {cure}{last}")


def no_room(text: str) -> bool:
    """Whether a message of the engine says that its disk is full."""
    return any(sign in text.lower() for sign in _NO_ROOM)


def full(message: str) -> str:
    """The error text for a full disk, with what to do."""
    return f"the engine's disk is full ({message}): free some space, e.g. with `docker system prune`"


def _answers(client: docker.DockerClient) -> bool:
    try:
        client.ping()
    except (DockerException, *_LOST):
        return False
    return True


# --- Pulling --------------------------------------------------------------------------------------------


def _inspect(client: docker.DockerClient, reference: str) -> dict[str, Any] | None:
    with _told(reference):
        try:
            return client.images.get(reference).attrs
        except NotFound:
            return None


def _pull(client: docker.DockerClient, reference: str, say: Say) -> None:
    if reference.startswith("sha256:"):
        raise Rejected(f"{reference} is not on this engine, and an image cannot be pulled by its id alone")
    done: dict[str, tuple[int, int]] = {}
    error = ""
    with _told(reference, _refusal):
        for event in client.api.pull(reference, stream=True, decode=True):
            if "error" in event:
                error = str(event["error"]).strip()
            detail = event.get("progressDetail") or {}
            if event.get("status") == "Downloading" and detail.get("total"):
                done[event["id"]] = (detail.get("current", 0), detail["total"])
                here, whole = (sum(each[side] for each in done.values()) / 1e6 for side in (0, 1))
                say(f"pulling {reference}: {here:.1f} of {whole:.1f} MB")
            elif "status" in event:
                say(f"pulling {reference}: {_progress(event)}")
    if error:
        raise _refusal(reference, error)


def _progress(event: Mapping[str, Any]) -> str:
    return " ".join(str(event[key]) for key in ("id", "status") if event.get(key))


def _refusal(reference: str, message: str) -> BackendError:
    """A registry's refusal as one of our errors. Docker Hub reports a private image as a missing one."""
    low = message.lower()
    if no_room(message):
        return Transient(f"{reference}: {full(message)}")
    if any(sign in low for sign in _BUSY):
        return Transient(f"{reference} cannot be pulled for now: {message}")
    if any(sign in low for sign in _DENIED):
        return AccessDenied(
            f"{reference} cannot be pulled: {message}; if it exists, `docker login` where the controller runs"
        )
    if any(sign in low for sign in _MISSING):
        return Rejected(f"{reference} cannot be pulled: {message}; is the name right?")
    return Transient(f"{reference} cannot be pulled: its registry cannot be reached: {message}")


def _repository(reference: str) -> str:
    """The name without tag and digest, in the short form that engines use."""
    name = reference.partition("@")[0]
    if ":" in name.rpartition("/")[2]:
        name = name.rpartition(":")[0]
    return name.removeprefix("docker.io/").removeprefix("library/")


# --- Errors ---------------------------------------------------------------------------------------------


def _refused(what: str, message: str) -> BackendError:
    if no_room(message):
        return Transient(f"{what}: {full(message)}")
    return Rejected(f"{what}: {message}")


@contextmanager
def _told(what: str, refused: Callable[[str, str], BackendError] = _refused) -> Iterator[None]:
    """Turns the SDK's errors into ours."""
    try:
        yield
    except APIError as error:
        message = str(error.explanation or error)
        code = error.status_code or 500
        if refused is _refused and (code >= 500 or code in (408, 409, 429)) and not no_room(message):
            raise Transient(f"{what}: the engine failed: {message}") from error
        raise refused(what, message) from error
    except (DockerException, StoreError, *_LOST) as error:
        if isinstance(error, StoreError) or "Credentials store" in str(error):
            said = " ".join(str(error).split())
            raise AccessDenied(
                f"{what}: docker's credential store fails ({said}): fix it, or remove it from "
                "docker's config.json"
            ) from error
        if "Permission denied" in str(error):
            raise AccessDenied(f"{what}: no permission to use the Docker engine: {error}") from error
        raise Transient(f"{what}: the engine was lost: {error}") from error
