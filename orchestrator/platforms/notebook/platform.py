"""Sessions in a notebook that a person opens: the platform protocol over a mailbox in the home store.

A session is a post in the mailbox, and the notebook's worker takes it. What a session needs lies in the store
as its parcel, and what it says is read from the store. Must never decide, and holds nothing that another
controller could not read from the mailbox.
"""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from orchestrator.clock import Clock
from orchestrator.core import wire
from orchestrator.core.offer import Offer
from orchestrator.core.order import Order, Outcome, run_of
from orchestrator.core.session import Sighting, StopReply
from orchestrator.errors import AccessDenied, NoCapacity, NotFound, Rejected
from orchestrator.files import make_folder, read_own, read_small, write_new, write_whole
from orchestrator.platforms.notebook import surveying, writing
from orchestrator.platforms.notebook.options import NotebookOptions
from orchestrator.platforms.platform import Leftover, Notebook, Sight
from orchestrator.session import mailbox as rules
from orchestrator.session import staging
from orchestrator.session.layout import SESSION, STORE
from orchestrator.session.mailbox import Mail, Post, Watched, Worker
from orchestrator.session.outbox import Outbox
from orchestrator.session.signing import Keys
from orchestrator.session.staging import Materials

_CLOSED_SECONDS = 10.0  # until then a survey has noticed it
_FIRST_LOOK_MISSES = 2.5  # a worker that is seen first is believed after a beat, or not after so many


