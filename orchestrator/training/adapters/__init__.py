"""Adapters that make other libraries' training loops follow the contract. Each imports its library.

`orchestrator.training` itself never imports them, because it needs no framework.
"""
