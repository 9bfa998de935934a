"""`prune`: decides what in the home is no longer needed, and removes it.

    listing.py    the contents of the home, by name, age and size; follows no link
    needs.py      what the ledger's runs still need
    rules.py      things × needs × policy → what goes, and why; pure
    removal.py    sets things aside by a rename, judges them again, then deletes
    results.py    checkpoints and blobs of finished runs, through the store protocol

Never knows a platform, and never decides anything about a run.
"""
