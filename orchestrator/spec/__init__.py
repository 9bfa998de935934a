"""YAML → Job: every mistake reported, each with line and key path.

`document` reads YAML, `fields` and `schema` say what each value may be, `checks` what values must be to each
other, `rules` is shared with the config, `mistakes` words what is wrong, `job` is the entrance.
"""

from orchestrator.spec.job import Parsed, load, parse, schema

__all__ = ["Parsed", "load", "parse", "schema"]
