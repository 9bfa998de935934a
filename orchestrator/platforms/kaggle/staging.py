"""Uploads a session's materials and its checkpoint to Kaggle, and checks that they arrived.

Everything goes into one private dataset, except what opens the home store: that has one of its own, which can
be deleted earlier. File names contain hashes, so they show for which order they are. A dataset that did not
arrive is never repaired: the next one gets another name. Starts nothing.
"""

from __future__ import annotations

import io
import secrets
import string
import tarfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.core.order import Order
from orchestrator.core.wording import count_text
from orchestrator.errors import BackendError, NotFound, Refused, Rejected, Transient
from orchestrator.files import held_folder, rename, written
from orchestrator.files.hashing import digest_file
from orchestrator.platforms.kaggle import mounting
from orchestrator.platforms.kaggle.client import KaggleClient
from orchestrator.platforms.kaggle.connection import on_loopback
from orchestrator.platforms.kaggle.kernel import (
    CREDENTIAL,
    FOOTER,
    HEADER,
    StagedFile,
    dataset_slug,
    fingerprint,
)
from orchestrator.platforms.kaggle.memory import Known, Memory
from orchestrator.platforms.kaggle.options import MIB, KaggleOptions
from orchestrator.platforms.kaggle.uploads import upload
from orchestrator.session.layout import STAGED, STORE
from orchestrator.session.staging import Content, Materials, contents

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
    """Whether the session's newest datasets arrived whole, are for this order, are still there, and are
    found. Raises Transient if Kaggle lists one, but does not show it."""
    if not known.whole or known.unfound >= UNFOUND_MAX or not is_whole(known.files, order, handed=handed):
        return False
    if known.ships and not known.credential:
        return False
    return all(_state(client, options, name) == READY for name in known.mounted)


def settled(client: KaggleClient, options: KaggleOptions, memory: Memory, session: str) -> Known:
    """Waits until Kaggle has processed an earlier try's upload, if there is one, and checks it. So a slow
    Kaggle or a restarted controller does not cause a second upload of gigabytes. Raises Transient."""
    known = memory.of(session)
    if not known.dataset or known.whole:
        return known
    for name, files in known.mounted.items():
        state = _state(client, options, name)
        if state is None or state in FAILED:
            return known
        wait_until_ready(client, name, options.ready_seconds)
        if _arrived(client, options, name, dict.fromkeys(files, None)):
            return known
    return memory.note(session, whole=True)


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
    """Makes new datasets for the session and waits until they are ready and complete.

    `handed`: the checkpoint to resume from does not have to be sent. The files are packed in `folder`, which
    is removed afterwards. Raises Transient if Kaggle lost something on the way, and Refused if it changed or
    refused something; the next try makes other datasets.
    """
    session = order.session
    # If pushes did not find a data set, it may be that of an input.
    lost = memory.of(session).unfound >= UNFOUND_MAX
    mounts = mounting.chosen(client, order) if options.mount_inputs and not lost else ()
    with _packed(order, materials, options, home=home, handed=handed, here=folder, mounts=mounts) as packed:
        total = sum(path.stat().st_size for path in packed) / MIB
        materials.say(f"uploading {total:.1f} MiB to Kaggle")
        open_store = [path for path in packed if path.name.startswith(CREDENTIAL)]
        main = _uploaded(client, session, [path for path in packed if path not in open_store], materials.say)
        credential = _uploaded(client, session, open_store, materials.say) if open_store else None
    known = memory.of(session)
    before = tuple(filter(None, (*known.datasets, known.credential)))
    memory.note(session, datasets=before, files=(), whole=False, unfound=0, ships=credential is not None,
                credential="", credential_file="", mounts=mounts)  # fmt: skip
    for old in before:
        with suppress(BackendError):  # `discard` tries again
            client.delete_dataset(old)
    if credential is not None:
        there = {"credential": credential.name, "credential_file": next(iter(credential.sizes))}
        _create(client, credential, memory, session, there)
    _create(client, main, memory, session,
            {"datasets": (*before, main.name), "files": tuple(main.sizes)})  # fmt: skip
    materials.say("waiting for Kaggle to process the upload")
    for parcel in filter(None, (credential, main)):
        wait_until_ready(client, parcel.name, options.ready_seconds)
        if problem := _arrived(client, options, parcel.name, parcel.sizes):
            raise problem
    memory.note(session, whole=True)


