"""What single platforms, and what they share, do beyond the conformance suite."""
