"""YAML → Job: every mistake reported, each with line and key path.

`document` reads YAML. `fields` and `schema` describe single values, and `checks` compares several. `rules` is
shared with the config. `mistakes` writes the messages. `job` is the entry point.
"""

from orchestrator.spec.job import Parsed, load, parse, schema

__all__ = ["Parsed", "load", "parse", "schema"]
