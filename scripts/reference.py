"""The reference pages of docs/: what the job file, the config, the commands and the Python API take.

Decides how they are laid out. Keys, types and defaults come from the models, commands from the parser's
table, methods from their signatures and docstrings. `scripts/meanings.py` says what a key is for.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pkgutil import resolve_name
from typing import Any

from pydantic import TypeAdapter

from orchestrator import client as api
from orchestrator.cli import arguments
from orchestrator.cli import options as o
from orchestrator.client.run import Run
from orchestrator.client.stored import StoredRun
from orchestrator.config.reading import _ConfigSection
from orchestrator.core.accelerators import catalogue
from orchestrator.platforms import catalog as platforms
from orchestrator.spec.schema import JobSection
from orchestrator.stores import catalog as stores
from orchestrator.training import Training
from scripts import meanings

Schema = dict[str, Any]
_UNTOLD = frozenset({"simulated"})  # for tests
_LINE_MAX = 70  # what a phone shows of a line without scrolling far
_COUNT_MAX = 10**15  # a limit above this is none that anybody meets
_KINDS = {"string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false",
          "object": "a mapping"}  # fmt: skip
# The pages that say more about a command.
PAGES = {
    "init": "init-stores.md", "doctor": "kaggle-first-run.md", "submit": "bring-your-script.md",
    "new": "new.md", "rehearse": "rehearse.md", "plan": "planning.md", "why": "routing.md",
    "retry": "any-script.md",
    "checkpoints": "checkpoints.md", "pull": "outputs.md", "adopt": "anywhere.md", "copy": "anywhere.md",
    "schedule": "schedules.md", "quota": "quota.md", "prune": "home.md", "backup": "operations.md",
    "restore": "operations.md", "colab": "colab.md", "notify": "notifications.md", "service": "operations.md",
    "replay": "replay.md", "up": "standby.md", "health": "operations.md",
}  # fmt: skip


@dataclass(frozen=True)
class Key:
    """One key: its path, its JSON Schema, and whether it must be given."""

    path: str
    schema: Schema
    required: bool


def keys(model: Any) -> list[Key]:
    """Every key of a model, also in mappings and lists. A job's rules are left out: the config has them."""
    schema = TypeAdapter(model).json_schema()
    return list(_keys(schema, schema.get("$defs", {}), ""))


def _keys(schema: Schema, defs: Schema, above: str) -> Iterator[Key]:
    for name, given in schema.get("properties", {}).items():
        path = f"{above}{name}"
        yield Key(path, _whole(given, defs), name in schema.get("required", ()))
        if path != "route.rules":
            yield from _below(given, defs, path)


def _below(given: Schema, defs: Schema, path: str) -> Iterator[Key]:
    for each in (given, *given.get("anyOf", ())):
        whole = _whole(each, defs)
        if "at_least" in whole.get("properties", {}):
            continue  # a range: its description says all
        yield from _keys(whole, defs, f"{path}.") if not path.endswith(("require", "avoid", "prefer")) else ()
        if isinstance(inside := whole.get("items"), dict):
            yield from _keys(_whole(inside, defs), defs, f"{path}[].")
        for inside in (whole.get("additionalProperties"), *whole.get("patternProperties", {}).values()):
            if isinstance(inside, dict):
                yield from _keys(_whole(inside, defs), defs, f"{path}.*.")


def _whole(schema: Schema, defs: Schema) -> Schema:
    """The schema with what it refers to; what stands beside the reference wins."""
    if "$ref" not in schema:
        return schema
    named: Schema = defs[schema["$ref"].rpartition("/")[2]]
    return named | {key: value for key, value in schema.items() if key != "$ref"}


def takes(schema: Schema) -> str:
    """What values a key takes, in words."""
    if words := schema.get("description"):
        return str(words)
    if "anyOf" in schema:
        parts = [each for each in schema["anyOf"] if each.get("type") != "null"]
        null = " or null" if len(parts) < len(schema["anyOf"]) else ""
        return " or ".join(takes(each) for each in parts) + null
    if "const" in schema:
        return _value(schema["const"])
    if "enum" in schema:
        return ", ".join(_value(each) or '""' for each in schema["enum"] if each != "")
    if schema.get("type") == "array":
        return f"a list of {takes(schema['items'])}" if "items" in schema else "a list"
    if schema.get("format") == "path":
        return "a path"
    return _KINDS.get(schema.get("type", ""), "a mapping") + _limits(schema)


