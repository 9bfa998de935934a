"""Ways to save a checkpoint, ours and those that people write today, for `benchmarks.checkpoint_stall`."""
