"""`uninstall` in words: lists what stays behind, asks, removes, and says how to uninstall the package.

Without a terminal and without --yes it only lists. The home goes with --purge alone, on a terminal, and after
its name was typed.
"""

from __future__ import annotations

from orchestrator.cli import asking
from orchestrator.cli.call import Call, Exit
from orchestrator.client import uninstalling
from orchestrator.client.uninstalling import Goes, Left, Survey
from orchestrator.core.wording import size_text
from orchestrator.errors import InputError


def uninstall(call: Call) -> int:
    """Lists everything, and removes what the user agrees to. Never the package itself."""
    options = call.options
    if options.purge and not (options.dry_run or asking.is_possible()):
        raise InputError(
            "--purge asks for the home's name, so run it on a terminal; nothing was removed. Without --purge "
            "it lists what there is, and --yes removes everything but the home"
        )
    survey = uninstalling.survey(call.client)
    going = survey.going(purge=options.purge)
    _show(call, survey)
    if options.dry_run or not going or not _consents(call, going):
        _end(call, survey, (), [])
        return Exit.OK
    stayed = uninstalling.remove(call.client, going, purge=options.purge)
    gone = tuple(each for each in going if not any(text.startswith(each.where) for text in stayed))
    _end(call, survey, gone, stayed)
    return Exit.HUMAN if stayed else Exit.OK


def _show(call: Call, survey: Survey) -> None:
    rows = [
        (each.what, each.where, "" if each.size is None else size_text(each.size), _how(call, each))
        for each in survey.left
    ]
    if rows:
        call.out.table(("LEFT", "WHERE", "SIZE", "HOW IT GOES"), rows, right=frozenset({2}))
    else:
        call.out.say("Nothing of this program is left on this machine.")
    if survey.running:
        call.out.say()
        call.out.facts([("first", each) for each in survey.running])


def _how(call: Call, each: Left) -> str:
    if each.goes is Goes.PURGED:
        return call.command("uninstall", "--purge")
    return "uninstall removes it, if you agree" if each.goes is Goes.ASKED else each.how


def _consents(call: Call, going: tuple[Left, ...]) -> bool:
    named = ", ".join(dict.fromkeys(each.what for each in going))
    home = [each for each in going if each.goes is Goes.PURGED]
    if not call.options.yes or home:
        if not asking.is_possible():
            return False
        if asking.ask(f"Remove {named}? [y/N]", "N").lower() not in ("y", "yes"):
            return False
    for each in home:
        name = each.where.rpartition("/")[2]
        asking.tell(
            f"{each.where} has every run, and every checkpoint of a store in it. This cannot be undone."
        )
        if asking.ask(f"Type its name ({name}) to remove it", "no") != name:
            return False
    return True


def _end(call: Call, survey: Survey, removed: tuple[Left, ...], stayed: list[str]) -> None:
    package = survey.installation
    call.out.document({
        "installation": {"how": package.how, "place": str(package.place), "command": package.command},
        "left": [{**vars(each), "goes": each.goes.value} for each in survey.left],
        "running": list(survey.running),
        "removed": [each.where for each in removed],
        "stayed": stayed,
    })  # fmt: skip
    call.out.say()
    could = survey.going(purge=False)
    call.out.facts([
        *(("removed", each.where) for each in removed),
        *(("not removed", each) for each in stayed),
        ("removed", "nothing; --yes removes what only this program needs" if could and not removed else ""),
        ("package", f"installed by {package.how} in {package.place}"),
        ("next", package.command),
    ])  # fmt: skip
