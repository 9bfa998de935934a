"""Pulled files get names that work on this machine, and no two files get the same one."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.client.naming import local_names

letters = st.characters(exclude_characters="/\\\0", exclude_categories=())
pieces = st.text(letters, min_size=1, max_size=90).filter(lambda piece: piece not in (".", ".."))


@example(["a\n", "a%0a", "-x", "%2dx", "é" * 90 + "\n" * 90, "é" * 90 + "\n" * 91])
@example(["a\n/x", "a%0a/x", "a\n/y"])
@given(st.lists(st.lists(pieces, min_size=1, max_size=3).map("/".join), max_size=12, unique=True))
def test_names_are_fit_and_told_apart(paths: list[str]) -> None:
    paths = [p for p in paths if not any(other.startswith(f"{p}/") for other in paths)]
    names = local_names(paths)
    assert len(set(names.values())) == len(paths)
    assert not any(name.startswith(f"{other}/") for name in names.values() for other in names.values())
    for path, name in names.items():
        assert len(name.split("/")) == len(path.split("/"))
        for given_piece, piece in zip(path.split("/"), name.split("/"), strict=True):
            assert piece.isprintable()
            assert not re.search(r"^-| $", piece)
            assert 0 < len(piece.encode()) <= 255
            if (
                given_piece.isprintable()
                and not re.search(r"^-| $", given_piece)
                and len(given_piece.encode()) < 256
            ):
                assert piece == given_piece
