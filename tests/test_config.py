"""What a config means, which mistakes are reported, and that no message repeats a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import config
from orchestrator.config import PlatformConfig, StoreConfig, load, write_default
from orchestrator.core.job import NoticeKind, RuleEffect
from orchestrator.core.notice import Target
from orchestrator.core.offer import Hop
from orchestrator.errors import InputError, Mistake, SpecError
from orchestrator.home import CONFIG
from orchestrator.references import resolve
from orchestrator.spec.notices import DEFAULT_KINDS, NotifyTarget


def write(home: Path, text: str) -> Path:
    (home / "config.yaml").write_text(text)
    return home


def mistakes(home: Path, text: str) -> tuple[Mistake, ...]:
    with pytest.raises(SpecError) as caught:
        load(write(home, text))
    return caught.value.mistakes


def test_without_a_file_jobs_run_here_as_processes(tmp_path: Path) -> None:
    found = load(tmp_path)
    assert found.platforms == (PlatformConfig("process", "process", {"accelerator": "cpu"}),)
    assert found.stores == (StoreConfig("home", "folder", {"path": "store"}),)
    assert found.home_store == "home"
    assert found.database == f"sqlite:///{tmp_path}/ledger.sqlite"
    assert found.rules == ()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "{}\n", "timezone: UTC\n"])
def test_what_a_file_leaves_out_is_as_without_it(tmp_path: Path, text: str) -> None:
    found = load(write(tmp_path, text))
    assert (found.platforms, found.stores) == (config.DEFAULT_PLATFORMS, config.DEFAULT_STORES)
    assert found.database == f"sqlite:///{tmp_path}/ledger.sqlite"


def test_everything_a_config_may_say(tmp_path: Path) -> None:
    text = """\
platforms:
  box: {type: docker, host: "ssh://box", gpus: [0, 1], deep: {a: {b: 1}}}
  demo: {type: process, accelerator: cpu, session_seconds: 25}
stores:
  home: {type: folder, path: /data/store}
  drive: {type: drive}
home_store: drive
database: sqlite:///state/ledger.sqlite
timezone: Europe/Berlin
rules:
  - {name: nights, when: {hours_of_day: [22, 6]}, prefer: {owned: true}}
  - {require: {platform: [box, demo], accelerator: cpu}}
"""
    found = load(write(tmp_path, text))
    assert found.platforms == (
        PlatformConfig("box", "docker", {"host": "ssh://box", "gpus": [0, 1], "deep": {"a": {"b": 1}}}),
        PlatformConfig("demo", "process", {"accelerator": "cpu", "session_seconds": 25}),
    )
    assert found.stores == (
        StoreConfig("home", "folder", {"path": "/data/store"}),
        StoreConfig("drive", "drive"),
    )
    assert (found.home_store, found.timezone) == ("drive", "Europe/Berlin")
    assert found.database == f"sqlite:///{tmp_path}/state/ledger.sqlite"
    nights, second = found.rules
    assert (nights.name, nights.effect, nights.origin) == ("nights", RuleEffect.PREFER, "config")
    assert (nights.when.hours_of_day, nights.offers.owned) == ((22, 6), True)
    assert (second.name, second.effect) == ("config rule 2", RuleEffect.REQUIRE)
    assert (second.offers.platforms, second.offers.accelerators) == (("box", "demo"), ("cpu",))


def test_all_mistakes_are_told_at_once_with_lines_and_paths(tmp_path: Path) -> None:
    text = """\
platfroms: {}
platforms:
  Box: {type: process}
  p: {typ: process}
