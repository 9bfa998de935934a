"""The options of an S3 store, what each service is known to need, and the store that they make.

Decides which options a preset fills in, and refuses what cannot work before anything is sent. Must never look
up a secret: the keys are read when they are used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from orchestrator.errors import InputError, Rejected
from orchestrator.stores.s3.clients import Clients, Place
from orchestrator.stores.s3.conditions import documented
from orchestrator.stores.s3.credentials import Credentials
from orchestrator.stores.s3.store import S3Store
from orchestrator.stores.store import check_prefix

Preset = Literal["aws", "r2", "b2", "minio", "seaweedfs", "huggingface"]
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,62}")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")


@dataclass(frozen=True)
class Options:
    """`preset` fills in `endpoint`, `region` and `style` where they are known. `account`: the account id (r2)
    or the user or organisation (huggingface). `prefix`: a folder in the bucket. The keys are references,
    `env:NAME` or `file:PATH`; a session gets them as they are."""

    bucket: str
    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)
    prefix: str = ""
    preset: Preset | None = None
    account: str = ""
    endpoint: str = ""
    region: str = ""
    style: Literal["path", "virtual", ""] = ""


@dataclass(frozen=True)
class _Known:
    """What is known of a service. `{account}` and `{region}` are filled in."""

    endpoint: str = ""
    region: str = ""
    style: str = "path"


_PRESETS = {
    "aws": _Known("https://s3.{region}.amazonaws.com", style="virtual"),
    "r2": _Known("https://{account}.r2.cloudflarestorage.com", "auto"),
    "b2": _Known("https://s3.{region}.backblazeb2.com"),
    "minio": _Known(region="us-east-1"),
    "seaweedfs": _Known(region="us-east-1"),
    "huggingface": _Known("https://s3.hf.co/{account}", "us-east-1"),
}


def configured(name: str, options: Options, home: Path) -> S3Store:
    """The store as the user configured it. Raises InputError with a line for every mistake."""
    place, mistakes = _place(options)
    if place is None or mistakes:
        raise InputError("\n".join(f"store {name!r} (s3): {mistake}" for mistake in mistakes))
    keys = Credentials(home, options.access_key, options.secret_key, options.session_token)
    return S3Store(Clients(place, keys, name), name)


def _place(options: Options) -> tuple[Place | None, list[str]]:
    known = _PRESETS[options.preset or ("minio" if options.endpoint else "aws")]
    mistakes = []
    region = options.region or known.region
    pattern = options.endpoint or known.endpoint
    for what, value in (("region", region), ("account", options.account)):
        if value and not _WORD.fullmatch(value):
            mistakes.append(f"option {what!r}: letters, digits and -._ (given: {value!r})")
        elif not value and f"{{{what}}}" in pattern:
            mistakes.append(f"option {what!r} is missing: {options.preset or 'aws'} needs it")
    if not pattern:
        mistakes.append(f"option 'endpoint' is missing: the address of the service, for {options.preset}")
    if not _BUCKET.fullmatch(options.bucket):
        mistakes.append(f"option 'bucket': a bucket's name (given: {options.bucket!r})")
    prefix = options.prefix.strip("/")
    try:
        check_prefix(prefix)
    except Rejected as error:
        mistakes.append(f"option 'prefix': {error}")
    if mistakes:
        return None, mistakes
    endpoint = pattern.replace("{account}", options.account).replace("{region}", region).rstrip("/")
    mistake = _address_mistake(endpoint)
    if mistake:
        return None, [f"option 'endpoint': {mistake}"]
    style = options.style or ("path" if options.endpoint or "." in options.bucket else known.style)
    return Place(
        endpoint, options.bucket, prefix, region or "us-east-1", style == "virtual", documented(endpoint)
    ), []


def _address_mistake(endpoint: str) -> str:
    """What is wrong with the address; empty if nothing is. Never repeats a password."""
    try:
        parts = urlsplit(endpoint)
        parts.port  # noqa: B018 - raises if it is no number
    except ValueError:
        return "not an address; valid: https://HOST or https://HOST:PORT/PATH"
    if parts.username or parts.password:
        return "an address may not contain a login; use `access_key` and `secret_key`"
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.query or parts.fragment:
        return f"not an address; valid: https://HOST or https://HOST:PORT/PATH (given: {endpoint!r})"
    return ""
