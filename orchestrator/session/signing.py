"""The keys that a home and its notebook share, and the signature that says who sent a session.

Whoever can write to the store can write into the mailbox, too. So a notebook runs only what is signed with
the keys in its Secret. Must never repeat a key.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, field, replace

from orchestrator.core import wire
from orchestrator.session.mailbox import Post

_SIGNING = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Keys:
    """`signing` signs what is posted: 32 random bytes in hex. `identity` decrypts what is sent; empty if that
    is plain. Raises ValueError for any other `signing`."""

    signing: str = field(repr=False)
    identity: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not _SIGNING.fullmatch(self.signing):
            raise ValueError("the key that signs is damaged")

    @property
    def id(self) -> str:
        """A name for both keys that everybody may know."""
        return self._mac("keys", self.identity)[:16]

    def signed(self, post: Post, mailbox: str) -> Post:
        """The post with the signature that it needs in this mailbox."""
        post = replace(post, keys=self.id)
        return replace(post, signature=self._signature(post, mailbox))

    def have_signed(self, post: Post, mailbox: str) -> bool:
        """Whether all that the controller decides in the post is as it was signed for this mailbox."""
        return hmac.compare_digest(post.signature.encode(), self._signature(post, mailbox).encode())

    def _signature(self, post: Post, mailbox: str) -> str:
        """Another field of a post belongs here too, unless the mailbox's rules change it later."""
        return self._mac(
            "post", mailbox, post.session, post.run, post.accelerator, post.digest, post.parcel,
            post.settings, post.home, post.keys,
        )  # fmt: skip

    def _mac(self, *texts: str) -> str:
        return hmac.new(bytes.fromhex(self.signing), wire.encode(texts), hashlib.sha256).hexdigest()
