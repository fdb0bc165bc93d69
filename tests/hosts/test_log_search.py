"""A search finds what a naive one finds, says where, comes back for more, and does not hang on a pattern that does."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from agent_world import AgentWorld
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3ops.errors import RequestError
from eagle3ops.hosts.agent import log_searcher
from eagle3ops.hosts.client import AgentClient

PATTERNS = [
    "a*",
    "a{2}",
    "(?:a|c)+$",
    "b.c",
    r"^a\w",
    "a",
    "A+b?",
    "^b",
    "c$",
    "b|ü",
    "[^a]",
    r"\s",
    r"a\b",
    "",
    "(?i)B",
    r"(?<=a)b",
    ".{3}",
    "\\ufffd",
    r"\Ab\Z",
]

line_pieces = st.lists(
    st.sampled_from([b"a", b"A", b"b", b"c", b" ", b"\xc3\xbc", b"\xc3", b"\r", b"\x00", b"a" * 9]), max_size=8
).map(b"".join)


def searched(folder: Path, data: bytes, **asked: Any) -> tuple[list[list[Any]], dict[str, Any]]:
    """All items, put together, and the end."""
    file = folder / "searched.log"
    file.write_bytes(data)
    said: list[bytes] = []
    with file.open("rb") as log:
        asked = {"line": 0, "offset": 0, "limit": 1000, "every": 16} | asked
        end = log_searcher.search(log.fileno(), asked, said.append, lambda: None)
    items = [json.loads(line[1:]) for line in said]
    end |= {"marks": [mark for item in items for mark in item["marks"]], "next": items[-1]["next"]}
    return [found for item in items for found in item["found"]], end


def naive(data: bytes, pattern: str, invert: bool, ignore_case: bool) -> list[tuple[int, int, str]]:
    """Number, byte and text of the lines that match."""
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    search, found, offset = re.compile(pattern, re.IGNORECASE if ignore_case else 0).search, [], 0
    for number, line in enumerate(lines):
        text = line.removesuffix(b"\r").decode("utf-8", "replace")
        if bool(search(text)) is not invert:
            found.append((number, offset, text))
        offset += len(line) + 1
    return found


@settings(max_examples=200)
@given(
    st.lists(line_pieces, max_size=40),
    st.booleans(),
    st.sampled_from(PATTERNS),
    st.booleans(),
    st.booleans(),
    st.integers(1, 60),
    st.sampled_from([1, 3, 256]),
)
def test_what_is_found_is_what_is_there(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    ended: bool,
    pattern: str,
    invert: bool,
    ignore_case: bool,
    piece: int,
    few: int,
) -> None:
    data = b"\n".join(lines) + (b"\n" if ended else b"")
    one = {"pattern": pattern, "invert": invert, "ignore_case": ignore_case}
    expected = naive(data, pattern, invert, ignore_case)
    folder = tmp_path_factory.mktemp("search")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_searcher, "PIECE", piece)
        patch.setattr(log_searcher, "FEW", few)
        found, end = searched(folder, data, conditions=[one])
        assert [(number, offset, text) for _, number, offset, text, _ in found] == expected
        assert [index for index, *_ in found] == list(range(len(expected)))
        assert end["matches"] == len(expected)
        assert end["marks"] == [[n, *expected[n][:2]] for n in range(0, len(expected), 16)]
        for _, _, _, text, spans in found:
            places = [list(one.span()) for one in re.finditer(pattern, text, re.IGNORECASE if ignore_case else 0)]
            assert spans == ([] if invert else [[a, b] for a, b in places if a < b][:20])
        # What was added since is found from where the search ended.
        line, offset, torn = end["next"]
        more, _ = searched(folder, data + b"a\nb\n", conditions=[one], line=line, offset=offset)
        kept = expected[: len(expected) - torn]
        assert kept + [(n, o, t) for _, n, o, t, _ in more] == naive(data + b"a\nb\n", pattern, invert, ignore_case)


def test_all_conditions_hold_and_a_limit_ends_the_search(tmp_path: Path) -> None:
    data = b"".join(b"%d %s\n" % (n, b"odd" if n % 2 else b"even") for n in range(100))
    conditions: list[dict[str, Any]] = [{"pattern": "odd"}, {"pattern": "5", "invert": True}, {"pattern": "^[1-3]"}]
    found, _ = searched(tmp_path, data, conditions=conditions)
    assert [number for _, number, *_ in found] == [1, 3, *(n for n in range(11, 40, 2) if n % 10 != 5)]
    found, _ = searched(tmp_path, data, conditions=[{"pattern": "odd"}], limit=3, every=0)
    assert [number for _, number, *_ in found] == [1, 3, 5]


def test_of_a_line_without_end_the_beginning_is_searched(tmp_path: Path) -> None:
    endless = b"needle " + b"x" * (3 << 20) + b" pin"
    data = b"first\n" + endless + b"\nneedle\n" + endless
    found, end = searched(tmp_path, data, conditions=[{"pattern": "needle"}])
    assert [(number, offset) for _, number, offset, *_ in found] == [
        (1, 6),
        (2, 7 + len(endless)),
        (3, 14 + len(endless)),
    ]
    assert found[0][3].endswith(f"[... {len(endless) - log_searcher.TEXT_CAP} more bytes]")
    assert len(found[0][3]) < 20_000
    assert found[2][3] == found[0][3]
    assert searched(tmp_path, data, conditions=[{"pattern": "pin"}])[0] == []
    assert end["next"] == [3, 14 + len(endless), True]


async def test_through_an_agent(agents: AgentWorld) -> None:
    run = agents.made_run()
    (run.logs / "train.log").write_bytes(b"".join(b"line %d\n" % n for n in range(50_000)))
    (run.logs / "ones.log").write_bytes(b"1" * 400 + b"\n")
    async with await AgentClient.connect(agents.transport()) as client:

        async def search(log: str = "train.log", **args: Any) -> list[Any]:
            batches = client.stream("log.search", run="last", log=log, **args)
            items = [item async for batch in batches for item in batch]
            return [found for item in items for found in item["found"]]

        places = [(number, sum(6 + len(str(n)) for n in range(number))) for number in (4999, 49990)]
        found = await search(pattern="LINE 4999\\d?$", ignore_case=True, limit=2)
        assert [one[1:4] for one in found] == [[number, at, f"line {number}"] for number, at in places]
        assert len(await search(pattern="7$", also=[{"pattern": "^line 1"}], limit=20_000)) == 1111
        for bad, words in [
            ({"pattern": "(a"}, "not a regular expression"),
            ({"pattern": "x" * 3000}, "at most"),
            ({"pattern": "x", "also": [{"pattern": 1}]}, "a condition is"),
            ({"pattern": "x", "also": ["x"]}, "a condition is"),
            ({"pattern": "x", "also": {}}, "list"),
            ({"pattern": "x", "limit": -1}, "limit is"),
            ({"pattern": "x", "log": "none.log"}, "has no log"),
        ]:
            with pytest.raises(RequestError, match=words):
                await search(**bad)  # type: ignore[arg-type]
        # The agent answers others meanwhile, and refuses in the end.
        hanging = client.stream("log.search", run="last", log="ones.log", pattern="(1+)+x")
        with pytest.raises(RequestError, match="takes for ever behind line 0"):
            await anext(hanging)
        left = client.stream("log.search", run="last", log="train.log", pattern="line", every=16)
        await anext(left)
        await left.aclose()
        assert (await client.call("ping"))["time"]
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and _searches(pid, str(run.path))]


def _searches(pid: str, path: str) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/fd/0").startswith(path)
    except OSError:
        return False
