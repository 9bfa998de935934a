"""Scripts as people write them, and what is expected of each: one row a script.

Their folders below `data` have the job, the code that it runs and, if that was changed, the original. Writes
the table in docs/any-script.md, with the lines counted. Runs nothing.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).parent / "data"
JOB, CODE, ORIGINAL = "job.yaml", "code", "original"
EXACTLY, LAST_SAVE = "exactly as without interruption", "from its last save; shuffles anew"
_RESUMES = re.compile(r"\{resume\}|\bwatch:")


@dataclass(frozen=True)
class Story:
    """A script in `data/folder` that saves checkpoints.

    `by_hand` is how its author runs it, in the folder of the code. `saves`: what it saves; of a folder
    (`is_folder`), the file that comes last.
    `told` finds the numbers of the epochs or steps that a session has trained, after `scale`: each `stride`
    after the one before, from `first` to `last`. It looks in the log, or in the outputs that `told_in` names.
    `numbered`: the checkpoints have these numbers, too. `late`: what it printed last is lost with its
    machine, because it is sent a moment later.
    `exact`: files, of the last checkpoint or the outputs, that are the same to the last bit as without
    interruption; `others` differ, because the script does not save where its data or random numbers are.
    `leaves`: files among the outputs.
    """

    folder: str
    title: str
    by_hand: str
    saves: str
    told: str
    last: int
    first: int = 1
    stride: int = 1
    scale: float = 1.0
    told_in: str = ""
    numbered: bool = True
    late: bool = False
    exact: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()
    kept: str = EXACTLY
    is_folder: bool = False


_CELLS = (
    "import json; exec(chr(10).join(''.join(each['source']) "
    "for each in json.load(open('train.ipynb'))['cells'] if each['cell_type'] == 'code'))"
)
STORIES = (
    Story(
        "cnn", "plain PyTorch, `torch.save` each epoch", "python train.py --epochs 12",
        saves="checkpoints/ckpt_*.pt", told=r"^epoch (\d+):", last=12, others=("checkpoints/ckpt_12.pt",),
        kept=LAST_SAVE,
    ),
    Story(
        "huggingface", "Hugging Face Trainer", "python train.py --max_steps 120",
        saves="out/checkpoint-*/trainer_state.json", is_folder=True,
        told=r"'learning_rate': .*'epoch': '([\d.]+)'", scale=640 / 16, first=10, last=120, stride=10,
        exact=("out/checkpoint-120/model.safetensors", "out/checkpoint-120/optimizer.pt"),
        leaves=("out/final/model.safetensors",),
    ),
    Story(
        "lightning", "Lightning, `ModelCheckpoint` each epoch", "python train.py --max_epochs 12",
        saves="lightning_logs/version_*/checkpoints/*.ckpt",
        told=r"^(\d+),", told_in="lightning_logs/version_*/metrics.csv", first=0, last=11,
        leaves=("lightning_logs/version_*/metrics.csv",), numbered=False, kept=LAST_SAVE,
    ),
    Story(
        "shell", "a shell's pipeline with `&&` and `tee`",
        "python prepare.py && python train.py --epochs 300",
        saves="last.npz", told=r"^epoch (\d+):", last=300, numbered=False, exact=("last.npz", "data.npz"),
        leaves=("data.npz", "log.txt"),
    ),
    Story(
        "dataset", "NumPy, with a data set as `inputs`", "python train.py",
        saves="checkpoints/last.npz", told=r"^step (\d+):", first=500, last=30000, stride=500, numbered=False,
        exact=("checkpoints/last.npz", "predictions.csv"), leaves=("predictions.csv",),
    ),
    Story(
        "notebook", "a notebook that looks for its newest checkpoint", f'python -c "{_CELLS}"',
        saves="checkpoints/epoch_*.npz", told=r"^epoch (\d+):", last=80, late=True,
        exact=("checkpoints/epoch_80.npz", "denoised.csv"), leaves=("denoised.csv",),
    ),
)  # fmt: skip

# Without checkpoints, and with two mistakes to fix on the way: they have tests of their own.
CROSSVAL = Story(
    "crossval",
    "cross-validation without checkpoints",
    "python ridge.py",
    saves="",
    told="^penalty ()",
    last=0,
    exact=("results/metrics.csv", "results/model.pkl"),
    kept="starts over",
)
WRONG = Story(
    "wrong", "a wrong one, fixed with `retry --source`", "python train.py 100",
    saves="checkpoints/epoch_*.npz", told=r"^epoch (\d+) ", last=100, exact=("checkpoints/epoch_100.npz",),
)  # fmt: skip


def lines(path: Path) -> list[str]:
    """The lines that say something."""
    stripped = (line.partition("  #")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in stripped if line and not line.startswith("#")]


def changed_lines(before: Path, now: Path) -> int:
    """The lines of Python that were added, changed or removed between two folders."""
    found = 0
    for name in {path.name for folder in (before, now) for path in folder.glob("*.py")}:
        old, new = (
            path.read_text(encoding="utf-8").splitlines() if path.exists() else []
            for path in (before / name, now / name)
        )
        changes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        found += sum(max(b - a, d - c) for tag, a, b, c, d in changes if tag != "equal")
    return found


def table() -> Iterator[str]:
    """The rows of the table in the docs."""
    yield "| script | job file | of it for resuming | Python changed | after a kill it goes on |"
    yield "|---|---|---|---|---|"
    for story in (*STORIES, CROSSVAL, WRONG):
        folder = DATA / story.folder
        job = lines(folder / JOB)
        resuming = sum(_RESUMES.search(line) is not None for line in job)
        changed = changed_lines(folder / ORIGINAL, folder / CODE) if (folder / ORIGINAL).is_dir() else 0
        yield f"| {story.title} | {len(job)} lines | {resuming} | {changed or 'none'} | {story.kept} |"
