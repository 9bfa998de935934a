"""The settings of the local Colab: its account, its limits and its warts.

Has no behaviour: each field says what it switches, and where that is recorded. Figures without a record are
marked as assumed. Times are in real seconds, so tests choose small ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

RATES = {"NONE": 0.08, "T4": 1.2, "L4": 1.7, "G4": 9.0, "A100": 5.4, "H100": 9.2, "V5E1": 3.5, "V6E1": 4.6}
"""Compute units per hour (assumed: Colab shows them, but publishes no list)."""
SCOPES = (
    "openid https://www.googleapis.com/auth/userinfo.profile https://www.googleapis.com/auth/userinfo.email "
    "https://www.googleapis.com/auth/cloud-platform https://www.googleapis.com/auth/colaboratory "
    "https://www.googleapis.com/auth/drive.file"
)


@dataclass(frozen=True)
class Settings:
    """One account. `LocalColab.use` changes them while it runs."""

    refresh_token: str = "1//local"
    code: str = "4/local"  # what a person pastes to log in
    machines_max: int = 5  # one more is a 412: docs/references/colab.md#refusals

    # --- Units: docs/references/colab.md#units ---
    balance: float = 100.0
    rates: Mapping[str, float] = field(default_factory=lambda: dict(RATES))
    # How much faster units are spent than the clock says, so that a test can use them up.
    hours_per_second: float = 1 / 3600
    free_left: float | None = None  # units of the free tier; None: Colab does not say
    free_refill_at: float | None = None
    gpus: tuple[str, ...] = ("T4", "L4", "A100")  # eligible: others are a 400
    ineligible_gpus: tuple[str, ...] = ("H100", "G4")
    tpus: tuple[str, ...] = ("V5E1", "V6E1")
    # ccu-info has no eligible lists and nothing about the free tier
    units_are_bare: bool = False

    # --- Refusals of a machine: docs/references/colab.md#refusals ---
    # The accelerators of which there is none left: a 412
    none_left: tuple[str, ...] = ()
    # 200 with this outcome and no machine: 1 quota, 2 usage time, 5 barred
    outcome: int | None = None
    # Every machine has this accelerator, whatever was asked for (assumed)
    substitute: str = ""
    # The POST takes this long
    assign_seconds: float = 0.0

    # --- Finding machines: docs/references/colab.md#finding-a-machine ---
    # A new machine is not listed for this long (assumed)
    listed_after_seconds: float = 0.0
    # A machine that is gone is listed for this much longer (assumed)
    gone_after_seconds: float = 0.0
    # GET assign never says that the notebook has a machine (assumed)
    notebooks_are_forgotten: bool = False
    # GET assign shows a machine of the account to every notebook (assumed)
    notebooks_are_ignored: bool = False
    # Another machine of the user's, with an accelerator that the command line does not know
    foreign_accelerator: str = ""

    # --- Tokens: docs/references/colab.md#tokens ---
    access_seconds: float = 3600.0
    proxy_seconds: float = 3600.0
    login_is_revoked: bool = False  # the token endpoint answers invalid_grant

    # --- Consent: docs/references/colab.md#logging-in ---
    # What the person agreed to, as the token endpoint says it: fewer if they left a box empty; None: not said
    scopes: str | None = SCOPES
    login_is_refused: str = ""  # the token endpoint answers this error

    # --- The end of a machine: docs/references/colab.md#liveness ---
    idle_seconds: float = 0.0  # it vanishes after its kernels were idle for this long. 0: never
    life_seconds: float = 0.0  # it vanishes at this age. 0: never

    # --- Cells: docs/references/colab.md#running-a-cell ---
    # A cell is interrupted when its client goes (assumed)
    cells_need_clients: bool = False
    # A kernel that is asked for by its id is a new one, so that cells do not wait for each other (assumed)
    kernels_are_new: bool = False
    # What cells hear about the version of their Python; empty: the truth
    python: str = ""
    # `google.colab.runtime.unassign` does nothing (assumed)
    unassign_is_ignored: bool = False

    # --- Files: docs/references/colab.md#files ---
    # Files are not answered while a cell runs: a 503 (assumed)
    files_wait_for_cells: bool = False
    # The folder that uploads see as the root of the file system (assumed)
    files_root: str = "."
    upload_bytes_max: int = 300 << 20  # a larger request is a 400


class Fault(StrEnum):
    """What `fail` does to a request. Only LOST_REPLY and SLOW let it take effect."""

    BAD_REQUEST = "400"
    UNAUTHORIZED = "401"
    FORBIDDEN = "403"
    RATE_LIMIT = "429"
    ERROR = "500"
    HTML = "502"  # with a page of HTML, as from a proxy in between
    UNAVAILABLE = "503"
    LATE = "504"
    NONSENSE = "nonsense"  # 200 with a page of HTML
    LOST_REPLY = "lost reply"  # takes effect, then the connection closes without an answer
    HANGS = "hangs"  # no answer until the server ends
