"""Cursors: positions where pages of a list end."""

from __future__ import annotations

import base64
import binascii
from typing import Any, TypeAlias

import msgspec

from tachograph.catalog.errors import UsageError

CursorValue: TypeAlias = str | int | float | None


def encode_cursor(*values: Any) -> str:
    """Return the cursor of values.

    >>> decode_cursor(encode_cursor("sim:1:2", None, 3))
    ['sim:1:2', None, 3]
    """
    return base64.urlsafe_b64encode(msgspec.json.encode(values)).decode().rstrip("=")


def decode_cursor(cursor: str) -> list[CursorValue]:
    """Return the values of a cursor. Errors: UsageError if it is malformed."""
    try:
        written = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(written, type=list[CursorValue])
    except (ValueError, binascii.Error, msgspec.DecodeError):
        raise no_cursor() from None


def no_cursor() -> UsageError:
    """Return the error for a malformed cursor."""
    return UsageError("invalid cursor", do="use the cursor of the previous answer, or leave it out")