def _limits(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if (above := schema.get("exclusiveMinimum")) is not None:
        return f" above {above:g}"
    if high is not None and high < _COUNT_MAX:
        return f" from {low or 0:g} to {high:g}"
    return f" from {low:g}" if low is not None else ""


def _value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if value < 1e6 else f"{value:.0f}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_value(v)}" for k, v in value.items()) + "}"
    return str(value)


def default(key: Key) -> str:
    if key.required:
        return "must be given"
    value = key.schema.get("default")
    if key.path.endswith("interval"):
        return "`auto`"
    if key.path.endswith("finish_within"):
        return "`30d`"
    return "none" if value in (None, [], {}, "") else f"`{_value(value)}`"


def key_texts(found: list[Key], told: Mapping[str, tuple[str, str]]) -> str:
    """A heading for each key, with what it is for, what it takes, its default, and an example."""
    parts = []
    for key in found:
        what, example = told.get(key.path, ("", ""))
        name = key.path.rpartition(".")[2].removesuffix("[]")
        lines = [
            f"### `{key.path}`",
            "",
            *([what, ""] if what else []),
            f"- takes: {_plain(takes(key.schema))}",
        ]
        if default(key) != "none" or "." not in key.path:
            lines.append(f"- default: {default(key)}")
        parts.append("\n".join([*lines, *([f"- example: `{name}: {example}`"] if example else [])]))
    return "\n\n".join(parts)


def _plain(words: str) -> str:
    """Words in which Markdown sees no markup: what looks like code is code."""
    words = re.sub(r"(?<![`\w])(\{[^{}`]*\}|\[[^\[\]`]*\])(?!`)", r"`\1`", words)
    return re.sub(r"(?<![`\w/.*-])(\S*\*\S*)", r"`\1`", words) if "`" not in words else words


def job_page() -> str:
    names = textwrap.fill(", ".join(f"`{name}`" for name in catalogue), 118)
    return f"""# The job file, key by key

Generated from the models in `orchestrator/spec/schema.py` by `make docs`; do not edit.

`submit` reads YAML in UTF-8, one document of at most 256 KiB. Unknown keys, wrong types and impossible
values are all reported at once, each with its line. `orchestrator schema` prints the JSON Schema, for
editors. A path such as `work.total` means the key `total` in the mapping `work`. `[]` stands for each entry
of a list, `*` for each name.

The smallest job:

```yaml
name: first
source: .
command: python train.py --steps {{steps}}
work: {{total: 1000, global_batch: 32}}
profiles:
  default: {{micro_batch: 32, precision: fp32}}
```

The rules of `route.rules` are written [as in the config](config-reference.md#rules). The names in `profiles`
are [below](#accelerators).

## Keys

{key_texts(keys(JobSection), meanings.JOB)}

## Accelerators

The names in `profiles`, besides `default` and those under `accelerators` in the config:

{names}.
"""


def config_page() -> str:
    own = key_texts(keys(_ConfigSection), meanings.CONFIG)
    return f"""# The config, key by key

Generated from the models of the code by `make docs`; do not edit.

`config.yaml` lies in [the home](home.md). `orchestrator init` writes it, and `orchestrator doctor` checks
it. Without one, there is a platform `process` for the CPU of this machine, and a store in the home. It holds
no secret: they are referred to by `env:NAME` or `file:PATH`.

## Keys

{own}

## Options of platforms

Beside `type`. Times are in seconds.

{_types(platforms.TYPES)}

## Options of stores

Beside `type`. Each store may also have `encrypt`: {meanings.OPTIONS["encrypt"]}
([encryption.md](encryption.md)).

{_types(stores.TYPES)}
"""


def _types(types: Mapping[str, Any]) -> str:
    return "\n\n".join(_type(name, entry.options) for name, entry in types.items() if name not in _UNTOLD)


