"""`init`: looks at this machine, writes the config and reports what it found."""

from __future__ import annotations

from orchestrator.cli.call import Call, Exit
from orchestrator.client.adding import how_to_add
from orchestrator.errors import InputError


def init(call: Call) -> int:
    """Writes config.yaml with this machine as a platform. Replaces an existing config only with --force.

    With the word s3, hf or drive it adds a store instead.
    """
    if call.options.store is not None:
        from orchestrator.cli.storing import init_store

        return init_store(call)
    path = call.home.folders.config
    if path.is_file() and not call.options.force:
        raise InputError(
            f"{path} already exists: edit it, or replace it with `{call.command('init', '--force')}`\n"
            f"To use Kaggle: {how_to_add(call.home, 'kaggle')}\n"
            f"To use Google Colab: {how_to_add(call.home, 'colab')}\n"
            f"To keep checkpoints elsewhere: `{call.command('init', 'hf')}`, or s3 or drive instead of hf"
        )
    made = call.client.init(force=call.options.force)
    call.out.document({"config": str(made.config), "kept": str(made.kept) if made.kept else None,
                       "found": [vars(each) for each in made.found], "notes": list(made.notes),
                       "platforms": [each.name for each in made.platforms]})  # fmt: skip
    call.out.facts((each.what, each.text) for each in made.found)
    call.out.say()
    call.out.facts([
        ("written", str(made.config)),
        *(("platform", _platform_text(each.name, each.type, each.options.get("accelerator")))
          for each in made.platforms),
        *(("gpus", note) for note in made.notes),
        ("", f"{made.old_name} keeps the name it had without a config: runs use it" if made.old_name else ""),
        *(("gpus in docker", command) for command in made.advice),
        ("gpus in docker", call.command("init", "--force") if made.advice else ""),
        ("kept", f"the old one as {made.kept}" if made.kept else ""),
        ("next", call.command("doctor")),
        ("", call.command("submit", "JOB.yaml", "--follow")),
    ])  # fmt: skip
    return Exit.OK


def _platform_text(name: str, kind: str, accelerator: str | None) -> str:
    return f"{name}: {accelerator or 'accelerators of the account'}, {kind}"
