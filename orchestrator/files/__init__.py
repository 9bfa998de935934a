"""Files on this machine's disk: written atomically, copied instead of linked, never read through a link.

`guarded` opens folders that a session can reach, for all others here. `drafts` writes files and decides which
drafts may be removed. `reading` reads files that somebody else may
have put there. `copying`, `removing`, `opening` and `room` do what their names say. `hashing` starts
threads, so import it separately. Must never know what the files are for. Standard library only: it ships with
the agent.
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
from orchestrator.files.guarded import (
    PLAIN,
    folder_at,
    guard,
    look,
    make_folder,
    open_file,
    open_folder,
    place,
    rename,
)
from orchestrator.files.opening import append, open_log, written
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
from orchestrator.files.removing import (
    allow,
    allow_file,
    make_read_only,
    remove_empty,
    remove_file,
    remove_tree,
    tighten,
)
from orchestrator.files.room import NO_ROOM, disk_of, free_bytes, in_memory, is_full, room_text

__all__ = [
    "NO_ROOM",
    "PLAIN",
    "PREFIX",
    "Draft",
    "Odd",
    "allow",
    "allow_file",
    "append",
    "copy",
    "copy_file",
    "copy_open",
    "copy_tree",
    "cut_short",
    "disk_of",
    "draft_file",
    "draft_folder",
    "folder_at",
    "free_bytes",
    "frozen_mode",
    "guard",
    "held_folder",
    "in_memory",
    "is_full",
    "is_locked",
    "is_sparse",
    "kind",
    "link",
    "look",
    "make_folder",
    "make_read_only",
    "names",
    "on_disk",
    "open_file",
    "open_folder",
    "open_log",
    "opened",
    "place",
    "read",
    "read_small",
    "remove_empty",
    "remove_file",
    "remove_tree",
    "rename",
    "room_text",
    "set_aside",
    "sweep",
    "sync_folder",
    "tighten",
    "write_new",
    "write_whole",
    "written",
]
