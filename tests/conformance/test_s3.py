"""The store and register suites over a real S3 service, straight and through a proxy that fails at random."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.errors import Conflict
from orchestrator.stores import catalog
from orchestrator.stores.register import Registers
from orchestrator.stores.retrying import RetryingStore
from orchestrator.stores.s3 import clients
from orchestrator.stores.store import Store
from tests.conformance.register_suite import KEY, RegisterSuite, registers
from tests.conformance.store_suite import StoreSuite, source
from tests.stand_ins.fault_proxy import fault_proxy
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


# --- through a proxy at which every seventh request fails ---------------------------------------------------


class Shaken:
    """The store behind a proxy that fails at random, tried again as the product does, without its pauses."""

    @pytest.fixture
    def store(
        self,
        seaweedfs: Seaweed,
        tmp_path_factory: pytest.TempPathFactory,
        request: pytest.FixtureRequest,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Iterator[Store]:
        monkeypatch.setattr(clients, "PAUSE_SECONDS_MIN", 0.01)
        seed = zlib.crc32(request.node.name.encode())
        with fault_proxy(seaweedfs.port, seed, rate=1 / 7) as proxy:
            home = tmp_path_factory.mktemp("home")
            inner = configured(proxy.endpoint, home, prefix=seaweedfs.prefix())
            yield RetryingStore(inner, attempts=50, sleep=lambda _: None)


class TestShakenStore(Shaken, StoreSuite):
    """The store suite. A missing reply, a broken connection, 429, 500, 502 with a web page, 503: no harm."""


class TestShakenRegisters(Shaken, RegisterSuite):
    """The register suite. A swap whose reply was lost knows its own value."""

    def test_no_count_is_lost_among_many(self, registers: Registers) -> None:
        """As in the suite, but each value names its writer: the protocol wants that if replies get lost. If
        somebody else has swapped before a lost reply is asked about, that one counts twice; none is lost."""

        def increment(writer: int) -> None:
            while True:
                held = registers.read(KEY)
                count = 0 if held is None else int(held.value.split()[0])
                value = f"{count + 1} by {writer}".encode()
                try:
                    registers.swap(KEY, value, None if held is None else held.version)
                except Conflict:
                    continue
                return

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(increment, range(16)))
        held = registers.read(KEY)
        assert held is not None
        assert int(held.value.split()[0]) >= 16
