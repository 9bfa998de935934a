"""What the trials of all services share: assumptions and verdicts on them, waiting, and cleaning up.

Each service's own trial decides what is assumed about it and how to see that. Knows no platform.
"""
