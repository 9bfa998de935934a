"""One tick of the controller: load what is due, observe, decide, journal, perform.

engine.py       the tick itself; decides nothing, never waits
market.py       the current offers, minus what our sessions claim
readings.py     what platforms report about sessions
tracking.py     what is kept in memory about one run
perform.py      carries out one action, in a worker
workers.py      lanes of threads, one for each platform and kind of work
controller.py   one process's loop over ticks
tidying.py      removes what crashes left behind
sweeping.py     removes abandoned uploads from the stores, once a day

Knows platforms and stores only through their protocols.
"""
