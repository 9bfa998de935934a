"""What would have happened with another config: a recorded time of a ledger, played again.

Recording    what the journals say happened: runs, sessions, offers        (recording.py, reading.py)
play         the recording under a config, by the real market and router   (playing.py, staying.py)
Comparison   then, played again as it was, and with the other config       (comparing.py)
"""

from __future__ import annotations
