"""Uploads a session's materials and its checkpoint to Kaggle, and checks that they arrived.

Everything goes into one private dataset. Its file names contain hashes, so they show for which order they
are. A dataset that did not arrive is never repaired: the next one gets another name. Starts nothing.
"""

from __future__ import annotations

import io
import secrets
import string
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.core.order import Order
from orchestrator.core.wording import count_text
from orchestrator.errors import BackendError, NotFound, Refused, Rejected, Transient
from orchestrator.files import held_folder
from orchestrator.files.hashing import digest_file
from orchestrator.platforms.kaggle.client import KaggleClient
from orchestrator.platforms.kaggle.kernel import FOOTER, HEADER, StagedFile, dataset_slug, fingerprint
from orchestrator.platforms.kaggle.memory import Known, Memory
from orchestrator.platforms.kaggle.options import MIB, KaggleOptions
from orchestrator.platforms.kaggle.uploads import upload
from orchestrator.session.layout import STAGED
from orchestrator.session.staging import Materials, contents

READY, FAILED = "ready", frozenset({"failed", "error"})
UNFOUND_MAX = 2  # pushes that did not find the same dataset: then another one is made
_LOOK_SECONDS, _LOOK_SECONDS_MAX = 1.0, 15.0
_MARK_LETTERS = string.ascii_lowercase + string.digits


def is_whole(files: tuple[str, ...], order: Order, *, handed: bool) -> bool:
    """Whether files of these names are all that this order needs. `handed` as in `stage`."""
    wanted = {"materials"} if order.resume is None or handed else {"materials", "checkpoint"}
    found = (StagedFile.parse(name) for name in files)
    return wanted <= {each.kind for each in found if each is not None and each.order == fingerprint(order)}


def is_staged(
    client: KaggleClient, options: KaggleOptions, known: Known, order: Order, *, handed: bool
) -> bool:
    """Whether the session's newest dataset arrived whole, is for this order, is still there, and is found.
    Raises Transient if Kaggle lists it, but does not show it."""
    if not known.whole or known.unfound >= UNFOUND_MAX or not is_whole(known.files, order, handed=handed):
        return False
    return _state(client, options, known.dataset) == READY


def settled(client: KaggleClient, options: KaggleOptions, memory: Memory, session: str) -> Known:
    """Waits until Kaggle has processed an earlier try's upload, if there is one, and checks it. So a slow
    Kaggle or a restarted controller does not cause a second upload of gigabytes. Raises Transient."""
    known = memory.of(session)
    if not known.dataset or known.whole:
        return known
    state = _state(client, options, known.dataset)
    if state is None or state in FAILED:
        return known
    sizes = dict.fromkeys(known.files, None)
    wait_until_ready(client, known.dataset, options.ready_seconds)
    arrived = _arrived(client, options, known.dataset, sizes)
    return memory.note(session, whole=not arrived)


def _state(client: KaggleClient, options: KaggleOptions, name: str) -> str | None:
    """None if neither its status nor the account's list shows the dataset. A refused status alone proves
    nothing: it is asked again for `listed_seconds`."""
    state = client.dataset_status(name)
    if state is None and any(each.slug == name for each in client.datasets()):
        wait_until_ready(client, name, options.listed_seconds)
        return READY
    return state


def stage(
    client: KaggleClient,
    options: KaggleOptions,
    order: Order,
    materials: Materials,
    memory: Memory,
    *,
    home: str,
    handed: bool,
    folder: Path,
) -> None:
    """Makes a new dataset for the session and waits until it is ready and complete.

    `handed`: the checkpoint to resume from does not have to be sent. The files are packed in `folder`, which
    is removed afterwards. Raises Transient if Kaggle lost something on the way, and Refused if it changed or
    refused something; the next try makes another dataset.
    """
    session = order.session
    with _packed(order, materials, options, home=home, handed=handed, here=folder) as packed:
        sizes: dict[str, int | None] = {path.name: path.stat().st_size for path in packed}
        total = sum(size or 0 for size in sizes.values()) / MIB
        materials.say(f"uploading {total:.1f} MiB to Kaggle")
        tokens = [upload(client, path, materials.say) for path in packed]
    name = dataset_slug(session, "".join(secrets.choice(_MARK_LETTERS) for _ in range(4)))
    before = memory.of(session).datasets
    memory.note(session, datasets=(*before, name), files=tuple(sizes), whole=False, unfound=0)
    for old in before:
        with suppress(BackendError):  # `discard` tries again
            client.delete_dataset(old)
    try:
        client.create_dataset(name, tokens)
    except Refused:  # the name may be somebody's
        memory.note(session, datasets=before)
        raise
    materials.say("waiting for Kaggle to process the upload")
    wait_until_ready(client, name, options.ready_seconds)
    if problem := _arrived(client, options, name, sizes):
        raise problem
    memory.note(session, whole=True)


def _arrived(
    client: KaggleClient, options: KaggleOptions, name: str, sizes: Mapping[str, int | None]
) -> BackendError | None:
    """What is wrong with the files of a dataset that is ready; None if all of them are there. A size is None
    if it is not known.

    The list may be empty or without sizes for some minutes (docs/references/kaggle.md#datasets). The files'
    content is checked in the session.
    """
    left, pause = options.listed_seconds, _LOOK_SECONDS
    while True:
        there = _files(client, name)
        lacking = [file for file, size in sizes.items() if not _is_there(there, file, size)]
        if not lacking:
            return None
        if left <= 0:
            break
        wait = min(pause, left)
        threading.Event().wait(wait)
        left, pause = left - wait, min(2 * pause, _LOOK_SECONDS_MAX)
    others = sorted(there.keys() - sizes.keys())
    if others:
        return Refused(
            f"Kaggle changed what was uploaded, perhaps by unpacking it: the dataset {name} lacks "
            f"{lacking[0]} and has {count_text(len(others), 'other file')}, such as {others[-1]}",
            operation="prepare",
        )
    return Transient(f"the dataset {name} did not arrive completely", operation="prepare")


def _is_there(there: Mapping[str, int | None], file: str, size: int | None) -> bool:
    return file in there and (size is None or there[file] in (size, None))


def _files(client: KaggleClient, name: str) -> Mapping[str, int | None]:
    """Names and sizes in bytes. Empty if Kaggle refuses to list them, as for a new or removed dataset."""
    try:
        return client.dataset_files(name)
    except NotFound:
        return {}


def is_ours(client: KaggleClient, name: str, home: str) -> bool:
    """Whether the dataset holds files of a session of this home."""
    files = (StagedFile.parse(each) for each in _files(client, name))
    return any(each is not None and each.home == home for each in files)


def wait_until_ready(client: KaggleClient, name: str, seconds: float) -> None:
    """Raises Transient if the dataset is not ready after so many seconds, or failed."""
    left, pause = seconds, _LOOK_SECONDS
    while (state := client.dataset_status(name)) != READY:
        if state in FAILED:
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
    """Packs one file. Its header and footer keep anybody from taking it for an archive and unpacking it."""
    path = folder / kind
    with path.open("wb") as file:
        file.write(HEADER)
        with tarfile.open(fileobj=file, mode="w", dereference=True) as tar:
            fill(tar)
        file.write(FOOTER)
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
