"""Takes what a library saves out of its hands: inside `recorded`, the tensors are copied instead of written.

A library's own code then still decides which files there are, and what is in them, also where a script has
changed it. Each file's tensors are copied at the moment at which the library would have written them. What is
small, or cannot be copied, the library writes itself. Must never know which library it is.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from orchestrator.training.native import Staged

_SMALL_BYTES = 1024 * 1024
# Names under which libraries hold safetensors' function.
_SAVE_FILE = (
    ("safetensors.torch", "save_file"),
    ("transformers.modeling_utils", "safe_save_file"),
    ("peft.peft_model", "safe_save_file"),
)


@contextmanager
def recorded(staged: Staged, folder: Path) -> Iterator[None]:
    """Inside, files that this thread saves into the folder by `torch.save` and safetensors go to `staged`."""
    pickle, weights = torch.save, safetensors.torch.save_file
    thread = threading.get_ident()

    def name_of(path: Any) -> str | None:
        if threading.get_ident() != thread or not isinstance(path, str | os.PathLike):
            return None
        at = Path(path).absolute()
        return at.relative_to(root).as_posix() if at.is_relative_to(root) else None

    def save(value: Any, f: Any, *rest: Any, **named: Any) -> None:
        name = name_of(f)
        if name is None or not staged.pickled(name, value):
            pickle(value, f, *rest, **named)

    def save_file(tensors: Any, filename: Any, metadata: Any = None) -> None:
        name = name_of(filename)
        if name is None or not staged.weights(name, tensors, metadata or {}):
            weights(tensors, filename, metadata)

    root = folder.absolute()
    undo: list[Callable[[], None]] = []
    try:
        _replace(torch, "save", pickle, save, undo)
        for module, name in _SAVE_FILE:
            _replace(sys.modules.get(module), name, weights, save_file, undo)
        yield
    finally:
        for each in undo:
            each()


def take_written(staged: Staged, folder: Path, scratch: Path) -> None:
    """Adds the files that the library wrote into the folder, and removes the folder. Large ones are not read:
    they are moved to `scratch` and a number, and from there into the checkpoint."""
    for number, path in enumerate(sorted(folder.rglob("*"))):
        if not path.is_file():
            continue
        name = path.relative_to(folder).as_posix()
        if path.stat().st_size <= _SMALL_BYTES:
            staged.files[name] = path.read_bytes()
        else:
            staged.files[name] = Path(shutil.move(path, scratch.with_name(f"{scratch.name}.{number}")))
    shutil.rmtree(folder)


def _replace(module: Any, name: str, old: Any, new: Any, undo: list[Callable[[], None]]) -> None:
    if module is not None and getattr(module, name, None) is old:
        setattr(module, name, new)
        undo.append(lambda: setattr(module, name, old))
