"""The house rules as functions: a module's source in, findings out.

This module knows no repository: tests/test_tidy.py applies the rules to ours and proves each with a planted
sample.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import TypeVar, cast

MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
PUBLIC_METHODS_MAX = 15
BANNED_NAMES = {"util", "utils", "helper", "helpers", "common", "manager", "base", "misc"}
PLATFORM_NAMES = {"process", "docker", "kaggle", "colab", "ssh", "slurm", "simulated"}
# Calls that fail if their condition does not hold; `wait_…` has a deadline.
PROVES = ("check", "assert", "expect", "run_state_machine", "wait_")
CLOCK = "orchestrator/clock.py"
# These run where our clock does not exist: beside the training, on a machine of Colab, in its command line,
# in the user's own Python.
READS_TIME = (
    CLOCK,
    "orchestrator/client/matmuls.py",
    "orchestrator/training/",
    "orchestrator/platforms/colab/boot.py",
    "orchestrator/platforms/colab/errand.py",
    "orchestrator/platforms/colab/forker.py",
)
# Training commands whose steps take a given time.
SLEEPS = ("tests/agent/source/", "jobs/graphmer/graphmer/loop.py")
# In this file `kaggle:` is the scheme of an input's origin, part of the spec's grammar.
COMPARES_SCHEMES = ("orchestrator/spec/checks.py",)
DATETIME_NOW = {"now", "utcnow", "today"}
IMPURE = {
    "asyncio", "glob", "http", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets",
    "select", "shutil", "signal", "socket", "sqlite3", "subprocess", "sys", "tempfile", "threading", "time",
    "urllib", "uuid",
}  # fmt: skip
# What writes by a path, in which a session may have put a link (docs/decisions/039-no-link-is-followed.md),
# and who may: what ships without orchestrator.files, or writes where no session's folder is.
WRITES = {
    "chmod", "hardlink_to", "mkdir", "rename", "replace", "rmdir", "shutil.copyfile", "shutil.move",
    "shutil.rmtree", "symlink_to", "touch", "unlink", "write_bytes", "write_text",
    *(f"os.{verb}" for verb in ("chmod", "link", "mkdir", "open", "remove", "rename", "rmdir", "unlink")),
}  # fmt: skip
WRITE_ALONE = re.compile(
    r"orchestrator/(cli|config|fetching|files|ledger|training|freeze/images|rehearsal/witness"
    r"|platforms/(colab/(boot|errand)|kaggle/runner|notebook/cell|simulated|trials|\w+/trial)|stores/(age|faulty)"
    r"|client/(amending|checkup|drive_login|examples|round_trip|service|setting_up|shell_files|uninstalling))\b"
)
IMPURE_CALLS = {"open", "print", "input", "exec", "eval", "id", "hash"}

# Which of our modules may import which (drawn in docs/architecture.md). The longest prefix that fits the
# importing module counts. A package may always import itself. A module without a row is a finding: add a row
# for it here.
USER = "orchestrator.user"
LEAVES = (
    "orchestrator.errors", "orchestrator.clock", "orchestrator.shut", "orchestrator.unforeseen", USER
)  # fmt: skip
DISK = "orchestrator.files"
PROCESSES = "orchestrator.processes"
INTERPRETERS = "orchestrator.interpreters"
NVIDIA = "orchestrator.nvidia"
INSTALLATION = "orchestrator.installation"
HOME = "orchestrator.home"
REFERENCES = "orchestrator.references"
PURE = (*LEAVES, "orchestrator.core")
PROTOCOLS = (
    "orchestrator.platforms.platform",
    "orchestrator.stores.store",
    "orchestrator.stores.checkpoints",
    "orchestrator.stores.register",
    "orchestrator.stores.opening",
    "orchestrator.stores.deposits",
    "orchestrator.stores.abandoned",
)
SPOKEN = (
    "accelerators", "checkpoint", "event", "gpu_use", "job", "lifecycle", "notes", "offer", "openings",
    "order", "run", "schedule", "session", "wire", "wording",
)  # fmt: skip
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "orchestrator.errors": (),
    "orchestrator.clock": (),
    "orchestrator.shut": (),
    DISK: ("orchestrator.shut", "orchestrator.core.bounds", "orchestrator.errors"),
    PROCESSES: (),
    INTERPRETERS: (),
    # It runs interpreters to ask what they are.
    "orchestrator.pythons": (*PURE, DISK, INTERPRETERS),
    NVIDIA: (),
    INSTALLATION: (),
    HOME: ("orchestrator.errors",),
    REFERENCES: ("orchestrator.errors", DISK, USER),
    USER: ("orchestrator.errors",),
    "orchestrator.unforeseen": (),
    "orchestrator.catalog": PURE,
    "orchestrator.core": ("orchestrator.errors",),
    "orchestrator.training": (),
    "orchestrator.agent": (
        *LEAVES,
        PROCESSES,
        INTERPRETERS,
        NVIDIA,
        # One definition of Order and Result on both sides: docs/decisions/001.
        *(
            f"orchestrator.core.{part}"
            for part in ("bounds", "checkpoint", "order", "job", "mask", "notebook", "save_pattern", "wire")
        ),
        DISK,
        # The session's layout, how its checkpoints are committed, and what the uplink beside it says.
        *(f"orchestrator.session.{part}" for part in ("committing", "layout", "words")),
        # How the probe tells devices apart.
        *(
            f"orchestrator.core.{part}"
            for part in ("accelerators", "gpu_names", "gpu_use", "own_accelerators")
        ),
    ),
    # It runs beside the training, and finds there who handles a signal.
    "orchestrator.notebook": (
        "orchestrator.clock",
        "orchestrator.core.mask",
        "orchestrator.core.notebook",
        DISK,
        "orchestrator.agent.family",
    ),
    "orchestrator.session": (*PURE, DISK),
    "orchestrator.platforms": (
        *PURE,
        "orchestrator.catalog",
        "orchestrator.session",
        DISK,
        PROCESSES,
        INTERPRETERS,
        "orchestrator.pythons",
        NVIDIA,
    ),
    "orchestrator.stores": (*PURE, "orchestrator.catalog", DISK, REFERENCES, INSTALLATION),
    "orchestrator.uplink": (
        *PURE,
        DISK,
        "orchestrator.session",
        *(
            f"orchestrator.stores.{part}"
            for part in ("store", "register", "checkpoints", "opening", "portable")
        ),
    ),
    # Packs the uplink for the controller, and is not shipped.
    "orchestrator.uplink.archive": ("orchestrator.agent.archive", DISK),
    "orchestrator.cron": ("orchestrator.core",),
    "orchestrator.spec": (*PURE, DISK, "orchestrator.cron"),
    "orchestrator.sending": (*PURE, INSTALLATION),
    "orchestrator.fetching": (*PURE, DISK),
    # What was fetched is staged from the cache.
    "orchestrator.freeze": (*PURE, DISK, "orchestrator.fetching.cache", "orchestrator.fetching.sources"),
    "orchestrator.config": (*PURE, DISK, HOME, REFERENCES, "orchestrator.spec"),
    "orchestrator.migrations": ("orchestrator.ledger.tables",),
    "orchestrator.ledger": (*PURE, DISK, INSTALLATION),
    "orchestrator.engine": (
        *PURE,
        *PROTOCOLS,
        DISK,
        HOME,
        "orchestrator.session",
        "orchestrator.uplink",
        "orchestrator.ledger",
        "orchestrator.cron",
        "orchestrator.freeze.inputs",
        "orchestrator.freeze.left_out",  # what a failed training may have missed
        "orchestrator.freeze.packing",  # inputs on their way into a store
    ),
    "orchestrator.pruning": (
        *PURE,
        *PROTOCOLS,
        DISK,
        HOME,
        "orchestrator.session",
        "orchestrator.ledger",
        "orchestrator.freeze.inputs",
        "orchestrator.engine.ownership",
        "orchestrator.engine.collecting",  # it marks a checkpoint whose only copy is here
    ),
    # Plays a recorded time with the market and the queue that the engine has.
    "orchestrator.hindsight": (
        *PURE,
        *(f"orchestrator.engine.{part}" for part in ("market", "queue", "surveying")),
    ),
    # It reads scripts and knows patterns of saves; no run, no platform.
    "orchestrator.drafting": (*PURE, DISK),
    # One session after another with the real agent, beside the engine and without a ledger.
    "orchestrator.rehearsal": (
        *PURE,
        "orchestrator.agent.wholeness",
        "orchestrator.platforms.platform",
        "orchestrator.session",
        "orchestrator.stores.checkpoints",
        DISK,
    ),
    "orchestrator.client": ("orchestrator",),
    # Presentation only: it asks the client, and of the core it knows values and how they are written.
    "orchestrator.cli": (
        *LEAVES,
        DISK,
        INSTALLATION,
        "orchestrator.__version__",
        "orchestrator.client",
        "orchestrator.cron",
        *(f"orchestrator.core.{part}" for part in SPOKEN),
    ),
    "orchestrator.__main__": ("orchestrator.cli",),
}
STANDARD_LIBRARY_ONLY = (
    DISK,
    PROCESSES,
    INTERPRETERS,
    INSTALLATION,
    "orchestrator.pythons",
    "orchestrator.errors",
    "orchestrator.clock",
    "orchestrator.core",
    "orchestrator.session",
    "orchestrator.agent",
    "orchestrator.uplink",
)

Node = TypeVar("Node", bound=ast.AST)


@dataclass(frozen=True)
class Module:
    """A Python file and its path in the repository, with forward slashes."""

    path: str
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source, self.path)

    @cached_property
    def _by_kind(self) -> dict[type[ast.AST], list[ast.AST]]:
        found: dict[type[ast.AST], list[ast.AST]] = {}
        for node in ast.walk(self.tree):
            found.setdefault(type(node), []).append(node)
        return found

    def nodes(self, kind: type[Node]) -> list[Node]:
        """Those of exactly this kind. Every rule looks at every module, so each tree is walked once."""
        return cast(list[Node], self._by_kind.get(kind, []))

    @property
    def name(self) -> str:
        parts = PurePosixPath(self.path).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def is_product(self) -> bool:
        return self.path.startswith("orchestrator/")

    @property
    def is_test(self) -> bool:
        return self.path.startswith("tests/")

    def at(self, node: ast.AST, message: str) -> str:
        return f"{self.path}:{getattr(node, 'lineno', 1)}: {message}"


Function = ast.FunctionDef | ast.AsyncFunctionDef
Rule = Callable[[Module], Iterator[str]]


def functions(module: Module) -> Iterator[Function]:
    yield from module.nodes(ast.FunctionDef)
    yield from module.nodes(ast.AsyncFunctionDef)


def imports(module: Module, package: str = "") -> Iterator[tuple[ast.AST, str]]:
    """Every imported name in full: `from a import b` is `a.b`."""
    for plain in module.nodes(ast.Import):
        yield from ((plain, alias.name) for alias in plain.names)
    for node in module.nodes(ast.ImportFrom):
        above = package.split(".")[: -(node.level - 1) or None] if node.level else []
        origin = ".".join([*above, *([node.module] if node.module else [])])
        yield from ((node, f"{origin}.{alias.name}") for alias in node.names)


def sizes(module: Module) -> Iterator[str]:
    lines = module.source.count("\n")
    if lines > MODULE_LINES_MAX:
        yield f"{module.path}: {lines} lines, {MODULE_LINES_MAX} at most"
    for function in functions(module):
        length = (function.end_lineno or function.lineno) - function.lineno + 1
        if length > FUNCTION_LINES_MAX:
            yield module.at(function, f"{function.name} has {length} lines, {FUNCTION_LINES_MAX} at most")
    for node in module.nodes(ast.ClassDef):
        methods = [item.name for item in node.body if isinstance(item, Function)]
        public = [name for name in methods if not name.startswith(("_", "test_"))]
        if len(public) > PUBLIC_METHODS_MAX:
            yield module.at(node, f"{node.name} has {len(public)} public methods")


def module_names(module: Module) -> Iterator[str]:
    for part in PurePosixPath(module.path).with_suffix("").parts:
        if BANNED_NAMES & set(part.lower().split("_")):
            yield f"{module.path}: {part!r} says nothing about what it does"


def docstrings(module: Module) -> Iterator[str]:
    if module.source.strip() and not ast.get_docstring(module.tree):
        yield f"{module.path}: no docstring says what this module decides"


def one_clock(module: Module) -> Iterator[str]:
    """Only the clock reads the time. Nothing sleeps, tests included."""
    sleeps = module.path.startswith(SLEEPS)
    for node, name in imports(module):
        if module.is_product and not module.path.startswith(READS_TIME) and name.split(".")[0] == "time":
            yield module.at(node, "only orchestrator/clock.py reads the time")
        if name == "time.sleep" and not sleeps:
            yield module.at(node, "wait for a condition with a deadline, do not sleep")
    for call in module.nodes(ast.Call):
        text = ast.unparse(call.func)
        if text in ("time.sleep", "asyncio.sleep") and not sleeps:
            yield module.at(call, "wait for a condition with a deadline, do not sleep")
        owner, _, method = text.rpartition(".")
        is_now = method in DATETIME_NOW and owner.split(".")[-1] in ("datetime", "date")
        if module.is_product and module.path != CLOCK and is_now:
            yield module.at(call, "only orchestrator/clock.py reads the time")


def one_user(module: Module) -> Iterator[str]:
    """Only orchestrator/user.py asks for the user's home folder and name: both may be missing."""
    if not module.is_product or module.name == USER:
        return
    for node, name in [
        *imports(module),
        *((each, ast.unparse(each)) for each in module.nodes(ast.Attribute)),
    ]:
        if re.search(r"\b(expanduser|Path\.home|platformdirs|getpass|getuser|pwd)\b", name):
            yield module.at(node, "ask orchestrator/user.py: it says what is missing")


