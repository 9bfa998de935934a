"""Makes a store the home store of new runs: keeps its credentials, tests it, and then adds it to the config.

Decides whether the config has the store already, and in which order things happen: whatever fails, the config
stays as it was and no new credential stays behind. Must never know how a person is asked.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator import config as configuration
from orchestrator.client import amending, round_trip, setting_up
from orchestrator.client.amending import ByHand
from orchestrator.client.home import Home
from orchestrator.client.round_trip import SKEW_SECONDS_MAX, Proof
from orchestrator.client.wiring import Wired
from orchestrator.clock import Clock
from orchestrator.config import StoreConfig
from orchestrator.errors import AccessDenied, BackendError, InputError, OrchestratorError
from orchestrator.files import make_folder, remove_empty, remove_file, remove_tree, write_new, write_whole
from orchestrator.spec.fields import NAME, NAME_LENGTH_MAX, NAME_WORDS
from orchestrator.stores import catalog
from orchestrator.stores.portable import Portability
from orchestrator.stores.retrying import RetryingStore
from orchestrator.stores.store import Store
from orchestrator.user import expanded

CREDENTIALS = "credentials"  # the folder in the home, with a file for each
ATTEMPTS = 4  # with pauses of 3.5 s together: a person waits for the answer
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
GOOGLE = "https://www.googleapis.com/"
_TOKEN = "session_token"  # it ends, and new keys do not fit it
_KEYS = ("access_key", "secret_key", _TOKEN)
_TELLING = ("bucket", "prefix", "endpoint", "path", "folder")


@dataclass(frozen=True)
class Wanted:
    """The store that a person wants. `default`: its name if the person gave none. `options`: all but the
    credentials. `place`: the options by which a store of the config is recognised as the same one (None: it
    has no such option). `advice`: what helps if access is denied."""

    type: str
    default: str
    options: Mapping[str, str]
    place: Mapping[str, str | None]
    name: str | None = None
    advice: str = ""


@dataclass(frozen=True)
class Credentials:
    """By option: values to keep in files, and references to where the person keeps them."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    references: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class HomeStore:
    """What was done. `kept`: where the old config is, if there was one and it `changed`. `skew`: by how many
    seconds this machine's clock is ahead of the store's, if known. `files`: new credentials."""

    store: StoreConfig
    config: Path
    changed: bool
    kept: Path | None
    proof: Proof
    skew: float | None
    files: tuple[Path, ...] = ()


def known(home: Home, wanted: Wanted) -> StoreConfig | None:
    """The store of the config that is the wanted one.

    Raises InputError if another one has its name, SpecError if the config is wrong.
    """
    if wanted.name is not None and not (
        re.fullmatch(NAME, wanted.name) and len(wanted.name) <= NAME_LENGTH_MAX
    ):
        raise InputError(f"--name: a name is {NAME_WORDS} (given: {wanted.name!r})")
    stores = configuration.load(home.path).stores
    for each in stores:
        same = all(plain(key, each.options.get(key)) == value for key, value in wanted.place.items())
        if each.type == wanted.type and wanted.name in (None, each.name) and same:
            return each
    name = wanted.name or wanted.default
    taken = next((each for each in stores if each.name == name), None)
    if taken is not None:
        raise InputError(
            f"the config has another store named {name} ({described(taken)}). Runs may be on it, so give the "
            f"new one a name of its own, such as --name {name}-2"
        )
    return None


def plain(option: str, value: object) -> object:
    """The value of an option that says where a store is, however it was written."""
    if not isinstance(value, str):
        return value
    if option == "prefix":
        return value.strip("/") or None
    if option != "endpoint":
        return value
    scheme, sep, rest = value.rstrip("/").partition("://")
    host, slash, path = rest.partition("/")
    host = host.lower().removesuffix(_DEFAULT_PORTS.get(scheme.lower(), "\n"))
    return f"{scheme.lower()}{sep}{host}{slash}{path}"


def set_up(
    home: Home,
    clock: Clock,
    wanted: Wanted,
    credentials: Credentials,
    tell: Callable[[str], None] = lambda _text: None,
) -> HomeStore:
    """Tests the store and makes it the home store of new runs. `tell` hears what takes long. If the config
    has the store already, new values in `credentials` replace the old ones once they have worked. Raises
    InputError for wrong options, and the store's own errors."""
    there = known(home, wanted)
    if there is not None and credentials.values:
        return _renewed(home, clock, wanted, there, credentials.values, tell)
    if there is not None:
        store: Store = Wired.from_home(home.path, clock).built(there)
        return _made(home, clock, replace(wanted, advice=_where_keys(there)), there, store, tell)
    make_folder(home.path, 0o700)
    name, files = wanted.name or wanted.default, dict[str, Path]()
    try:
        _keep(home.path / CREDENTIALS, name, credentials.values, files)
        kept = {option: f"file:{path.relative_to(home.path)}" for option, path in files.items()}
        given = StoreConfig(name, wanted.type, {**wanted.options, **credentials.references, **kept})
        store = catalog.build(given.name, given.type, given.options, home.path)
        made = _made(home, clock, wanted, given, RetryingStore(store, attempts=ATTEMPTS), tell)
        return replace(made, files=tuple(files.values()))
    except BaseException as error:
        if is_needed(home, error, None, name):
            raise
        for path in files.values():
            remove_tree(path)
        with suppress(OSError):  # other stores have credentials, too
            remove_empty(home.path / CREDENTIALS)
        raise


