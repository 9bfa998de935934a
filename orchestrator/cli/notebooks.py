"""`colab notebook`: writes a platform's notebook, and shows the Secret to paste once.

Decides where the Secret may go: to a terminal, or into a file that only its owner can read.
"""

from __future__ import annotations

import sys
from pathlib import Path

from orchestrator.cli import asking
from orchestrator.cli.call import Call, Exit
from orchestrator.client import notebooks
from orchestrator.errors import InputError
from orchestrator.files import write_whole


def notebook(call: Call) -> int:
    """Standard output never gets the Secret, because it may be kept somewhere."""
    options = call.options
    if options.secret_file is None and not sys.stderr.isatty():
        raise InputError("the Secret is shown on a terminal only: give --secret-file FILE")
    made = notebooks.write(call.client.wired(), options.name, options.output, new_keys=options.new_secret)
    if options.secret_file is not None:
        write_whole(Path(options.secret_file), f"{made.secret}\n".encode())
    call.out.document({
        "notebook": made.path, "link": made.link, "secret_name": made.secret_name,
        "secret_file": options.secret_file,
    })  # fmt: skip
    call.out.facts([
        ("notebook", str(made.path)),
        ("1.", f"upload it at {made.link} (File > Upload notebook), once"),
        ("", "then put its address into the config, as the platform's `link`"),
        ("2.", f"click the key on its left, and add a Secret with the name {made.secret_name}"),
        ("3.", f"paste as its value {_where(options.secret_file)}, and switch on the notebook's access"),
        ("4.", "Runtime > Run all; keep the tab open"),
    ])  # fmt: skip
    if options.secret_file is None:
        asking.tell(f"\n{made.secret}\n\nWhoever has this Secret can read and change the home store.")
    return Exit.OK


def _where(secret_file: str | None) -> str:
    return "the line below" if secret_file is None else f"the line in {secret_file}"
