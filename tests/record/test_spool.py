"""A spool: what is written is read, what is cut off ends it, what cannot be written waits."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from tachograph.catalog import spool as module
from tachograph.catalog.errors import InputError
from tachograph.catalog.spool import MAGIC, SpoolRows, SpoolWriter, read_spool

HEAD = {"kind": "head", "singles": ["a", "b"], "doubles": ["c"]}


def rows(first: int, count: int = 3) -> SpoolRows:
    t = np.arange(first, first + count, dtype=np.int64)
    singles = np.array([t, t * 2], np.float32)
    singles[1, 0] = np.nan
    return SpoolRows(t, (t % 2).astype(np.int32), singles, np.array([t + 0.25]))


def written(path: Path) -> SpoolWriter:
    spool = SpoolWriter(path, HEAD)
    spool.add(rows(10))
    spool.add(rows(13))
    spool.note({"kind": "note", "text": "ü"})
    spool.add(rows(20, 1))
    assert spool.flush()
    return spool


def test_what_is_written_is_read_in_order(tmp_path: Path) -> None:
    written(tmp_path / "a.spool").close()
    head, first, note, last = read_spool(tmp_path / "a.spool")
    assert (head, note) == (HEAD, {"kind": "note", "text": "ü"})
    assert isinstance(first, SpoolRows)
    assert isinstance(last, SpoolRows)
    assert first.t.tolist() == [10, 11, 12, 13, 14, 15]
    assert first.gpu.tolist() == [0, 1, 0, 1, 0, 1]
    assert np.array_equal(first.singles[1], [np.nan, 22, 24, np.nan, 28, 30], equal_nan=True)
    assert last.doubles.tolist() == [[20.25]]


def test_every_cut_leaves_what_was_whole_before_it(tmp_path: Path) -> None:
    written(tmp_path / "a.spool").close()
    content = (tmp_path / "a.spool").read_bytes()
    whole = len(list(read_spool(tmp_path / "a.spool")))
    counts = []
    for size in range(len(MAGIC), len(content)):
        (tmp_path / "cut.spool").write_bytes(content[:size])
        try:
            counts.append(len(list(read_spool(tmp_path / "cut.spool"))))
        except InputError:
            counts.append(0)
    assert counts == sorted(counts)
    assert set(counts) == {0, 1, 2, 3}
    assert whole == 4


def test_a_changed_byte_ends_it(tmp_path: Path) -> None:
    written(tmp_path / "a.spool").close()
    content = bytearray((tmp_path / "a.spool").read_bytes())
    content[-3] ^= 0xFF
    (tmp_path / "a.spool").write_bytes(content)
    assert len(list(read_spool(tmp_path / "a.spool"))) == 3


@pytest.mark.parametrize("content", [b"", b"node,gpu\n", MAGIC, MAGIC + b"\x01"])
def test_what_is_no_spool_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.spool").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.spool"):
        list(read_spool(tmp_path / "a.spool"))


def test_a_full_disk_is_tried_again_and_the_oldest_rows_go_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = SpoolWriter(tmp_path / "a.spool", HEAD)
    write = os.write
    full = True

    def sometimes(descriptor: int, data: bytes) -> int:
        if full:
            if len(data) > 10:
                return write(descriptor, data[:10])  # a part still fits
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", sometimes)
    monkeypatch.setattr(module, "_KEPT_BYTES", 300)
    for first in range(0, 100, 10):
        spool.add(rows(first))
        spool.note({"kind": "note", "place": first})
        assert not spool.flush()
    assert spool.problem == "No space left on device"
    assert spool.lost > 0
    full = False
    assert spool.flush()
    spool.close()
    records = list(read_spool(tmp_path / "a.spool"))
    notes = [one["place"] for one in records[1:] if not isinstance(one, SpoolRows)]
    left = [int(one.t[0]) for one in records if isinstance(one, SpoolRows)]
    assert notes == list(range(0, 100, 10))
    assert left == list(range(0, 100, 10))[len(notes) - len(left) :]
    assert spool.lost == 3 * (10 - len(left))
