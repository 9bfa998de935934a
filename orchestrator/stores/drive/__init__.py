"""A store in a folder of Google Drive, through PyDrive2. `store.py` has the verbs; importing needs the extra.

`configured.py` is what the catalogue knows. `account.py` logs in and sends requests, `faults.py` says what an
error means, `copies.py` finds the files of a key, `uploads.py` and `downloads.py` move bytes, and
`registers.py` has the small mutable values.
"""
