"""Whose Python a session on this machine runs with: found by what the user wrote, or by what is active.

    ours.py        whether our own environment holds only us
    finding.py     a path, a virtual environment, a conda environment, or the active one → an interpreter
    conda.py       the conda environments of this machine
    entering.py    the variables that make a session's programs those of an interpreter's environment

Standard library only. Runs interpreters to ask what they are, and never imports a package of theirs. Must
never know jobs or platforms. docs/decisions/031 says why.
"""

from orchestrator.pythons.entering import entered
from orchestrator.pythons.finding import NoPython, active, checked, named

__all__ = ["NoPython", "active", "checked", "entered", "named"]
