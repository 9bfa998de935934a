"""Runs a notebook as a session's command: `python -m orchestrator.notebook train.ipynb --epochs 3`.

`__main__` executes the cells one after another and decides the exit code. `kernel` is the Python process that
executes them. `record` keeps their outputs and writes the executed copy. Ships with the agent, and needs
ipykernel in the session's Python. Must never know an order or a folder of a session: like a script, it knows
the contract's environment variables alone.
"""
