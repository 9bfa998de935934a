"""Adapters that bring other libraries' training loops under the contract; each imports its library.

Never imported by `orchestrator.training` itself, which needs no framework.
"""
