"""A session's outbox in its run's home store: shipped there next to the agent, read and fenced by the engine.

registers.py   fence, claim, heartbeat and pins, and the rules by which they change
shipping.py    the uplink: one agent's outbox into the store
latest.py      which checkpoints it ships next
driving.py     when it beats and ships, and what it does after errors
parcel.py      what a session fetches: put there by the engine, laid out by the uplink
fetching.py    when the uplink fetches it, and what it does after errors
pace.py        how fast it may go, and how long it waits after errors
program.py     the process: what it is given, and how it ends
archive.py     the program as one file
outbox.py      the same outbox as the engine reads it
accepting.py   which of its checkpoints the engine accepts where they lie
layout.py      the names of all these
"""
