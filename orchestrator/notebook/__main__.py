"""Executes a notebook's cells one after another in a kernel of this Python, as a script would run.

The exit code is that of a script with the same code: 0 at the end, the code of a SystemExit, else 1 after the
traceback. SIGTERM is passed on to the training in the kernel. Needs no option of its own: the words after the
notebook are the notebook's, as `sys.argv` or as values of its cell tagged `parameters`.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and sys.path[0] == os.getcwd():  # noqa: PTH109 - nothing is imported yet
    del sys.path[0]

import importlib.util
import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.clock import Clock, SystemClock
from orchestrator.core.mask import Mask
from orchestrator.core.notebook import (
    INJECTED,
    PARAMETERS,
    Notebook,
    executed_copy,
    given,
    source_of,
    tags_of,
)
from orchestrator.notebook.record import Record, say, traceback_of

_SAVED, _WRONG_USAGE = 75, 2
_LEFT = re.compile(rf"returned non-zero exit status {_SAVED}\.$")  # subprocess, and so `%%bash`
_SETUP = """
def _begin():
    import sys, warnings
    sys.argv = {argv!r}
    if {folder!r} not in sys.path:
        sys.path.insert(0, {folder!r})
    warnings.filterwarnings("ignore", "To exit: use")
    get_ipython().push({{"exit": sys.exit, "quit": sys.exit}}, interactive=False)
_begin()
del _begin
"""


def main(words: Sequence[str]) -> int:
    """Runs the notebook `words[0]` with the other words as its arguments."""
    if not words:
        return _refuse("give a notebook: python -m orchestrator.notebook train.ipynb")
    path, *arguments = words
    try:
        notebook = Notebook.parse(Path(path).read_bytes())
        values = None if notebook.parameters is None else given(arguments, notebook.parameters)
    except OSError as error:
        return _refuse(f"{path} cannot be read ({error.strerror})")
    except ValueError as error:
        return _refuse(f"{path}: {error}")
    missing = [name for name in ("ipykernel", "jupyter_client") if importlib.util.find_spec(name) is None]
    if missing:
        say(
            "ModuleNotFoundError: a notebook needs ipykernel, and this Python does not have it: add "
            "`ipykernel` to the job's requirements, or install it on this machine\n",
            error=True,
        )
        return 1
    return _run(path, notebook, arguments, values or {}, SystemClock())


def _run(path: str, notebook: Notebook, arguments: list[str], values: Mapping[str, Any], clock: Clock) -> int:
    from orchestrator.notebook.kernel import Died, Kernel, started  # ipykernel is there

    secrets = os.environ.get("ORCHESTRATOR_SECRETS", "").split()
    mask = Mask([os.environ[name] for name in secrets if name in os.environ])
    record = Record(notebook, Path(executed_copy(path)), clock, mask)
    if values:
        _inject(record.tree, values)

    def cells(kernel: Kernel) -> int:
        kernel.wait_until_ready()
        folder = str(Path(path).absolute().parent)
        kernel.execute(_SETUP.format(argv=[path, *arguments], folder=folder), hidden=True)
        for cell in Notebook(record.tree).cells:
            if not source_of(cell).strip():
                continue
            record.begin(cell)
            try:
                reply = kernel.execute(source_of(cell))
            finally:
                record.end()
            code = _exit_code(reply, expected="raises-exception" in tags_of(cell))
            if code is not None:
                return code
        return 0

    with started(record.hear, record.write_soon) as kernel:
        signal.signal(signal.SIGTERM, lambda *_: kernel.terminate())
        try:
            code = cells(kernel)
            kernel.end()
        except Died as died:
            code = died.code
        finally:
            record.write()
    if code < 0:
        return _of_killed(-code)
    if code == 1 and record.error is not None and record.error["ename"] != "SystemExit":
        say(traceback_of(record.error), error=True)
    return code


def _exit_code(reply: Mapping[str, Any], *, expected: bool) -> int | None:
    """The exit code with which a script would end here; None: it would go on."""
    if reply["status"] == "ok":
        left = reply.get("user_expressions", {}).get("exit", {})
        return _SAVED if left.get("data", {}).get("text/plain") == str(_SAVED) else None  # of `!python …`
    name, value = reply.get("ename", ""), reply.get("evalue", "")
    if name == "SystemExit":
        return _of_exit(value)
    if name == "CalledProcessError" and _LEFT.search(value):
        return _SAVED
    return None if expected else 1


def _of_exit(value: str) -> int:
    """What `sys.exit(value)` means."""
    if value in ("", "None"):
        return 0
    with suppress(ValueError):
        return int(value) & 0xFF
    say(f"{value}\n", error=True)
    return 1


def _of_killed(number: int) -> int:
    """What a signal that killed the kernel means for the notebook."""
    if number == signal.SIGTERM:  # no cell handled what we passed on: it ends as a script would
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    named = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    say(f"the notebook's kernel was killed by {named}\n", error=True)
    return 128 + number


def _inject(tree: dict[str, Any], values: Mapping[str, Any]) -> None:
    """A cell with the given values, after the one that holds their defaults."""
    source = "# Parameters\n" + "".join(f"{name} = {value!r}\n" for name, value in values.items())
    cell: dict[str, Any] = {
        "cell_type": "code", "execution_count": None, "metadata": {"tags": [INJECTED]}, "outputs": [],
        "source": source,
    }  # fmt: skip
    if tree.get("nbformat_minor", 0) >= 5:
        cell["id"] = INJECTED
    tree["cells"] = [each for each in tree["cells"] if INJECTED not in tags_of(each)]  # of a run before
    at = next(number for number, each in enumerate(tree["cells"]) if PARAMETERS in tags_of(each))
    tree["cells"].insert(at + 1, cell)


def _refuse(why: str) -> int:
    say(f"orchestrator.notebook: error: {why}\n", error=True)
    return _WRONG_USAGE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
