"""Tests of orchestrator.pruning."""
