"""Uploads a session's materials and its checkpoint to Kaggle, and checks that they arrived.

Everything goes into one private dataset with the session's name. Its file names contain hashes, so they show
what was staged, for which order, and whether all of it arrived. Starts nothing.
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
    """The files in the session's dataset if it is ready to be mounted; otherwise empty."""
    if client.dataset_status(slug(session)) != READY:
        return ()
    found = (StagedFile.parse(name) for name in _files(client, slug(session)))
    return tuple(each for each in found if each is not None)


def settle(client: KaggleClient, options: KaggleOptions, session: str) -> None:
    """Waits until Kaggle has processed an earlier try's upload, if there is one. So a slow Kaggle or a
    restarted controller does not cause a second upload of gigabytes. Raises Transient."""
    if client.dataset_status(slug(session)) not in (None, READY, *FAILED):
        wait_until_ready(client, options, slug(session))


def is_whole(files: tuple[StagedFile, ...], order: Order, *, handed: bool) -> bool:
    """Whether these are all the files that this order needs. `handed` as in `stage`."""
    wanted = {"materials"} if order.resume is None or handed else {"materials", "checkpoint"}
    return wanted <= {each.kind for each in files if each.order == fingerprint(order)}


def _files(client: KaggleClient, name: str) -> Mapping[str, int]:
    """Names and sizes in bytes. Empty if Kaggle refuses to list them, as for a new or removed dataset."""
    try:
        return client.dataset_files(name)
    except NotFound:
        return {}


def is_foreign(client: KaggleClient, name: str) -> bool:
    """Whether the dataset is the user's own: it has files, but none of a session. False as long as no file
    is visible."""
    files = _files(client, name)
    return bool(files) and not any(StagedFile.parse(each) for each in files)


def _clear(client: KaggleClient, name: str) -> None:
    """Removes an earlier try's dataset. Raises Rejected if it is not ours."""
    if is_foreign(client, name):
        raise Rejected(f"the account has a dataset {name} that is not ours: rename or remove it")
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
    """Makes the session's dataset and waits until it is ready and complete.

    `handed`: the checkpoint to resume from does not have to be sent. The files are packed in `folder`, which
    is removed afterwards. `note` gets the files' names before any is sent. Raises Transient if Kaggle lost
    something on the way; the next try makes the dataset again.
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
        _clear(client, name)  # an earlier try made it, but it was not visible yet
        raise Transient(f"there already was a dataset {name}", operation="prepare") from None
    materials.say("waiting for Kaggle to process the upload")
    wait_until_ready(client, options, name)
    there = _files(client, name)
    if any(there.get(file) != size for file, size in sizes.items()):  # docs/references/kaggle.md#uploads
        client.delete_dataset(name)
        raise Transient(f"the dataset {name} did not arrive completely", operation="prepare")


def wait_until_ready(client: KaggleClient, options: KaggleOptions, name: str) -> None:
    """Raises Transient if it is not ready within `ready_seconds`. Removes a dataset that failed."""
    left, pause = options.ready_seconds, _LOOK_SECONDS
    while (state := client.dataset_status(name)) != READY:
        if state in FAILED:
            client.delete_dataset(name)
            raise Transient(f"Kaggle failed to process the dataset {name}: {state}", operation="prepare")
        if left <= 0:
            raise Transient(f"the dataset {name} is still {state or 'not visible'}", operation="prepare")
        wait = min(pause, left)
        threading.Event().wait(wait)
        left, pause = left - wait, min(2 * pause, _LOOK_SECONDS_MAX)


@contextmanager
def _packed(
    order: Order, materials: Materials, options: KaggleOptions, *, home: str, handed: bool, here: Path
) -> Iterator[tuple[Path, ...]]:
    """The files of the dataset, under their names there. They are not in the system's temporary folder,
    because that may be in memory and too small for a checkpoint."""
    if materials.secrets and not options.send_secrets:
        raise Rejected(
            "the job has secrets, which would be sent in a private dataset: to allow that, set "
            "`send_secrets: true` for this platform in the config", operation="prepare"
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
    """For the owner alone, and read-only, in case a training opens it in the wrong mode."""
    member.mode = 0o700 if member.isdir() else 0o400
    return member


def _put(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o600
    tar.addfile(member, io.BytesIO(data))
