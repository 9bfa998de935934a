"""The Jupyter server of a machine, as forker.py runs it: its words are those of `jupyter server`.

It has a process of its own, and starts kernels as ever. Runs in the machines' environment, so it imports
nothing of ours.
"""

from __future__ import annotations

import os


def warm() -> None:
    import ipykernel.kernelspec  # noqa: F401
    import jupyter_server.serverapp  # type: ignore[import-not-found]  # noqa: F401


def main(words: list[str]) -> None:
    from jupyter_server.serverapp import ServerApp

    os.umask(0o022)
    ServerApp.launch_instance(words)
