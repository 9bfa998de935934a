"""What single platforms and their shared parts do beyond the conformance suite."""
