"""One suite over every platform and one over every store."""
