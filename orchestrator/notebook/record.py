"""What a notebook's cells put out: shown as it comes, and kept in the executed copy, within bounds.

Text goes to our own standard output and error, so a session's log shows it. The executed copy is written
after each cell and during long ones, and is always whole. A secret's value is replaced in it, as in the log.
Decides nothing about what a cell's end means.
"""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.clock import Clock
from orchestrator.core.mask import Mask
from orchestrator.core.notebook import Notebook, tags_of
from orchestrator.files import write_whole

TEXT_MAX = 1_000_000  # characters of a cell: so many from its begin, and so many from its end
DATA_MAX = 10_000_000  # bytes of a cell's figures, tables and so on
NOTEBOOK_DATA_MAX = 50_000_000
OUTPUTS_MAX = 1000  # of a cell
_PERIOD = 10.0  # seconds between two writes during a cell
_SHARE = 20.0  # of them, writing may take one in so many
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_REWRITTEN = re.compile(r"[^\r\n]*\r+(?=[^\r\n])")


class Outputs:
    """The outputs of one cell."""

    def __init__(self, data_max: int = DATA_MAX) -> None:
        self._data_max = data_max
        self._reset()

    def _reset(self) -> None:
        self._kept: list[dict[str, Any]] = []
        self._by_display: dict[str, list[dict[str, Any]]] = {}
        self._text = self._data = 0
        self._end, self._end_left = "", 0  # the text after TEXT_MAX: its last characters, and how many went
        self._left = self._left_bytes = 0
        self._clear_first = False

    @property
    def data(self) -> int:
        """The bytes of its figures and so on."""
        return self._data

    def write(self, name: str, text: str) -> None:
        """What it wrote to `stdout` or `stderr`."""
        self._cleared()
        last = self._kept[-1] if self._kept else {}
        if self._end or self._text + len(text) > TEXT_MAX or len(self._kept) >= OUTPUTS_MAX:
            end = self._end + text
            self._end, cut = end[-TEXT_MAX:], max(0, len(end) - TEXT_MAX)
            self._end_left += cut
        elif last.get("output_type") == "stream" and last["name"] == name:
            before = len(last["text"])
            last["text"] = joined(last["text"], text)
            self._text += len(last["text"]) - before
        else:
            self._kept.append({"output_type": "stream", "name": name, "text": joined("", text)})
            self._text += len(text)

    def show(self, output: dict[str, Any], display: str | None = None) -> None:
        """A figure, a table, a value or an error."""
        self._cleared()
        size = len(json.dumps(output))
        if self._data + size > self._data_max or len(self._kept) >= OUTPUTS_MAX:
            self._left += 1
            self._left_bytes += size
            return
        self._data += size
        self._kept.append(output)
        if display is not None:
            self._by_display.setdefault(display, []).append(output)

    def update(self, display: str, content: Mapping[str, Any]) -> None:
        """Replaces what was shown under this id."""
        size = len(json.dumps(content["data"]))
        for output in self._by_display.get(display, ()):
            before = len(json.dumps(output["data"]))
            if self._data + size - before <= self._data_max:
                self._data += size - before
                output |= {"data": content["data"], "metadata": content["metadata"]}

    def clear(self, *, wait: bool) -> None:
        """Removes all; with `wait` as soon as there is something else."""
        if wait:
            self._clear_first = True
        else:
            self._reset()

    def listed(self) -> list[dict[str, Any]]:
        found = list(self._kept)
        if self._end:
            gap = f"\n[{self._end_left:,} characters are left out here; the log has them]\n"
            found.append({
                "output_type": "stream", "name": "stdout",
                "text": joined(gap if self._end_left else "", self._end),
            })  # fmt: skip
        if self._left:
            told = f"[{self._left} outputs ({self._left_bytes / 1e6:.1f} MB) are left out here]\n"
            found.append({"output_type": "stream", "name": "stderr", "text": told})
        return found

    def _cleared(self) -> None:
        if self._clear_first:
            self.clear(wait=False)