stores: {a: {type: folder}, b: {type: folder}}
home_store: c
database: mysql://host/name
timezone: Mars/Olympus
rules: [{require: {owned: maybe}, avoid: {metered: true}}]
stores: {}
"""
    found = mistakes(tmp_path, text)
    assert [(mistake.line, mistake.path) for mistake in found] == [
        (1, "platfroms"),
        (3, "platforms.Box"),
        (4, "platforms.p.type"),
        (6, "home_store"),
        (7, "database"),
        (8, "timezone"),
        (9, "rules[0]"),
        (9, "rules[0].require.owned"),
        (10, "stores"),
    ]
    told = {mistake.path: mistake.message for mistake in found}
    assert "did you mean 'platforms'?" in told["platfroms"]
    assert "lower-case letters" in told["platforms.Box"]
    assert "valid: a, b" in told["home_store"]
    assert "valid: sqlite, postgresql" in told["database"]
    assert all(mistake.file == str(tmp_path / "config.yaml") for mistake in found)


def test_several_stores_need_a_named_home_store(tmp_path: Path) -> None:
    (mistake,) = mistakes(tmp_path, "stores: {a: {type: folder}, b: {type: folder}}\n")
    assert mistake.path == "home_store"
    assert "one of a, b" in mistake.message
    assert load(write(tmp_path, "stores: {a: {type: folder}}\n")).home_store == "a"


def test_null_is_given_to_an_option_that_may_be_unset(tmp_path: Path) -> None:
    text = "platforms:\n  here: {type: process, session_seconds: null}\n"
    [platform] = load(write(tmp_path, text)).platforms
    assert dict(platform.options) == {"session_seconds": None}


def test_a_mistake_of_an_option_gets_its_line(tmp_path: Path) -> None:
    found = load(write(tmp_path, "platforms:\n  p:\n    type: process\n    slots: 0\n"))
    mistake = found.mistake("platforms", "p", "slots", message="given 0")
    assert str(mistake) == f"{tmp_path}/config.yaml:4: platforms.p.slots: given 0"
    assert found.mistake("platforms", "p", "gone", message="missing").line == 2


# --- The database and other secrets ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("sqlite:////var/lib/o/ledger.sqlite", "sqlite:////var/lib/o/ledger.sqlite"),
        ("postgresql://db.example.org/ledger", "postgresql+psycopg://db.example.org/ledger"),
        ("postgresql://me@db:5433/ledger?sslmode=require", "postgresql+psycopg://me@db:5433/ledger?sslmode=require"),
        ("env:LEDGER_URL", "postgresql+psycopg://me:hunter2@db/ledger"),
        ("file:ledger-url", "postgresql+psycopg://me:hunter2@db/ledger"),
    ],
)  # fmt: skip
def test_the_database_is_a_url_or_a_reference_to_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, url: str
) -> None:
    monkeypatch.setenv("LEDGER_URL", "postgresql://me:hunter2@db/ledger")
    (tmp_path / "ledger-url").write_text("postgresql://me:hunter2@db/ledger\n")
    found = load(write(tmp_path, f"database: {given}\n"))
    assert found.database == url
    assert "hunter2" not in repr(found)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("postgresql://me:hunter2@db/ledger", "env:NAME or file:PATH"),
        ("postgresql://me:hun/ter2@db/ledger", "env:NAME or file:PATH"),
        ("postgresql://db/ledger?user=me&password=hunter2", "env:NAME or file:PATH"),
        ("env:UNSET_LEDGER_URL", "UNSET_LEDGER_URL is not set"),
        ("env:SET_WRONG", "not a URL"),
        ("file:gone", "cannot be read"),
        ("file:empty", "is empty"),
        ("hunter2", "not a URL"),
        ("[hunter2]", "a list"),
        ("sqlite://", "not a file"),
        ("'sqlite:///:memory:'", "not a file"),
        ("sqlit:///x", "did you mean 'sqlite'?"),
    ],
)
def test_a_wrong_database_is_told_without_repeating_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, told: str
) -> None:
    monkeypatch.setenv("SET_WRONG", "hunter2 is no url")
    (tmp_path / "empty").write_text("\n")
    (mistake,) = mistakes(tmp_path, f"timezone: UTC\ndatabase: {given}\n")
    assert (mistake.line, mistake.path) == (2, "database")
    assert told in mistake.message
    assert "ter2" not in str(mistake)


def test_secrets_in_options_are_refused_unless_by_reference(tmp_path: Path) -> None:
    text = """\
platforms:
  k: {type: kaggle, api_key: hunter2hunter2, deep: {password: 12345678}, user: ghp_hunter2hunter2hunter2}
