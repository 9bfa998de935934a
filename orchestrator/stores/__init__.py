"""Where checkpoints are stored. `store.py` is the protocol and `catalog.py` lists the types."""
