"""How does a sample become text on the screen, token by token, so that it shows what is trained on?

Every cell belongs to a token; the looks of tokens are `masked`, `trained`, `missed` (trained, but the drafter cannot
propose it) and `thinking` (trained, and inside a thinking span). What is no printable character is shown by its number.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rich.cells import cell_len

from eagle3ops.screens.feeds.values import mapping, number
from eagle3ops.screens.widgets.cells import Line, cell
from eagle3ops.screens.widgets.glyphs import Glyphs
from eagle3ops.screens.widgets.signs import Signs, signs_of
from eagle3ops.screens.wiring.map import wrapped
from eagle3ops.words import plain

GUTTER = 8
"""Cells before the text: the number of the first token of the line, and a mark for thinking."""
WORD = 24
"""Cells that a word may have so as not to be torn at the end of a row."""
TOKENS = 8192
"""More than an agent sends at once."""
LOOKS = ("masked", "trained", "missed", "thinking", "edge")

Text = str | int
"""A text, or a byte that is no character."""


@dataclass(frozen=True, slots=True)
class SampleView:
    """The sample in an answer of `runs.tokens`, with every value of the type it should have."""

    id: str
    total: int
    first: int
    """The first token that is here."""
    ids: tuple[int, ...]
    texts: tuple[tuple[Text, ...] | None, ...]
    looks: tuple[str, ...]
    special: frozenset[int]
    """Places in the whole sample, as in `missed`."""
    missed: frozenset[int]
    thinking: frozenset[int]
    prompt: int
    trained_count: int
    missed_count: int | None
    thinking_count: int
    finish_reason: str
    whole: int | None
    """Tokens of prompt and answer as generated; None where that is not known."""

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


@dataclass(frozen=True, slots=True)
class TokensView:
    """An answer of `runs.tokens`."""

    split: str
    source: str
    words: str
    rows: int
    row: int | None
    sample: SampleView | None
    draft: int | None
    """Size of the draft vocabulary."""
    vocabulary_words: str
    tokenizer_words: str
    density: Mapping[str, Any]


def view_of(answer: Mapping[str, Any]) -> TokensView:
    """Take an answer in; what is garbled counts as absent."""
    vocabulary, found = mapping(answer.get("vocabulary")), answer.get("sample")
    rows = _whole(answer.get("rows")) or 0
    return TokensView(
        split=plain(answer.get("split", "")),
        source=plain(answer.get("source") or ""),
        words=plain(answer.get("words") or ""),
        rows=max(0, rows),
        row=_whole(answer.get("row")),
        sample=_sample(found) if isinstance(found, Mapping) else None,
        draft=_whole(vocabulary.get("draft")),
        vocabulary_words=plain(vocabulary.get("words") or ""),
        tokenizer_words=plain(answer.get("tokenizer") or ""),
        density=mapping(answer.get("density")),
    )


def _whole(value: object) -> int | None:
    return value if type(value) is int and abs(value) < 1 << 40 else None


def _items(value: object) -> list[Any]:
    return value[:TOKENS] if isinstance(value, list) else []


def _sample(found: Mapping[str, Any]) -> SampleView:
    first = max(0, _whole(found.get("first")) or 0)
    ids = tuple(k if (k := _whole(one)) is not None else -1 for one in _items(found.get("ids")))
    texts = _items(found.get("texts"))
    here = range(first, first + len(ids))
    trained, thinking = (_places(found.get(name), here) for name in ("trained", "thinking"))
    missed = frozenset(at for one in _items(found.get("missed")) if (at := _whole(one)) is not None)
    looks = []
    for at in here:
        look = (
            "masked" if at not in trained else "missed" if at in missed else "thinking" if at in thinking else "trained"
        )
        looks.append(look)
    return SampleView(
        id=plain(found.get("id", "")),
        total=max(len(ids), _whole(found.get("total")) or 0),
        first=first,
        ids=ids,
        texts=tuple(_texts(texts[at]) if at < len(texts) else None for at in range(len(ids))),
        looks=tuple(looks),
        special=frozenset(at for one in _items(found.get("special")) if (at := _whole(one)) is not None),
        missed=missed,
        thinking=thinking,
        prompt=max(0, _whole(found.get("prompt_tokens")) or 0),
        trained_count=max(0, _whole(found.get("trained_tokens")) or 0),
        missed_count=_whole(found.get("missed_tokens")),
        thinking_count=max(0, _whole(found.get("thinking_tokens")) or 0),
        finish_reason=plain(found.get("finish_reason") or ""),
        whole=_whole(found.get("whole")),
    )


def _places(spans: object, here: range) -> frozenset[int]:
    found: set[int] = set()
    for span in _items(spans):
        if isinstance(span, list) and len(span) == 2 and all(_whole(end) is not None for end in span):
            found.update(range(max(here.start, span[0]), min(here.stop, span[1])))
    return frozenset(found)


def _texts(value: object) -> tuple[Text, ...] | None:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list):
        return tuple(part for part in value if isinstance(part, str) or (type(part) is int and 0 <= part < 256))
    return None


# From tokens to rows of cells.


@dataclass(frozen=True, slots=True)
class Piece:
    """Some cells of one token."""

    text: str
    look: str
    token: int
    """Counted from 0 within what is shown; -1 for what belongs to none."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the screen."""

    gutter: Piece
    pieces: tuple[Piece, ...]


