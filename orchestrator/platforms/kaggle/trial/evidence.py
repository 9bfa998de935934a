"""Decides whether an assumption holds, by what was heard and seen. Pure: values in, verdict out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import Any

from orchestrator.core.wording import count_text, span
from orchestrator.platforms.kaggle.endings import OVER, SAVING, WAITING
from orchestrator.platforms.kaggle.runner import SAYS
from orchestrator.platforms.kaggle.staging import FAILED, READY
from orchestrator.platforms.kaggle.trial.witness import DOWNLOAD, Heard
from orchestrator.platforms.kaggle.values import decode_status
from orchestrator.platforms.trials.assumption import FAILS, HOLDS, NOT_SEEN, Judgement, of

CLOCK_SECONDS_MAX = 60.0
EARLY = 0.9  # of its time-out: a session that ends before was not ended by it
RUNNING = "RUNNING"
_DURATION = re.compile(r"\d+(\.\d+)?s")
_RANKS = {**dict.fromkeys(WAITING, 0), RUNNING: 1, SAVING: 2, **dict.fromkeys(OVER, 3)}
_CHANGED, _ABSENT, _AGAIN = "was changed on the way", "was not mounted", "; looking again for"
_DENIED = (403, 404)


def in_time(ok: bool, seen: str, heard: Iterable[Heard], since: float) -> Judgement:
    """If it was not `ok`, that may be because Kaggle did not answer `since` then."""
    if not ok and any(each.at >= since and not _is_answer(each) for each in heard):
        return NOT_SEEN, f"{seen}, but Kaggle did not always answer"
    return of(ok, seen)


def _is_answer(each: Heard) -> bool:
    return 0 < each.status < 500


def quota(heard: Iterable[Heard]) -> Judgement:
    answers = [each.answer for each in _calls(heard, "GetAcceleratorQuotaStatistics") if each.status == 200]
    if not answers:
        return NOT_SEEN, "no answer"
    pools = {name: answers[-1].get(f"{name}Quota") for name in ("gpu", "tpu")}
    odd = [text for name, pool in pools.items() if pool for text in _odd(name, pool)]
    missing = [name.upper() for name, pool in pools.items() if not pool]
    if not answers[-1].get("quotaRefreshTime"):
        odd.append("no quotaRefreshTime")
    known = "durations such as 3600s" + (f"; no {' and no '.join(missing)} quota" if missing else "")
    return of(not odd, "; ".join(odd) or known)


def _odd(name: str, pool: Mapping[str, Any]) -> Iterator[str]:
    for key in ("timeUsed", "timeReserved", "totalTimeAllowed"):
        value = pool.get(key)
        if value is None and key == "totalTimeAllowed":
            yield f"{name}: no {key}"
        elif value is not None and not (isinstance(value, str) and _DURATION.fullmatch(value)):
            yield f"{name}: {key} is {value}"


def clock(heard: Iterable[Heard]) -> Judgement:
    ahead = [each.ahead for each in heard if each.ahead is not None]
    if not ahead:
        return NOT_SEEN, "no answer has a date"
    seconds = median(ahead)
    way = "ahead of" if seconds > 0 else "behind"
    return of(abs(seconds) < CLOCK_SECONDS_MAX, f"{span(abs(seconds))} {way} this machine's")


# --- Datasets ---------------------------------------------------------------------------------------------


def ready(heard: Iterable[Heard], dataset: str, seconds_max: float) -> Judgement:
    """It fails only if it was looked at for so long, or if Kaggle says so."""
    heard = tuple(heard)
    made = next(_calls(heard, "CreateDataset", dataset), None)
    asked = [each for each in _calls(heard, "GetDatasetStatus", dataset) if _is_answer(each)]
    if made is None or not asked:
        return NOT_SEEN, "no dataset was made"
    words = list(dict.fromkeys(_word(each) for each in asked if each.status == 200))
    at = _ready_at(asked)
    seconds = (asked[-1].at if at is None else at) - made.at
    text = f"{span(seconds)} after its creation: {' → '.join(words) or 'not visible'}"
    if at is None and not FAILED & {*words} and seconds < seconds_max:
        return NOT_SEEN, f"no longer looked at {text}"
    return of(at is not None, text)


def listed(heard: Iterable[Heard], dataset: str, files: Iterable[str]) -> Judgement:
    heard, files = tuple(heard), frozenset(files)
    at = _ready_at(_calls(heard, "GetDatasetStatus", dataset))
    lists = [] if at is None else [each for each in _lists(heard, dataset) if each.at >= at]
    if at is None or not lists:
        return NOT_SEEN, "no ready dataset was listed"
    whole = next((each for each in lists if files <= _sizes(each).keys()), None)
    if whole is None:
        last = ", ".join(_sizes(lists[-1])) or "nothing"
        return FAILS, f"{span(lists[-1].at - at)} after it was ready, it lists {last}"
    text = f"{count_text(len(files), 'file')}, {span(whole.at - at)} after it was ready"
    return of(whole is lists[0], text)


def sizes(heard: Iterable[Heard], dataset: str, files: Iterable[str]) -> Judgement:
    files = frozenset(files)
    whole = next((each for each in _lists(heard, dataset) if files <= _sizes(each).keys()), None)
    if whole is None:
        return NOT_SEEN, "its files were not listed"
    found = [_sizes(whole)[name] for name in files]
    return of(all(found), "with totalBytes" if all(found) else "without totalBytes")


def unchanged(heard: Iterable[Heard], dataset: str, files: Iterable[str], began: bool, log: str) -> Judgement:
    """`began`: the session's agent was seen, which starts only if every byte is as it was packed."""
    others = {name for each in _lists(heard, dataset) for name in _sizes(each)} - frozenset(files)
    if others:
        return FAILS, f"the dataset has {', '.join(sorted(others)[:5])}"
    if _CHANGED in log:
        return FAILS, f"a file {_CHANGED}"
    return (HOLDS, "the session found every byte") if began else (NOT_SEEN, "no session began")


