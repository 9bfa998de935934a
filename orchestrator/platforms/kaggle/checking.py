"""Checks of a Kaggle account for `doctor`, and what this home has left on the account.

Only `remove` changes anything. Must never touch what another home or the user has on the account. Ours are
datasets with this home's digits in their file names, and the kernels of the same name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.core.order import run_of
from orchestrator.errors import NotFound, Transient
from orchestrator.platforms.kaggle.client import KaggleClient
from orchestrator.platforms.kaggle.credentials import SETTINGS
from orchestrator.platforms.kaggle.endings import OVER
from orchestrator.platforms.kaggle.kernel import StagedFile, is_session
from orchestrator.platforms.kaggle.options import HOUR
from orchestrator.platforms.kaggle.values import Pool, Quotas
from orchestrator.platforms.platform import Finding, Health, Leftover

KERNEL, DATASET = "kernel", "dataset"


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
        "" if refresh_at is None else f", renewed {datetime.fromtimestamp(refresh_at, UTC):%Y-%m-%d %H:%MZ}"
    )
    text = f"{pool.used / HOUR:.1f} of {pool.allowed / HOUR:.1f} hours used{renewed}"
    return Finding(what, Health.OK if pool.used < pool.allowed else Health.WARNING, text)


# --- What lies there --------------------------------------------------------------------------------------


def leftovers(client: KaggleClient, home: str) -> Iterator[Leftover]:
    """Datasets and kernels of sessions. Each dataset comes after its kernel, because we find kernels by
    their datasets: remove them in this order."""
    for slug in client.datasets():
        if not is_session(slug) or not _is_ours(client, slug, home):
            continue
        status = client.status(slug)
        if status is not None:
            alive = status.state not in OVER
            yield Leftover(KERNEL, slug, slug, run_of(slug), status.state, alive)
        yield Leftover(DATASET, slug, slug, run_of(slug), client.dataset_status(slug) or "")


def _is_ours(client: KaggleClient, slug: str, home: str) -> bool:
    try:
        files = [StagedFile.parse(name) for name in client.dataset_files(slug)]
    except NotFound:  # removed meanwhile
        return False
    return any(each is not None and each.home == home for each in files)


def remove(client: KaggleClient, home: str, leftover: Leftover) -> None:
    """Removes it if it belongs to a session of this home.

    Raises Transient for a kernel that is running now but was not when it was listed.
    """
    if not is_session(leftover.name) or not _is_ours(client, leftover.name, home):
        return
    status = client.status(leftover.name)
    alive = status is not None and status.state not in OVER
    if alive and not leftover.alive:
        raise Transient(f"{leftover.name} is running now", operation="remove")
    if leftover.kind == KERNEL and status is not None:
        client.delete_kernel(leftover.name)
    if leftover.kind == DATASET:
        client.delete_dataset(leftover.name)