@lru_cache(maxsize=4)
def flow(sample: SampleView, width: int, glyphs: Glyphs, *, edges: bool) -> tuple[Row, ...]:
    """The tokens as rows of at most `width` cells; a line break in the text begins a new row."""
    signs, room = signs_of(glyphs), max(8, width - GUTTER)
    rows: list[Row] = []
    pieces: list[Piece] = []
    used, begun = 0, 0

    def end(next_token: int) -> None:
        nonlocal pieces, used, begun
        rows.append(Row(_gutter(sample, pieces, begun), tuple(pieces)))
        pieces, used, begun = [], 0, next_token

    for token, look in enumerate(sample.looks):
        if pieces and used + edges + (look == "missed") > room:
            end(token)
        if edges and pieces:
            pieces.append(Piece(signs.edge, "edge", -1))
            used += 1
        if look == "missed":
            pieces.append(Piece(signs.missed, look, token))
            used += 1
        for text, breaks in shown(sample.texts[token], sample.ids[token], signs, edges=edges):
            wide = cell_len(text)
            if used + wide > room and pieces:
                at = _word(pieces, signs)
                rest, pieces = pieces[at:], pieces[:at]
                end(token)
                pieces, used = rest, sum(cell_len(piece.text) for piece in rest)
            pieces.append(Piece(text, look, token))
            used += wide
            if breaks:
                end(token + 1)
    if pieces:
        end(len(sample.looks))
    return tuple(rows)


def _word(pieces: Sequence[Piece], signs: Signs) -> int:
    """Where to break a row that is full: before the last word, or behind all where that is too long."""
    for at in range(len(pieces) - 1, max(0, len(pieces) - WORD), -1):
        if pieces[at].text in (" ", signs.space) and pieces[at].token >= 0:
            marked = pieces[at - 1].text == signs.missed and pieces[at - 1].token == pieces[at].token
            return at - 1 if marked and at > 1 else at
    return len(pieces)


def _gutter(sample: SampleView, pieces: Sequence[Piece], begun: int) -> Piece:
    held = {piece.token for piece in pieces if piece.token >= 0}
    first = min(held, default=begun)
    thinks = any(sample.first + token in sample.thinking for token in held)
    return Piece(f"{sample.first + first:>5} {'~' if thinks else ' '} ", "dim", -1)


def shown(texts: Sequence[Text] | None, token_id: int, signs: Signs, *, edges: bool) -> Iterator[tuple[str, bool]]:
    """The cells of a token in pieces that are not torn apart; true after one that ends the line."""
    if texts is None:
        yield f"{signs.bytes[0]}id {token_id}{signs.bytes[1]}", False
        return
    run: list[str] = []

    def code(text: str) -> tuple[str, bool]:
        return f"{signs.bytes[0]}{text}{signs.bytes[1]}", False

    several = "".join(part for part in texts if isinstance(part, str))
    if several and cell_len(several) == 0 and "\n" not in several and "\t" not in several:
        # Marks without a width of their own would not be seen at all.
        yield from (code(f"U+{ord(character):04X}") for character in several)
        texts = [part for part in texts if isinstance(part, int)]
    for part in texts:
        if isinstance(part, int):
            yield code(f"{part:02X}")
            continue
        for character in part:
            if character == "\n":
                yield from ((one, False) for one in run)
                run = []
                yield signs.newline, True
            elif character == "\t":
                run.append(signs.tab)
            elif character == " ":
                run.append(signs.space if edges else " ")
            elif not plain(character):
                run.append(code(f"U+{ord(character):04X}")[0])
            elif cell_len(character) == 0 and run:
                run[-1] += character
            else:
                run.append(character)
        yield from ((one, False) for one in run)
        run = []
    if not several and not any(isinstance(part, int) for part in texts):
        yield code("")


def paint(rows: Sequence[Row], cursor: int | None) -> list[Line]:
    """Rows as lines, with the token under the cursor marked; neighbours of one look in one part."""
    return [_painted(row, cursor if any(piece.token == cursor for piece in row.pieces) else None) for row in rows]


