"""GraphMER's tests compute on one thread: their models are so small that more mostly wait for each other.

Several workers share the processor already. Knows nothing of what a test computes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    import torch  # here, because every worker of a test run imports this file

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
