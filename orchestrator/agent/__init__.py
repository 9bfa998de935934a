"""The program beside the training command inside every session. Shipped as one zip application, so it uses
the standard library and the pure core only. docs/session-folder.md is its contract with the platforms."""
