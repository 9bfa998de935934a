"""What the end of an output means: out of memory or not, and the exception that is named.

data/last_words.txt has outputs as the libraries print them, with noise after the end, and with words of
memory where they mean nothing.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.agent.causes import cause, last_exception, out_of_memory, said, was_killed

T = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    step()\n    ^^^^^^\n'
MEMORY = "out of memory"
STEPS = "".join(f"step {n} loss 0.5\n" for n in range(4, 40))
ELASTIC = (
    "E1128 10:00:00.123 77 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1) "
    "local_rank: 1 (pid: 81) of binary: /usr/bin/python\n"
    'Traceback (most recent call last):\n  File "/usr/bin/torchrun", line 8, in <module>\n    main()\n'
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    + "=" * 60 + "\ntrain.py FAILED\n" + "-" * 60 + "\nFailures:\n  <NO_OTHER_FAILURES>\n" + "-" * 60
    + "\nRoot Cause (first observed failure):\n[0]:\n  time      : 2025-11-28_10:00:00\n  host      : vm\n"
    "  rank      : 1 (local_rank: 1)\n  exitcode  : {code} (pid: 81)\n  error_file: <N/A>\n"
    "  traceback : {traceback}\n" + "=" * 60 + "\n"
)  # fmt: skip
ELASTIC_1 = ELASTIC.format(
    code=1, traceback="To enable traceback see: https://pytorch.org/docs/elastic/errors.html"
)


def ranked(rank: int, text: str) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


OUTPUTS = [
    (each.partition("\n")[0].partition(": "), each.partition("\n")[2])
    for each in Path(__file__).with_name("data").joinpath("last_words.txt").read_text().split("==== ")[1:]
]


@pytest.mark.parametrize(
    ("meaning", "output"), [pytest.param(head[2], output, id=head[0]) for head, output in OUTPUTS]
)
def test_what_the_end_of_an_output_means(meaning: str, output: str) -> None:
    """The meaning is out of memory, or what is named as the cause."""
    assert (MEMORY if out_of_memory(output) else said(output)) == meaning


def test_silence_means_nothing() -> None:
    assert (said(""), out_of_memory("")) == ("", False)


@pytest.mark.parametrize(
    ("output", "killed"),
    [
        (T + "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. ", True),
        (
            T
            + "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL",
            True,
        ),
        (
            T + "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated",
            True,
        ),
        (ELASTIC.format(code=-9, traceback="Signal 9 (SIGKILL) received by PID 81"), True),
        ("train.sh: line 3:  1234 Killed                  python train.py", True),
        ("Killed", True),
        ("worker is killed by signal: Killed, starting another\n" + STEPS + T + "KeyError: 'x'", False),
        (ELASTIC.format(code=1, traceback="To enable traceback see: https://pytorch.org"), False),
        ("He Killed the process", False),
    ],
)
def test_which_ends_come_from_a_killed_process(output: str, killed: bool) -> None:
    assert was_killed(output) is killed


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (T + "ValueError: bad sample 17", T + "ValueError: bad sample 18", True),
        (
            "[vm:01636] *** An error occurred in MPI_Init",
            "[vm:01637] *** An error occurred in MPI_Init",
            True,
        ),
        (T + "RuntimeError: at 0x7f00deadbeef", T + "RuntimeError: at 0x7e00deadbee0", True),
        (T + "FileNotFoundError: no '/tmp/a1b2/x'", T + "FileNotFoundError: no '/tmp/c3d4/x'", True),
        (T + "OSError: lost /scratch/tmpk3x_9abc/x", T + "OSError: lost /scratch/tmpq0_7zyxw/x", True),
        (ranked(0, T + "ValueError: x at 10:00:01"), ranked(3, T + "ValueError: x at 11:22:33"), True),
        (
            "fatal: 2025-11-28 10:00:00 no rows in step 5",
            "fatal: 2025-11-29 01:02:03 no rows in step 7",
            True,
        ),
        (T + "KeyError: 'CUDA out of memory'", T + "KeyError: 'CUDA out of memory'", True),
        (T + "ValueError: bad sample 17", T + "ValueError: bad label 17", False),
        (T + "ValueError: x", T + "TypeError: x", False),
        ("loss 3.0", "loss 3.0", False),
        (T + "ConnectionError: refused", T + "ConnectionError: refused", False),
    ],
)
def test_an_error_with_another_number_is_the_same(first: str, second: str, same: bool) -> None:
    errors = [cause(1, output).error for output in (first, second)]
    assert (errors[0] != "" and errors[0] == errors[1]) is same


REAL = """
import atexit, sys, threading, traceback
try:
    {first}
except BaseException:
    traceback.print_exc()
    {then}
{last}
"""


@pytest.mark.parametrize(
    ("first", "then", "last", "named", "memory"),
    [
        ("[0] * 10**15", "raise SystemExit(1)", "", "MemoryError", True),
        ("[0] * 10**15", "print('batch 1 is left out')", "{}['rows']", "KeyError: 'rows'", False),
        ("[0] * 10**15", "raise ValueError('rows') from sys.exception()", "", "ValueError: rows", True),
        ("{}['rows']", "atexit.register(lambda: 1 / 0); raise MemoryError", "", "MemoryError", True),
        ("raise ExceptionGroup('both', [KeyError('CUDA out of memory'), MemoryError(7)])", "raise", "",
         "MemoryError: 7", True),
    ],
)  # fmt: skip
def test_pythons_own_output(first: str, then: str, last: str, named: str, memory: bool) -> None:
    script = REAL.format(first=first, then=then, last=last)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=False
    )
    output = done.stdout + done.stderr
    assert done.returncode == 1
    assert said(output) == named, output
    assert out_of_memory(output) is memory


def test_a_hostile_output_is_read_in_no_time() -> None:
    """Expressions that backtrack would take minutes."""
    for line in (
        "error " * 3000,
        "'" * 20000,
        "a.b" * 8000,
        " |+-" * 5000,
        "x: " * 8000,
        "a/" * 9000 + ": y",
    ):
        for output in (f"{T}RuntimeError: {line}", line, f"{T}{line}", f"{line}\n" * 4):
            assert not out_of_memory(output)
            assert not was_killed(output)
            assert len(cause(1, output).error) <= 300
            assert len(last_exception(output)) <= 300
