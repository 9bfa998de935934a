"""The plugins of the whole suite. Fixtures are defined next to the tests that use them."""

import gc
import os
import signal

from hypothesis import settings

# Before torch is imported: its threads sleep while they wait. Several workers share the processor, and there
# threads that spin take four times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# A shell's background jobs ignore Ctrl-C, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says more about the machine than about the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

pytest_plugins = [
    "tests.no_production",
    "tests.colab_python",
    "tests.no_skips",
    "tests.further_tries",
    "tests.own_umask",
    "tests.postgresql",
    "tests.docker_engine",
    "tests.docker_images",
    "tests.docker_gpus",
    "tests.stand_ins.seaweed",
    "tests.longest_first",
]


def pytest_collection_finish() -> None:
    """The tests themselves are no garbage: no search for it has to look at all of them again."""
    gc.freeze()
