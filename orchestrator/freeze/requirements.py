"""Locks a job's requirements at submit: one version of every package, with the hashes of its files.

Decides which versions every session of a run installs. uv resolves them for every Python and machine at once,
and runs no code of any package. The lock holds names, versions, hashes, and the addresses of package indexes
in the requirements, but never a login. Must never know jobs, runs or platforms. The agent decides which of
its own packages a platform keeps (orchestrator.agent.requirements).
"""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from uv import find_uv_bin

from orchestrator import user
from orchestrator.files import write_whole
from orchestrator.freeze import requirement_file
from orchestrator.freeze.local_paths import REMEDY, LocalPath, local_path
from orchestrator.freeze.requirement_file import Line

PYTHON = "3.11"
"""The oldest Python that the agent runs on."""
SECONDS_MAX = 120
_WANTED, _LIMITS = "requirements.txt", "constraints.txt"

_RELEASE = re.compile(r"[A-Za-z0-9][\w.-]*\s*(?:\[[^\]]*\]\s*)?(?:[;<>=!~(][^@]*)?")
_SOURCE = re.compile(r"(?:-i|--index-url|--extra-index-url|-f|--find-links|--trusted-host)(?:\s|=).+")
_FLAG = re.compile(r"--(?:pre|no-index|prefer-binary)")
_LOGIN = re.compile(r"://[^/\s@]*@")
_SAID_MAX = 300

_HEAD = """# Locked when the job was submitted: what {name} comes to. Each session installs these
# versions, checked by these hashes, or keeps what its platform has and {name} allows.
"""


class NotLocked(Exception):
    """The requirements stay unlocked; the message says why."""


def lock(file: Path, variables: Mapping[str, str], python: str = PYTHON) -> str | None:
    """The lock of a requirements file, in pip's format; None if the file has hashes and so is a lock itself.

    `variables` are those that a session's pip would see, such as PIP_INDEX_URL. Contacts the package index
    and takes at most two minutes. `python`: the oldest that the lock must fit. Raises NotLocked, and
    InputError as `requirement_file.read` does.
    """
    lines = requirement_file.read(file).lines
    if any("--hash" in line.text for line in lines):
        return None
    for line in lines:
        _check(line)
    sources = list(dict.fromkeys(line.text for line in lines if _SOURCE.fullmatch(line.text)))
    environment, options = _settings(variables, sources)
    if any(line.text == "--pre" for line in lines):
        options = (*options, "--prerelease", "allow")
    locked = _resolved(lines, environment, (*options, "--python-version", python))
    head = _HEAD.format(name=file.name)
    return head + "".join(f"{each}\n" for each in sources) + locked


def lost(file: Path, names: Collection[str]) -> list[str]:
    """Sentences on the lines that name what no session has. `names`: the paths in the job's source."""
    lines = [(line, local_path(line.text)) for line in requirement_file.read(file).lines]
    found = ((line, named.trouble(names)) for line, named in lines if named is not None)
    return [f"{line}: {line.text[:80]!r} {trouble}" for line, trouble in found if trouble]


def _check(line: Line) -> None:
    """Raises NotLocked for a line that versions and hashes cannot pin, or that must not be written down."""
    if "${" in line.text:
        # uv would put its value into the address: a stranger's file could send any variable anywhere.
        raise NotLocked(f"{line} refers to a variable; give a private index as the secret PIP_INDEX_URL")
    if _LOGIN.search(line.text):
        raise NotLocked(f"{line} holds an address with a login; give the index as the secret PIP_INDEX_URL")
    if (named := local_path(line.text)) is not None:
        raise NotLocked(f"{line}: {line.text[:80]!r} {_as_it_is(named)}")
    if _SOURCE.fullmatch(line.text):
        if "find-links" in line.text or line.text.startswith("-f"):
            place = re.split(r"\s+|=", line.text, maxsplit=1)[1]
            if not place.startswith(("https://", "http://")):
                raise NotLocked(f"{line} takes packages from a folder")
    elif not _FLAG.fullmatch(line.text) and not _RELEASE.fullmatch(line.text):
        raise NotLocked(f"{line} is not a released version of a package: {line.text[:80]}")


def _as_it_is(named: LocalPath) -> str:
    """What becomes of a local path in a session."""
    if named.absolute:
        return f"is a path of this machine, which sessions elsewhere do not have: {REMEDY}"
    if named.editable:
        return (
            "is an editable install, which a session's command does not see: name the folder without -e, or "
            "remove the line and write `env: {PYTHONPATH: .}` into the job"
        )
    return "is a local path, which each session installs from the source"


def _resolved(lines: Sequence[Line], environment: Mapping[str, str], options: tuple[str, ...]) -> str:
    """uv gets the lines that were checked, as UTF-8, and not the files: they may change, and uv does not read
    each encoding that pip reads."""
    with tempfile.TemporaryDirectory(prefix="orchestrator-") as folder:
        limits, wanted = list[str](), list[str]()
        for line in lines:
            (limits if line.constraint and _RELEASE.fullmatch(line.text) else wanted).append(line.text)
        for name, texts in ((_LIMITS, limits), (_WANTED, [*wanted, f"-c {_LIMITS}"])):
            write_whole(Path(folder, name), "".join(f"{text}\n" for text in texts).encode(), sync=False)
        return _asked(Path(folder), environment, options)