def _lists(heard: Iterable[Heard], dataset: str) -> Iterator[Heard]:
    return _calls(heard, "ListDatasetFiles", dataset)


def _sizes(each: Heard) -> dict[str, Any]:
    return {str(file.get("name")): file.get("totalBytes") for file in each.answer.get("datasetFiles") or ()}


def _ready_at(asked: Iterable[Heard]) -> float | None:
    return next((each.at for each in asked if each.status == 200 and _word(each) == READY), None)


def _word(each: Heard) -> str:
    return str(each.answer.get("status") or "nothing").lower()


# --- Pushes -----------------------------------------------------------------------------------------------


def attached(pushes: Iterable[Heard]) -> Judgement:
    accepted = _accepted(pushes)
    if not accepted:
        return NOT_SEEN, "no push was accepted"
    missing = accepted[0].answer.get("invalidDatasetSources") or ()
    return of(not missing, f"not found: {len(missing)} of 1" if missing else "found by the first push")


def slug(pushes: Iterable[Heard]) -> Judgement:
    given = [(each.about, _name(each.answer.get("ref"))) for each in _accepted(pushes)]
    other = [f"asked for {asked}, got {name}" for asked, name in given if name and name != asked]
    if other or any(name for _, name in given):
        return of(not other, "; ".join(other) or f"as asked for: {given[-1][0]}")
    return NOT_SEEN, "the answer has no ref"


def version(pushes: Iterable[Heard]) -> Judgement:
    numbers = [each.answer.get("versionNumber") for each in _accepted(pushes)]
    if not numbers:
        return NOT_SEEN, "no push was accepted"
    return of(set(numbers) == {1}, f"version {', '.join(str(each) for each in numbers)}")


def visible(heard: Iterable[Heard], push: Heard | None, kernel: str, seconds_max: float) -> Judgement:
    """By its status, or by the account's list. It fails only if it was looked for so long."""
    if push is None:
        return NOT_SEEN, "no push was accepted"
    heard = tuple(heard)
    after = [each for each in heard if each.at >= push.at and _is_answer(each)]
    first = next((each.at for each in after if _shows(each, kernel)), None)
    if first is None:
        seconds = after[-1].at - push.at
        text = f"not visible {span(seconds)} after the push"
        return (FAILS, text) if seconds > seconds_max else (NOT_SEEN, f"{text}, and not looked for any more")
    text = f"visible {span(first - push.at)} after the push"
    return in_time(first - push.at <= seconds_max, text, heard, push.at)


def pushed(heard: Iterable[Heard], name: str) -> list[Heard]:
    """The pushes of a session; `name` is its kernel's name, to which another attempt adds a suffix."""
    return [each for each in _calls(heard, "SaveKernel") if re.fullmatch(rf"{name}(-k\d+)?", each.about)]


def _accepted(pushes: Iterable[Heard]) -> list[Heard]:
    return [each for each in pushes if each.status == 200 and not each.answer.get("error")]


def _name(ref: object) -> str:
    return str(ref or "").strip("/").rpartition("/")[2]


def _shows(each: Heard, kernel: str) -> bool:
    if each.status != 200:
        return False
    if each.call == "ListKernels":
        return any(_name(found.get("ref")) == kernel for found in each.answer.get("kernels") or ())
    return each.call == "GetKernelSessionStatus" and each.about == kernel


# --- Kernels ----------------------------------------------------------------------------------------------


def states(heard: Iterable[Heard], kernel: str) -> list[tuple[float, str]]:
    """When Kaggle said that the kernel was in another state than before."""
    found: list[tuple[float, str]] = []
    for each in _calls(heard, "GetKernelSessionStatus", kernel):
        state = decode_status(each.answer).state
        if each.status == 200 and (not found or found[-1][1] != state):
            found.append((each.at, state))
    return found


def since(heard: Iterable[Heard], kernel: str, wanted: Iterable[str]) -> float | None:
    """When the kernel was first in one of these states."""
    wanted = frozenset(wanted)
    return next((at for at, state in states(heard, kernel) if state in wanted), None)


