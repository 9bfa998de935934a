"""Reads a folder of TensorBoard's event files as TensorBoard does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorboardX.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]


def events(path: Path) -> list[Any]:
    data, found = path.read_bytes(), []
    while data:
        length = int.from_bytes(data[:8], "little")
        found.append(Event.FromString(data[12 : 12 + length]))
        data = data[12 + length + 4 :]
    return found


def tensorboard(folder: Path) -> list[tuple[int, float]]:
    """The points in the order of the files. Where a session starts, what was there from its step on goes."""
    points: list[tuple[int, float]] = []
    for path in sorted(folder.iterdir()):
        for event in events(path):
            if event.session_log.status == SessionLog.START:
                points = [point for point in points if point[0] < event.step]
            points += [(event.step, value.simple_value) for value in event.summary.value]
    return points
