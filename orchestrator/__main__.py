"""`python -m orchestrator` is the `orchestrator` command."""

from orchestrator.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
