"""Vendored browser libraries are what was published, with their licences."""

from __future__ import annotations

import hashlib
from pathlib import Path

import tachograph.report

FOLDER = Path(tachograph.report.__file__).parent / "static" / "vendor"
# Bytes of all that a page may load from us, fonts and pictures included: there are none.
LARGEST = 150_000


def test_each_is_what_its_hash_says() -> None:
    lines = (FOLDER / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    listed = {name: digest for digest, name in (line.split() for line in lines)}
    files = {file.name for file in FOLDER.iterdir() if file.suffix in (".js", ".css")}
    assert files == set(listed)
    for name, digest in listed.items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == digest, name


def test_each_has_its_licence() -> None:
    for file in FOLDER.glob("*.js"):
        licence = FOLDER / f"{file.name.partition('-')[0]}.LICENSE"
        assert licence.stat().st_size > 300, file.name


def test_all_assets_are_small() -> None:
    assert (
        sum(
            file.stat().st_size
            for file in FOLDER.parent.rglob("*")
            if file.suffix in (".js", ".css")
        )
        < LARGEST
    )
