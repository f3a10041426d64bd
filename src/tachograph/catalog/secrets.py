"""Redaction of secrets: every error message and every logged line goes through `redacted`.

Servers and libraries repeat what they were sent: a rejected token, a connection string with its
password. What a process has read as a secret is known by its value; what only looks like one, by
what stands before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus, unquote

HIDDEN = "…"
LEAST = 6  # characters: a shorter secret stands in many words
_MOST = 1_000  # secrets that are known: tokens may change every minute, the oldest are forgotten
_KNOWN: dict[str, None] = {}

_PATTERNS = (
    # the password of an address, up to its last @: one that was not encoded may hold / and @
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s/:@\"']*):[^\s\"'<>]+@", re.IGNORECASE), rf"\1:{HIDDEN}@"),
    (re.compile(r"(\bauthorization\b[\"']?\s*[:=]\s*[\"']?)(?:(?:bearer|basic|digest)\s+)?[^\s\"',;]+", re.IGNORECASE),
     rf"\1{HIDDEN}"),
    (re.compile(r"(\b(?:bearer|basic)\s+)(?=[^\s\"']*[\d=])[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE), rf"\1{HIDDEN}"),
    (re.compile(r"(\b(?:\w*password|passwd|pwd|\w*secret|(?:\w+_)?token|api_?key|access_?key)[\"']?\s*=\s*)"
                r"(?:'[^']*'|\"[^\"]*\"|[^\s\"',;&]+)", re.IGNORECASE), rf"\1{HIDDEN}"),
    (re.compile(r"(\"(?:\w*password|\w*secret|(?:\w+_)?token|api_?key|access_?key)\"\s*:\s*)\"(?:[^\"\\]|\\.)*\"?",
                re.IGNORECASE), rf'\1"{HIDDEN}"'),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?"), HIDDEN),  # a JWT
    (re.compile(r"(\bhttps?://hooks\.slack\.com/)[^\s\"'<>]+", re.IGNORECASE), rf"\1{HIDDEN}"),
)  # fmt: skip
_MARK = re.compile(r"://|authoriz|bearer|basic|passw|pwd|secret|token|key|eyJ", re.IGNORECASE)


def remember_secrets(*secrets: str) -> None:
    """Redact these secrets from now on, URL-encoded, too, unless shorter than LEAST characters."""
    for secret in secrets:
        for form in (secret, quote(secret, safe=""), quote_plus(secret), unquote(secret)):
            if len(form) >= LEAST:
                _KNOWN.pop(form, None)
                _KNOWN[form] = None
    while len(_KNOWN) > _MOST:
        del _KNOWN[next(iter(_KNOWN))]


def redacted(text: str) -> str:
    """Return a text without known secrets and without values in places where secrets stand.

    >>> redacted("postgresql://ann:hunter22@db/x: refused"), redacted("password=hunter22 host=db")
    ('postgresql://ann:…@db/x: refused', 'password=… host=db')
    >>> redacted("401: Authorization: Bearer abc.def is wrong"), redacted("no password is sent without TLS")
    ('401: Authorization: … is wrong', 'no password is sent without TLS')
    """
    for secret in _longest_first(tuple(_KNOWN)):
        text = text.replace(secret, HIDDEN)
    if _MARK.search(text):
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
    return text


def _longest_first(secrets: Iterable[str]) -> list[str]:
    """Sort longest first: a secret that is part of another one must not hide only this part."""
    return sorted(secrets, key=len, reverse=True)


_URI_PASSWORD = re.compile(r"^[a-z]+://[^:/?#]*:(.*)@", re.IGNORECASE | re.DOTALL)
_NAMED_PASSWORD = re.compile(r"\w*password\s*=\s*(?:'((?:[^'\\]|\\.)*)'|([^\s&]*))", re.IGNORECASE)


def remember_passwords_of(address: str) -> None:
    """Redact the passwords in a connection string of libpq (URI or keywords), valid or not."""
    passwords = [match[1] for match in [_URI_PASSWORD.search(address)] if match]
    passwords += [match[1] or match[2] or "" for match in _NAMED_PASSWORD.finditer(address)]
    remember_secrets(*passwords)
