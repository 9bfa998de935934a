"""Files on this machine's disk: written atomically, copied instead of linked, never read through a link.

`drafts` writes files and decides which drafts may be removed. `reading` reads files that somebody else may
have put there. `copying`, `removing`, `opening`, `locking` and `room` do what their names say. `hashing`
starts threads, so import it separately. Must never know what the files are for. Standard library only: it
ships with the agent.
"""

from orchestrator.files.copying import copy, copy_file, copy_open, copy_tree, frozen_mode, link
from orchestrator.files.drafts import (
    PREFIX,
    Draft,
    draft_file,
    draft_folder,
    held_folder,
    is_locked,
    set_aside,
    sweep,
    sync_folder,
    write_new,
    write_whole,
)
from orchestrator.files.locking import NoLocks, check_locks, flock
from orchestrator.files.opening import PLAIN, append, open_log
from orchestrator.files.reading import (
    Odd,
    cut_short,
    is_sparse,
    kind,
    names,
    on_disk,
    opened,
    read,
    read_small,
)
from orchestrator.files.removing import allow, allow_file, remove_tree, tighten
from orchestrator.files.room import NO_ROOM, disk_of, free_bytes, in_memory, is_full, room_text

__all__ = [
    "NO_ROOM",
    "PLAIN",
    "PREFIX",
    "Draft",
    "NoLocks",
    "Odd",
    "allow",
    "allow_file",
    "append",
    "check_locks",
    "copy",
    "copy_file",
    "copy_open",
    "copy_tree",
    "cut_short",
    "disk_of",
    "draft_file",
    "draft_folder",
    "flock",
    "free_bytes",
    "frozen_mode",
    "held_folder",
    "in_memory",
    "is_full",
    "is_locked",
    "is_sparse",
    "kind",
    "link",
    "names",
    "on_disk",
    "open_log",
    "opened",
    "read",
    "read_small",
    "remove_tree",
    "room_text",
    "set_aside",
    "sweep",
    "sync_folder",
    "tighten",
    "write_new",
    "write_whole",
]
