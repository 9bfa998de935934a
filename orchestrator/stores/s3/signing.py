"""Signs a request without a body as AWS Signature Version 4 prescribes, for the requests that obstore lacks.

Decides nothing else: it sends nothing and reads no clock. The steps and their names are those of
https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

from orchestrator.stores.s3.credentials import Keys

_ALGORITHM = "AWS4-HMAC-SHA256"
_NO_BODY = hashlib.sha256(b"").hexdigest()


def path_of(key: str) -> str:
    """A key as it stands in an address and is signed."""
    return quote(key, safe="/-_.~")


def query_of(parameters: Mapping[str, str]) -> str:
    """The parameters as they stand in an address and are signed."""
    pairs = sorted(
        (quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in parameters.items()
    )
    return "&".join(f"{name}={value}" for name, value in pairs)


def signed(method: str, url: str, keys: Keys, region: str, now: float) -> dict[str, str]:
    """The headers that make it a signed request. The path and the query of the url are in the form of
    `path_of` and `query_of`; `now` is unix time."""
    parts = urlsplit(url)
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": parts.netloc, "x-amz-content-sha256": _NO_BODY, "x-amz-date": stamp}
    if keys.token:
        headers["x-amz-security-token"] = keys.token
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = "\n".join((method, parts.path or "/", parts.query, lines, names, _NO_BODY))
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    text = "\n".join((_ALGORITHM, stamp, scope, hashlib.sha256(request.encode()).hexdigest()))
    key = f"AWS4{keys.secret_key}".encode()
    for piece in scope.split("/"):
        key = hmac.digest(key, piece.encode(), "sha256")
    signature = hmac.new(key, text.encode(), "sha256").hexdigest()
    told = f"Credential={keys.access_key}/{scope},SignedHeaders={names},Signature={signature}"
    return headers | {"authorization": f"{_ALGORITHM} {told}"}
