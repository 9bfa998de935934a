"""What a notebook offers: its machine, while a worker attends to the mailbox; else what a person must do.

Pure: the readings come from outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.offer import Offer, Traits, Unavailable, Until, Uplink, until_start, until_time
from orchestrator.platforms.notebook.options import NotebookOptions
from orchestrator.session.mailbox import PROTOCOL, Box, Worker

BUSY_SECONDS = 300.0
ANOTHER_SECRET = "the notebook that is open has a Secret from another home, or an older one"


@dataclass(frozen=True)
class Home:
    """This home, to others. `keys`: the id of those that it shares with its notebook, which are in `file`."""

    id: str
    keys: str
    file: Path


def offer(
    name: str, options: NotebookOptions, worker: Worker | None, box: Box, home: Home, now: float
) -> Offer:
    """The one offer. `worker` is None unless it beats."""
    return Offer(
        platform=name,
        accelerator=options.accelerator,
        traits=_traits(options),
        memory_gb=options.memory_gb,
        threads=options.threads,
        disk_gb=options.disk_gb,
        unavailable=_closed(name, options, worker, home) or _busy(box, home, now),
    )


def _closed(name: str, options: NotebookOptions, worker: Worker | None, home: Home) -> Unavailable | None:
    if worker is None:
        return Unavailable(f"waiting for the notebook to be opened: {options.link}", _opened(name, options))
    anew = f"orchestrator colab notebook {name}"
    if worker.protocol < PROTOCOL:
        old = "the notebook that is open was made by an older version"
        return Unavailable(f"{old}: make it again", until_start(anew, _open_it(options)))
    if worker.accelerator != options.accelerator:
        other = f"the notebook that is open is for {worker.accelerator or 'another machine'}"
        return Unavailable(f"{other}, not {options.accelerator}", until_start(anew, _open_it(options)))
    if worker.keys != home.keys:
        return Unavailable(
            ANOTHER_SECRET,
            until_start(
                f"{anew}  (paste its Secret, and run the cell again)",
                f"or copy the {home.file.name} of the home that the Secret is from to {home.file}",
            ),
        )
    return None


def _opened(name: str, options: NotebookOptions) -> Until:
    return until_start(_open_it(options), f"orchestrator colab notebook {name}  (if you have none yet)")


def _open_it(options: NotebookOptions) -> str:
    return f"open {options.link} and run all cells"


def _busy(box: Box, home: Home, now: float) -> Unavailable | None:
    """Our own sessions are counted by the engine."""
    other = next((post for post in box.posts if post.hinders(home.keys) and post.home != home.id), None)
    if other is None:
        return None
    return Unavailable(f"it has a session of another home: {other.session}", until_time(now + BUSY_SECONDS))


def _traits(options: NotebookOptions) -> Traits:
    return Traits(
        session_seconds=options.session_seconds,
        wall_margin_seconds=options.wall_margin_seconds,
        slack_seconds=options.slack_seconds,
        uplink=Uplink.STORE,
        silence_seconds=options.uplink_silence_seconds,
        durable_mid_run=True,
        readable_mid_run=False,
        visibility_seconds=min(60.0, options.pending_seconds),
        pending_seconds_max=options.pending_seconds,
        poll_seconds=options.poll_seconds,
        setup_seconds=options.setup_seconds,
        human_start=True,
        fetches=True,
        owned=False,
        metered=False,
        internet=True,
        secrets=options.send_secrets,
    )
