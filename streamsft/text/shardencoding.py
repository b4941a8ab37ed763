"""From the rows of a shard to tokens: what a streaming source's worker does with each row that is drawn."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from streamsft.sources.rawrows import BadRow
from streamsft.sources.shardvalues import decode_values, place_of
from streamsft.sources.streaming import Encoded, Refused
from streamsft.text.conversation import REASONS
from streamsft.text.filling import bad_row_error
from streamsft.text.filters import apply_filters
from streamsft.text.holdout import HELD_OUT, content_hash
from streamsft.text.identity import identity
from streamsft.text.rowencoders import RowsEncoder, TokenEncoder, digest

__all__ = ["ShardEncoder"]

logger = logging.getLogger("streamsft")


@final
class ShardEncoder:
    """The `RowEncoder` of a streaming source: decodes rows, leaves some out, and tokenizes the others.

    Args:
        rows: tokenizes decoded rows.
        name: the source's name, for messages.
        filters: functions of a row, by name; a row is kept if all are true. Left out rows count by that name.
        token_filters: functions of ``{"input_ids", "loss_mask"}``, by name.
        threshold: `content_hash` below which a row is held out; None holds none.
        strict: raise at the first bad row; what functions and the hold-out leave out is not bad.
    """

    def __init__(
        self,
        rows: RowsEncoder,
        *,
        name: str,
        filters: Mapping[str, Callable[[Any], Any]] | None = None,
        token_filters: Mapping[str, Callable[[Any], Any]] | None = None,
        threshold: int | None = None,
        strict: bool = False,
    ) -> None:
        self.rows = rows
        self.name = name
        self.threshold = threshold
        self._filters = dict(filters or {})
        self._token_filters = dict(token_filters or {})
        self._strict = strict
        self._fingerprint = ""
        self._seen: set[str] = set()

    @property
    def fingerprint(self) -> str:
        """Digest of everything that decides which rows give which tokens.

        Raises:
            ConfigError: it cannot be told what a function does; see `streamsft.text.identity`.
        """
        if not self._fingerprint:
            parts: list[Any] = [self.rows.fingerprint, self.threshold]
            for kind in (self._filters, self._token_filters):
                parts.append([[name, identity(function, name)] for name, function in kind.items()])
            self._fingerprint = digest(parts)
        return self._fingerprint

    @property
    def stages(self) -> dict[str, Any]:
        """The user's functions, by what they are called in messages."""
        named = {f"filter {name!r}": function for name, function in self._filters.items()}
        named |= {f"token filter {name!r}": function for name, function in self._token_filters.items()}
        return {**self.rows.stages, **named}

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons for which a row may be refused."""
        held = () if self.threshold is None else (HELD_OUT,)
        return ("bad_row", *self.rows.reasons, *held, *self._filters, *self._token_filters)

    def holding_none(self) -> ShardEncoder:
        """The same for the rows that are held out."""
        other = copy.copy(self)
        other.threshold = None
        other._fingerprint, other._seen = "", set()
        return other

    def __call__(self, values: Sequence[Any]) -> list[Encoded | Refused]:
        """The tokens of `values`, or why there are none, in order.

        Raises:
            DataError: a user's function failed, or a row is bad and none is to be left out.
        """
        if isinstance(self.rows, TokenEncoder) and self.threshold is None and not self._filters:
            results = self.rows.direct(values)
        else:
            results = self._decoded(values)
        if self._token_filters:
            results = [self._filtered(values[place], result) for place, result in enumerate(results)]
        for value, result in zip(values, results, strict=True):
            if isinstance(result, Refused):
                self._note(value, result)
        return results

    def _decoded(self, values: Sequence[Any]) -> list[Encoded | Refused]:
        rows = decode_values(values)
        refused = [self._left_out(value, row) for value, row in zip(values, rows, strict=True)]
        kept = [place for place, reason in enumerate(refused) if reason is None]
        encoded = self.rows.encode([rows[place] for place in kept], lambda at: self._where(values[kept[at]]))
        results: list[Any] = refused
        for place, result in zip(kept, encoded, strict=True):
            results[place] = result
        return results

    def _left_out(self, value: Any, row: dict[str, Any] | BadRow) -> Refused | None:
        """Why a row is not tokenized, if it is not."""
        if isinstance(row, BadRow):
            return Refused("bad_row", row.detail)
        if self.threshold is not None and content_hash(row) < self.threshold:
            return Refused(HELD_OUT, "held out")
        name = apply_filters(self._filters, row, lambda: self._where(value)) if self._filters else None
        return None if name is None else Refused(name, f"left out by the filter {name}")

    def _filtered(self, value: Any, result: Encoded | Refused) -> Encoded | Refused:
        if isinstance(result, Refused):
            return result
        tokens = {"input_ids": result.input_ids, "loss_mask": result.loss_mask}
        name = apply_filters(self._token_filters, tokens, lambda: self._where(value))
        return result if name is None else Refused(name, f"left out by the token filter {name}")

    def _note(self, value: Any, refused: Refused) -> None:
        """Tell of the first row of each reason, or raise."""
        if self._strict and refused.reason in REASONS:
            raise bad_row_error(self.name, place_of(value), refused.reason, refused.detail)
        if refused.reason not in self._seen and refused.reason != HELD_OUT:
            self._seen.add(refused.reason)
            logger.warning(
                "source %s: first row rejected as %s: %s: %s",
                self.name,
                refused.reason,
                place_of(value),
                refused.detail,
            )

    def _where(self, value: Any) -> str:
        return f"source {self.name}: {place_of(value)}"
