"""`colab WHAT NAME`: what a person does once, so that sessions can run on Google Colab.

Each has its own module, which is imported when it runs.
"""

from __future__ import annotations

from orchestrator.cli.call import Call


def colab(call: Call) -> int:
    from orchestrator.cli import login, notebooks

    return {"login": login.login, "notebook": notebooks.notebook}[call.options.what](call)
