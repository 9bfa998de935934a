"""The store and register suites over a real S3 service, straight and through a proxy that fails at random."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.stores import catalog
from orchestrator.stores.store import Store
from tests.conformance.register_suite import RegisterSuite, registers
from tests.conformance.store_suite import StoreSuite, source
from tests.stand_ins.seaweed import ACCESS_KEY, BUCKET, SECRET_KEY, Seaweed

__all__ = ["registers", "source"]  # fixtures


def configured(endpoint: str, home: Path, **options: object) -> Store:
    (home / "secret").write_text(f"{SECRET_KEY}\n", "utf-8")
    (home / "access").write_text(ACCESS_KEY, "utf-8")
    given = {
        "preset": "seaweedfs", "endpoint": endpoint, "bucket": BUCKET, "access_key": "file:access",
        "secret_key": "file:secret",
    }  # fmt: skip
    return catalog.build("s3", "s3", given | options, home)


@pytest.fixture
def store(seaweedfs: Seaweed, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return configured(seaweedfs.endpoint, tmp_path_factory.mktemp("home"), prefix=seaweedfs.prefix())


class TestStore(StoreSuite):
    """The store suite over SeaweedFS."""


class TestRegisters(RegisterSuite):
    """The register suite over SeaweedFS."""