class NotebookPlatform:
    """The notebook platform `name`. `folder` holds the id of this home and the keys of its notebook.
    `connect` gives it its mailbox."""

    def __init__(self, name: str, options: NotebookOptions, folder: Path, clock: Clock) -> None:
        self._name = name
        self._options = options
        self._folder = folder
        self._clock = clock
        self._connected: Mail | None = None
        self._watched = Watched()
        self._watching = threading.Lock()  # verbs run in several threads

    @property
    def name(self) -> str:
        return self._name

    def connect(self, mail: Mail) -> None:
        """Gives it the mailbox of its name in the home store."""
        self._connected = mail

    def keep(self, keys: Keys, *, anew: bool) -> None:
        """See `Mailed.keep`."""
        make_folder(self._folder, 0o700)
        if anew:
            write_whole(self._keys_file, wire.encode(keys))
            return
        with suppress(FileExistsError):
            write_new(self._keys_file, wire.encode(keys))

    def notebook(self, program: bytes, packages: str, place: str) -> Notebook:
        """The notebook to open. `program` is the worker, `packages` the locked list of what it needs, and
        `place` a name of the home store."""
        written = writing.written(self._name, self._options, program, packages, place)
        earlier = partial(writing.is_ours, self._name)
        return Notebook(written, writing.secret_name(self._name), self._options.link, earlier)

    @property
    def _mail(self) -> Mail:
        if self._connected is None:
            raise Rejected(f"{self._name} is not connected to a home store", backend=self._name)
        return self._connected

    @property
    def this_machine(self) -> bool:
        return self._options.this_machine

    def keys(self) -> Keys | None:
        """See `Mailed.keys`."""
        found = read_small(self._keys_file)
        try:
            return None if found is None else wire.decode(Keys, found)
        except ValueError:
            text = f"{self._keys_file} is damaged: `orchestrator colab notebook {self._name} --new-secret`"
            raise AccessDenied(f"{text} makes it anew", backend=self._name) from None

    @property
    def _keys_file(self) -> Path:
        return self._folder / "keys.json"

    # --- What there is ----------------------------------------------------------------------------------

    def survey(self) -> tuple[Offer, ...]:
        box, worker = self._mail.box(), self._attending()
        keys = self.keys()
        home = surveying.Home(self._home, "" if keys is None else keys.id, self._keys_file)
        return (surveying.offer(self._name, self._options, worker, box, home, self._clock.now()),)

    def _attending(self) -> Worker | None:
        """The worker, if it beats. One that this controller sees first is waited for, because its register
        stays when a notebook dies."""
        began = self._clock.monotonic()
        while True:
            there, gone = self._looked()
            if there is None or gone:
                return None
            if self._watched.is_known:
                return there
            every = there.patience / rules.MISSES_MAX
            if self._clock.monotonic() - began >= _FIRST_LOOK_MISSES * every:
                return None
            self._clock.wait(threading.Event(), every / 4)

    def _looked(self) -> tuple[Worker | None, bool]:
        with self._watching:
            there = self._mail.worker()
            return there, self._watched.look(there, self._clock.monotonic())

    def _is_lost(self, post: Post | None) -> bool:
        """Whether the post's worker is gone. Called after the post was read: a worker holds the mailbox
        before it takes a post."""
        if post is None or not post.worker:
            return False
        there, gone = self._looked()
        return gone or there is None or there.id != post.worker

    # --- Sessions ---------------------------------------------------------------------------------------

    def prepare(self, order: Order, materials: Materials) -> None:
        """The store's credential is not sent: the notebook has its own."""
        self._check(order)
        contents = [
            each
            for each in staging.contents(order, materials, here=self._options.this_machine)
            if each.name != STORE
        ]
        shipping = materials.shipping
        if shipping is None or not shipping.parcel:
            raise Rejected(f"{order.session} has no parcel in the home store", operation="prepare")
        keys = self.keys()
        if keys is None:
            raise Rejected(f"nothing would prove who sends it: {self._anew}", operation="prepare")
        if order.secrets and not keys.identity:
            text = "a job's secrets are sent through an encrypted home store only"
            raise Rejected(f"{text}; if yours is, {self._anew}", operation="prepare")
        there = self._mail.box().find(order.session)
        post = Post(
            order.session, order.run, order.accelerator, _digest(order),
            settings=self._options.agent_settings(order), home=self._home,
        )  # fmt: skip
        if there is None or not (there.launched or there.stop):
            sent = self._mail.send(order.run, order.session, contents, shipping.store, keys.identity)
            post = keys.signed(replace(post, parcel=sent), self._name)
        self._mail.change(lambda box: rules.prepared(box, post))

    @property
    def _anew(self) -> str:
        return f"make the notebook and its Secret anew with `orchestrator colab notebook {self._name}`"

    def launch(self, order: Order) -> None:
        """Refuses if the notebook was closed since the last survey: nobody would take the session."""
        self._check(order)
        post = self._mail.box().find(order.session)
        if post is not None and not post.launched and not post.stop and self._looked()[1]:
            text, until = "the notebook has been closed", self._clock.now() + _CLOSED_SECONDS
            raise NoCapacity(text, backend=self._name, operation="launch", until=until)
        self._mail.change(lambda box: rules.launched(box, order.session, _digest(order)))

    def _check(self, order: Order) -> None:
        if not SESSION.fullmatch(order.session):
            raise Rejected(f"{order.session!r} is not the name of a session")
        if order.platform != self._name or order.accelerator != self._options.accelerator:
            asked, mine = (
                f"{order.accelerator} on {order.platform}",
                f"{self._options.accelerator} on {self._name}",
            )
            raise Rejected(f"the order is for {asked}; this is {mine}")

    def observe(self, names: Iterable[str]) -> Mapping[str, Sight]:
        wanted = tuple(names)
        if not wanted:
            return {}
        box = self._mail.box()
        return {name: self._sight(box.find(name)) for name in wanted}

    def _sight(self, post: Post | None) -> Sight:
        if post is None or not post.launched:
            return Sight(Sighting.ABSENT)
        if post.ended:
            return Sight(Sighting.ENDED, ending=Outcome.LOST, detail=post.ended)
        if not post.worker:
            return Sight(Sighting.PENDING, detail=self._why_pending(post))
        if self._is_lost(post):
            return Sight(Sighting.ABSENT, detail="its notebook does not answer any more")
        return Sight(Sighting.RUNNING)

    def _why_pending(self, post: Post) -> str:
        there, gone = self._looked()
        if there is None or gone or there.keys == post.keys:
            return "no notebook has taken it yet"
        return surveying.ANOTHER_SECRET

    def open(self, name: str) -> Outbox:
        raise NotFound(f"what {name} left is in the home store only", backend=self._name, operation="collect")

    def stop(self, name: str) -> StopReply:
        if not SESSION.fullmatch(name):
            return StopReply.ENDED
        lost = self._is_lost(self._mail.box().find(name))
        after = self._mail.change(lambda box: rules.stopped(box, name, lost)).find(name)
        return StopReply.ENDED if after is None or after.ended else StopReply.REQUESTED

    def discard(self, name: str) -> None:
        lost = self._is_lost(self._mail.box().find(name))
        self._mail.change(lambda box: rules.discarded(box, name, lost))

    # --- What is left -----------------------------------------------------------------------------------

    def leftovers(self) -> tuple[Leftover, ...]:
        posts = (post for post in self._mail.box().posts if post.home == self._home)
        return tuple(self._leftover(post) for post in posts)

    def _leftover(self, post: Post) -> Leftover:
        state = (
            "ended"
            if post.ended
            else "running"
            if post.worker
            else "waiting"
            if post.launched
            else "prepared"
        )
        alive = post.is_open and bool(post.worker)
        return Leftover("mailbox post", post.session, post.session, run_of(post.session), state, alive)

    def remove(self, leftover: Leftover) -> None:
        self.stop(leftover.name)
        self.discard(leftover.name)  # Transient until its notebook has let it go

    @property
    def _home(self) -> str:
        """The id that separates this home's sessions from those of other homes in the same mailbox."""
        file = self._folder / "home-id"
        if not file.exists():
            make_folder(self._folder, 0o700)
            with suppress(FileExistsError):  # another controller has just written it
                write_new(file, uuid.uuid4().hex.encode())
        return read_own(file, 256).decode().strip()[:12]


def _digest(order: Order) -> str:
    return hashlib.sha256(wire.encode(order)).hexdigest()
