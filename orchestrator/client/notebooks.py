"""The notebook of a platform that a person opens, and the Secret that it takes: written anew on request.

The Secret opens the home store, so it is only returned, and kept nowhere. An encrypted store gives sessions
no key, so the mailbox has a key of its own, which is drawn once. Must never write the Secret into the
notebook.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.agent import packages
from orchestrator.client import reaching
from orchestrator.client.wiring import Wired
from orchestrator.core.wording import unknown
from orchestrator.errors import InputError
from orchestrator.files import write_whole
from orchestrator.platforms.platform import Mailed, Platform
from orchestrator.stores.opening import carried, new_key
from orchestrator.uplink import archive
from orchestrator.uplink.mailbox import Secret
from orchestrator.uplink.registers import registers_of

_SUFFIX = ".ipynb"
_SEALING = "pyrage"


@dataclass(frozen=True)
class Written:
    """A notebook at `path`, where a person opens it, and the name and text of the Secret that it asks for."""

    path: Path
    link: str
    secret_name: str
    secret: str = field(repr=False)


def write(wired: Wired, name: str, output: str | None) -> Written:
    """Writes the notebook of the platform `name` into `output`, or NAME.ipynb here. Raises InputError if this
    is not such a platform, and Rejected if no session can open the home store."""
    path = Path(output or f"{name}{_SUFFIX}")
    if path.suffix != _SUFFIX or path.is_dir():
        raise InputError(f"{path}: the notebook's name must end in {_SUFFIX}")
    platform = _platform(wired, name)
    store = wired.store("")
    if why := reaching.refusal(wired.config.home_store, store, platform):
        raise InputError(why)
    portable = carried(store)
    registers_of(store)
    key = new_key(store)
    if key and not platform.identity:
        platform.keep(key)
    needed = {*portable.packages, *((_SEALING,) if platform.identity else ())}
    notebook = platform.notebook(archive.content(), packages.listed(sorted(needed)))
    write_whole(path, notebook.content, mode=0o644)
    secret = Secret(name, portable, platform.identity).text()
    return Written(path, notebook.link, notebook.secret_name, secret)


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
