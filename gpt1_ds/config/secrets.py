"""What in a configuration looks like a secret. A configuration is copied into run folders, checkpoints, job scripts and
trackers, so that nothing secret may be in it; a job reads secrets from a file of its user (`. ~/my-secrets.sh`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

WAY_OUT = (
    "a configuration is saved in many places; export it before submitting, or let slurm.setup source a file of yours"
)
_NAME = re.compile(  # of a variable or option whose value is secret
    r"""SECRET | PASSW(?:OR)?D | PASSPHRASE | CREDENTIAL | (?:TOKEN|APIKEY)S?(?![A-Z])
    | (?<![A-Z])(?:KEY|PASS|PWD|PW|O?AUTH|AUTHORIZATION|COOKIE|BEARER)S?(?![A-Z])""",
    re.IGNORECASE | re.VERBOSE,
)
_PLACE = re.compile(r"(?:PATH|FILE|DIR|FOLDER|SOCK)$", re.IGNORECASE)  # the value says where a secret is, not which
_NO_SECRET = re.compile(r"[\"']?(?:\$.*)?[\"']?", re.DOTALL)  # nothing, or what the shell puts there when the job runs
_WORD = r"""("[^"]*"?|'[^']*'?|\$\([^)]*\)?|[^\s;&|]+)"""
_ASSIGNED = re.compile(rf"(?<![\w$-])([A-Za-z_]\w*)={_WORD}")
_OPTION = re.compile(rf"(?<![\w-])--([A-Za-z][\w-]*)(?:=|\s+(?!-)){_WORD}")
_LOGIN = re.compile(r"\bwandb\s+login\s+(?!-)[^\s$;&|]+|\bcurl\b.*\s-u\s*[^\s$:]+:[^\s$]+")
_ADDRESS = re.compile(r"://[^/\s:@$]*:(?!\$)[^/\s@]+@|https?://(?!\$)[^/\s:@]+@")
_QUERY = re.compile(r"://\S*\?(\S+)")
_SIGNATURES = ("sig", "signature", "x-amz-signature", "x-goog-signature")
_ISSUED = re.compile(  # tokens that say by their form what they are
    r"""(?<![\w-])(?:hf_[A-Za-z0-9]{20,} | gh[pousr]_[A-Za-z0-9]{20,} | github_pat_\w{20,} | glpat-[\w-]{16,}
    | sk-[\w-]{20,} | xox[abprs]-[\w-]{10,} | (?:AKIA|ASIA)[0-9A-Z]{16}(?!\w) | eyJ[\w-]{10,}\.eyJ[\w-]{10,})
    | -----BEGIN[ A-Z]*PRIVATE\ KEY""",
    re.VERBOSE,
)


def secret_problems(config: Any) -> Iterator[str]:
    """One line per place of a configuration that seems to hold a secret, which the line does not repeat."""
    for key, text in _texts(config):
        if what := _secret_in(text, is_shell=key.startswith("slurm.")):
            yield f"{key}: {what}: {WAY_OUT}"


def is_secret_name(name: str) -> bool:
    """Whether the value of a variable or option of this name is secret."""
    return bool(_NAME.search(name)) and not _PLACE.search(name)


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """(key, text) of all texts inside; those of slurm.environment as a shell assigns them."""
    inner: Mapping[Any, Any] = {}
    if dataclasses.is_dataclass(value):
        inner = vars(value)
    elif isinstance(value, Mapping):
        inner = value
    elif isinstance(value, (list, tuple)):
        inner = dict(enumerate(value, 1))
    elif isinstance(value, (str, int, float)):
        yield key, f"{key.rpartition('.')[2]}='{value}'" if key.startswith("slurm.environment.") else str(value)
    for name, one in inner.items():
        yield from _texts(one, f"{key}.{name}" if key else str(name))


def _secret_in(text: str, is_shell: bool) -> str | None:
    """Returns what kind of secret a text holds, if any; one for a shell may assign it to a name."""
    if _ISSUED.search(text):
        return "this looks like a token or a key"
    queries = (part.partition("=") for query in _QUERY.findall(text) for part in query.split("&"))
    signed = any(given and (is_secret_name(name) or name.lower() in _SIGNATURES) for name, _, given in queries)
    if signed or _ADDRESS.search(text):
        return "this is an address with a password or a signature"
    for name, given in (*_ASSIGNED.findall(text), *_OPTION.findall(text)) if is_shell else ():
        if is_secret_name(name) and not _NO_SECRET.fullmatch(given):
            return f"{name:.80} seems to be a secret"
    return "this gives a password to a command" if is_shell and _LOGIN.search(text) else None
