"""One tick of the controller: load what is due, observe, decide, journal, perform.

engine.py       the tick itself; decides nothing, never waits
market.py       the offers as they stand, less what our sessions claim
readings.py     what platforms say of sessions
tracking.py     what is remembered of one run
perform.py      carries one action out, in a worker
workers.py      lanes of threads, one for each platform and kind of work
controller.py   one process's loop over ticks
tidying.py      what crashes left behind

Knows platforms and stores only by their protocols.
"""
