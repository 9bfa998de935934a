"""The program that runs beside the training command in every session. It ships as one zip application, and
uses only the standard library and the pure core. Its contract with the platforms: docs/session-folder.md."""
