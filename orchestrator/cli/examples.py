"""`examples` in words."""

from __future__ import annotations

from pathlib import Path

from orchestrator.cli.call import Call, Exit
from orchestrator.client.examples import EXAMPLES, copy


def examples(call: Call) -> int:
    """Lists the examples, or copies one into a folder and says how to run it."""
    return _copy(call, call.options.name) if call.options.name is not None else _list(call)


def _list(call: Call) -> int:
    call.out.document({"examples": [
        {"name": each.name, "summary": each.summary, "files": list(each.files), "needs": each.needs}
        for each in EXAMPLES
    ]})  # fmt: skip
    call.out.table(("EXAMPLE", "WHAT", "NEEDS"), [(each.name, each.summary, each.needs) for each in EXAMPLES])
    call.out.say()
    call.out.facts([("next", call.command("examples", EXAMPLES[0].name, "-o", "my-first-job"))])
    return Exit.OK


def _copy(call: Call, name: str) -> int:
    given = call.options.output
    done = copy(name, None if given is None else Path(given))
    files = done.example.files
    call.out.document({
        "example": name, "folder": str(done.folder), "job": str(done.job), "files": list(files),
        "needs": done.example.needs,
    })  # fmt: skip
    call.out.facts([
        ("folder", f"{done.folder}, with {' and '.join(files)}"),
        ("needs", f"{done.example.needs}, in the Python that runs the job"),
        ("next", "" if call.home.folders.config.exists() else call.command("init")),
        ("next", call.command("submit", str(done.job), "--follow")),
    ])  # fmt: skip
    return Exit.OK
