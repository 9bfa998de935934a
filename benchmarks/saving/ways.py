"""Each way saves the same state to the same disk, and can read back what it saved.

Must never know what is measured.
"""

from __future__ import annotations

import copy
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.utils._pytree import tree_leaves

from orchestrator.training import Training

State = dict[str, Any]


class Way(Protocol):
    def save(self, step: int) -> None:
        """Returns once the training can go on."""

    def wait(self) -> None:
        """Returns once everything is on the disk."""

    def is_writing(self) -> bool: ...

    def saved(self, step: int) -> Iterator[torch.Tensor]:
        """The tensors of the saved state."""

    def clear(self) -> None:
        """Deletes what was saved."""

    def close(self) -> None: ...


class Ours:
    def __init__(self, folder: Path, state: State) -> None:
        self.folder, self.state, self.last = folder, state, folder
        self.training = Training(folder)
        self.training.resume(state)
        self.training.report(0)  # as after a training's first step; now the memory is allocated

    def save(self, step: int) -> None:
        self.last = self.training.save(step, self.state) or self.folder

    def wait(self) -> None:
        self.training.wait()

    def is_writing(self) -> bool:
        return not self.last.exists()

    def saved(self, step: int) -> Iterator[torch.Tensor]:
        from safetensors.torch import load_file

        for path in sorted((self.folder / f"step-{step}").glob("*.safetensors")):
            yield from load_file(path).values()

    def clear(self) -> None:
        for path in self.folder.glob("step-*"):
            shutil.rmtree(path)

    def close(self) -> None:
        self.training.wait()


class TorchSave:
    """`torch.save`, and fsync so that it promises the same as the others. The training waits."""

    def __init__(self, folder: Path, state: State) -> None:
        self.folder, self.state = folder, state

    def save(self, step: int) -> None:
        self._write(step, self._now())

    def wait(self) -> None:
        return

    def is_writing(self) -> bool:
        return False

    def saved(self, step: int) -> Iterator[torch.Tensor]:
        whole = torch.load(self.folder / str(step), mmap=True)
        yield from (leaf for leaf in tree_leaves(whole) if isinstance(leaf, torch.Tensor))

    def clear(self) -> None:
        for path in self.folder.iterdir():
            path.unlink()

    def close(self) -> None:
        self.wait()

    def _now(self) -> State:
        return {name: part.state_dict() for name, part in self.state.items()}

    def _write(self, step: int, state: State) -> None:
        with (self.folder / str(step)).open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())


class LiveThread(TorchSave):
    """`torch.save` of the state itself in a thread, while the training changes it."""

    thread = threading.Thread()

    def save(self, step: int) -> None:
        self.thread = threading.Thread(target=self._write, args=(step, self._now()))
        self.thread.start()

    def wait(self) -> None:
        self.thread.join()

    def is_writing(self) -> bool:
        return self.thread.is_alive()


class ClonedThread(LiveThread):
    """`torch.save` of a deep copy of the state in a thread."""

    def _now(self) -> State:
        return copy.deepcopy(super()._now())


class Dcp:
    """torch's distributed checkpoint with `async_save`, its stager reused."""

    def __init__(self, folder: Path, state: State) -> None:
        self.folder, self.state = folder, state
        unpinned = StagingOptions(
            use_pinned_memory=False, use_non_blocking_copy=False, use_async_staging=False
        )
        self.stager = DefaultStager(unpinned)
        self.answer: Any = None

    def save(self, step: int) -> None:
        plain = {name: part.state_dict() for name, part in self.state.items()}
        target = self.folder / str(step)
        self.answer = async_save(plain, checkpoint_id=target, async_stager=self.stager, no_dist=True)

    def wait(self) -> None:
        self.answer.result()

    def is_writing(self) -> bool:
        return not self.answer.done()

    def saved(self, step: int) -> Iterator[torch.Tensor]:
        whole = copy.deepcopy({name: part.state_dict() for name, part in self.state.items()})
        load(whole, checkpoint_id=self.folder / str(step), no_dist=True)
        yield from (leaf for leaf in tree_leaves(whole) if isinstance(leaf, torch.Tensor))

    def clear(self) -> None:
        for path in self.folder.iterdir():
            shutil.rmtree(path)

    def close(self) -> None:
        self.stager.close()


WAYS: dict[str, type[Ours | TorchSave | Dcp]] = {
    "ours": Ours,
    "torch_save": TorchSave,
    "cloned_thread": ClonedThread,
    "live_thread": LiveThread,
    "dcp": Dcp,
}