@lru_cache(maxsize=8192)
def _painted(row: Row, cursor: int | None) -> Line:
    parts: list[tuple[str, str]] = [(row.gutter.text, row.gutter.look)]
    for piece in row.pieces:
        look = "cursor" if cursor is not None and piece.token == cursor else piece.look
        if parts[-1][1] == look:
            parts[-1] = (parts[-1][0] + piece.text, look)
        else:
            parts.append((piece.text, look))
    return tuple(parts)


def row_of(rows: Sequence[Row], token: int) -> int:
    """The first row that shows a token."""
    return next((at for at, row in enumerate(rows) if any(piece.token == token for piece in row.pieces)), 0)


def column_of(row: Row, token: int) -> int:
    """The cell in which a token begins within a row."""
    at = cell_len(row.gutter.text)
    for piece in row.pieces:
        if piece.token == token:
            break
        at += cell_len(piece.text)
    return at


def token_at(row: Row, column: int) -> int | None:
    """The token whose cells hold a column; the last one behind the end."""
    at, last = cell_len(row.gutter.text), None
    for piece in row.pieces:
        at += cell_len(piece.text)
        if piece.token >= 0:
            last = piece.token
            if column < at:
                return last
    return last


# What is said of the sample and of one token.


def fact_lines(view: TokensView, width: int, glyphs: Glyphs, *, tall: bool = False) -> list[Line]:
    """Which sample it is, how much of it is trained on, how that compares with its split, and what the looks mean."""
    signs, sample = signs_of(glyphs), view.sample
    place = f"sample {view.row + 1:,} of {view.rows:,}" if view.row is not None and view.rows else "no sample"
    source = {"features": "from the feature shards", "answers": "from the answers"}.get(view.source, "")
    head = "  ".join(part for part in (place, view.split, sample.id if sample else "", source) if part)
    lines: list[Line] = [((cell(head, width, glyphs).rstrip(), "head"),)]
    for words in (view.words, view.tokenizer_words):
        lines += [((piece, "warn"),) for piece in wrapped(words, width)] if words else []
    if sample is not None:
        lines += [((piece, "plain"),) for piece in wrapped(_counted(view, sample), width)]
        lines += _density_lines(view, sample, width, glyphs)
        lines += _missed_most(view, width, glyphs) if tall else []
        lines.append(_legend(width, signs))
    return lines


def _counted(view: TokensView, sample: SampleView) -> str:
    masked = max(0, sample.total - sample.trained_count)
    share = _share(sample.trained_count, sample.total)
    told = [f"{_tokens(sample.total)}: {masked:,} masked, {sample.trained_count:,} trained ({share})"]
    if sample.missed_count is not None:
        told.append(
            f"{sample.missed_count:,} of these not in the draft vocabulary of {view.draft or 0:,} "
            f"({_share(sample.missed_count, sample.trained_count)})"
        )
    elif view.vocabulary_words:
        told.append(f"draft vocabulary: {view.vocabulary_words}")
    if sample.thinking_count:
        told.append(f"{sample.thinking_count:,} thinking")
    if sample.finish_reason:
        words = {"stop": "ended by itself (stop)", "length": "broken off (length)"}
        told.append(words.get(sample.finish_reason, f"ended: {sample.finish_reason}"))
    if sample.whole is not None and sample.whole > sample.total:
        told.append(f"TRUNCATED to {sample.total:,} of {_tokens(sample.whole)} (stages.extract.max_tokens)")
    if len(sample.ids) < sample.total:
        told.append(f"shown: {sample.first:,} to {sample.first + len(sample.ids) - 1:,}")
    return "; ".join(told)


def _tokens(count: int) -> str:
    return f"{count:,} token{'' if count == 1 else 's'}"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole > 0 else "-"


