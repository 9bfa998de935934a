"""A local Colab, for tests and for people without an account: `local_colab` runs one."""

from tests.stand_ins.colab.server import LocalColab, local_colab
from tests.stand_ins.colab.settings import Fault, Settings

__all__ = ["Fault", "LocalColab", "Settings", "local_colab"]