@dataclass(frozen=True)
class _Parcel:
    """Uploaded files, and the name of the dataset that is to hold them. Sizes in bytes."""

    name: str
    sizes: Mapping[str, int]
    tokens: tuple[str, ...]


def _uploaded(
    client: KaggleClient, session: str, paths: Iterable[Path], say: Callable[[str], None]
) -> _Parcel:
    sizes = {path.name: path.stat().st_size for path in paths}
    tokens = tuple(upload(client, path, say) for path in paths)
    mark = "".join(secrets.choice(_MARK_LETTERS) for _ in range(4))
    return _Parcel(dataset_slug(session, mark), sizes, tokens)


def _create(
    client: KaggleClient, parcel: _Parcel, memory: Memory, session: str, there: Mapping[str, Any]
) -> None:
    """Creates the dataset. `there` says so in the memory, from before the request on, unless it is refused:
    then the name may be somebody's."""
    known = memory.of(session)
    memory.note(session, **there)
    try:
        client.create_dataset(parcel.name, parcel.tokens)
    except Refused:
        memory.note(session, **{name: getattr(known, name) for name in there})
        raise


def forget_credentials(client: KaggleClient, memory: Memory) -> None:
    """Deletes the datasets with what opens the home store, of all sessions that are over, and those that they
    replaced. What fails now is tried again at the next call."""
    for session in memory.sessions():
        known = memory.of(session)
        if not (known.over and known.credential):
            continue
        with suppress(BackendError):
            for name in (known.credential, *known.datasets[:-1]):
                client.delete_dataset(name)
            memory.note(session, credential="", credential_file="", datasets=known.datasets[-1:])


def _arrived(
    client: KaggleClient, options: KaggleOptions, name: str, sizes: Mapping[str, int] | Mapping[str, None]
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
    order: Order,
    materials: Materials,
    options: KaggleOptions,
    *,
    home: str,
    handed: bool,
    here: Path,
    mounts: tuple[str, ...],
) -> Iterator[tuple[Path, ...]]:
    """The files of the datasets, under their names there. They are not in the system's temporary folder,
    because that may be in memory and too small for a checkpoint."""
    if materials.secrets and not options.send_secrets:
        raise Rejected(
            "the job has secrets, which would be sent in a private dataset: to allow that, set "
            "`send_secrets: true` for this platform in the config", operation="prepare"
        )  # fmt: skip
    given = contents(order, materials, staged=False, here=on_loopback(options.endpoint))
    content = list(mounting.without(given, mounts))
    secret = [each for each in content if each.name == STORE]
    others = [each for each in content if each.name != STORE]
    with held_folder(here):  # there may be secrets in it
        packed = [_named(here, "materials", order, home, lambda tar: _put_all(tar, others))]
        if secret:
            packed.append(_named(here, CREDENTIAL, order, home, lambda tar: _put_all(tar, secret)))
        if materials.resume is not None and not handed:
            resume = materials.resume
            packed.append(_named(here, "checkpoint", order, home, lambda tar: tar.add(resume, STAGED)))
        yield tuple(packed)


def _named(folder: Path, kind: str, order: Order, home: str, fill: Callable[[tarfile.TarFile], None]) -> Path:
    """Packs one file. Its header and footer keep anybody from taking it for an archive and unpacking it."""
    path = folder / kind
    with written(path) as file:
        file.write(HEADER)
        with tarfile.open(fileobj=file, mode="w", dereference=True) as tar:
            fill(tar)
        file.write(FOOTER)
    named = folder / StagedFile(kind, home, fingerprint(order), digest_file(path)).name
    rename(path, named)
    return named


def _put_all(tar: tarfile.TarFile, content: Iterable[Content]) -> None:
    for each in content:
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