def _density_lines(view: TokensView, sample: SampleView, width: int, glyphs: Glyphs) -> list[Line]:
    """How many of the split's rows are trained on how densely; this sample's place in brackets."""
    density = view.density
    bins = [max(0.0, number(count) or 0.0) for count in _items(density.get("bins"))[:40]]
    rows, tokens, trained = (_whole(density.get(name)) or 0 for name in ("rows", "tokens", "trained"))
    if not bins or rows <= 0:
        return []
    top, steps = max(bins), len(glyphs.levels)
    drawn = [" " if not count else glyphs.levels[min(steps - 1, int(count / top * steps))] for count in bins]
    here = min(len(bins) - 1, sample.trained_count * len(bins) // max(1, sample.total))
    before, after = "".join(drawn[:here]), "".join(drawn[here + 1 :])
    of = _whole(density.get("of_rows")) or rows
    told = f" split: {_share(trained, tokens)} of {_tokens(tokens)}, {rows:,} rows"
    told += f" of {of:,} looked at" if of != rows else ""
    if (missed := _whole(density.get("missed"))) is not None:
        told += f", {_share(missed, trained)} missed"
    warn = [f"{count:,} rows {words}" for name, words in (("empty", "train nothing"), ("full", "mask nothing"))
            if (count := _whole(density.get(name)) or 0)]  # fmt: skip
    line: Line = (
        ("trained 0% ", "dim"), (before, "history"), ("[", "warn"), (drawn[here], "warn"), ("]", "warn"),
        (after, "history"), (" 100%", "dim"),
    )  # fmt: skip
    room = width - sum(cell_len(text) for text, _ in line)
    lines = (
        [(*line, (told, "plain"))]
        if cell_len(told) <= room
        else [line, ((cell(told.strip(), width, glyphs).rstrip(), "plain"),)]
    )
    return [*lines, *([((cell("; ".join(warn), width, glyphs).rstrip(), "warn"),)] if warn else [])]


def _missed_most(view: TokensView, width: int, glyphs: Glyphs) -> list[Line]:
    """Which tokens of the split the draft vocabulary lacks most."""
    signs = signs_of(glyphs)
    line = [("missed most in the split:", "dim")]
    for one in _items(view.density.get("missed_most")):
        if not isinstance(one, list) or len(one) != 3 or _whole(one[0]) is None or _whole(one[1]) is None:
            continue
        text = "".join(piece for piece, _ in shown(_texts(one[2]), one[0], signs, edges=True))
        parts = [
            ("  ", "plain"),
            (f"{signs.missed}{cell(text, min(20, cell_len(text)), glyphs)}", "missed"),
            (f" {one[1]:,}", "plain"),
        ]
        if sum(cell_len(part) for part, _ in [*line, *parts]) > width:
            break
        line += parts
    return [tuple(line)] if len(line) > 1 else []


def _legend(width: int, signs: Signs) -> Line:
    parts = [
        ("masked", "masked"),
        ("trained", "trained"),
        (f"{signs.missed}not in the draft vocabulary", "missed"),
        ("~ thinking", "thinking"),
    ]
    used = 0
    line: list[tuple[str, str]] = []
    for text, look in parts:
        used += cell_len(text) + 2
        if used > width:
            break
        line += [(text, look), ("  ", "plain")]
    return tuple(line)


def token_lines(sample: SampleView, token: int, width: int, glyphs: Glyphs) -> list[Line]:
    """Everything about one token."""
    if not 0 <= token < len(sample.ids):
        return []
    at, texts = sample.first + token, sample.texts[token]
    kind = [("masked" if sample.looks[token] == "masked" else "trained")]
    if at in sample.missed:
        kind.append("not in the draft vocabulary")
    if at in sample.thinking:
        kind.append("thinking")
    if at in sample.special:
        kind.append("special")
    kind.append("prompt" if at < sample.prompt else "answer")
    head = f"token {at:,} of {sample.total:,}  id {sample.ids[token]}  {', '.join(kind)}"
    data = None if texts is None else b"".join(
        part.encode(errors="replace") if isinstance(part, str) else bytes([part]) for part in texts
    )  # fmt: skip
    if data is None:
        told = "the tokenizer has no text for this id"
    else:
        told = f"text {''.join(text for text, _ in shown(texts, sample.ids[token], signs_of(glyphs), edges=True))}"
        told += f"  bytes {data[:24].hex(' ')}" + ("..." if len(data) > 24 else "")
        told += _character(sample, token)
    return [((cell(head, width, glyphs).rstrip(), "plain"),), ((cell(told, width, glyphs).rstrip(), "dim"),)]


def _character(sample: SampleView, token: int) -> str:
    """Which character a token's bytes are a part of, where its neighbours have the rest of it."""

    def odd(at: int) -> bool:
        texts = sample.texts[at] if 0 <= at < len(sample.texts) else None
        return texts is not None and any(isinstance(part, int) for part in texts)

    if not odd(token):
        return ""
    first = last = token
    while odd(first - 1) and token - first < 8:
        first -= 1
    while odd(last + 1) and last - token < 8:
        last += 1
    data = b"".join(
        part.encode(errors="replace") if isinstance(part, str) else bytes([part])
        for at in range(first, last + 1)
        for part in sample.texts[at] or ()
    )
    try:
        text = plain(data.decode())
    except UnicodeDecodeError:
        return "  no character, with its neighbours either"
    return f"  tokens {sample.first + first} to {sample.first + last} together: {text}"
