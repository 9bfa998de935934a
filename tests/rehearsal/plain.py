"""A training without torch, which may do one thing that is odd: `plain.py STEPS ODD [--resume PATH]`."""

import argparse
import json
import os
import random
import signal
import time
import zipfile
from pathlib import Path
from threading import Event


def save(path: Path, text: str) -> None:
    if not asked.archive:
        path.write_text(text)
        return
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo("state"), text)


def load(path: Path) -> dict[str, int]:
    text = zipfile.ZipFile(path).read("state") if asked.archive else path.read_bytes()
    return dict(json.loads(text))


def stays(saves: int) -> bool:
    """Whether its session is to be ended after fewer saves. No machine may let it be done before that."""
    end_at = json.loads(Path("../../order.json").read_text()).get("end_at")
    ends = bool(end_at) and (end_at.get("killed", False) or asked.odd != "ignores SIGTERM")
    return ends and saves > end_at["saves"]


flags = argparse.ArgumentParser()
flags.add_argument("steps", type=int)
flags.add_argument("odd")
flags.add_argument("--resume")
flags.add_argument("--to", default="saved/{step}.json")
flags.add_argument("--every", type=int, default=5)
flags.add_argument("--archive", action="store_true", help="save in a format that tells when it is whole")
asked = flags.parse_args()
if asked.odd == "ignores SIGTERM":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
saves_late = asked.odd == "saves late" or (asked.odd == "hurries to its end" and asked.resume)
state = {"step": 0, "value": 1, "momentum": 1}
if asked.odd == "has no seed":
    state["value"] = random.randrange(1 << 30)
if asked.resume and asked.odd != "forgets to load":
    if asked.odd == "fails to load":
        raise ValueError("mismatched keys: 'value'")
    state |= load(Path(asked.resume))
    if asked.odd == "forgets a part":
        state["momentum"] = 1
saves = 0
while state["step"] < asked.steps:
    state["step"] += 1
    state["momentum"] = (7 * state["momentum"] + state["value"]) % (1 << 31)
    state["value"] = (31 * state["value"] + state["momentum"]) % (1 << 31)
    Event().wait(0.1)
    last = state["step"] == asked.steps
    if asked.odd != "never saves" and (last or (state["step"] % asked.every == 0 and not saves_late)):
        more = (
            {"saved_at": time.time(), "host": f"pid {os.getpid()}"} if asked.odd == "notes the time" else {}
        )
        path = Path(asked.to.format(**state))
        path.parent.mkdir(exist_ok=True)
        save(path.with_suffix(".new"), json.dumps(state | more))
        path.with_suffix(".new").replace(path)
        if asked.odd == "hurries to its end" and asked.resume:
            Event().wait(60)  # for the kill
        saves += 1
    while not last and stays(saves):
        Event().wait(0.1)
