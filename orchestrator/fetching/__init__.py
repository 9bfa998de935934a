"""Fetches a job's inputs from the network into a cache of this machine, resumed and verified.

sources.py      what `from` may name, and how it is shown
addresses.py    which addresses may be connected to
web.py          one request: redirects, proxies, time limits
transfer.py     one file: parts that are kept, retries, size limits
cache.py        what was fetched, by sha256
hub.py          which files a data set of Hugging Face has
bringing.py     one input, whatever its source
"""