stores: {home: {type: drive, client_secret: "env:DRIVE_SECRET", access_token: "file:token"}}
"""
    found = mistakes(tmp_path, text)
    assert {mistake.path for mistake in found} == {
        "platforms.k.api_key", "platforms.k.deep.password", "platforms.k.user",
    }  # fmt: skip
    told = "\n".join(map(str, found))
    assert "hunter2" not in told
    assert "12345678" not in told


def test_a_config_says_which_secrets_jobs_may_have(tmp_path: Path) -> None:
    def refused(text: str, *names: str) -> list[str]:
        (tmp_path / CONFIG).write_text(text)
        found = config.load(tmp_path)
        return [name for name in names if found.secret_refusal(name) is not None]

    names = ("WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "KAGGLE_KEY", "LEDGER_URL")
    referred = "platforms: {here: {type: process, note: 'env:LEDGER_URL'}}\n"
    assert refused("", *names) == ["AWS_SECRET_ACCESS_KEY", "KAGGLE_KEY"]
    assert refused(referred, *names) == ["AWS_SECRET_ACCESS_KEY", "KAGGLE_KEY", "LEDGER_URL"]
    assert refused("secrets: {allow: [HF_*, KAGGLE_KEY]}", *names) == [
        "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "LEDGER_URL",
    ]  # fmt: skip
    assert refused("secrets: {allow: []}", *names) == list(names)
    own = ("ORCHESTRATOR_DATABASE", "orchestrator_home")
    for text in ("", "secrets: {allow: ['*', ORCHESTRATOR_*]}"):
        assert refused(text, *own) == list(own)


@pytest.mark.parametrize("before", ["", "secrets: {allow: ['*_TOKEN', MINE]}\n"])
def test_the_line_that_lets_a_job_have_a_secret_keeps_what_it_had(tmp_path: Path, before: str) -> None:
    path = tmp_path / CONFIG
    path.write_text(before)
    listed = ("HF_TOKEN", "MINE", "AWS_X", "KAGGLE_KEY", "WANDB_API_KEY")
    told = config.load(tmp_path).secret_refusal("AWS_X", listed)
    assert told is not None
    assert ("jobs then get no other secret" in told) == (not before)
    path.write_text(told.partition(f"{path}: ")[2].partition(" (")[0])
    pasted = config.load(tmp_path)
    assert [name for name in listed if pasted.secret_refusal(name) is not None] == []
    assert pasted.secret_refusal("AWS_Y") is not None


# --- Who is told ----------------------------------------------------------------------------------------


def test_a_config_says_who_is_told_what(tmp_path: Path) -> None:
    text = """\
notify:
  - {name: phone, url: env:PHONE}
  - {name: chat, url: file:hook.txt, on: [moved, moved], jobs: graphmer-*}
"""
    phone, chat = load(write(tmp_path, text)).targets
    assert phone == NotifyTarget(Target("phone", frozenset(DEFAULT_KINDS)), "env:PHONE")
    assert chat == NotifyTarget(
        Target("chat", frozenset({NoticeKind.MOVED}), ("graphmer-*",)), "file:hook.txt"
    )


def test_wrong_targets_are_told_without_their_addresses(tmp_path: Path) -> None:
    text = """\
notify:
  - {name: phone, url: "https://hooks.example.org/T0KEN"}
  - {name: phone, url: env:X, on: [never]}
  - {url: env:Y, jobs: []}