def _asked(folder: Path, environment: Mapping[str, str], options: tuple[str, ...]) -> str:
    command = [
        "pip", "compile", "--quiet", "--no-config", "--no-cache", "--color", "never",
        "--universal", "--python", sys.executable, "--no-python-downloads",
        "--no-build",  # no code of a package runs here
        "--fork-strategy", "fewest",  # the same version for each Python, if one works for all
        "--generate-hashes", "--no-header", "--annotation-style", "line",
        "--index-strategy", "unsafe-best-match",  # like pip in the session: the best version of all indexes
        *options, f"./{_WANTED}",
    ]  # fmt: skip
    try:
        done = subprocess.run(
            [find_uv_bin(), *command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=SECONDS_MAX, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise NotLocked(f"the package index did not answer within {SECONDS_MAX} s") from None
    except OSError as error:
        raise NotLocked(f"uv cannot be started: {error}") from error
    if done.returncode:
        raise NotLocked(_reason(done.stderr.decode(errors="replace")))
    locked = done.stdout.decode()
    entries = [each for each in re.split(r"\n(?=[^\s#])", locked) if each.strip()]
    bare = next((each for each in entries if "--hash=" not in each), None)
    if bare is not None:
        raise NotLocked(f"the package index has no hash for {bare.split()[0]}")
    return locked


def _reason(said: str) -> str:
    """uv's message in one line: what failed and its deepest cause, without the addresses that it tried."""
    words = [re.sub(r"^(?:error|cause): ", "", line.strip()) for line in said.splitlines() if line.strip()]
    fetch = next((word for word in words if word.startswith("Failed to fetch")), None)
    chosen = words[:2] if fetch is None else [fetch, words[-1]]
    shown = (re.sub(r"\bhttps?://\S+", "the package index", word) for word in chosen)
    return (": ".join(dict.fromkeys(shown)) or "uv gave no reason")[:_SAID_MAX]


# --- The package index that pip would use -----------------------------------------------------------------

_FROM_PIP = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
    "PIP_TRUSTED_HOST": "UV_INSECURE_HOST",
    "PIP_CERT": "SSL_CERT_FILE",
    "PIP_PROXY": "ALL_PROXY",
}
# uv's own variables count where pip's are not set: a session's installer takes them in the same way.
_FROM_UV = {
    "UV_DEFAULT_INDEX": "UV_DEFAULT_INDEX",
    "UV_INDEX_URL": "UV_DEFAULT_INDEX",
    "UV_INDEX": "UV_INDEX",
    "UV_EXTRA_INDEX_URL": "UV_INDEX",
    "UV_FIND_LINKS": "UV_FIND_LINKS",
    "UV_INSECURE_HOST": "UV_INSECURE_HOST",
}
# uv sees only these variables of the environment, because none of them holds a login.
_KEPT = re.compile(r"PATH|HOME|USER|LANG|LC_\w+|TMPDIR|XDG_\w+|NETRC|SSL_CERT_\w+|(?i:\w+_proxy)")
_WAIT = {"UV_HTTP_TIMEOUT": "15", "UV_HTTP_RETRIES": "1"}


def _settings(variables: Mapping[str, str], sources: list[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """uv's variables and options, from pip's settings. An address may hold a login, so it is never passed as
    an argument. `sources` are the file's own lines: an index in them replaces all others."""
    kept = {name: value for name, value in variables.items() if _KEPT.fullmatch(name)}
    pip = _configured(variables) | {name: value for name, value in variables.items() if value}
    told = {ours: pip[theirs].strip() for theirs, ours in _FROM_PIP.items() if pip.get(theirs, "").strip()}
    for theirs, ours in _FROM_UV.items():
        if ours not in told and variables.get(theirs, "").strip():
            told[ours] = variables[theirs].strip()
    if "UV_FIND_LINKS" in told:
        told["UV_FIND_LINKS"] = ",".join(told["UV_FIND_LINKS"].split())
    if any(re.match(r"-i\b|--index-url\b", line) for line in sources):
        told = {name: value for name, value in told.items() if name not in ("UV_DEFAULT_INDEX", "UV_INDEX")}
    offline = pip.get("PIP_NO_INDEX", "").lower() in ("1", "true", "yes", "on")
    return kept | _WAIT | told, ("--no-index",) if offline else ()


def _configured(variables: Mapping[str, str]) -> dict[str, str]:
    """PIP_… → value from pip's configuration files. Later files win, as with pip."""
    home = Path(variables["HOME"]) if variables.get("HOME") else user.known_home()
    config = variables.get("XDG_CONFIG_HOME") or (home and home / ".config")
    files = [Path("/etc/pip.conf")]
    files += [] if home is None else [home / ".pip" / "pip.conf"]
    files += [Path(config, "pip", "pip.conf")] if config else []
    files.append(Path(sys.prefix, "pip.conf"))
    if given := variables.get("PIP_CONFIG_FILE"):
        files = [] if given == os.devnull else [*files, Path(given)]
    found: dict[str, str] = {}
    for file in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError, OSError):
            continue
        for section in ("global", "install"):
            if parser.has_section(section):
                found |= {_variable(name): " ".join(value.split()) for name, value in parser.items(section)}
    return found


def _variable(name: str) -> str:
    return f"PIP_{name.upper().replace('-', '_')}"
