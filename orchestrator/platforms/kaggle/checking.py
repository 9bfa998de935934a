"""Checks of a Kaggle account for `doctor`, and what this home has left on the account.

Only `remove` changes anything. Must never touch what another home or the user has on the account. Ours are
datasets with this home's digits in their file names, and kernels with them in their text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.core.order import run_of
from orchestrator.errors import Transient
from orchestrator.platforms.kaggle.client import KaggleClient
from orchestrator.platforms.kaggle.credentials import SETTINGS
from orchestrator.platforms.kaggle.endings import OVER
from orchestrator.platforms.kaggle.kernel import (
    is_dataset_of,
    is_kernel,
    is_kernel_of,
    origin,
    session_of_dataset,
)
from orchestrator.platforms.kaggle.options import HOUR
from orchestrator.platforms.kaggle.staging import is_ours
from orchestrator.platforms.kaggle.values import Listed, Pool, Quotas
from orchestrator.platforms.platform import Finding, Health, Leftover

KERNEL, DATASET = "kernel", "dataset"
UNKNOWN = "unknown"  # the account's list has it, but its status is not shown


def findings(client: KaggleClient, endpoint: str, exposed: Iterable[Path]) -> tuple[Finding, ...]:
    """`exposed` are credential files that other users of this machine can read."""
    quotas = client.quota()
    account = Finding("account", Health.OK, f"{client.username()} at {endpoint}")
    files = [
        Finding("credentials", Health.WARNING, f"other users can read {path}", f"chmod 600 {path}")
        for path in exposed
    ]
    return (account, *files, *_quotas(quotas))


def _quotas(quotas: Quotas) -> Iterator[Finding]:
    for name, pool in (("gpu", quotas.gpu), ("tpu", quotas.tpu)):
        yield _quota(name, pool, quotas.refresh_at)


def _quota(name: str, pool: Pool | None, refresh_at: float | None) -> Finding:
    what = f"{name} quota"
    if pool is None or not pool.allowed:
        return Finding(what, Health.WARNING, "none", f"verify your phone (TPU: your identity): {SETTINGS}")
    renewed = (
        "" if refresh_at is None else f", renews {datetime.fromtimestamp(refresh_at, UTC):%Y-%m-%d %H:%MZ}"
    )
    text = f"{pool.used / HOUR:.1f} of {pool.allowed / HOUR:.1f} hours used{renewed}"
    return Finding(what, Health.OK if pool.used < pool.allowed else Health.WARNING, text)


# --- What lies there --------------------------------------------------------------------------------------


def leftovers(client: KaggleClient, home: str, known: Iterable[str]) -> Iterator[Leftover]:
    """Kernels and datasets of sessions, by the account's own lists. A name only says where to look: they are
    ours if a kernel's text or a dataset's files say so.

    `known` are sessions of this home. A dataset's name may be shortened; which session it is of is known from
    these, or from the text of a kernel.
    """
    sessions = list(known)
    for each in client.kernels():
        session = _ours(client, home, each)
        if session is None:
            continue
        sessions.append(session)
        status = client.status(each.slug)
        state = UNKNOWN if status is None else status.state
        alive = status is None or state not in OVER  # what is listed may run, even if its status is not shown
        yield Leftover(KERNEL, each.slug, session, run_of(session), state, alive)
    for each in client.datasets():
        named = session_of_dataset(each.slug)
        if named is not None and is_ours(client, each.slug, home):
            session = next((one for one in sessions if is_dataset_of(each.slug, one)), named)
            state = client.dataset_status(each.slug) or UNKNOWN
            yield Leftover(DATASET, each.slug, session, run_of(session), state)


def _ours(client: KaggleClient, home: str, kernel: Listed) -> str | None:
    """The session of this home that a kernel is of, if it is. Kaggle may give it another slug, but keeps its
    title."""
    names = [name for name in (kernel.slug, kernel.title) if is_kernel(name)]
    session = _session(client, home, kernel.slug) if names else None
    return session if session is not None and any(is_kernel_of(each, session) for each in names) else None


def _session(client: KaggleClient, home: str, kernel: str) -> str | None:
    """The session of this home for which a kernel was pushed, by its text. A kernel of an earlier version,
    whose text does not say the home, is ours if the dataset of the same name is."""
    found = origin(client.source(kernel) or "")
    if found is None:
        return None
    whose, session = found
    return session if whose == home or (whose is None and is_ours(client, session, home)) else None


def remove(client: KaggleClient, home: str, leftover: Leftover) -> None:
    """Removes it if it belongs to a session of this home.

    Raises Transient for a kernel that is running now but was not when it was listed.
    """
    if leftover.kind == DATASET:
        if is_ours(client, leftover.name, home):
            client.delete_dataset(leftover.name)
        return
    if _session(client, home, leftover.name) != leftover.session:
        return
    status = client.status(leftover.name)
    if status is not None and status.state not in OVER and not leftover.alive:
        raise Transient(f"{leftover.name} is running now", operation="remove")
    client.delete_kernel(leftover.name)
