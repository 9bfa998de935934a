"""A session's outbox in its run's home store: shipped there next to the agent, read and fenced by the engine.

registers.py   fence, claim and heartbeat, and the rules by which they change
shipping.py    the uplink: one agent's outbox into the store
outbox.py      the same outbox as the engine reads it
layout.py      the names of all these
"""
