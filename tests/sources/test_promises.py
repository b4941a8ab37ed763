"""What a source of one's own says wrong, or gives wrong, is refused with its name and, where known, the row."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest

from streamsft.errors import DataError
from streamsft.sources.promises import is_checked
from streamsft.sources.store import TokenStore
from streamsft.stream.evaluation import EvalLoader
from streamsft.stream.interleave import Interleave
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from streamsft.stream.packing import Overflow
from streamsft.stream.sourcestream import SourceStream
from tests.fakes import ListSource

ROWS = [([row, 1, 2, 3, 4], [0, 0, 1, 1, 1]) for row in range(8)]
NUMBERS = [10 * row for row in range(8)]


class Given(ListSource):
    """What is read of the row numbered 30, and what is read in all, goes through a function."""

    def __init__(
        self,
        ids: Callable[[Any], Any] = lambda row: row,
        mask: Callable[[Any], Any] = lambda row: row,
        both: Callable[[Any], Any] = lambda found: found,
    ) -> None:
        super().__init__("own", ROWS, NUMBERS)
        self._ids, self._mask, self._both = ids, mask, both

    def read(self, index: Any) -> Any:
        ids, masks = super().read(index)
        for at in np.flatnonzero(index == 3).tolist():
            ids[at], masks[at] = self._ids(ids[at]), self._mask(masks[at])
        return self._both((ids, masks))


def _loader(source: Any, workers: int = 0, slots: int = 16, overflow: Overflow = "truncate") -> Loader:
    packer = Packer(source, slots, lookahead=4, overflow=overflow)
    return Loader(packer, global_batch_size=2, workers=workers, start_method="fork" if workers else None)


def _fails(error: Exception) -> Callable[[Any], Any]:
    def fail(_: Any) -> Any:
        raise error

    return fail


LONGER: Any = {"ids": lambda row: np.append(row, row[:1]), "mask": lambda row: np.append(row, True)}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "more": (LONGER, r"row 30: read\(\) gave 6 ids and 6 mask entries where lengths says 5"),
    "more ids": ({"ids": LONGER["ids"]}, r"row 30: read\(\) gave 6 ids and 5 mask entries where lengths says 5"),
    "fewer": ({"ids": lambda row: row[:4]}, r"row 30: read\(\) gave 4 ids and 5 mask entries where lengths says 5"),
    "supervised": (
        {"mask": lambda row: row & (np.arange(5) < 4)},
        r"row 30: read\(\) gave a mask with 2 supervised tokens from index 1 on, the first at 2, where supervised says "
        r"3 and first_supervised 2",
    ),
    "first": ({"mask": lambda row: np.roll(row, -1)}, r"row 30: .*3 supervised .* first at 1, .* first_supervised 2"),
    "no label": ({"mask": lambda row: row & False}, r"row 30: read\(\) gave a mask with 0 supervised tokens"),
    "mask of twos": ({"mask": lambda row: row * 2}, r"row 30: .* something else than 0 and 1"),
    "list mask": ({"mask": lambda row: row.tolist()}, r"row 30: read\(\) gave a list of 5 of mask entries"),
    "negative": ({"ids": lambda row: row - 4}, r"row 30: read\(\) gave the token id -1; allowed are 0 to"),
    "huge": ({"ids": lambda row: row.astype(np.int64) + (1 << 32)}, r"row 30: read\(\) gave the token id 4294967299"),
    "list": ({"ids": lambda row: row.tolist()}, r"row 30: read\(\) gave a list of 5 of ids; give a numpy array, int32"),
    "floats": ({"ids": lambda row: row.astype(float)}, r"row 30: read\(\) gave an array float64\[5\] of ids"),
    "table": ({"ids": lambda row: row[:, None]}, r"row 30: read\(\) gave an array int32\[5, 1\] of ids"),
    "nothing": ({"both": lambda _: None}, r"rows? \d+.*: read\(\) gave None; give two lists"),
    "no rows": ({"both": lambda found: (None, found[1])}, r"rows? \d+.*: read\(\) gave None of ids where \d rows"),
    "short ids": ({"both": lambda found: (found[0][1:], found[1])}, r"rows? \d+.*: read\(\) gave \d rows of ids where"),
    "short": ({"both": lambda found: (found[0], found[1][1:])}, r"rows? \d+.*: read\(\) gave \d rows of mask entries"),
    "failed": ({"both": _fails(OSError(5, "no disk"))}, r"rows? \d+.*: read\(\) failed: OSError\(5, 'no disk'\)"),
}


@pytest.mark.parametrize("what", WRONG)
def test_rows_that_are_not_what_was_asked_for_and_promised_are_refused(what: str) -> None:
    options, says = WRONG[what]
    with pytest.raises(DataError, match=rf"^source 'own', {says}"):
        list(islice(_loader(Given(**options)), 6))


@pytest.mark.parametrize("what", ["more", "nothing", "failed"])
def test_workers_tell_it_in_the_same_words(what: str) -> None:
    told = []
    for workers in (0, 1):
        with pytest.raises(DataError) as error:
            list(islice(_loader(Given(**WRONG[what][0]), workers), 6))
        told.append(str(error.value))
    assert told[0] == told[1]
    assert "\n" not in told[0]


def test_what_failed_is_the_cause() -> None:
    cause = OSError(5, "no disk")
    with pytest.raises(DataError) as error:
        next(iter(_loader(Given(both=_fails(cause)))))
    assert error.value.__cause__ is cause


@pytest.mark.parametrize("overflow", ["truncate", "split"])
def test_rows_that_are_cut_are_checked_whole(overflow: Overflow) -> None:
    """With four slots a token too many lies behind what is taken."""
    given = list(islice(_loader(Given(), slots=4, overflow=overflow), 6))
    assert given
    assert all((batch.labels != -100).sum() == batch.supervised_tokens > 0 for batch in given)
    with pytest.raises(DataError, match=r"row 30: read\(\) gave 6 ids"):
        list(islice(_loader(Given(**LONGER), slots=4, overflow=overflow), 9))


@pytest.mark.parametrize(
    "read",
    [SourceStream, lambda source: Interleave([source]), lambda source: EvalLoader(source, 16, batch_size=1)],
    ids=["stream", "mix", "evaluation"],
)
def test_every_way_of_reading_checks(read: Callable[[Any], Any]) -> None:
    with pytest.raises(DataError, match="source 'own', row 30: "):
        list(islice(read(Given(**LONGER)), 40))


class Told(ListSource):
    """Says something else of its rows."""

    def __init__(self, **members: Any) -> None:
        super().__init__("own", ROWS, NUMBERS)
        for member, value in members.items():
            setattr(self, member, value)


def _but(member: str, value: int) -> dict[str, Any]:
    column = getattr(Told(), member).copy()
    column[3] = value
    return {member: column}


SAID: dict[str, tuple[dict[str, Any], str]] = {
    "negative lengths": (_but("lengths", -1), ", row 30: lengths says -1, supervised 3, first_supervised 2"),
    "too many supervised": (_but("supervised", 6), ", row 30: lengths says 5, supervised 6, first_supervised 2"),
    "negative supervised": (_but("supervised", -1), ", row 30: lengths says 5, supervised -1"),
    "first at 0": (_but("first_supervised", 0), ", row 30: .*first_supervised 0"),
    "first too late": (_but("first_supervised", 3), ", row 30: .*first_supervised 3"),
    "first of none": (_but("supervised", 0), ", row 30: .*supervised 0, first_supervised 2"),
    "short lengths": ({"lengths": np.full(7, 5)}, r": lengths has 7 entries where __len__\(\) says 8 rows"),
    "long supervised": ({"supervised": np.full(9, 3)}, r": supervised has 9 entries where __len__\(\) says 8 rows"),
    "lengths in a list": ({"lengths": [5] * 8}, ": lengths is a list of 8; give a numpy array of whole numbers, int32"),
    "float lengths": ({"lengths": np.full(8, 5.0)}, r": lengths is an array float64\[8\]; give"),
    "no lengths": ({"lengths": None}, ": lengths is None; give"),
    "row numbers": (_but("row_numbers", 20), ": row_numbers holds 20 at place 3, behind 20"),
    "no fingerprint": ({"fingerprint": None}, ": its fingerprint is None; give a short text"),
    "empty fingerprint": ({"fingerprint": ""}, ": its fingerprint is ''; give a short text"),
}


@pytest.mark.parametrize("what", SAID)
def test_members_that_cannot_be_true_are_refused(what: str) -> None:
    members, says = SAID[what]
    with pytest.raises(DataError, match=rf"^source 'own'{says}"):
        _loader(Told(**members))
    with pytest.raises(DataError, match=rf"^source 'own'{says}"):
        SourceStream(Told(**members))


def test_member_that_fails_is_named() -> None:
    class Unreadable(ListSource):
        def __len__(self) -> int:
            raise OSError("no disk")

    with pytest.raises(DataError, match=r"^source 'own': __len__\(\) failed: OSError\('no disk'\)"):
        _loader(Unreadable("own", ROWS))


class Alone(Given):
    """Gives ids without masks too, as the memory of arrays."""

    def read_ids(self, index: Any) -> Any:
        return [memoryview(row) if isinstance(row, np.ndarray) else row for row in self.read(index)[0]]


ALONE: dict[str, str] = {
    "more": r"row 30: read_ids\(\) gave 6 ids where lengths says 5",
    "negative": r"row 30: read_ids\(\) gave the token id -1",
    "list": r"row 30: read_ids\(\) gave a list of 5 of ids",
    "short ids": r"rows? \d+.*: read_ids\(\) gave \d rows of ids where \d rows were asked for",
    "failed": r"rows? \d+.*: read_ids\(\) failed: OSError",
}


@pytest.mark.parametrize("what", ALONE)
def test_ids_that_are_read_alone_are_checked(what: str) -> None:
    expected, found = (list(islice(_loader(kind()), 4)) for kind in (Given, Alone))
    assert [batch.input_ids.tolist() for batch in found] == [batch.input_ids.tolist() for batch in expected]
    with pytest.raises(DataError, match=f"^source 'own', {ALONE[what]}"):
        list(islice(_loader(Alone(**WRONG[what][0])), 6))


def test_stores_of_the_package_are_not_checked_again() -> None:
    store = TokenStore.from_rows([{"input_ids": ids, "loss_mask": mask} for ids, mask in ROWS], name="s")
    assert is_checked(store)
    assert not is_checked(Told())
