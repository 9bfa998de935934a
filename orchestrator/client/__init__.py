"""What a person or a program may ask of the orchestrator, with no printing and no parsing of arguments.

`from orchestrator import Client` is the public Python API; the command line is built on the same class.
"""

from orchestrator.client.client import Client

__all__ = ["Client"]
