"""One suite for every platform and one for every store."""
