"""`prune`: what of the home nothing needs any more, and how it is removed.

    listing.py    what lies in the home, by name, age and size; follows no link
    needs.py      what the ledger's runs still need
    rules.py      things × needs × policy → what goes, and why; pure
    removal.py    set aside by a rename, judged once more, then deleted
    results.py    checkpoints and blobs of finished runs, through the store protocol

Never knows a platform, and never decides anything about a run.
"""
