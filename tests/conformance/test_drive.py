"""The store suite and the register suite over a local Drive, as it is and in bad weather."""

from __future__ import annotations

from tests.conformance.drives import drive, home, store
from tests.conformance.register_suite import RegisterSuite, registers
from tests.conformance.store_suite import StoreSuite, source

__all__ = ["drive", "home", "registers", "source", "store"]  # fixtures


class TestStoreInDrive(StoreSuite):
    """The suite for a store in Drive."""


class TestRegistersInDrive(RegisterSuite):
    """The suite for registers in Drive."""
