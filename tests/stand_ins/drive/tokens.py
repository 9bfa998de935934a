"""The local Drive's login: access tokens for refresh tokens and for signed assertions of service accounts.

Decides which tokens are valid. Checks no signature.
"""

from __future__ import annotations

import base64
import itertools
import json
import threading
from pathlib import Path
from urllib.parse import parse_qs

REFRESH = "1//refresh-secret"
CLIENT_SECRET = "GOCSPX-client-secret"
CODE = "4/consent-code"  # what Google's page sends the browser back with
ACCESS_PREFIX = "ya29.access-secret-"


class Tokens:
    """May be shared by threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._valid: dict[str, bool] = {}  # whether it is a service account's
        self.is_revoked = False
        self.count = 0
        self.gives_refresh = True
        self.scopes = "https://www.googleapis.com/auth/drive.file"  # to which the person agrees (#consent)

    def granted(self, content: bytes) -> tuple[int, dict[str, str], bytes]:
        """An access token for an hour. `invalid_grant` once the consent is over (#tokens)."""
        form = {key: values[0] for key, values in parse_qs(content.decode()).items()}
        is_service = "assertion" in form
        if is_service:
            claims = form["assertion"].split(".")[1]
            assert "scope" in json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
        is_known = form.get("refresh_token") == REFRESH or form.get("code") == CODE or is_service
        if self.is_revoked or not is_known:
            error = {"error": "invalid_grant", "error_description": "Token has been expired or revoked."}
            return 400, {"Content-Type": "application/json"}, json.dumps(error).encode()
        with self._lock:
            self.count += 1
            token = f"{ACCESS_PREFIX}{next(self._numbers)}"
            self._valid[token] = is_service
        made = {"access_token": token, "expires_in": 3599, "token_type": "Bearer"}
        if "code" in form:
            made["scope"] = self.scopes
            if self.gives_refresh:
                made["refresh_token"] = REFRESH
        return 200, {"Content-Type": "application/json"}, json.dumps(made).encode()

    def expire(self) -> None:
        """Every access token ends; the consent stays."""
        with self._lock:
            self._valid.clear()

    def is_valid(self, header: str) -> bool:
        return header.removeprefix("Bearer ") in self._valid

    def is_service(self, header: str) -> bool:
        return self._valid.get(header.removeprefix("Bearer "), False)


def write_login(path: Path, url: str) -> Path:
    """The file that a consent leaves, as PyDrive2 saves it (#login)."""
    saved = {
        "_class": "OAuth2Credentials", "_module": "oauth2client.client", "access_token": None,
        "client_id": "local-client", "client_secret": CLIENT_SECRET, "refresh_token": REFRESH,
        "token_expiry": "2020-01-01T00:00:00Z", "token_uri": f"{url}/token", "user_agent": None,
        "revoke_uri": None, "id_token": None, "id_token_jwt": None, "token_response": None,
        "scopes": ["https://www.googleapis.com/auth/drive.file"], "token_info_uri": None, "invalid": False,
    }  # fmt: skip
    path.write_text(json.dumps(saved))
    path.chmod(0o600)
    return path
