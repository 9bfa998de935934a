"""Where checkpoints live. `store.py` is the protocol, `catalog.py` knows the types, one file a store."""
