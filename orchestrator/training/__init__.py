"""What a training script imports to save, resume, report and stop as the contract asks.

Ships inside every session together with the agent. Uses the standard library, and torch and safetensors only
when state is saved or resumed. Imports no other part of the orchestrator, so that a script can use it alone.
"""

from orchestrator.training.curves import summary_writer
from orchestrator.training.state import Frozen, Stateful
from orchestrator.training.training import EXIT_SAVED, Training

__all__ = ["EXIT_SAVED", "Frozen", "Stateful", "Training", "summary_writer"]
