"""A mailbox between a controller and the notebooks that a person opens: its values, and how they may change.

Two registers of the home store. `order` lists the mailbox's sessions; `worker` says which notebook attends to
it. Each rule takes a value and returns the next one. A session is taken at most once: if its worker goes, it
is lost, and the run needs a new session. Does no I/O and reads no clock. A worker's age is only known to a
reader that watches its counter change. Ships with the uplink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from orchestrator.errors import NameTaken, NotFound, Refused, Rejected, Transient
from orchestrator.session.layout import SESSION
from orchestrator.session.staging import Content

PROTOCOL = 2  # raised with every change that an older notebook must not overlook
MISSES_MAX = 12  # a worker that misses so many of its own beats is gone
POSTS_MAX = 50  # all of them fit into one register
_BEAT_SECONDS_MIN, _BEAT_SECONDS_MAX = 0.05, 60.0

NEVER_TAKEN = "it was stopped before a notebook took it"
LOST = "its notebook is gone"
TAKEN_OVER = "its notebook is gone, and another has taken over the mailbox"


@dataclass(frozen=True)
class Post:
    """One session in a mailbox. `digest` is the sha256 of its order; empty if it was stopped before it was
    prepared. `parcel` says where its files lie in the store, and `settings` are the agent's, both as JSON.
    `home` is the id of the home that posted it, and `keys` those that it has signed it with: see `signing`.
    `worker` has taken it, for good. `ended` says why it is over."""

    session: str
    run: str = ""
    accelerator: str = ""
    digest: str = ""
    parcel: str = ""
    settings: str = "{}"
    home: str = ""
    keys: str = ""
    signature: str = ""
    launched: bool = False
    worker: str = ""
    stop: bool = False
    ended: str = ""

    def __post_init__(self) -> None:
        """Raises ValueError for what cannot be a session's name: people see it, and it names a folder."""
        if not SESSION.fullmatch(self.session):
            raise ValueError(f"{self.session[:80]!r} is not the name of a session")

    @property
    def is_open(self) -> bool:
        """Whether it may be taken, or is being run."""
        return self.launched and not self.ended

    @property
    def waits(self) -> bool:
        """Whether it waits for a worker."""
        return self.is_open and not self.worker and not self.stop

    def hinders(self, keys: str) -> bool:
        """Whether no session with these keys can begin: it runs, or comes first in the same notebook."""
        return self.is_open and (bool(self.worker) or self.keys == keys)

    def over(self, why: str) -> Post:
        """The post once it is over. Nobody needs its files any more."""
        return replace(self, ended=why, parcel="", settings="{}")


@dataclass(frozen=True)
class Box:
    """The register `order`. `number` counts its changes, so that no value comes back."""

    number: int = 0
    posts: tuple[Post, ...] = ()
    protocol: int = PROTOCOL

    def find(self, session: str) -> Post | None:
        return next((post for post in self.posts if post.session == session), None)

    def with_(self, post: Post) -> Box:
        """The box with this post in place of the one of its session, or as the last."""
        if self.find(post.session) is None:
            return replace(self, posts=(*self.posts, post))
        posts = tuple(post if each.session == post.session else each for each in self.posts)
        return replace(self, posts=posts)


@dataclass(frozen=True)
class Worker:
    """The register `worker`. `id` is drawn by each start of a worker; empty if the last one has left. `beat`
    is its counter, which it raises every `every` seconds. `keys` are those in its Secret. `protocol` is the
    newest one that it knows. What else it tells of itself is for people, except the accelerator of its
    machine."""

    id: str = ""
    beat: int = 0
    every: float = 5.0
    accelerator: str = ""
    session: str = ""
    keys: str = ""
    protocol: int = PROTOCOL

    @property
    def patience(self) -> float:
        """Seconds after which it is gone, if its counter does not change."""
        return MISSES_MAX * min(max(self.every, _BEAT_SECONDS_MIN), _BEAT_SECONDS_MAX)


class Mail(Protocol):
    """A mailbox as the controller's side uses it. Blocks, and raises the same errors as a store."""

    def box(self) -> Box: ...

    def worker(self) -> Worker | None: ...

    def send(self, run: str, session: str, contents: Iterable[Content], home: bytes, identity: str) -> str:
        """Puts a session's files where its worker finds them, encrypted for the key `identity` if there is
        one, and returns what leads there. `home` opens the run's home store. Raises Rejected if the mailbox
        is in another store, or if the store encrypts and there is no key. Idempotent."""

    def change(self, rule: Callable[[Box], Box]) -> Box:
        """Applies a rule to the newest box, and returns what is there now. After `Transient`, the change may
        have been made; a rule may be applied twice."""


