"""Packs as a page: documents bordered, supervised tokens coloured, each token's position and id a touch away."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from streamsft.pages.shell import asset, escaped, page
from streamsft.types import Pack, Sample

__all__ = ["packs_page", "pieces"]

Decode = Callable[[Sequence[int]], str]

_BROKEN = "\N{REPLACEMENT CHARACTER}"
_LONGEST = 8
"""Tokens that may share one character: a character of UTF-8 has up to 4 bytes, some tokenizers cut them finer."""


def pieces(ids: Sequence[int], decode: Decode) -> list[str]:
    """Each token's part of the text, which put together are the text.

    Where tokens share a character, the first has it and the others nothing. A token is decoded behind the one before
    it, for some tokenizers leave out a space at the beginning of what they decode.
    """
    found: list[str] = []
    at = 0
    while at < len(ids):
        before = ids[max(0, at - 1) : at]
        head = decode(before) if before else ""
        for stop in range(at + 1, min(at + _LONGEST, len(ids)) + 1):
            text = decode([*before, *ids[at:stop]])
            text = text[len(head) :] if text.startswith(head) else decode(ids[at:stop])
            if not text.endswith(_BROKEN):
                break
        else:
            stop, text = at + 1, decode(ids[at : at + 1])
        found += [text, *[""] * (stop - at - 1)]
        at = stop
    return found


def packs_page(packs: Sequence[Pack], *, decode: Decode | None, control: Collection[int] = (), title: str) -> str:
    """The page.

    Args:
        packs: what is shown.
        decode: makes text of ids; None shows the ids.
        control: ids of tokens that belong to the template rather than to the text, which are framed.
        title: what the packs are of.
    """
    sections = "".join(_section(number, pack) for number, pack in enumerate(packs))
    data = [[_document(sample, decode, control) for sample in pack.samples] for pack in packs]
    help_text = (
        "Green and underlined: supervised. Framed: control tokens of the template. Point at a token, or move through "
        "a document that has the focus with ← →, to see its position and id."
    )
    search = (
        '<form id="search" role="search"><label>Search the text <input type="search" name="text" autocomplete="off">'
        '</label><button type="submit">Next</button><button type="button" id="previous">Previous</button>'
        '<output id="count"></output></form>'
    )
    return page(
        title=f"{title} · packs · streamsft",
        header=f"<h1>{escaped(title)}</h1>",
        body=f"<p>{help_text}</p>{search}{sections}"
        '<div id="token" role="status" aria-live="polite">No token chosen</div>',
        styles=[asset("packs.css")],
        scripts=[asset("packs.js")],
        data=data,
    )


def _section(number: int, pack: Pack) -> str:
    padding = pack.sequence_length - pack.tokens
    shares = "".join(f'<i style="flex:{len(sample)}" title="{escaped(_name(sample))}"></i>' for sample in pack.samples)
    return (
        f'<section class="pack"><h2>Pack {number}</h2><p>{len(pack.samples)} documents, {pack.tokens:,} tokens, '
        f'{padding:,} padding</p><div class="fill" aria-hidden="true">{shares}<b style="flex:{padding}"></b></div>'
        f'<div class="documents" data-pack="{number}"></div></section>'
    )


def _name(sample: Sample) -> str:
    piece = f" from token {sample.start}" if sample.start else ""
    return f"{sample.source}:{sample.row}{piece}, pass {sample.pass_index}"


def _document(sample: Sample, decode: Decode | None, control: Collection[int]) -> dict[str, Any]:
    ids: list[int] = sample.input_ids.tolist()
    labelled = sample.loss_mask.copy()
    labelled[:1] = False  # the first token of a document has no context to be predicted from
    return {
        "name": _name(sample),
        "start": sample.start,
        "ids": ids,
        "labelled": labelled.astype(int).tolist(),
        "control": [at for at, token in enumerate(ids) if token in control],
        "texts": pieces(ids, decode) if decode is not None else [f"{token} " for token in ids],
    }
