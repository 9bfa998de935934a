"""Getting a session's materials and its checkpoint to Kaggle, and knowing that they are there.

Everything goes into one private dataset that bears the session's name; its file names hold hashes, so that
whoever looks knows what was staged, for which order, and whether all of it arrived. Starts nothing.
"""

from __future__ import annotations

import io
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from orchestrator.core.order import Order
from orchestrator.errors import NotFound, Rejected, Transient
from orchestrator.files import held_folder
from orchestrator.files.hashing import digest_file
from orchestrator.platforms.kaggle.client import KaggleClient
from orchestrator.platforms.kaggle.kernel import StagedFile, fingerprint, slug
from orchestrator.platforms.kaggle.options import MIB, KaggleOptions
from orchestrator.platforms.kaggle.uploads import upload
from orchestrator.session.layout import STAGED
from orchestrator.session.staging import Materials, contents

READY, FAILED = "ready", frozenset({"failed", "error"})
_LOOK_SECONDS, _LOOK_SECONDS_MAX = 1.0, 15.0


def staged(client: KaggleClient, session: str) -> tuple[StagedFile, ...]:
    """What the session's dataset holds, if it is ready to be mounted; empty where it is not."""
    if client.dataset_status(slug(session)) != READY:
        return ()
    found = (StagedFile.parse(name) for name in _files(client, slug(session)))
    return tuple(each for each in found if each is not None)


def settle(client: KaggleClient, options: KaggleOptions, session: str) -> None:
    """Waits for what an earlier try has uploaded and Kaggle still takes in: gigabytes are not sent twice for
    its slowness, nor for a controller that was restarted meanwhile. Raises Transient."""
    if client.dataset_status(slug(session)) not in (None, READY, *FAILED):
        wait_until_ready(client, options, slug(session))


def is_whole(files: tuple[StagedFile, ...], order: Order, *, handed: bool) -> bool:
    """Whether these files are all that was to be staged for this order; `handed` as in `stage`."""
    wanted = {"materials"} if order.resume is None or handed else {"materials", "checkpoint"}
    return wanted <= {each.kind for each in files if each.order == fingerprint(order)}


def _files(client: KaggleClient, name: str) -> Mapping[str, int]:
    """Names and bytes; none where Kaggle refuses to list them, as it does for what is new or gone."""
    try:
        return client.dataset_files(name)
    except NotFound:
        return {}


def is_foreign(client: KaggleClient, name: str) -> bool:
    """Whether a dataset of this name holds files, and none of a session: it is its user's own. Before any is
    to be seen, nobody can tell."""
    files = _files(client, name)
    return bool(files) and not any(StagedFile.parse(each) for each in files)


def _clear(client: KaggleClient, name: str) -> None:
    """Takes an earlier try's dataset away. Raises Rejected where it is none of ours."""
    if is_foreign(client, name):
        raise Rejected(f"a dataset named {name} on the account is not ours: rename or remove it")
    client.delete_dataset(name)


def stage(
    client: KaggleClient,
    options: KaggleOptions,
    order: Order,
    materials: Materials,
    *,
    home: str,
    handed: bool,
    folder: Path,
    note: Callable[[str], None],
) -> None:
    """Makes the session's dataset and waits until it is ready and whole. `handed`: the checkpoint to resume
    from need not be sent; `folder` is where the files are packed, and then gone; `note` is given the files'
    names before any is sent. Raises Transient where Kaggle lost something on the way: it is made anew then.
    """
    name = slug(order.session)
    if client.dataset_status(name) is not None:
        _clear(client, name)
    with _packed(order, materials, options, home=home, handed=handed, here=folder) as packed:
        sizes = {path.name: path.stat().st_size for path in packed}
        note("\n".join(sizes))
        total = sum(sizes.values()) / MIB
        materials.say(f"uploading {total:.1f} MiB to Kaggle")
        tokens = [upload(client, path, materials.say) for path in packed]
    try:
        client.create_dataset(name, tokens)
    except Rejected:
        if client.dataset_status(name) is None:
            raise
        _clear(client, name)  # of an earlier try, and it was not to be seen yet
        raise Transient(f"there was a dataset {name} already", operation="prepare") from None
    materials.say("waiting for Kaggle to take the upload in")
    wait_until_ready(client, options, name)
    there = _files(client, name)
    if any(there.get(file) != size for file, size in sizes.items()):  # docs/references/kaggle.md#uploads
        client.delete_dataset(name)
        raise Transient(f"the dataset {name} did not arrive whole", operation="prepare")


def wait_until_ready(client: KaggleClient, options: KaggleOptions, name: str) -> None:
    """Raises Transient where it is not within `ready_seconds`, having removed what failed."""
    left, pause = options.ready_seconds, _LOOK_SECONDS
    while (state := client.dataset_status(name)) != READY:
        if state in FAILED:
            client.delete_dataset(name)
            raise Transient(f"Kaggle could not take in the dataset {name}: {state}", operation="prepare")
        if left <= 0:
            raise Transient(f"the dataset {name} is still {state or 'not to be seen'}", operation="prepare")
        wait = min(pause, left)
        threading.Event().wait(wait)
        left, pause = left - wait, min(2 * pause, _LOOK_SECONDS_MAX)


@contextmanager
def _packed(
    order: Order, materials: Materials, options: KaggleOptions, *, home: str, handed: bool, here: Path
) -> Iterator[tuple[Path, ...]]:
    """The files of the dataset, under their names there. Not in the system's temporary folder, which may be
    memory: a checkpoint may be larger than that."""
    if materials.secrets and not options.send_secrets:
        raise Rejected(
            "the job names secrets, which would travel in a private dataset: allow it in the config with "
            "`send_secrets: true` of this platform", operation="prepare"
        )  # fmt: skip
    with held_folder(here):  # there may be secrets in it
        packed = [_named(here, "materials", order, home, lambda tar: _materials(tar, order, materials))]
        if materials.resume is not None and not handed:
            resume = materials.resume
            packed.append(_named(here, "checkpoint", order, home, lambda tar: tar.add(resume, STAGED)))
        yield tuple(packed)


def _named(folder: Path, kind: str, order: Order, home: str, fill: Callable[[tarfile.TarFile], None]) -> Path:
    path = folder / kind
    with tarfile.open(path, "w", dereference=True) as tar:
        fill(tar)
    return path.rename(folder / StagedFile(kind, home, fingerprint(order), digest_file(path)).name)


def _materials(tar: tarfile.TarFile, order: Order, materials: Materials) -> None:
    for each in contents(order, materials, staged=False):
        if isinstance(each.content, bytes):
            _put(tar, each.name, each.content)
        else:
            tar.add(each.content, each.name, filter=_read_only if each.read_only else None)


def _read_only(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Nobody else's, and not to be written to by a training that opens it in the wrong mode."""
    member.mode = 0o700 if member.isdir() else 0o400
    return member


def _put(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o600
    tar.addfile(member, io.BytesIO(data))
