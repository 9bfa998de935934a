"""A Kaggle on this machine, for tests and for manual trials.

It behaves as docs/references/kaggle.md describes the service, and most of all its warts.
"""

from tests.stand_ins.kaggle.server import LocalKaggle, local_kaggle
from tests.stand_ins.kaggle.session import KernelSession, State
from tests.stand_ins.kaggle.settings import Fault, Settings, Warts

__all__ = ["Fault", "KernelSession", "LocalKaggle", "Settings", "State", "Warts", "local_kaggle"]
