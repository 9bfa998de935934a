"""An ordinary training script: saves where it likes, knows nothing of the contract, dies of SIGTERM. Its
state is a chain of hashes. The zip archive stands for what `torch.save` writes."""

import argparse
import hashlib
import io
import signal
import sys
import time
import zipfile
from pathlib import Path

flags = argparse.ArgumentParser()
flags.add_argument("--steps", type=int, default=20)
flags.add_argument("--to", default="checkpoints/ckpt_{step}.pt")
flags.add_argument("--every", type=int, default=5)
flags.add_argument("--pause", type=float, default=0.0, help="seconds a step")
flags.add_argument("--resume")
flags.add_argument("--folder", action="store_true", help="save a folder with two files")
flags.add_argument("--plain", action="store_true", help="save a file of a format that nobody knows")
flags.add_argument("--tear-at", type=int, help="write the first half at this step, then hang")
flags.add_argument("--listen", action="store_true", help="save at SIGTERM and exit 75")
asked = flags.parse_args()


def save(step: int, state: bytes) -> None:
    path = Path(asked.to.format(step=step, epoch=step // 5))
    path.parent.mkdir(parents=True, exist_ok=True)
    if asked.folder:
        path.mkdir(exist_ok=True)
        (path / "step").write_text(str(step))
        path = path / "state.pt"
    if asked.plain:
        path.write_bytes(b"%d " % step + state)
        return
    torn = io.BytesIO() if step == asked.tear_at else None
    with zipfile.ZipFile(torn or path, "w") as archive:
        archive.writestr("step", str(step))
        archive.writestr("state", state)
    if torn is not None:
        data = torn.getvalue()
        with path.open("wb") as file:
            file.write(data[: len(data) // 2])
            file.flush()
            sys.stdout.write("torn\n")
            sys.stdout.flush()
            time.sleep(600)


def load(path: Path) -> tuple[int, bytes]:
    if path.is_dir():
        path = path / "state.pt"
    if asked.plain:
        number, _, state = path.read_bytes().partition(b" ")
        return int(number), state
    with zipfile.ZipFile(path) as archive:
        return int(archive.read("step")), archive.read("state")


if asked.listen:

    def leave(*_: object) -> None:
        save(step, state)
        sys.exit(75)

    signal.signal(signal.SIGTERM, leave)
begin, state = load(Path(asked.resume)) if asked.resume else (0, b"seed")
sys.stdout.write(f"begins at {begin} from {asked.resume}\n")
sys.stdout.flush()
step = begin
for step in range(begin + 1, asked.steps + 1):
    state = hashlib.sha256(state + step.to_bytes(8, "big")).digest()
    if step % asked.every == 0:
        save(step, state)
    time.sleep(asked.pause)
Path("final").write_bytes(state)
