"""A training script under the contract, in plain Python. Its weights are a chain of hashes, so that
interrupted and uninterrupted runs can be compared byte for byte. Its flags make it misbehave."""

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

flags = argparse.ArgumentParser()
flags.add_argument("--steps", type=int, default=20)
flags.add_argument("--pause", type=float, default=0.0, help="seconds a step")
flags.add_argument("--endless", action="store_true", help="go on until asked to leave")
flags.add_argument("--deaf", action="store_true", help="ignore SIGTERM")
flags.add_argument("--linger", action="store_true", help="asked to leave, wait for a file `go` first")
flags.add_argument("--never-save", action="store_true")
flags.add_argument("--save-every", type=int, default=0)
flags.add_argument("--no-final", action="store_true", help="exit 0 without the final checkpoint")
flags.add_argument("--leave-at", type=int, help="save and exit 75 after this step")
flags.add_argument("--exit-at", type=int, nargs=2, metavar=("STEP", "CODE"))
flags.add_argument("--raise-at", type=int)
flags.add_argument("--allocate-at", type=int)
flags.add_argument("--kill-at", type=int, help="SIGKILL to itself")
flags.add_argument("--hang-at", type=int)
flags.add_argument("--wait-at", type=int, help="save as asked until there is a file `go`")
flags.add_argument("--nan-at", type=int)
flags.add_argument("--garbage", action="store_true", help="incomplete and malformed lines in progress.jsonl")
flags.add_argument("--say", default="")
flags.add_argument("--say-kilobytes", type=int, default=0)
flags.add_argument("--sparse", type=int, default=0, help="size of a file of zeros in the checkpoint")
flags.add_argument("--link", action="store_true", help="a symbolic link in the checkpoint")
flags.add_argument("--child", action="store_true", help="a process in the group")
flags.add_argument("--escaped-child", action="store_true", help="a process in its own session")
flags.add_argument("--show-environment", action="store_true")
asked = flags.parse_args()

checkpoints = Path(os.environ["ORCHESTRATOR_CHECKPOINT_DIR"])
save_request = Path(os.environ["ORCHESTRATOR_SAVE_REQUEST"])
resume_from = os.environ.get("ORCHESTRATOR_RESUME_FROM")
leaving = False
pids = [os.getpid()]


def leave(*_: object) -> None:
    global leaving
    leaving = True


def save(step: int, weights: bytes) -> None:
    if asked.never_save or (checkpoints / f"step-{step}").exists():
        return
    folder = checkpoints / f".building-{step}"
    (folder / "nested").mkdir(parents=True)
    (folder / "weights").write_bytes(weights)
    (folder / "nested" / "frozen").write_bytes(b"the same at every step")
    (folder / "empty").touch()
    (folder / "metrics.json").write_text(f'{{"score": {step}, "loss": NaN, "note": "text"}}')
    if asked.sparse:
        with (folder / "sparse").open("wb") as file:
            file.truncate(asked.sparse)
    if asked.link:
        (folder / "link").symlink_to("weights")
    folder.rename(checkpoints / f"step-{step}")


signal.signal(signal.SIGTERM, signal.SIG_IGN if asked.deaf else leave)
for wanted, apart in ((asked.child, False), (asked.escaped_child, True)):
    if wanted:
        sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
        pids.append(subprocess.Popen(sleeper, start_new_session=apart).pid)
Path("pids.tmp").write_text(json.dumps(pids))
Path("pids.tmp").rename("pids")
if asked.show_environment:
    Path("environment").write_text(json.dumps(dict(os.environ)))
if asked.say:
    sys.stdout.write(asked.say.replace("{secret}", os.environ.get("TOKEN", "")) + "\n")
for line in range(asked.say_kilobytes):
    sys.stdout.write(f"{line:08d} " + "x" * 1014 + "\n")

step, weights = 0, b"seed"
if resume_from:
    step, weights = int(resume_from.rsplit("-", 1)[1]), Path(resume_from, "weights").read_bytes()
progress = Path(os.environ["ORCHESTRATOR_PROGRESS"]).open("a")  # noqa: SIM115 - until the end
answered = save_request.read_text()
if asked.garbage:
    progress.write('{"step": "one"}\nnot json\n[]\n{"step": -1}\n{"step": 1, "metrics": 7}\n')
while step < asked.steps or asked.endless:
    step += 1
    weights = hashlib.sha256(weights + step.to_bytes(8, "big")).digest()
    time.sleep(asked.pause)
    loss = float("nan") if step == asked.nan_at else 1.0 / step
    progress.write(json.dumps({"step": step, "metrics": {"loss": loss}}) + "\n")
    progress.flush()
    leaves, requested = leaving, save_request.read_text()  # asked later, it makes one more step first
    while leaves and asked.linger and not Path("go").exists():
        time.sleep(0.05)
    if requested != answered or leaves or (asked.save_every and step % asked.save_every == 0):
        answered = requested
        save(step, weights)
    while step == asked.wait_at and not leaving and not Path("go").exists():
        requested = save_request.read_text()
        if requested != answered:
            answered = requested
            save(step, weights)
        time.sleep(0.05)
    if leaves:
        sys.exit(75)
    if step == asked.leave_at:
        save(step, weights)
        sys.exit(75)
    if asked.exit_at and step == asked.exit_at[0]:
        sys.exit(asked.exit_at[1])
    if step == asked.raise_at:
        raise ValueError("the planted fault")
    if step == asked.allocate_at:
        hoard = [bytearray(1 << 20) for _ in range(1 << 20)]
    if step == asked.kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    while step == asked.hang_at:
        time.sleep(0.05)
if asked.garbage:
    progress.write('{"step": 99')
    progress.flush()
if not asked.no_final:
    save(step, weights)
