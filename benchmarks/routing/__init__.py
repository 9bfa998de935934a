"""A month of routing, simulated: what benchmarks/router.py runs.

`traces` draws what nobody knows beforehand, `months` plays it with the real core, `policies` are the ways to
choose, and `bound` is what no policy can beat.
"""
