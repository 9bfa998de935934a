"""How a session opens a store in a bucket, without a config. Must never import pydantic, which it lacks."""

from __future__ import annotations

from orchestrator.errors import Rejected
from orchestrator.stores.portable import Portable
from orchestrator.stores.s3.clients import Clients, Place
from orchestrator.stores.s3.conditions import documented
from orchestrator.stores.s3.credentials import Credentials
from orchestrator.stores.s3.store import S3Store

_NAME = "home store"


def carried(portable: Portable) -> S3Store:
    """The store of a `Portable`. Tries once what the service does with conditional writes, unless it
    documents that."""
    options, keys = portable.options, portable.secret
    if "bucket" not in options or "endpoint" not in options:
        raise Rejected("a store in a bucket needs a bucket and an endpoint")
    place = Place(
        options["endpoint"],
        options["bucket"],
        options.get("prefix", ""),
        options.get("region", ""),
        options.get("style") == "virtual",
        documented(options["endpoint"]),
    )
    given = (keys.get(each, "") for each in ("access_key", "secret_key", "session_token"))
    return S3Store(Clients(place, Credentials(None, *given), _NAME), _NAME)
