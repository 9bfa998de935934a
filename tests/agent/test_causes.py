"""Which failures would happen again, judged by the end of the output."""

from __future__ import annotations

import pytest

from orchestrator.agent.causes import Cause, cause, last_exception

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'


@pytest.mark.parametrize(
    ("exit_code", "tail"),
    [
        (127, "trian: command not found"),
        (126, "./run.sh: Permission denied"),
        (1, f"{TRACEBACK}ModuleNotFoundError: No module named 'flash_attn'"),
        (1, "/usr/bin/python: No module named graphmer"),
        (2, "python: can't open file '/mnt/trian.py': [Errno 2] No such file or directory"),
        (1, '  File "train.py", line 3\n    def f(:\n          ^\nSyntaxError: invalid syntax'),
        (1, "IndentationError: unexpected indent"),
        (1, f"{TRACEBACK}ImportError: cannot import name 'Trainer' from 'transformers'"),
        (2, "usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --stepz 5"),
    ],
)
def test_it_would_fail_again(exit_code: int, tail: str) -> None:
    assert cause(exit_code, tail).hopeless


@pytest.mark.parametrize(
    ("tail", "error"),
    [
        (f"{TRACEBACK}ValueError: bad sample 17", "ValueError: bad sample #"),
        (f"{TRACEBACK}KeyError: 'x'\n\n", "KeyError: 'x'"),
        (f"{TRACEBACK}RuntimeError: at 0x7f00deadbeef", "RuntimeError: at #"),
        (f"{TRACEBACK}FileNotFoundError: [Errno 2] No such file or directory: '/tmp/a1b2/x'",
         "FileNotFoundError: [Errno #] No such file or directory: '#"),
        (f"{TRACEBACK}AssertionError", "AssertionError"),
        (f"{TRACEBACK}torch._dynamo.exc.BackendError: no", "torch._dynamo.exc.BackendError: no"),
    ],
)  # fmt: skip
def test_an_exception_is_the_same_text_each_time(tail: str, error: str) -> None:
    assert cause(1, tail) == Cause(error)


@pytest.mark.parametrize(
    "tail",
    [
        f"{TRACEBACK}requests.exceptions.ConnectionError: refused",
        f"{TRACEBACK}TimeoutError: timed out",
        f"{TRACEBACK}OSError: [Errno 28] No space left on device",
        f"{TRACEBACK}RuntimeError: CUDA error: an illegal memory access was encountered",
        f"{TRACEBACK}urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>",
        f"{TRACEBACK}torch.distributed.DistBackendError: NCCL error",
        f"{TRACEBACK}OSError: [Errno 5] Input/output error",
        f"{TRACEBACK}OSError: [Errno 116] Stale file handle: '/data/x'",
        f"{TRACEBACK}huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to "
        "locate the file on the Hub. Please check your connection and try again",
        "Segmentation fault",
        "",
        "loss 3.0",
        "The ValueError: handbook",
    ],
)
def test_what_may_pass_is_not_held_against_it(tail: str) -> None:
    assert cause(1, tail) == Cause()


@pytest.mark.parametrize("exit_code", [-9, -11, 137, 139])
def test_what_a_killed_command_said_last_is_not_its_cause(exit_code: int) -> None:
    assert cause(
        exit_code, "no fast path: ModuleNotFoundError\nModuleNotFoundError: No module named 'apex'"
    ) == (Cause())


@pytest.mark.parametrize(
    ("before", "error"),
    [
        ("", "TypeError: x"),
        ("loss 3.0\n", "TypeError: x"),
        ("During handling of the above exception, another exception occurred:\n\n", "TypeError: x"),
        ("Exception ignored in: <function Loader.__del__ at 0x7f00>\n", ""),
        ("Exception in thread Thread-1 (watch):\n", ""),
    ],
)
def test_an_exception_after_which_python_went_on_ends_nothing(before: str, error: str) -> None:
    assert last_exception(f"done\n{before}{TRACEBACK}TypeError: x\n") == error