def ending(heard: Iterable[Heard], kernel: str) -> str:
    """How its states followed one another, and Kaggle's words about the end."""
    heard = tuple(heard)
    said = [each.answer.get("failureMessage") for each in _calls(heard, "GetKernelSessionStatus", kernel)]
    told = next((f" ({text})" for text in reversed(said) if text), "")
    return " → ".join(state for _, state in states(heard, kernel)) + told


def words(heard: Iterable[Heard], kernel: str) -> Judgement:
    said = [state for _, state in states(heard, kernel)]
    text = " → ".join(said)
    ranks = [_RANKS.get(state, -1) for state in said]
    return (NOT_SEEN, "no status") if not said else of(-1 not in ranks and ranks == sorted(ranks), text)


def readable(heard: Iterable[Heard], kernel: str) -> Judgement:
    """From when the kernel is first shown until it is deleted."""
    seen, denied = 0, 0
    for each in heard:
        if each.call == "DeleteKernel" and each.about == kernel:
            break
        if _shows(each, kernel):
            seen += 1
        elif seen and each.call == "GetKernelSessionStatus" and each.about == kernel:
            denied += each.status in _DENIED
    if not seen:
        return NOT_SEEN, "no kernel was visible"
    text = f"refused {count_text(denied, 'time')}" if denied else f"read {count_text(seen, 'time')}"
    return of(not denied, text)


def downloads(heard: Iterable[Heard], text: str) -> Judgement:
    """`text`: what was downloaded in the end."""
    denied = [each.status for each in _calls(heard, DOWNLOAD) if each.status in _DENIED]
    return of(
        not denied,
        f"refused {count_text(len(denied), 'time')} at first (HTTP {denied[0]})" if denied else text,
    )


def mounted(log: str, began: bool) -> Judgement:
    late = [text for text in (_ABSENT, _AGAIN) if text in log]
    if late:
        return FAILS, "mounted later than the script started" if began else "not mounted"
    return (HOLDS, "all were there") if began and log else (NOT_SEEN, "the log says nothing of it")


def lines(pieces: Iterable[str]) -> Judgement:
    text = "".join(pieces)
    count = text.count(SAYS)
    if count < 2:
        return NOT_SEEN, "too little of a running kernel's log was read"
    return of(
        text.count("\n") >= count - 1, f"{count} of our lines, {count_text(text.count(chr(10)), 'line end')}"
    )


def no_accelerator(seen: Mapping[str, Any]) -> Judgement:
    found = [*map(str, seen.get("gpus") or ()), *filter(None, [str(seen.get("tpu") or "")])]
    return of(not found, ", ".join(found) or f"{seen.get('processors')} processors, no GPU, no TPU")


def timeout(seconds: float | None, asked: float, *, poll: float, late: float) -> Judgement:
    """`seconds` from its first RUNNING until it was over, with looks every `poll` seconds; None: it was not
    over `late` seconds after its time-out."""
    if seconds is None:
        return FAILS, f"still running {span(late)} after its time-out of {span(asked)}"
    return of(
        seconds >= EARLY * asked - 2 * poll, f"ended after {span(seconds)}; its time-out was {span(asked)}"
    )


def handed(pushes: Iterable[Heard]) -> Judgement:
    """Whether these pushes mount another kernel's output, and Kaggle found that."""
    accepted = _accepted(pushes)
    asked = [each for each in accepted if each.asked.get("kernelDataSources")]
    if not accepted:
        return NOT_SEEN, "no push was accepted"
    if not asked:
        return NOT_SEEN, "the checkpoint was uploaded instead, because the output was not whole"
    missing = any(each.answer.get("invalidKernelSources") for each in asked)
    return of(not missing, "a push did not find the output" if missing else "found by the push")


def is_cancelled(heard: Iterable[Heard]) -> bool:
    """Whether Kaggle accepted to cancel a session."""
    return any(
        each.status == 200 and not each.answer.get("errorMessage")
        for each in _calls(heard, "CancelKernelSession")
    )


def deleted(heard: Iterable[Heard], since: float) -> Judgement:
    """For what is gone from the lists: whether a kernel was among it that was deleted while it ran, and not
    before `since`."""
    state: dict[str, str] = {}
    for each in heard:
        if each.status != 200:
            continue
        if each.call == "GetKernelSessionStatus":
            state[each.about] = decode_status(each.answer).state
        elif each.call == "DeleteKernel" and each.at >= since and state.get(each.about) == RUNNING:
            return HOLDS, f"gone from both lists at once, also {each.about}, which was running"
    return NOT_SEEN, "gone from both lists at once, but no kernel was running when it was deleted"


def refused(heard: Iterable[Heard], call: str) -> str:
    """Kaggle's last refusal of such a call in words; empty if there is none."""
    last = next((each for each in reversed([*_calls(heard, call)]) if each.status != 200), None)
    if last is None:
        return ""
    inner = last.answer.get("error")
    body = inner if isinstance(inner, Mapping) else last.answer
    return f"HTTP {last.status} ({body.get('message') or 'no words'})"


def _calls(heard: Iterable[Heard], call: str, about: str | None = None) -> Iterator[Heard]:
    return (each for each in heard if each.call == call and about in (None, each.about))
