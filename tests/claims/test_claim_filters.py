"""Filters of runs of claims: whoever asks the filter and then the run knows what the run alone says."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from pulse_pipelines.claims import claim_filters
from pulse_pipelines.claims.claim_filters import Filters, Torn
from pulse_pipelines.tables.digests import Digests, Mask

LAST = 2**64 - 1
ANY = st.integers(0, LAST)
CLOSE = st.builds(
    lambda base, n: min(LAST, base + n), st.sampled_from([0, 2**40, 2**63, LAST - 90]), st.integers(0, 90)
)
HEADS = st.one_of(ANY, CLOSE)
IDS = st.lists(st.tuples(HEADS, st.sampled_from([0, 1, 2**63, LAST])), min_size=1, max_size=300)


def digests(ids: list[tuple[int, int]]) -> Digests:
    heads, tails = (np.array([pair[n] for pair in ids], np.uint64) for n in (0, 1))
    return Digests(heads, tails).run()


def pieces_of(run: Digests, cuts: list[int]) -> list[Digests]:
    """The run cut at some heads."""
    at = sorted({0, len(run), *(int(np.searchsorted(run.heads, np.uint64(cut))) for cut in cuts)})
    return [run[slice(start, end)] for start, end in pairwise(at)]


def filters_of(packed: list[bytes], pieces: list[Digests]) -> Filters:
    sizes = [(len(piece), len(content)) for piece, content in zip(pieces, packed, strict=True)]
    return Filters(np.frombuffer(b"".join(packed), np.uint8), sizes)


def within_pieces(filters: Filters, pieces: list[Digests], drawn: Digests) -> Mask:
    """Which digests are in a piece, as it is at the places that the filters name."""
    mask = np.zeros(len(drawn), np.bool_)
    candidates = filters.candidates(drawn)
    assert (np.diff(candidates.digest) > 0).all(), "each digest is in one piece at most"
    for at, piece, start, count in zip(
        candidates.digest, candidates.run, candidates.start, candidates.count, strict=True
    ):
        assert count > 0
        segment = pieces[piece][slice(start, start + count)]
        assert len(segment) == count, "within the piece"
        mask[at] = drawn[at : at + 1].within(segment)[0]
    return mask


def edges(run: Digests) -> list[tuple[int, int]]:
    """The first and the last digest, and what is one off each of them."""
    ends = [(int(run.heads[n]), int(run.tails[n])) for n in (0, -1)]
    return [
        ((head + by) % 2**64, (tail + other) % 2**64)
        for head, tail in ends
        for by in (-1, 0, 1)
        for other in (0, 1)
    ]


def compare(
    ids: list[tuple[int, int]], cuts: list[int], other_ids: list[tuple[int, int]], lost: int = 0
) -> None:
    run = digests(ids)
    pieces = pieces_of(run, cuts)
    drawn = digests([*ids, *other_ids, *edges(run)])
    packed = [claim_filters.make(piece) for piece in pieces]
    if lost:
        packed[0] = without_last(pieces[0])
    for content in packed:
        claim_filters.check(content)
    assert (within_pieces(filters_of(packed, pieces), pieces, drawn) == drawn.within(run)).all()


def without_last(piece: Digests) -> bytes:
    """A filter in which the print of the last digest is another one; its checksum is right."""
    packed = bytearray(claim_filters.make(piece))
    at = len(packed) - 2 - (-(2 * len(piece) + 4 * fences(piece)) % claim_filters.ALIGNED)
    packed[at] ^= 1
    sealed = claim_filters.xxh3_64_intdigest(bytes(packed[claim_filters.ALIGNED :]))
    return sealed.to_bytes(claim_filters.ALIGNED, "little") + bytes(packed[claim_filters.ALIGNED :])


def fences(piece: Digests) -> int:
    shift = claim_filters.HEAD.unpack_from(claim_filters.make(piece))[3]
    return ((int(piece.heads[-1]) - int(piece.heads[0])) >> shift) + 2


@given(IDS, st.lists(HEADS, max_size=4), IDS)
@example([(7, n) for n in range(100)], [7], [(7, 100), (6, 0), (8, 0)])
@example([(0, 0), (LAST, LAST)], [1], [(0, 1), (LAST, 0)])
def test_a_lookup_with_filters_equals_one_without(
    ids: list[tuple[int, int]], cuts: list[int], other_ids: list[tuple[int, int]]
) -> None:
    compare(ids, cuts, other_ids)


@given(st.integers(0, 2**32), st.integers(1, 20_000), st.lists(ANY, max_size=5))
def test_filters_find_all_ids_of_random_digests(seed: int, size: int, cuts: list[int]) -> None:
    draw = np.random.default_rng(seed)
    drawn = Digests(*(draw.integers(0, LAST, 2 * size, np.uint64, endpoint=True) for _ in range(2))).run()
    members = draw.random(len(drawn)) < 0.5
    members[draw.integers(len(drawn))] = True
    run, pieces = drawn[members], pieces_of(drawn[members], cuts)
    filters = filters_of([claim_filters.make(piece) for piece in pieces], pieces)
    candidates = filters.candidates(drawn)
    assert len(candidates) < len(run) + 20 + size // 100, "few of those that are not there"
    actual = np.zeros(len(drawn), np.bool_)
    for index, piece in enumerate(pieces):
        own = candidates[candidates.run == index]
        at, places = np.repeat(own.digest, own.count), own.start
        places = np.concatenate(
            [place + np.arange(n) for place, n in zip(places, own.count, strict=True)] or [at]
        )
        same = (piece.heads[places] == drawn.heads[at]) & (piece.tails[places] == drawn.tails[at])
        actual[at[same]] = True
    assert (actual == members).all()


def test_the_comparison_notices_a_filter_that_lacks_an_id() -> None:
    """By the comparison above, that is."""
    ids = [(n * 2**56, n) for n in range(200)]
    compare(ids, [2**62], [])
    with pytest.raises(AssertionError):
        compare(ids, [2**62], [], lost=1)


@given(IDS, st.data())
def test_a_torn_filter_is_refused(ids: list[tuple[int, int]], data: st.DataObject) -> None:
    packed = bytearray(claim_filters.make(digests(ids)))
    at = data.draw(st.integers(0, len(packed) - 1))
    for torn in (packed[:at], packed[:at] + bytes([packed[at] ^ 1]) + packed[at + 1 :]):
        with pytest.raises(Torn):
            claim_filters.check(bytes(torn))


def test_a_filter_file_without_its_content_is_refused() -> None:
    run = digests([(n * 2**56, n) for n in range(200)])
    packed = claim_filters.make(run)
    header = packed[: claim_filters.HEAD.size]
    for torn in (bytes(len(packed)), header + bytes(len(packed) - len(header)), packed[:-8]):
        with pytest.raises(Torn):
            Filters(np.frombuffer(torn, np.uint8), [(len(run), len(torn))]).candidates(run)


def test_runs_that_overlap_are_not_searched_as_one() -> None:
    runs = [digests([(1, 0), (9, 0)]), digests([(5, 0), (20, 0)])]
    with pytest.raises(Torn):
        filters_of([claim_filters.make(run) for run in runs], runs)
