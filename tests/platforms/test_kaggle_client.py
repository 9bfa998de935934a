"""Each RPC of the real kaggle client, and what its failures mean to the caller."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.platforms.kaggle_wire import Wire, client, said, wire


@pytest.fixture
def server() -> Iterator[Wire]:
    with wire() as made:
        yield made


def test_the_status_of_a_kernel(server: Wire) -> None:
    server.then("GetKernelSessionStatus", said({"status": "RUNNING"}))
    found = client(server).status("x-s01")
    assert found is not None
    assert found.state == "RUNNING"
