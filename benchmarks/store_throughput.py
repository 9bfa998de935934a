"""The speed of the folder store: put and get compared with read + sha256 + write of the same bytes.

    python -m benchmarks.store_throughput [--json] [--megabytes 512] [--rounds 7] [--folder .]

They run in turn on one disk (plain, put, get, plain, …). The bytes to read are in the page cache. Written
bytes are deleted at once, so that each starts with the same free memory. Prints the medians of the speeds,
and of the ratios in each round. `plain` reads, hashes and writes chunk by chunk in one thread. It is measured
with fsync, as in put and get, and without.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from orchestrator.stores.folder import FolderStore

CHUNK_BYTES = 1024 * 1024


def plain(source: Path, target: Path) -> float:
    """Seconds until everything is written but not yet on the disk. The fsync comes after that."""
    start = time.perf_counter()
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(CHUNK_BYTES))
    with source.open("rb", buffering=0) as reading, target.open("wb", buffering=0) as writing:
        while count := reading.readinto(buffer):
            digest.update(buffer[:count])
            writing.write(buffer[:count])
        unsynced = time.perf_counter() - start
        os.fsync(writing.fileno())
    return unsynced


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def measure(folder: Path, megabytes: int, rounds: int) -> dict[str, float]:
    source, copy, fetched = folder / "source", folder / "copy", folder / "fetched"
    chance, digest = random.Random(0), hashlib.sha256()
    with source.open("wb") as stream:
        for _ in range(megabytes):
            chunk = chance.randbytes(1_000_000)
            digest.update(chunk)
            stream.write(chunk)
        os.fsync(stream.fileno())
    store, sha256 = FolderStore(folder / "store"), digest.hexdigest()
    store.put("stored", source, sha256)
    taken: dict[str, list[float]] = {name: [] for name in ("plain", "plain_unsynced", "put", "get")}
    for number in range(rounds + 1):  # the first is a warm-up
        found = {}
        start = time.perf_counter()
        found["plain_unsynced"] = plain(source, copy)
        found["plain"] = time.perf_counter() - start
        copy.unlink()
        found["put"] = seconds(lambda: store.put("object", source, sha256))
        store.delete("object")
        found["get"] = seconds(lambda: store.get("stored", fetched, sha256))
        fetched.unlink()
        if number:
            for name, value in found.items():
                taken[name].append(value)
    figures = {f"{name}_mb_per_s": megabytes / statistics.median(values) for name, values in taken.items()}
    for verb in ("put", "get"):
        for against in ("plain", "plain_unsynced"):
            pairs = zip(taken[against], taken[verb], strict=True)
            figures[f"{verb}_speed_over_{against}"] = statistics.median(
                theirs / ours for theirs, ours in pairs
            )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=Path(), help="a folder on the disk to measure")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix=".store-throughput-") as folder:
        figures = measure(Path(folder), options.megabytes, options.rounds)
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:32} {value:10.2f}")
    print("target: put and get at least 0.80 of plain")


if __name__ == "__main__":
    main()
