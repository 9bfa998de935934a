"""Files on this machine's disk: written atomically, copied instead of linked, never read through a link.

`drafts` writes files and decides which drafts may be removed. `reading` reads files that somebody else may
have put there, and `kernel` knows those that are the kernel's. `copying`, `removing`, `opening` and `room` do
what their names say. `hashing` starts threads, so import it separately. Must never know what the files are
for. Standard library only: it ships with the agent.
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
from orchestrator.files.kernel import kernel_of, kernel_way
from orchestrator.files.opening import PLAIN, append, open_log
from orchestrator.files.reading import (
    Odd,
    cut_short,
    is_sparse,
    kind,
    names,
    on_disk,
    open_own,
    opened,
    own_trouble,
    read,
    read_own,
    read_small,
)
from orchestrator.files.removing import allow, allow_file, remove_tree, tighten
from orchestrator.files.room import (
    NO_ROOM,
    Lack,
    check_room,
    disk_of,
    free_bytes,
    holes,
    in_memory,
    is_full,
    room_text,
)

__all__ = [
    "NO_ROOM",
    "PLAIN",
    "PREFIX",
    "Draft",
    "Lack",
    "Odd",
    "allow",
    "allow_file",
    "append",
    "check_room",
    "copy",
    "copy_file",
    "copy_open",
    "copy_tree",
    "cut_short",
    "disk_of",
    "draft_file",
    "draft_folder",
    "free_bytes",
    "frozen_mode",
    "held_folder",
    "holes",
    "in_memory",
    "is_full",
    "is_locked",
    "is_sparse",
    "kernel_of",
    "kernel_way",
    "kind",
    "link",
    "names",
    "on_disk",
    "open_log",
    "open_own",
    "opened",
    "own_trouble",
    "read",
    "read_own",
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