def broad_excepts(module: Module) -> Iterator[str]:
    """A handler for everything must raise again, or say on its line why it does not: `# noqa: BLE001 why`."""
    for handler in module.nodes(ast.ExceptHandler):
        caught = {ast.unparse(t) for t in _caught(handler)}
        if not caught & {"", "Exception", "BaseException"}:
            continue
        raises = isinstance(handler.body[-1], ast.Raise)
        line = module.source.splitlines()[handler.lineno - 1]
        _, _, reason = line.partition("noqa: BLE001")
        if not raises and len(reason.strip(" :,—-")) < 10:
            yield module.at(handler, "catches everything without a reason (`# noqa: BLE001 why`)")


def _caught(handler: ast.ExceptHandler) -> list[ast.expr]:
    if handler.type is None:
        return [ast.Name("")]
    return handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]


def pure_core(module: Module) -> Iterator[str]:
    if not module.path.startswith("orchestrator/core/"):
        return
    for node, name in imports(module):
        if name.split(".")[0] in IMPURE:
            yield module.at(node, f"core is pure and cannot use {name}")
    for node in module.nodes(ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            yield module.at(node, f"core is pure and cannot call {node.func.id}")


def import_rules(module: Module) -> Iterator[str]:
    """Every import of our own modules must be allowed by MAY_IMPORT; some packages use the standard library
    only."""
    if not module.is_product or module.name == "orchestrator":
        return
    row = next((r for r in sorted(MAY_IMPORT, key=len, reverse=True) if _within(module.name, r)), None)
    if row is None:
        yield f"{module.path}: MAY_IMPORT does not say what {module.name} may import"
        return
    package = module.name if module.path.endswith("__init__.py") else module.name.rpartition(".")[0]
    bare = any(_within(module.name, prefix) for prefix in STANDARD_LIBRARY_ONLY)
    for node, name in imports(module, package):
        if _within(name, "orchestrator"):
            if not any(_within(name, allowed) for allowed in (row, *MAY_IMPORT[row])):
                yield module.at(node, f"{row} may not import {name}")
        elif bare and name.split(".")[0] not in sys.stdlib_module_names:
            yield module.at(node, f"{row} uses the standard library only, not {name}")


def _within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def platform_names(module: Module) -> Iterator[str]:
    """What a platform can do is data (Traits). Outside its own module its name decides nothing."""
    if not module.is_product or module.path.startswith(("orchestrator/platforms/", *COMPARES_SCHEMES)):
        return
    compared = [(node, (node.left, *node.comparators)) for node in module.nodes(ast.Compare)]
    matched = [(node, (node.value,)) for node in module.nodes(ast.MatchValue)]
    for node, values in (*compared, *matched):
        for value in PLATFORM_NAMES.intersection(_constants(*values)):
            yield module.at(node, f"compares with the platform name {value!r}; ask its Traits")


def _constants(*nodes: ast.expr) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            yield from _constants(*node.elts)


def no_mocks(module: Module) -> Iterator[str]:
    for node, name in imports(module):
        if name.startswith(("unittest.mock", "mock.", "pytest_mock")) or name == "mock":
            yield module.at(node, "no mocks of our own code: values in, values out, or the real thing")


def no_other_writer(module: Module) -> Iterator[str]:
    """Only orchestrator.files, and calls with the descriptor of a folder, write where a path leads."""
    for call in module.nodes(ast.Call) if module.is_product and not WRITE_ALONE.match(module.path) else ():
        text, whole = ast.unparse(call.func), ast.unparse(call)
        owner, _, verb = text.rpartition(".")
        writes = {text, verb if owner not in ("draft", "files", "os") else ""} & WRITES and bool(owner)
        if verb in ("rename", "replace") and owner != "os":
            writes = writes and len(call.args) == 1  # else it is another's method, such as of a text
        if verb == "open" and owner not in ("os", "tarfile"):
            writes = re.search(r"[(, =]'[rbt]*[wax+]", whole) is not None
        if writes and "dir_fd=" not in whole and "os.devnull" not in whole:
            yield module.at(call, f"write through orchestrator.files, not {text}")


def failing_is_possible(module: Module) -> Iterator[str]:
    """A test asserts: itself, through pytest, or through a function whose name or body shows it."""
    if not module.is_test:
        return
    local = {function.name: function for function in functions(module)}
    for name, function in local.items():
        if name.startswith("test") and not _asserts(function, local, seen=set()):
            yield module.at(function, f"{name} asserts nothing")


def _asserts(function: Function, local: dict[str, Function], seen: set[str]) -> bool:
    seen.add(function.name)
    for node in ast.walk(function):
        if isinstance(node, ast.Assert | ast.Raise):
            return True
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func).rpartition(".")[2]
        if called in ("raises", "warns", "fail") or called.startswith(PROVES):
            return True
        if called in local and called not in seen and _asserts(local[called], local, seen):
            return True
    return False


def constants_once(module: Module) -> Iterator[str]:
    """A constant of a module has one value: two branches that each add the same name merge without a
    conflict, and the later value silently counts for both."""
    seen: set[str] = set()
    for node in module.tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else ()
        for name in (each.id for each in targets if isinstance(each, ast.Name) and each.id.isupper()):
            if name in seen:
                yield module.at(node, f"{name} is assigned twice")
            seen.add(name)


RULES: tuple[Rule, ...] = (
    sizes, module_names, docstrings, one_clock, one_user, broad_excepts, pure_core, import_rules,
    platform_names, no_mocks, no_other_writer, failing_is_possible, constants_once,
)  # fmt: skip
