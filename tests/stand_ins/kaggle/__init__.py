"""A Kaggle on this machine, for tests and for trying by hand.

It does what docs/references/kaggle.md says of the service, warts first.
"""

from tests.stand_ins.kaggle.server import LocalKaggle, local_kaggle
from tests.stand_ins.kaggle.session import KernelSession, State
from tests.stand_ins.kaggle.settings import Fault, Settings, Warts

__all__ = ["Fault", "KernelSession", "LocalKaggle", "Settings", "State", "Warts", "local_kaggle"]
