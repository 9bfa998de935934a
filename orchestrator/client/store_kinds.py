"""What `init s3`, `init hf` and `init drive` ask for, and the options of a store that the answers make.

Decides what is still missing and where a person gets it. Must never ask or print, nor hold a secret: of the
credentials it knows the names only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.client import home_store
from orchestrator.client.home_store import Wanted
from orchestrator.core.wording import unknown
from orchestrator.errors import InputError

HF, S3, DRIVE = "hf", "s3", "drive"
ADDRESS = "an address"  # of a service: then its preset does not matter
KINDS = (S3, HF, DRIVE)
PRESETS = ("aws", "r2", "b2", "minio", "seaweedfs")
KEYS = ("access_key", "secret_key")
VARIABLES = {"access_key": "AWS_ACCESS_KEY_ID", "secret_key": "AWS_SECRET_ACCESS_KEY"}
SESSION = ("session_token", "AWS_SESSION_TOKEN")
_HF_KEY = "HFAK"  # how the access keys of Hugging Face begin; AWS's own are of no use there
_AWS_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_NEEDS = {"aws": "region", "b2": "region", "r2": "account", "minio": "endpoint", "seaweedfs": "endpoint"}
_PLACE = {
    ADDRESS: ("bucket", "endpoint", "prefix"),
    S3: ("bucket", "endpoint", "preset", "account", "prefix"),
    HF: ("bucket", "account", "prefix"),
}
_OPTIONS = {
    S3: ("bucket", "endpoint", "preset", "region", "account", "prefix"),
    HF: ("bucket", "endpoint", "prefix"),
    DRIVE: ("endpoint", "client_secrets", "service_account", "shared_drive", "folder", "timeout"),
}
NAMES = frozenset({"name", *(option for options in _OPTIONS.values() for option in options)})
_HF_ADVICE = """\
Make a bucket at https://huggingface.co/new-bucket and choose Private: 100 GB of private storage are free.
Make its keys at https://huggingface.co/settings/tokens: first a fine-grained token that may write to this one
bucket, then `Generate S3 credentials` in the token's menu. The token itself (hf_…) is not a key."""
_S3_ADVICE = """\
Make the bucket in the console of your service, or with `aws s3 mb s3://BUCKET`. Its keys must be allowed to
read, write, list and delete in it."""
ADVICE = {HF: _HF_ADVICE, S3: _S3_ADVICE}


@dataclass(frozen=True)
class Question:
    """Something that is still missing, by the name of its option. `default`: what an empty answer means."""

    option: str
    text: str
    example: str
    default: str = ""

    @property
    def flag(self) -> str:
        """How it is given on the command line: `--region eu-central-1`."""
        return f"--{self.option.replace('_', '-')} {self.example}"


def check(kind: str, given: Mapping[str, str]) -> None:
    """Raises InputError for options that this kind of store does not have."""
    foreign = [name for name in given if name not in (*_OPTIONS[kind], "name")]
    if foreign:
        valid = ", ".join(f"--{each.replace('_', '-')}" for each in (*_OPTIONS[kind], "name"))
        raise InputError(f"--{foreign[0].replace('_', '-')} is not for `init {kind}`; valid: {valid}")


def question(kind: str, given: Mapping[str, str], environment: Mapping[str, str]) -> Question | None:
    """The next thing to ask for, or None if nothing is missing. Raises InputError for a wrong value."""
    if kind == HF:
        _namespaced(given)
        return (
            None
            if given.get("bucket")
            else Question("bucket", "Bucket, as NAMESPACE/NAME", "ada/checkpoints")
        )
    if "preset" not in given and "endpoint" not in given:
        services = "Service: aws, r2, b2, or the address of another one"
        return Question("endpoint", services, "https://s3.example.org", default="aws")
    preset = given.get("preset", "minio")
    if preset not in PRESETS:
        raise InputError(unknown("service", preset, PRESETS))
    needed = _NEEDS[preset]
    if needed == "region" and not given.get("region") and "endpoint" not in given:
        return Question("region", "Region of the bucket", "eu-central-1", _region(preset, environment))
    if needed == "account" and not given.get("account") and "endpoint" not in given:
        return Question("account", "Account id", "0123456789abcdef")
    if needed == "endpoint" and "endpoint" not in given:
        return Question("endpoint", "Address of the service", "https://s3.example.org")
    return None if given.get("bucket") else Question("bucket", "Bucket", "checkpoints")


def answered(given: Mapping[str, str], asked: Question, answer: str) -> dict[str, str]:
    """What is given once this question is answered: a service may be named instead of an address."""
    if asked.option == "endpoint" and answer in PRESETS:
        return {**given, "preset": answer}
    return {**given, asked.option: answer}


def wanted(kind: str, given: Mapping[str, str]) -> Wanted:
    """The store, once nothing is missing. For S3 and Hugging Face."""
    options = {key: str(home_store.plain(key, value) or "") for key, value in given.items() if key != "name"}
    options = {key: value for key, value in options.items() if value}
    if kind == HF:
        namespace, bucket = _namespaced(given)
        options |= {"preset": "huggingface", "account": namespace, "bucket": bucket}
    ordered = {key: options[key] for key in ("preset", *_OPTIONS[S3]) if key in options}
    place = {
        key: ordered.get(key) for key in _PLACE[ADDRESS if kind == S3 and "endpoint" in options else kind]
    }
    return Wanted("s3", kind, ordered, place, given.get("name"), ADVICE[kind])


def wanted_drive(given: Mapping[str, str]) -> Wanted:
    """Any store in Drive that logs in in the same way. Its folder is made later."""
    options = {key: given[key] for key in ("endpoint",) if given.get(key)}
    place = {} if "service_account" in given else {"service_account": None}
    return Wanted("drive", DRIVE, options, place, given.get("name"))


def references(kind: str, environment: Mapping[str, str]) -> dict[str, str]:
    """References to keys in the environment; empty unless both are there and can be of this service."""
    if not all(environment.get(name) for name in VARIABLES.values()):
        return {}
    if kind == HF and not environment[VARIABLES["access_key"]].startswith(_HF_KEY):
        return {}
    option, variable = SESSION
    more = {option: f"env:{variable}"} if environment.get(variable) and kind != HF else {}
    return {key: f"env:{name}" for key, name in VARIABLES.items()} | more


def lacking_keys(kind: str, command: str, environment: Mapping[str, str]) -> str:
    """What to do without a terminal to ask on, and without keys."""
    text = (
        f"the keys are missing: set {' and '.join(VARIABLES.values())}, or give the access key and the "
        f"secret key as two lines to `{command} --stdin`"
    )
    if kind == HF and environment.get(VARIABLES["access_key"]):
        text += f"\n{VARIABLES['access_key']} is not a key of Hugging Face, which begins with {_HF_KEY}"
    return f"{text}\n{ADVICE[kind]}"


def _region(preset: str, environment: Mapping[str, str]) -> str:
    if preset != "aws":
        return ""
    return next((environment[name] for name in _AWS_REGIONS if environment.get(name)), "")


def _namespaced(given: Mapping[str, str]) -> tuple[str, str]:
    """The namespace and the name in what was given as the bucket."""
    text = (
        given.get("bucket", "").removeprefix("hf://buckets/").removeprefix("https://huggingface.co/buckets/")
    )
    namespace, _, bucket = text.strip("/").partition("/")
    if (given.get("bucket") and not (namespace and bucket)) or "/" in bucket:
        raise InputError(
            f"--bucket: the namespace is missing, as in ada/checkpoints (given: {given['bucket']!r})"
        )
    return namespace, bucket
