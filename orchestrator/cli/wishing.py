"""`cancel`, `hold` and `release` in words."""

from __future__ import annotations

from orchestrator.cli.call import Call, Exit
from orchestrator.cli.story import short_session
from orchestrator.client.wishing import Then, WishAnswer
from orchestrator.core.lifecycle import Wish
from orchestrator.errors import AccessDenied, WorkWouldBeLost


def cancel(call: Call) -> int:
    """Ends a run. If it is already over or being cancelled, it says so."""
    return _wish(call, Wish.CANCEL)


def hold(call: Call) -> int:
    """Lets a run save, leave its session, and wait for `release`."""
    return _wish(call, Wish.HOLD)


def release(call: Call) -> int:
    """Continues a held run, or one that its platform failed; or takes back a hold that is not done yet."""
    return _wish(call, Wish.RELEASE)


def _wish(call: Call, wish: Wish) -> int:
    run = call.client.run(call.options.run)
    try:
        match wish:
            case Wish.CANCEL:
                answer = run.cancel(discard=call.options.discard)
            case Wish.HOLD:
                answer = run.hold(discard=call.options.discard)
            case Wish.RELEASE:
                answer = run.release(discard=call.options.discard)
    except WorkWouldBeLost as error:
        command = call.command(wish.value, error.run, "--discard")
        raise AccessDenied(f"{error.loss}\nTo {wish.value} it anyway: {command}") from error
    if answer.controller_started:
        call.out.remark("no controller was running: started one in the background")
    text = _asked_text(answer, wish, call) if answer.changed else _granted_text(answer, wish)
    call.out.done = f"{run.name} {text}"
    call.out.document({"run": run.name, "phase": answer.phase, "wish": answer.wish,
                       "changed": answer.changed, "text": text})  # fmt: skip
    call.out.say(f"{run.name} {text}")
    return Exit.OK


def _granted_text(answer: WishAnswer, wish: Wish) -> str:
    """Why there was nothing to do."""
    if wish is Wish.CANCEL:
        return f"is already {answer.phase.value}"
    if wish is Wish.HOLD:
        return f"is already held: {answer.reason}"
    return f"is not held; it is {answer.phase.value}"


def _asked_text(answer: WishAnswer, wish: Wish, call: Call) -> str:
    return f"{_then_text(answer, wish, call)}{_left_text(answer, call)}"


def _then_text(answer: WishAnswer, wish: Wish, call: Call) -> str:
    end = {Wish.RELEASE: "continues", Wish.CANCEL: "ends", Wish.HOLD: "is held"}[wish]
    if answer.then is Then.MENDED:
        return f"is written again from its record; it is {answer.phase.value}"
    if answer.then is Then.REGAINED:
        return f"{end} once it has the {' and the '.join(answer.missing)} again"
    if answer.then is Then.AWAITED:
        without = call.command(wish.value, answer.run, "--discard")
        return f"{end} once what its session left is there; to do it without: {without}"
    if wish is Wish.RELEASE:
        return end
    show, session = call.command("show", answer.run), short_session(answer.session)
    match answer.then:
        case Then.UNLAUNCHED:
            return f"{end} before session {session} is launched; see `{show}`"
        case Then.GIVEN_UP:
            return f"{end} once session {session} is dropped with its unsaved work; see `{show}`"
        case Then.SAVED:
            return f"{end} once session {session} has saved and left; see `{show}`"
    return f"{end} now; its checkpoints stay"


def _left_text(answer: WishAnswer, call: Call) -> str:
    """What nobody can remove now, and how to remove it later."""
    if not answer.left_on:
        return ""
    left = " and ".join(map(repr, answer.left_on))
    clean = call.command("doctor", "--clean")
    return f"; what is left on {left} stays there: put it back into the config, and `{clean}` removes it"
