"""`schema` and `completion`: the JSON Schema of jobs for editors, and completion scripts for shells."""

from __future__ import annotations

import json

from orchestrator.cli.call import Call, Exit


def schema(call: Call) -> int:
    """Prints the JSON Schema that accepts every job `submit` accepts."""
    print(json.dumps(call.client.job_schema(), indent=2))
    return Exit.OK


def completion(call: Call) -> int:
    """Prints the completion scripts of both commands, for the shell to evaluate. With --install it writes
    them where the shell looks for them."""
    from orchestrator.cli import completing

    shell, made = call.options.shell, completing.scripts(call.options.shell)
    if call.options.install:
        return _install(call, shell, made)
    script = "\n".join(made.values())
    call.out.document({"shell": shell, "script": script, "scripts": made})
    if not call.out.as_json:
        print(script)
    return Exit.OK


def _install(call: Call, shell: str, made: dict[str, str]) -> int:
    from orchestrator.client import shell_files

    paths = shell_files.install(shell, made)
    also = {
        "bash": "needs the package bash-completion; a new shell has it",
        "zsh": f"in ~/.zshrc, before `compinit`:  fpath=({paths[0].parent} $fpath)",
        "fish": "a new shell has it",
    }[shell]
    call.out.document({"shell": shell, "written": [str(path) for path in paths], "next": also})
    call.out.facts([*(("written", str(path)) for path in paths), ("next", also)])
    return Exit.OK