def _type(name: str, options: str) -> str:
    lines = [f"### type `{name}`", ""]
    for key in option_keys(options):
        what = option_meaning(name, key)
        told = "must be given" if key.required else default(key).replace("none", "unset")
        lines.append(f"- `{key.path}`: {what or 'see its page'} ({_plain(takes(key.schema))}; {told})")
    return "\n".join(lines)


def option_keys(options: str) -> list[Key]:
    """The options of a type of platform or store, without what is in them."""
    return [key for key in keys(resolve_name(options)) if "." not in key.path]


def option_meaning(type: str, key: Key) -> str:
    """What an option is for: as its own field says, else as the table does."""
    told = meanings.OPTIONS.get(f"{type}.{key.path}") or meanings.OPTIONS.get(key.path)
    return told or str(key.schema.get("description", ""))


def commands_page() -> str:
    rows = "\n".join(f"| [`{each.name}`](#{each.name}) | {each.summary} |" for each in arguments.COMMANDS)
    return f"""# Commands

Generated from the table in `orchestrator/cli/arguments.py` by `make docs`; do not edit.

Every command takes `--help`, `--json` ({o.JSON.settings["help"]}) and `--home DIR`. `submit` is also
installed as a command of its own. Exit codes: 0 ok, 1 the run failed, 2 wrong input, 3 you must act, 4 a
platform or store is unavailable. State lives in `$ORCHESTRATOR_HOME` (default: the user's data folder), with
mode 0700. RUN is a run's name, a unique beginning of it, or its job's name.

| command | does |
|---|---|
{rows}

{chr(10).join(_command(each) for each in arguments.COMMANDS)}"""


def _command(command: arguments.Command, above: str = "") -> str:
    name = f"{above}{command.name}"
    words = " ".join([name, *(_word(each) for each in command.options if _is_needed(each))])
    told = f"{command.summary[0].upper()}{command.summary[1:]}."
    more = (
        f" More: [{PAGES[command.name]}]({PAGES[command.name]})."
        if not above and command.name in PAGES
        else ""
    )
    lines = [f"{'###' if above else '##'} {name}", "", f"{told}{more}", ""]
    if not command.parts:
        lines += [f"    orchestrator {words}", ""]
    lines += [f"- {_option(each)}" for each in command.options]
    if command.one_of:
        lines += [
            f"- {_option(each)}; not with the others of {_names(command.one_of)}" for each in command.one_of
        ]
    if command.options or command.one_of:
        lines.append("")
    return "\n".join([*lines, *(_command(each, f"{name} ") for each in command.parts)])


def _word(option: o.Option) -> str:
    if option.flags[0].startswith("-"):
        return f"{option.flags[-1]} {option.settings['metavar']}"
    name = " | ".join(option.settings.get("choices", [option.settings.get("metavar", option.flags[0])]))
    match option.settings.get("nargs"):
        case "?":
            return f"[{name}]"
        case "*":
            return f"[{name} …]"
    return name


def _is_needed(option: o.Option) -> bool:
    return not option.flags[0].startswith("-") or option.settings.get("required", False)


def _names(options: tuple[o.Option, ...]) -> str:
    return ", ".join(f"`{each.flags[-1]}`" for each in options)


def _option(option: o.Option) -> str:
    value = f" {option.settings['metavar']}" if "metavar" in option.settings else ""
    flagged = option.flags[0].startswith("-")
    shown = ", ".join(f"`{flag}{value}`" for flag in option.flags) if flagged else f"`{value.strip()}`"
    return f"{shown}: {option.settings['help'].replace('%%', '%')}"


def python_page() -> str:
    client = api.Client("nowhere")
    parts = [(f"client.{name}", type(part)) for name, part in vars(client).items() if _is_part(part)]
    classes = [("Client", api.Client), ("Run", Run), *parts, ("StoredRun", StoredRun), ("Training", Training)]
    values = [(name, getattr(api, name)) for name in api.__all__ if is_dataclass(getattr(api, name))]
    return f"""# The Python API

Generated from the signatures and docstrings of the code by `make docs`; do not edit.
[From Python](python.md) shows how it is used. Times are unix seconds, durations seconds, sizes bytes. An
unknown value is `None`.

{chr(10).join(_class(name, each) for name, each in classes)}
## Adapters

{_function("orchestrator.training.adapters.huggingface:train")}

{_function("orchestrator.training.adapters.lightning:fit")}

## What the methods return

All are in `orchestrator.client`, and frozen.

{chr(10).join(_fields(name, each) for name, each in values)}"""


