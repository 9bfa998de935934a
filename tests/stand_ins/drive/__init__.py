"""A Google Drive on this machine, for tests: API v2, its uploads and its login, and most of all its warts.

It behaves as docs/references/drive.md describes the service.
"""

from tests.stand_ins.drive.faults import Fault
from tests.stand_ins.drive.server import LocalDrive, local_drive

__all__ = ["Fault", "LocalDrive", "local_drive"]
