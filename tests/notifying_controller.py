"""What a controller does about notifications, alone in a process that may be killed:

python -m tests.notifying_controller LEDGER-URL ADDRESS SECONDS
"""

from __future__ import annotations

import sys
import threading

from orchestrator import sending
from orchestrator.engine.notifying import Notifier
from orchestrator.ledger import Ledger
from tests.hurried import HurriedClock


def main(url: str, address: str, seconds: str) -> None:
    with Ledger.open(url) as ledger:
        clock = HurriedClock(20.0)
        notifier = Notifier(ledger.notifications, (), lambda _target: address, sending.send, clock, print)
        with notifier.at_work():
            threading.Event().wait(float(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