class Watched:
    """How long one reader has seen a worker without a change, by that reader's clock."""

    def __init__(self) -> None:
        self._seen: Worker | None = None
        self._since = 0.0
        self.is_known = False  # whether it was seen to change, or to be silent for long

    def look(self, there: Worker | None, now: float) -> bool:
        """Whether the worker is gone: there is none, or its counter has not changed for its patience."""
        if there is None or not there.id:
            self._seen, self.is_known = None, False
            return True
        if self._seen is None or (there.id, there.beat) != (self._seen.id, self._seen.beat):
            self.is_known = self._seen is not None
            self._seen, self._since = there, now
        silent = now - self._since >= there.patience
        self.is_known |= silent
        return silent


# --- The worker's rules ---------------------------------------------------------------------------------


def held(there: Worker | None, me: Worker, gone: bool) -> Worker | None:
    """The register `worker` with me in it; None if another worker has it that is not `gone`."""
    if there is not None and there.id not in ("", me.id) and not gone:
        return None
    return replace(me, beat=1 + (0 if there is None else there.beat))


def beaten(there: Worker | None, me: Worker) -> Worker | None:
    """The register with my next beat; None if I am not in it any more. Then what I do is lost, even if the
    register is free again."""
    return held(there, me, gone=False) if there is not None and there.id == me.id else None


def left(there: Worker | None, me: Worker) -> Worker | None:
    """The register after I have left; None if I am not in it."""
    return replace(there, id="", session="") if there is not None and there.id == me.id else None


def taken(box: Box, me: Worker) -> Box:
    """Takes the first session that waits for a machine and keys like mine, unless I have one."""
    if own(box, me) is not None:
        return box
    for post in box.posts:
        if post.waits and (post.accelerator, post.keys) == (me.accelerator, me.keys):
            return box.with_(replace(post, worker=me.id))
    return box


def cleared(box: Box, me: Worker, attending: Callable[[], Worker | None]) -> Box:
    """Ends the sessions of workers before me, whose controllers may never come back to do it. `attending`
    reads the register `worker`, which it must do after the box was read: if I am still in it, any other
    worker that took a session has lost the mailbox for good."""
    others = [post for post in box.posts if post.is_open and post.worker not in ("", me.id)]
    there = attending() if others else None
    if there is not None and there.id == me.id:
        for post in others:
            box = box.with_(post.over(TAKEN_OVER))
    return box


def own(box: Box, me: Worker) -> Post | None:
    """The session that I have taken, while it is still mine."""
    return next((post for post in box.posts if post.is_open and post.worker == me.id), None)


def reported(box: Box, session: str, me: Worker, ended: str) -> Box:
    """My session is over."""
    post = box.find(session)
    if post is None or post.worker != me.id or post.ended:
        return box
    return box.with_(post.over(ended))


# --- The controller's rules -----------------------------------------------------------------------------


def prepared(box: Box, post: Post) -> Box:
    """Replaces what was prepared for this session before. Raises NameTaken if it was launched with another
    order, and Refused if the mailbox is full."""
    there = box.find(post.session)
    if there is None:
        if len(box.posts) >= POSTS_MAX:
            text = f"the mailbox holds {POSTS_MAX} sessions: `orchestrator doctor --clean` removes old ones"
            raise Refused(text, operation="prepare")
        return box.with_(post)
    if there.launched and there.digest != post.digest:
        raise NameTaken(f"{post.session} was started with another order", operation="prepare")
    return box if there.launched or there.stop else box.with_(post)


def launched(box: Box, session: str, digest: str) -> Box:
    """Raises Rejected for what was stopped or is prepared for another order, NotFound for what is not
    prepared, and Refused while another session hinders it."""
    post = box.find(session)
    if post is None:
        raise NotFound(f"{session} is not prepared", operation="launch")
    if post.digest and post.digest != digest:
        raise Rejected(f"{session} is not prepared for this order", operation="launch")
    if post.launched:
        return box
    if post.stop:
        raise Rejected(f"{session} was stopped before it was launched", operation="launch")
    other = next((each for each in box.posts if each.hinders(post.keys)), None)
    if other is not None:
        raise Refused(f"the notebook has another session: {other.session}", operation="launch")
    return box.with_(replace(post, launched=True))


def stopped(box: Box, session: str, lost: bool) -> Box:
    """The session is asked to leave; it is over if nobody has taken it, or if its worker is `lost`."""
    post = box.find(session) or Post(session)
    if post.ended:
        return box
    asked = replace(post, stop=True)
    if not post.worker:
        return box.with_(asked.over(NEVER_TAKEN))
    return box.with_(asked.over(LOST) if lost else asked)


def discarded(box: Box, session: str, lost: bool) -> Box:
    """Raises Transient while a worker has it that is not `lost`."""
    post = box.find(session)
    if post is not None and post.is_open and post.worker and not lost:
        raise Transient(f"{session} is still running", operation="discard")
    return replace(box, posts=tuple(each for each in box.posts if each.session != session))
