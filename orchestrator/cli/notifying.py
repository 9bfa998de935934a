"""`notify test`, `notify list` and `notify retry`: whether somebody is told, and what they were not told."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from orchestrator.cli import health
from orchestrator.cli.call import Call, Exit
from orchestrator.client import Notification
from orchestrator.client.owning import running
from orchestrator.core.wording import count_text, date, span

ID_SHOWN = 8


def notify(call: Call) -> int:
    commands: Mapping[str, Callable[[Call], int]] = {"test": _test, "list": _list, "retry": _retry}
    return commands[call.options.what](call)


def _test(call: Call) -> int:
    """Sends a message and says what became of it. Exit code 4 if one is not delivered."""
    found = call.client.notifications.test(call.options.target)
    call.out.document({"tests": found})
    for each in found:
        words = "delivered" if each.delivered else "not delivered"
        title = call.out.paint(words, "green" if each.delivered else "red")
        call.out.say(f"{each.target}: {title} after {each.seconds:.1f} s: {each.said}")
    return Exit.OK if all(each.delivered for each in found) else Exit.UNAVAILABLE


def _list(call: Call) -> int:
    found = call.client.notifications.list(all=call.options.all)
    call.out.document({"notifications": found})
    if not found:
        call.out.say("no notification waits, and none was given up")
        return Exit.OK
    now = call.clock.now()
    headers = ("ID", "AGE", "TARGET", "STATE", "WHAT", "LAST ATTEMPT")
    call.out.table(headers, [_row(each, now) for each in found], spare=(1, 3, 5))
    return Exit.OK


def _row(each: Notification, now: float) -> tuple[str, ...]:
    tried = f"{count_text(each.attempts, 'attempt')}: " if each.attempts and each.error else ""
    again = f"; next {date(each.next_at)}" if each.next_at is not None else ""
    age = "–" if each.created_at < 0 else span(max(0.0, now - each.created_at))  # -1: it is damaged
    return each.id[:ID_SHOWN], age, each.target, each.state, each.title, f"{tried}{each.error}{again}"


def _retry(call: Call) -> int:
    count = call.client.notifications.retry(call.options.ids, all=call.options.every)
    call.out.document({"retried": count})
    call.out.say(f"{count_text(count, 'notification')} will be tried again")
    if count:
        with call.client.ledgers.existing() as ledger:
            health.tell_absence(call, None if ledger is None else running(ledger, call.clock))
    return Exit.OK