"""
    found = {each.path: each.message for each in mistakes(tmp_path, text)}
    assert set(found) == {
        "notify[0].url", "notify[1].name", "notify[1].on[0]", "notify[2].name", "notify[2].jobs"
    }  # fmt: skip
    assert "env:NAME or file:PATH" in found["notify[0].url"]
    assert "another target" in found["notify[1].name"]
    assert "quota_low" in found["notify[1].on[0]"]
    assert "T0KEN" not in str(found)


def test_a_job_may_refer_to_no_address_that_it_could_not_have_as_a_secret(tmp_path: Path) -> None:
    def refused(text: str, *references: str) -> list[str]:
        found = load(write(tmp_path, text))
        return [each for each in references if found.address_refusal(each) is not None]

    given = (
        "env:NOTIFY_URL",
        "env:AWS_X",
        "env:ORCHESTRATOR_DATABASE",
        "file:/etc/passwd",
        "https://x",
        "phone",
    )
    assert refused("", *given) == list(given[1:])
    assert refused("secrets: {allow: [AWS_*]}", *given) == [given[0], *given[2:]]
    target = "notify: [{name: phone, url: env:AWS_X}]\nsecrets: {allow: []}"
    assert refused(target, *given) == [given[0], *given[2:]], "it is known for an address"
    told = load(write(tmp_path, "secrets: {allow: []}")).address_refusal("env:NOTIFY_URL")
    assert told is not None
    assert "secrets.allow" in told
    assert "notify: [{name: mine, url: 'env:NOTIFY_URL'}]" in told


# --- Files and references -------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["platforms: ", "rules: "])
def test_a_file_that_would_fill_the_memory_is_refused_at_once(tmp_path: Path, start: str) -> None:
    """Each line is ten times as long as the one before: a gigabyte by the ninth."""
    lines = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 30)]
    (tmp_path / CONFIG).write_text(f"a0: &a0 [x, x]\n{''.join(lines)}{start}*a29\n")
    with pytest.raises(SpecError, match="are not supported"):
        config.load(tmp_path)


def test_references_lead_to_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "one")
    (tmp_path / "secret").write_text("two\n")
    assert resolve("env:A_SECRET", tmp_path) == "one"
    assert resolve("file:secret", tmp_path) == "two"
    assert resolve(f"file:{tmp_path}/secret", Path("/")) == "two"
    with pytest.raises(InputError, match="not a reference") as caught:
        resolve("hunter2", tmp_path)
    assert "hunter2" not in str(caught.value)


# --- init -----------------------------------------------------------------------------------------------


def test_what_init_writes_reads_back_and_explains_itself(tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    platforms = (
        PlatformConfig("process", "process", {"accelerator": "cpu", "memory_gb": 1.5}),
        PlatformConfig(
            "docker", "docker", {"note": "yes", "gpus": ["0"], "odd": "1e3: #", "tag": "1e3", "rate": 1e20}
        ),
    )
    stores = (
        StoreConfig("home", "folder", {"path": "store"}),
        StoreConfig("disk", "folder", {"path": "/mnt"}),
    )
    path = write_default(home, platforms, stores)
    found = load(home)
    assert (found.platforms, found.stores, found.home_store) == (platforms, stores, "home")
    assert found.rules == ()
    comments = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert any("env:NAME" in line for line in comments)
    assert [entry.name for entry in home.iterdir()] == ["config.yaml"]


def test_the_rules_that_init_shows_are_valid_when_uncommented(tmp_path: Path) -> None:
    path = write_default(tmp_path)
    head, rules = path.read_text().split("# rules:\n")
    uncommented = "".join(f"{line.removeprefix('# ')}\n" for line in rules.splitlines())
    path.write_text(f"{head}rules:\n{uncommented}")
    assert [rule.effect.value for rule in load(tmp_path).rules] == ["prefer", "avoid"]


def test_init_never_writes_over_a_config(tmp_path: Path) -> None:
    write(tmp_path, "timezone: UTC\n")
    with pytest.raises(InputError, match="already exists"):
        write_default(tmp_path)
    assert (tmp_path / "config.yaml").read_text() == "timezone: UTC\n"


def test_a_home_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_default(tmp_path / "file" / "home")


def test_the_time_zone_is_the_machine_s_unless_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert load(tmp_path).timezone == "Asia/Tokyo"
    assert load(write(tmp_path, "timezone: Europe/Berlin\n")).timezone == "Europe/Berlin"
    monkeypatch.setenv("TZ", "nowhere")
    assert load(write(tmp_path, "")).timezone != "nowhere"


# --- Prices ---------------------------------------------------------------------------------------------


def test_prices_are_of_a_platform_or_of_one_of_its_accelerators(tmp_path: Path) -> None:
    text = (
        "platforms: {box: {type: docker}, colab: {type: colab}}\n"
        "prices: {currency: EUR, per_hour: {box: 0.05, box/RTX3050: 0.06}, per_unit: {colab: 0.1}}\n"
    )
    prices = load(write(tmp_path, text)).prices
    assert prices is not None
    hour = [Hop("box", accelerator, 0.0, 3600.0, 0, 1, 0.0, "done") for accelerator in ("RTX3050", "cpu")]
    units = Hop("colab", "T4", 0.0, 3600.0, 0, 1, 3600.0, "done", quota_units=1.5)
    assert prices.cost(hour) == pytest.approx(0.11)
    assert prices.cost([units]) == pytest.approx(0.15)
    assert prices.cost([Hop("free", "T4", 0.0, 3600.0, 0, 1, 0.0, "done")]) == 0.0


@pytest.mark.parametrize(
    ("prices", "told"),
    [
        ("{currency: EUR}", "given no price; valid: per_hour or per_unit"),
        ("{currency: euro, per_hour: {process: 1}}", "valid: three capital letters, such as EUR"),
        ("{per_hour: {process: 1}}", "prices.currency: missing"),
        ("{currency: EUR, per_hour: {proces: 1}}", "unknown platform 'proces'; did you mean 'process'?"),
        ("{currency: EUR, per_unit: {process/T5: 1}}", "unknown accelerator 'T5'"),
        ("{currency: EUR, per_hour: {process: -1}}", "given -1; valid: a number, zero or more"),
        ("{currency: EUR, per_hour: {process: .nan}}", "valid: a number, zero or more"),
        ("{currency: EUR, per_hour: {process: cheap}}", "given 'cheap'; valid: a number, zero or more"),
        ("{currency: EUR, per_day: {process: 1}}", "unknown key"),
        ("12", "given 12; valid: a mapping such as {currency: EUR"),
    ],
)
def test_mistakes_in_prices(tmp_path: Path, prices: str, told: str) -> None:
    found = mistakes(tmp_path, f"prices: {prices}\n")
    assert any(told in str(each) for each in found), [str(each) for each in found]
    assert all(each.line == 1 for each in found)