class Record:
    """The executed copy of a notebook. `tree` is its content."""

    def __init__(self, notebook: Notebook, path: Path, clock: Clock, mask: Mask) -> None:
        self.tree = copy.deepcopy(notebook.tree)
        for cell in Notebook(self.tree).cells:
            cell |= {"outputs": [], "execution_count": None}
        self._path, self._clock, self._mask = path, clock, mask
        self._cell: dict[str, Any] | None = None
        self._outputs = Outputs()
        self._data = 0  # of the cells before
        self._written_at, self._pause, self._failed = clock.monotonic(), _PERIOD, False
        self._is_behind = False  # something came since it was written
        self.error: dict[str, Any] | None = None

    def begin(self, cell: dict[str, Any]) -> None:
        """From now on, what comes belongs to this cell."""
        self._cell, self.error = cell, None
        self._outputs = Outputs(min(DATA_MAX, NOTEBOOK_DATA_MAX - self._data))

    def end(self) -> None:
        """The cell has ended."""
        self._data += self._outputs.data
        self.write()

    def hear(self, message: Mapping[str, Any]) -> None:
        """Takes one message of the kernel."""
        content = message["content"]
        display = (content.get("transient") or {}).get("display_id")
        kind = message["msg_type"]
        if kind == "stream":
            say(content["text"], error=content["name"] == "stderr")
            self._outputs.write(content["name"], content["text"])
        elif kind == "execute_input" and self._cell is not None:
            self._cell["execution_count"] = content["execution_count"]
        elif kind in ("execute_result", "display_data"):
            say(f"{content['data'].get('text/plain', '')}\n".lstrip("\n"))
            output = {"output_type": kind, "data": content["data"], "metadata": content["metadata"]}
            if kind == "execute_result":
                output["execution_count"] = content["execution_count"]
            self._outputs.show(output, display)
        elif kind == "update_display_data" and display is not None:
            self._outputs.update(display, content)
        elif kind == "clear_output":
            self._outputs.clear(wait=bool(content.get("wait")))
        elif kind == "error":
            self._fail({"output_type": "error", **{k: content[k] for k in ("ename", "evalue", "traceback")}})
        self._is_behind = True
        self.write_soon()

    def write_soon(self) -> None:
        """Writes the copy if something came since, and the last time was long enough ago."""
        if self._is_behind and self._clock.monotonic() - self._written_at > self._pause:
            self.write()

    def write(self) -> None:
        """Writes the copy. That it cannot be written is said once, and stops nothing."""
        self._is_behind = False
        if self._cell is not None:
            self._cell["outputs"] = [self._masked(each) for each in self._outputs.listed()]
        began = self._clock.monotonic()
        try:
            text = json.dumps(self.tree, ensure_ascii=False, indent=1) + "\n"
            write_whole(self._path, text.encode("utf-8", "replace"), mode=0o644)
        except OSError as error:
            if not self._failed:
                say(f"{self._path} cannot be written: {error.strerror}\n", error=True)
            self._failed = True
        self._written_at = self._clock.monotonic()
        self._pause = max(_PERIOD, _SHARE * (self._written_at - began))

    def _fail(self, error: dict[str, Any]) -> None:
        """An error that the notebook expects is shown at once. One that ends it is shown last, where people
        and the agent look for it."""
        self._outputs.show(error)
        if self._cell is not None and "raises-exception" in tags_of(self._cell):
            say(traceback_of(error), error=True)
        else:
            self.error = error

    def _masked(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._mask.text(value)
        if isinstance(value, dict):
            return {key: self._masked(each) for key, each in value.items()}
        return [self._masked(each) for each in value] if isinstance(value, list) else value


def joined(before: str, text: str) -> str:
    """The text after what was there. Of a line that is written again and again, as progress bars do, only the
    last state stays."""
    if "\r" not in text and not before.endswith("\r"):
        return before + text
    at = before.rfind("\n") + 1
    return before[:at] + _REWRITTEN.sub("", (before[at:] + text).replace("\r\n", "\n"))


def traceback_of(error: Mapping[str, Any]) -> str:
    """A traceback as plain text that ends with the exception."""
    text = _ANSI.sub("", "\n".join(error["traceback"])).rstrip()
    named = f"{error['ename']}: {error['evalue']}".rstrip()
    last = text.rpartition("\n")[2]
    return f"{text}\n" if last.startswith(error["ename"]) else f"{text}\n{named}\n"


def say(text: str, *, error: bool = False) -> None:
    """Writes at once, so that the log is live and both streams stay in order."""
    stream = sys.stderr if error else sys.stdout
    stream.buffer.write(text.encode("utf-8", "replace"))
    stream.flush()
