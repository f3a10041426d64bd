"""What producers write in place of a value, and what is told of rows and values that were removed."""

from __future__ import annotations

from dataclasses import dataclass

# DCGM's marks for "no value" (dcgm_structs.h): blank, not found, not supported, not permitted
INT32_BLANKS = tuple(range(0x7FFFFFF0, 0x7FFFFFF4))
INT64_BLANKS = (*range(0x7FFFFFFFFFFFFFF0, 0x7FFFFFFFFFFFFFF4), 9223372036854775794, 9223372036854775795)
FP64_BLANKS = tuple(140737488355328.0 + code for code in range(4))
TEXT_BLANKS = (
    "",
    "N/A",
    "<<<NULL>>>",
    "<<<NOT_FOUND>>>",
    "<<<NOT_SUPPORTED>>>",
    "<<<NOT_PERM>>>",
    "ERROR - FAILED TO CONVERT TO STRING",
)
BLANK_FLOATS = tuple(sorted({*map(float, INT32_BLANKS), *map(float, INT64_BLANKS), *FP64_BLANKS}))


@dataclass(frozen=True, slots=True)
class Reject:
    """Rows or values removed for one reason. `column` None: whole rows."""

    reason: str
    column: str | None
    count: int
    example: str | None = None
