"""What looks like a credential: a catalogue of names of files and variables, and of patterns in content.

Decides only what looks like one; the caller decides what to do. Must never read a file or repeat what it
found: an answer names only the kind and the line.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

CONTENT_BYTES_MAX = 1_000_000
"""How much of a file is searched: credentials are small, and larger files are data."""

_BINARY_BYTES = 8192
_FILES = (
    "kaggle.json", "access_token", "credentials", "credentials.json", "credentials.yaml", "credentials.yml",
    "credentials.toml", "credentials.db", "client_secret*.json", "client_secrets.json", "token.json",
    "token.pickle", "service[_-]account*.json", "application_default_credentials.json", "*.pem", "*.key",
    "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519",
    "id_ecdsa_sk", "id_ed25519_sk", ".env", ".env.*", "*.env", ".netrc", "_netrc", ".pypirc", ".npmrc",
    ".git-credentials", ".htpasswd", ".pgpass", ".my.cnf", ".boto", ".s3cfg", ".dockercfg", "rclone.conf",
    ".cdsapirc", ".vault-token", "secrets.json", "secrets.yaml", "secrets.yml", "secrets.toml",
)  # fmt: skip
_EXAMPLES = (".env.example", ".env.sample", ".env.template", ".env.dist")
_FILE = re.compile("|".join(fnmatch.translate(pattern) for pattern in _FILES))
# Folders and files where programs keep their logins, under any name.
_PLACE = re.compile(
    r"(?:^|/)(?:\.ssh|\.gnupg|\.aws|\.azure|\.kaggle|\.kube|\.config/gcloud|\.config/gh|\.docker/config\.json"
    r"|huggingface/(?:token|stored_tokens))(?:/|$)"
)
_VARIABLE = re.compile(
    r"(API_?KEY|ACCESS_?KEY|SECRET_?KEY|PRIVATE_?KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?"
    r"|(ACCESS|AUTH|API|BEARER|HF|HUGGINGFACE|GITHUB|GITLAB|KAGGLE|CONDA)_TOKEN)$",
    re.IGNORECASE,
)
_OPTION = re.compile(r"--?([A-Za-z][\w-]*)=(.*)", re.DOTALL)
_HAS_BOTH = re.compile(r"(?=.*[A-Za-z])(?=.*[0-9])[^\s/{}$]{8,}")
_VALUE = re.compile(r"(gh[pousr]_|github_pat_|hf_|sk-|xox[abp]-|AKIA|glpat-)[A-Za-z0-9_-]{16,}|-----BEGIN ")
# A login in an address. In `git+ssh://git@host` the name is not a secret; with https it may be the token.
_LOGIN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,20})://([^\s/@'\"<>`]{1,1000})@")
_ANONYMOUS = ("http", "https", "ftp", "git+http", "git+https", "hg+https", "svn+https", "bzr+https")
_REFERENCE = re.compile(r"(?:\$\{?\w+\}?|\{+\w*\}+|%\(?\w+\)?[s%]|\*+|x+|…|\.\.\.)?", re.IGNORECASE)


@dataclass(frozen=True)
class Mark:
    """Something that looks like a credential: its kind and its line in the text."""

    kind: str
    line: int

    def at(self, name: str) -> str:
        """`notes.txt:3 (an AWS access key)`."""
        return f"{name}:{self.line} ({self.kind})"


def _marks(*rows: tuple[str, bytes, str]) -> tuple[tuple[bytes, re.Pattern[bytes], str], ...]:
    return tuple((start, re.compile(start + rest.encode()), kind) for kind, start, rest in rows)


# Each with its beginning, which is quick to search for, and its rest. The issuers document these forms for
# scanners. Amazon's example key does not count.
_MARKS = _marks(
    ("a private key", b"-----BEGIN ",
     r"(?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----(?:\s|\\[nr])+"
     r"(?:Proc-Type|Version|[A-Za-z0-9+/=\\\s]{40})"),
    ("a secret key of age", b"AGE-SECRET-KEY-", r"(?:PQ-)?1[A-Z0-9]{50}"),
    ("a PuTTY private key", b"PuTTY-User-Key-File-", r"\d"),
    ("an AWS access key", b"AKIA", r"(?![A-Z0-9]{9}EXAMPLE)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    ("an AWS access key", b"ASIA", r"(?![A-Z0-9]{9}EXAMPLE)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    *(("a GitHub token", b"gh%b_" % kind, r"[A-Za-z0-9]{36}") for kind in (b"p", b"o", b"u", b"s", b"r")),
    ("a GitHub token", b"github_pat_", r"[A-Za-z0-9_]{22}"),
    ("a GitLab token", b"glpat-", r"[A-Za-z0-9_-]{20}"),
    ("a Hugging Face token", b"hf_", r"[A-Za-z0-9]{30}"),
    *(("a Slack token", b"xox%b-" % kind, r"[A-Za-z0-9-]{20}")
      for kind in (b"a", b"b", b"e", b"o", b"p", b"r", b"s")),
    ("an API key", b"sk-", r"(?:(?:proj|ant|svcacct|admin|or-v1)-[A-Za-z0-9_-]{20}|[A-Za-z0-9]{32})"),
    ("a Stripe key", b"sk_live_", r"[A-Za-z0-9]{20}"),
    ("a Google API key", b"AIza", r"[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])"),
    ("a Google client secret", b"GOCSPX-", r"[A-Za-z0-9_-]{28}"),
    ("a Google access token", b"ya29.", r"[A-Za-z0-9_-]{30}"),
    ("a Kaggle token", b"KGAT_", r"[0-9a-f]{32}"),
    ("a Kaggle key", b'"username"', r'\s*:\s*"[^"]{1,100}"\s*,\s*"key"\s*:\s*"[0-9a-f]{32}"'),
    ("an npm token", b"npm_", r"[A-Za-z0-9]{36}"),
    ("a PyPI token", b"pypi-AgEI", r"[A-Za-z0-9_-]{30}"),
)  # fmt: skip
_KEY_FILE = re.compile(rb"\s*-----BEGIN [A-Z ]*PRIVATE KEY-----")
_SERVICE_ACCOUNT = re.compile(rb'"private_key"\s*:\s*"-----BEGIN')
_SERVICE_ACCOUNT_BYTES = 20_000


def in_name(path: str) -> bool:
    """Whether a file with this path probably holds credentials; with forward slashes."""
    low = path.lower()
    base = low.rsplit("/", 1)[-1]
    return base not in _EXAMPLES and (_FILE.fullmatch(base) is not None or _PLACE.search(low) is not None)


def in_content(content: bytes) -> Mark | None:
    """The first thing in a file's first CONTENT_BYTES_MAX bytes that looks like a credential.

    In a binary file only the beginning is searched, for a file that is a key.
    """
    head = content[:CONTENT_BYTES_MAX]
    if _KEY_FILE.match(head[:200]):
        return Mark("a private key", 1)
    if len(head) < _SERVICE_ACCOUNT_BYTES and (found := _SERVICE_ACCOUNT.search(head)):
        return Mark("a service account's key", _line(head, found.start()))
    if b"\0" in head[:_BINARY_BYTES]:
        return None
    first = min(_found(head), default=None)
    return None if first is None else Mark(first[1], _line(head, first[0]))


def _found(content: bytes) -> Iterator[tuple[int, str]]:
    for start, whole, kind in _MARKS:
        at = content.find(start)
        while at >= 0:
            inside_word = at > 0 and (content[at - 1 : at].isalnum() or content[at - 1 : at] in (b"_", b"-"))
            if (start.startswith(b"-") or not inside_word) and whole.match(content, at):
                yield at, kind
                break
            at = content.find(start, at + 1)


def _line(content: bytes, at: int) -> int:
    return content.count(b"\n", 0, at) + 1


def in_variable(name: str, value: object) -> bool:
    """Whether a variable or option looks like a credential, by its name or by its value."""
    return _VARIABLE.search(name) is not None or (isinstance(value, str) and in_value(value))


def in_value(value: str) -> bool:
    """Whether a text looks like a credential or contains one: a token, a key, an address with a login."""
    known = _VALUE.match(value) is not None or login(value) is not None
    return known or in_content(value.encode("utf-8", "replace")) is not None


def in_word(word: str) -> bool:
    """Whether a word of a command looks like a credential or passes one: `--api-key=…` and a random value."""
    option = _OPTION.fullmatch(word)
    if option is not None:
        name, value = option[1].replace("-", "_"), option[2]
        if _VARIABLE.search(name) is not None and _HAS_BOTH.fullmatch(value) is not None:
            return True
    return login(word) is not None or in_content(word.encode("utf-8", "replace")) is not None


def in_words(words: Sequence[str]) -> bool:
    """Whether a command passes something that looks like a credential: in one word, or in
    two, as in `--api-key X` and `login X`."""
    return any(map(in_word, words)) or any(
        in_word(f"{option}={value}") if option.startswith("-") else _is_login(option, value)
        for option, value in pairwise(words)
        if "=" not in option
    )


def _is_login(word: str, value: str) -> bool:
    return word == "login" and not value.startswith("-") and _HAS_BOTH.fullmatch(value) is not None


def login(text: str) -> str | None:
    """The scheme of the first address in the text that contains a login; None if no address does.

    A placeholder such as `${NAME}` is not a login. For ssh and the like, a user name alone is not one either.
    """
    for scheme, user in _LOGIN.findall(text):
        name, colon, password = user.partition(":")
        secret = password if colon else name
        if not colon and scheme.lower() not in _ANONYMOUS:
            continue
        if _REFERENCE.fullmatch(secret) is None:
            return str(scheme).lower()
    return None


def logins(text: str) -> Iterator[Mark]:
    """Every line of the text that has an address with a login."""
    for number, line in enumerate(text.splitlines(), start=1):
        if login(line) is not None:
            yield Mark("a login in an address", number)
