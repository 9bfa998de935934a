"""What a training script imports to save, resume, report and stop as the contract asks.

Ships inside every session beside the agent. Uses the standard library, and torch and safetensors only when
state is saved or resumed; imports nothing else of ours, so that a script may use it without the rest.
"""

from orchestrator.training.state import Frozen, Stateful
from orchestrator.training.training import EXIT_SAVED, Training

__all__ = ["EXIT_SAVED", "Frozen", "Stateful", "Training"]
