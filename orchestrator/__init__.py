"""Finishes one declared training job on free and owned accelerators; docs/architecture.md is the map."""

__version__ = "0.1.0"
