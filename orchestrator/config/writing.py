"""Writes the commented config.yaml that `init` leaves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.config.config import DEFAULT_PLATFORMS, DEFAULT_STORES, PlatformConfig, StoreConfig
from orchestrator.config.reading import machine_timezone
from orchestrator.config.yaml_text import as_block
from orchestrator.errors import InputError
from orchestrator.files import write_whole
from orchestrator.home import CONFIG, LEDGER

_HEAD = """\
# The orchestrator's configuration. Never write secrets here, only references: env:NAME or file:PATH.
# `orchestrator doctor` checks what works and what is missing.

# Where sessions may run: a name of your choice, its type, and the options of that type.
"""
_TAIL = """
# The store where every run's checkpoints live.
home_store: {home_store}

# Where runs are recorded. PostgreSQL, shared by several machines: write its URL into the file database-url
# in this folder, with mode 600, and set database: file:database-url
# database: sqlite:///{ledger}

# The time zone of `hours_of_day` in rules, of plans and of deadlines.
timezone: {timezone}

# The secrets that jobs may list, by name or pattern. By default, all except credentials of your accounts.
# secrets: {{allow: [WANDB_API_KEY, HF_*]}}

# Who is told what happens; `orchestrator notify test` tries it, `orchestrator help notifications` says more.
# notify:
#   - name: phone
#     url: env:NOTIFY_URL
#     on: [done, failed, held]

# Figures of the controller for Prometheus, at http://127.0.0.1:9464/metrics.
# metrics: {{port: 9464}}

# Where jobs should run and where not. A job's own rules come before these.
# rules:
#   - name: nights only on my own machines
#     when: {{hours_of_day: [22, 6], expected_hours: {{at_most: 8}}}}
#     prefer: {{owned: true}}
#   - name: no quota for experiments
#     when: {{tags: [experiment]}}
#     avoid: {{metered: true}}
"""


def write_default(
    home: Path,
    platforms: Sequence[PlatformConfig] = DEFAULT_PLATFORMS,
    stores: Sequence[StoreConfig] = DEFAULT_STORES,
) -> Path:
    """Writes a commented config.yaml that `load` can read; the first of `stores` is the home store.

    Raises InputError if there is one already, or if the home cannot be written.
    """
    path = home / CONFIG
    text = _HEAD + _instances("platforms", platforms)
    text += "\n# Where checkpoints are kept; relative paths start at this file's folder.\n"
    text += _instances("stores", stores)
    text += _TAIL.format(home_store=stores[0].name, ledger=LEDGER, timezone=machine_timezone())
    if path.exists():
        raise InputError(f"{path} already exists; edit it, or move it away first")
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, text.encode())
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}): set ORCHESTRATOR_HOME (or --home) to a folder "
            "that you can write to"
        ) from error
    return path


def _instances(key: str, instances: Sequence[PlatformConfig | StoreConfig]) -> str:
    table = {given.name: {"type": given.type, **given.options} for given in instances}
    return as_block({key: table})
