"""`doctor`: what works here, what is missing, and how to fix it.

`cleaning` handles `--clean`, `trying` handles `--live`, and `measuring` handles `--measure`.
"""

from __future__ import annotations

from orchestrator.cli import cleaning, measuring, trying
from orchestrator.cli.call import EXITS, Call, os_error_text, worst
from orchestrator.client.checkup import CONTENTS, Finding, State
from orchestrator.errors import InputError


def doctor(call: Call) -> int:
    """Checks everything, or only the named platforms and stores. The worst finding decides the exit code."""
    _check_options(call)
    if call.options.clean:
        return cleaning.clean(call)
    if call.options.measure:
        return measuring.measure_here(call)
    if call.options.live:
        return trying.try_live(call)
    found = tuple(call.client.doctor(call.options.names))
    call.out.document({
        "findings": [
            {"what": each.what, "state": each.state, "text": _text(call, each), "advice": _advice(call, each),
             "exit_code": EXITS[each.remedy]}
            for each in found
        ]
    })  # fmt: skip
    call.out.table(("", "STATE", "FOUND"), [(each.what, each.state, _text(call, each)) for each in found])
    shown = [(_advice_title(each), advice) for each in found if (advice := _advice(call, each))]
    if shown:
        call.out.say()
        call.out.facts(shown)
    return worst(each.remedy for each in found)


def _check_options(call: Call) -> None:
    """Raises InputError for options that only make sense with another."""
    options = call.options
    given = [f"--{name}" for name in ("clean", "live", "measure") if getattr(options, name)]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} are different things: give one of them")
    needs = (
        ("--discard", options.discard, ("--clean",), options.clean),
        ("--long", options.long, ("--live",), options.live),
        ("--yes", options.yes, ("--clean", "--live"), options.clean or options.live),
    )
    for option, wanted, others, there in needs:
        if wanted and not there:
            again = call.command("doctor", *options.names, others[0], option)
            raise InputError(f"{option} goes with {' or '.join(others)}: `{again}`")


def _text(call: Call, found: Finding) -> str:
    return os_error_text(found.error, call.home.path) if isinstance(found.error, OSError) else found.text


def _advice(call: Call, found: Finding) -> str:
    parts = (found.advice, call.command(*found.command) if found.command else "")
    return ": ".join(part for part in parts if part)


def _advice_title(found: Finding) -> str:
    if found.what == CONTENTS:
        return "to free space"
    return f"to {'get' if found.state is State.OK else 'fix'} {found.what}"