def is_needed(home: Home, error: BaseException, option: str | None, value: str) -> bool:
    """Whether what was made for a store is needed although the set-up failed: the person adds it by hand, or
    Ctrl-C came when the config had it already, with this value of an option (None: with this name)."""
    if isinstance(error, ByHand):
        return True
    with suppress(OrchestratorError, OSError):
        stores = configuration.load(home.path).stores
        return any((each.name if option is None else each.options.get(option)) == value for each in stores)
    return False


def described(given: StoreConfig) -> str:
    """`s3: bucket runs, endpoint https://…`: what tells it from others."""
    told = ", ".join(f"{key} {given.options[key]}" for key in _TELLING if key in given.options)
    return f"{given.type}: {told}" if told else given.type


def _renewed(
    home: Home,
    clock: Clock,
    wanted: Wanted,
    there: StoreConfig,
    values: Mapping[str, str],
    tell: Callable[[str], None],
) -> HomeStore:
    """Tests a store of the config with new keys, and then replaces the files of the old ones."""
    old = {option: str(there.options.get(option, "")) for option in values}
    if not all(map(_is_file, old.values())) or _TOKEN in there.options:
        refers = ", ".join(str(there.options[option]) for option in _KEYS if option in there.options)
        raise InputError(
            f"the config reads the keys of {there.name} from {refers}: put the new ones there, or change "
            f"these lines of {home.folders.config}"
        )
    paths = {option: home.path / expanded(Path(each.removeprefix("file:"))) for option, each in old.items()}
    with tempfile.TemporaryDirectory(prefix="orchestrator-") as folder:
        options = dict(there.options)
        for option, value in values.items():
            write_whole(Path(folder) / option, value.encode(), sync=False)
            options[option] = f"file:{folder}/{option}"
        store = Wired.from_home(home.path, clock).built(replace(there, options=options))
        made = _made(home, clock, wanted, there, store, tell)
    for option, value in values.items():
        write_whole(paths[option], value.encode())
    return replace(made, files=tuple(paths.values()))


def _where_keys(there: StoreConfig) -> str:
    """What to do if a store of the config refuses its keys."""
    keys = [str(there.options[option]) for option in _KEYS if option in there.options]
    if not keys:
        return ""
    how = "With --stdin, this command takes new ones" if all(map(_is_file, keys)) else "Put new ones there"
    return f"Its keys are read from {', '.join(keys)}. {how}."


def _is_file(reference: str) -> bool:
    return reference.startswith("file:")


def _made(
    home: Home,
    clock: Clock,
    wanted: Wanted,
    given: StoreConfig,
    store: Store,
    tell: Callable[[str], None],
) -> HomeStore:
    where = _address(home, given)
    ahead = round_trip.skew(where, clock) if where else None
    with _advising(wanted, ahead):
        proof = round_trip.prove(store, clock, tell)
    is_first = not os.path.lexists(home.folders.config)
    if is_first:
        setting_up.init(home, force=False)
    amended = amending.add_home_store(home.path, given)
    changed, kept = amended.kept is not None, amended.kept
    if is_first and kept is not None:  # it was written a moment ago
        remove_file(kept)
        kept = None
    return HomeStore(given, amended.config, changed, kept, proof, ahead)


def _keep(folder: Path, store: str, values: Mapping[str, str], files: dict[str, Path]) -> None:
    """Writes each value into a new file, and enters it into `files` at once."""
    for option, value in values.items():
        first = path = folder / f"{store}-{option.replace('_', '-')}"
        make_folder(folder, 0o700)
        number = 1
        while option not in files:
            try:
                write_new(path, value.encode())
                files[option] = path
            except FileExistsError:  # of a store that was taken out of the config
                number += 1
                path = first.with_name(f"{first.name}-{number}")


def _address(home: Home, given: StoreConfig) -> str | None:
    """Where the store's server answers, if the store says."""
    if given.type == "drive":
        return str(given.options.get("endpoint") or GOOGLE)
    with suppress(OrchestratorError):
        store = catalog.build(given.name, given.type, given.options, home.path)
        if isinstance(store, Portability):
            return store.portable().options.get("endpoint")
    return None


@contextmanager
def _advising(wanted: Wanted, ahead: float | None) -> Iterator[None]:
    """Adds to the store's error what a person who sets it up can do, and that nothing was changed."""
    try:
        yield
    except BackendError as error:
        more = [wanted.advice] if isinstance(error, AccessDenied) and wanted.advice else []
        if ahead is not None and abs(ahead) > SKEW_SECONDS_MAX:
            more.append(f"This machine's clock is {clock_text(ahead)} the store's: set it, then try again.")
        error.args = ("\n".join([str(error), *more, "The config was not changed."]),)
        raise


def clock_text(ahead: float) -> str:
    """`0.4 s ahead of`, `3,600 s behind`."""
    return f"{abs(ahead):,.{1 if abs(ahead) < 10 else 0}f} s {'ahead of' if ahead >= 0 else 'behind'}"