def _is_part(part: object) -> bool:
    return type(part).__module__.startswith("orchestrator.client.") and type(part).__name__ != "Ledgers"


def _class(name: str, what: type) -> str:
    methods = [
        (each, getattr(what, each)) for each, value in vars(what).items()
        if not each.startswith("_") and (callable(value) or isinstance(value, property | classmethod))
    ]  # fmt: skip
    lines = [f"## {name}", "", _doc(what), ""]
    for each, method in methods:
        shown = "" if isinstance(method, property) or not callable(method) else signature(method)
        owner = name if name.startswith("client.") else name.lower()
        lines += [f"### `{owner}.{each}{'()' if shown else ''}`", "", *_call(each, shown), _doc(method), ""]
    return "\n".join(lines)


def _call(name: str, shown: str) -> list[str]:
    return ["```text", f"{name}{shown}", "```", ""] if shown else []


def signature(function: Any) -> str:
    """A function's parameters and what it returns, as they are written, without `self`."""
    found = inspect.signature(function)
    given = [each for each in found.parameters.values() if each.name not in ("self", "cls", "clock")]
    words: list[str] = []
    for each in given:
        if each.kind is each.KEYWORD_ONLY and not any(word.startswith("*") for word in words):
            words.append("*")
        words.append(_parameter(each))
    returned = "" if found.return_annotation is found.empty else f" -> {found.return_annotation}"
    line = f"({', '.join(words)}){returned}"
    if len(line) < _LINE_MAX:
        return line
    return "(\n" + "".join(f"    {word},\n" for word in words) + f"){returned}"


def _parameter(given: inspect.Parameter) -> str:
    stars = "*" * (given.kind is given.VAR_POSITIONAL) + "**" * (given.kind is given.VAR_KEYWORD)
    annotated = "" if given.annotation is given.empty else f": {given.annotation}"
    if given.default is given.empty:
        return f"{stars}{given.name}{annotated}"
    # Only what is written in the code: a default such as os.environ has what is on this machine.
    plain = isinstance(given.default, str | int | float | tuple | None)
    return f"{given.name}{annotated} = {given.default!r}" if plain else f"{given.name}{annotated} = …"


def _doc(what: Any) -> str:
    text = inspect.getdoc(what) or ""
    return re.sub(r"(?<![`\w])\*(?=\w)", r"\\*", text).replace("<", "&lt;")


def _function(where: str) -> str:
    """A function of a module that is not imported: its package may not be installed."""
    module, _, name = where.partition(":")
    path = "/".join(module.split("."))
    told = f"In `{path}.py`: see [training-frameworks.md](training-frameworks.md)."
    return f"### `{module.rpartition('.')[2]}.{name}`\n\n{told}"


def _fields(name: str, what: Any) -> str:
    rows = [f"- `{each.name}`: `{each.type!s}`" for each in fields(what) if not each.name.startswith("_")]
    doc = _doc(what) if not (what.__doc__ or "").startswith(f"{name}(") else ""
    return "\n".join([f"### {name}", "", *([doc, ""] if doc else []), *rows, ""])


def unexplained() -> list[str]:
    """Every key and option that `scripts/meanings.py` does not explain."""
    missing = [key.path for key in keys(JobSection) if key.path not in meanings.JOB]
    missing += [key.path for key in keys(_ConfigSection) if key.path not in meanings.CONFIG]
    for types in (platforms.TYPES, stores.TYPES):
        for name, entry in types.items():
            found = option_keys(entry.options) if name not in _UNTOLD else []
            missing += [f"{name}.{key.path}" for key in found if not option_meaning(name, key)]
    return missing


def pages() -> dict[str, str]:
    """File name in docs/ → its whole text."""
    made = {
        "job-reference.md": job_page(),
        "config-reference.md": config_page(),
        "commands.md": commands_page(),
        "python-reference.md": python_page(),
    }
    return {name: re.sub(r"\n{3,}", "\n\n", text.rstrip() + "\n") for name, text in made.items()}
