"""The notebook of a platform that a person opens, and the Secret that it takes: written anew on request.

The Secret opens the home store, so it is only returned, and kept nowhere. The keys in it are drawn once, and
anew on request: one signs what is posted, and one decrypts what is sent through an encrypted store. Must
never write the Secret into the notebook.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

from orchestrator.agent import packages
from orchestrator.client import reaching
from orchestrator.client.wiring import Wired
from orchestrator.core.wording import unknown
from orchestrator.errors import InputError
from orchestrator.files import read_small, write_whole
from orchestrator.platforms.platform import Mailed, Platform
from orchestrator.session.signing import Keys
from orchestrator.stores.opening import carried, new_key
from orchestrator.uplink import archive
from orchestrator.uplink.mailbox import Secret, place
from orchestrator.uplink.registers import registers_of

_SUFFIX = ".ipynb"
_SEALING = "pyrage"
_SIGNING_BYTES = 32
_NOTEBOOK_BYTES_MAX = 64 << 20


@dataclass(frozen=True)
class Written:
    """A notebook at `path`, where a person opens it, and the name and text of the Secret that it asks for."""

    path: Path
    link: str
    secret_name: str
    secret: str = field(repr=False)


def write(wired: Wired, name: str, output: str | None, *, new_keys: bool = False) -> Written:
    """Writes the notebook of the platform `name` into `output`, or NAME.ipynb here. With `new_keys`, older
    Secrets get no session any more. Raises InputError if this is not such a platform, or for a file that is
    not the platform's own notebook, and Rejected if no session can open the home store."""
    path = Path(output or f"{name}{_SUFFIX}")
    if path.suffix != _SUFFIX or path.is_dir():
        raise InputError(f"{path}: the notebook's name must end in {_SUFFIX}")
    platform = _platform(wired, name)
    store = wired.store("")
    if why := reaching.refusal(wired.config.home_store, store, platform):
        raise InputError(why)
    portable = carried(store)
    registers_of(store)
    identity = new_key(store)
    needed = {*portable.packages, *((_SEALING,) if identity else ())}
    listed = packages.listed(sorted(needed))
    notebook = platform.notebook(archive.content(), listed, place(portable))
    if os.path.lexists(path) and not notebook.may_replace(read_small(path, _NOTEBOOK_BYTES_MAX) or b""):
        raise InputError(
            f"{path} exists, and is not the notebook of {name} as it was written here: write another file "
            "with `--output FILE`, or remove that one first"
        )
    write_whole(path, notebook.content, mode=0o644)
    secret = Secret(name, portable, _keys(platform, identity, new_keys)).text()
    return Written(path, notebook.link, notebook.secret_name, secret)


def _keys(platform: Mailed, identity: str, new: bool) -> Keys:
    """The platform's keys. They are drawn if there are none, and if the store is encrypted only since, or not
    any more. `identity` is a new one; empty if the store does not encrypt."""
    there = None if new else platform.keys()
    if there is not None and bool(there.identity) == bool(identity):
        return there
    platform.keep(Keys(token_hex(_SIGNING_BYTES), identity), anew=new or there is not None)
    kept = platform.keys()  # somebody else's, if they were faster
    assert kept is not None
    return kept


def _platform(wired: Wired, name: str) -> Mailed:
    built: dict[str, Platform] = {each.name: wired.bare(each) for each in wired.config.platforms}
    mailed = {each: platform for each, platform in built.items() if isinstance(platform, Mailed)}
    if name in mailed:
        return mailed[name]
    if name in built:
        raise InputError(f"the platform {name!r} needs no notebook")
    example = f"platforms: {{{name}: {{type: notebook, accelerator: T4}}}}"
    raise InputError(
        f"{unknown(f'platform {name!r}', name, sorted(mailed))}; for a new one, add to the config: {example}"
    )
