"""Which rank did not come to the collective that the others wait in? NCCL's flight recorder, matched over ranks.

Each rank writes a file: JSON, or a pickle (see `pickled`). The layout is that of torch 2.5 to 2.13, versions 2.x.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eagle3ops.watchdog.evidence.pickled import PickleRefused, load_plain, shown

FILE_BYTES = 64 << 20
MOST_RANKS = 1024
MOST_ENTRIES = 20_000
MOST_GROUPS = 256
_FREE_SIZES = ("all_to_all", "alltoall", "gather", "scatter", "send", "recv", "coalesced")
"""Operations whose sizes may differ from rank to rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One operation as one rank recorded it."""

    number: int
    """Position in its process group: the same on all ranks."""
    operation: str
    """`nccl:all_reduce`."""
    inputs: str
    """Sizes and element types, for people: `[1048576] Float`."""
    outputs: str
    state: str
    """`scheduled` (not begun on the GPU), `started`, `completed`."""
    place: str = ""
    """Where in the program it was asked for, if that was recorded."""

    def __str__(self) -> str:
        """`nccl:all_reduce [1048576] Float (#161, scheduled)`."""
        return f"{self.operation} {self.inputs} (#{self.number}, {self.state})"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """What one rank recorded about one process group."""

    group: str
    """Its name and its ranks: the same on all of them."""
    enqueued: int
    completed: int
    ranks: tuple[int, ...] = ()
    """Who belongs to it; empty when it was not recorded."""
    collectives: Mapping[int, Collective] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the records of one process group say together."""

    group: str
    words: str
    blamed: tuple[int, ...] = ()
    """Ranks."""
    silent: tuple[int, ...] = ()
    """Ranks that belong to it and of which there is no record."""


def read_record(data: bytes) -> list[GroupRecord]:
    """One rank's file, JSON or pickle.

    Raises:
        PickleRefused: it is neither, or not of this layout, or holds more than plain data.
    """
    if len(data) > FILE_BYTES:
        raise PickleRefused(f"{len(data)} bytes: more than the {FILE_BYTES} that are read")
    if data.lstrip()[:1] == b"{":
        try:
            content = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise PickleRefused(f"not whole JSON: {str(error)[:200]}") from error
    else:
        content = load_plain(data)
    if not isinstance(content, Mapping) or not isinstance(content.get("entries", []), list | tuple):
        raise PickleRefused("not a record of the flight recorder: it has no entries")
    return _groups(content)


def _groups(content: Mapping[Any, Any]) -> list[GroupRecord]:
    configs = {str(key): value for key, value in _items(content.get("pg_config")) if isinstance(value, Mapping)}
    status = {str(key): value for key, value in _items(content.get("pg_status")) if isinstance(value, Mapping)}
    by_group: dict[str, dict[int, Collective]] = {}
    for entry in list(content.get("entries") or ())[-MOST_ENTRIES:]:
        if not isinstance(entry, Mapping) or entry.get("is_p2p") is True:
            continue
        # Only collectives have a number that is the same on all ranks.
        number = _number(entry.get("collective_seq_id", entry.get("seq_id")))
        if number is None:
            continue
        pair = entry.get("process_group")
        key = shown(pair[0])[:100] if isinstance(pair, list | tuple) and pair else shown(entry.get("pg_id"))[:100]
        if key in by_group or len(by_group) < MOST_GROUPS:
            by_group.setdefault(key, {})[number] = _collective(number, entry)
    found = []
    # What is known about a group stands under its name in newer records and under its number in older ones.
    for key in list(dict.fromkeys([*by_group, *status]))[:MOST_GROUPS]:
        collectives = by_group.get(key, {})
        config, counted = configs.get(key, {}), status.get(key, {})
        ranks = _ranks(config.get("ranks"))
        name = shown(config.get("desc") or config.get("name") or key)[:100]
        done = (one.number for one in collectives.values() if one.state == "completed")
        enqueued = _number(counted.get("last_enqueued_collective"))
        completed = _number(counted.get("last_completed_collective"))
        found.append(
            GroupRecord(
                group=f"{name} {_span(ranks)}".strip(),
                enqueued=max(collectives, default=-1) if enqueued is None else enqueued,
                completed=max(done, default=-1) if completed is None else completed,
                ranks=ranks,
                collectives=collectives,
            )
        )
    return found


def match(records: Mapping[int, Sequence[GroupRecord]]) -> list[Verdict]:
    """Compare the ranks, group by group; groups in which nothing is open are left out."""
    groups: dict[str, dict[int, GroupRecord]] = {}
    for rank, found in records.items():
        for one in found:
            groups.setdefault(one.group, {})[rank] = one
    verdicts = [_judge(name, members) for name, members in groups.items()]
    return [one for one in verdicts if one is not None]


def _judge(name: str, members: Mapping[int, GroupRecord]) -> Verdict | None:
    expected = {rank for one in members.values() for rank in one.ranks}
    silent = tuple(sorted(expected - set(members)))[:MOST_RANKS]
    # Of a job on many hosts most ranks write elsewhere: that they are not here says nothing about them.
    absent = silent if 2 * len(silent) <= len(expected) else ()
    most = max(one.enqueued for one in members.values())
    behind = tuple(sorted(rank for rank, one in members.items() if one.enqueued < most))
    first = min(one.completed for one in members.values()) + 1
    if not behind and first > most and not silent:
        return None
    missing = f"; {_who(silent)} left no record here" if silent else ""
    # A difference of what they do is the cause of any lag after it.
    for number in range(max(0, first), min(most, first + 1000) + 1):
        here = {rank: one.collectives[number] for rank, one in members.items() if number in one.collectives}
        different = _different(here)
        if different:
            return Verdict(group=name, words=different[0] + missing, blamed=different[1], silent=silent)
    ahead = next(one for one in members.values() if one.enqueued == most)
    waiting = ahead.collectives.get(most)
    what = f"{waiting}{f' asked for in {waiting.place}' if waiting.place else ''}" if waiting else f"#{most}"
    if behind:
        least = min(members[rank].enqueued for rank in behind)
        stand = f"{least}" if len({members[rank].enqueued for rank in behind}) == 1 else f"{least} or more"
        others = [rank for rank in members if rank not in behind]
        words = f"{_who(behind)} asked for {stand} collectives, {_who(sorted(others))} for {most}"
        return Verdict(
            group=name,
            words=f"{words}: {_who(sorted(others))} wait{'s' if len(others) == 1 else ''} in {what} "
            f"for {_who(behind)}{missing}",
            blamed=behind,
            silent=silent,
        )
    if first > most:
        return Verdict(group=name, words=f"all that is recorded was completed{missing}", blamed=absent, silent=silent)
    if silent:
        return Verdict(group=name, words=f"{what} is not completed{missing}", blamed=absent, silent=silent)
    states = sorted({one.collectives[most].state for one in members.values() if most in one.collectives})
    return Verdict(
        group=name,
        words=f"all {len(members)} ranks are in {what}, {' and '.join(states) or 'not completed'}: "
        "the same on all, so the connection or a GPU is to blame rather than the program",
    )


def _different(here: Mapping[int, Collective]) -> tuple[str, tuple[int, ...]] | None:
    """Do ranks do different things as the same collective? In words, with the ranks of the minority."""
    if len(here) < 2:
        return None
    free = any(word in one.operation for one in here.values() for word in _FREE_SIZES)
    for what, key in (
        ("operation", lambda one: one.operation),
        ("size or type", lambda one: "" if free else f"{one.operation} {one.inputs} -> {one.outputs}"),
    ):
        sides: dict[str, list[int]] = {}
        for rank, one in here.items():
            sides.setdefault(key(one), []).append(rank)
        if len(sides) > 1:
            ordered = sorted(sides.items(), key=lambda side: -len(side[1]))
            number = next(iter(here.values())).number
            told = ", ".join(f"{_who(sorted(ranks))}: {text}" for text, ranks in ordered[:4])
            # Of two equal halves none is the odd one: all of them are suspects.
            tie = len(ordered[0][1]) == len(ordered[1][1])
            blamed = [rank for _, ranks in ordered[0 if tie else 1 :] for rank in ranks]
            return f"another {what} on some ranks as #{number}: {told}", tuple(sorted(blamed))
    return None


def _collective(number: int, entry: Mapping[Any, Any]) -> Collective:
    frames = entry.get("frames")
    place = ""
    for frame in list(frames)[:50] if isinstance(frames, list | tuple) else ():
        if isinstance(frame, Mapping):
            file = shown(frame.get("filename"))[-200:]
            place = place or f"{shown(frame.get('name'))[:100]} ({file}:{_number(frame.get('line'))})"
            # The first frame that is not torch's own says more.
            if "/torch/" not in file:
                place = f"{shown(frame.get('name'))[:100]} ({file}:{_number(frame.get('line'))})"
                break
    return Collective(
        number=number,
        operation=shown(entry.get("profiling_name"))[:100],
        inputs=_tensors(entry.get("input_sizes"), entry.get("input_dtypes")),
        outputs=_tensors(entry.get("output_sizes"), entry.get("output_dtypes")),
        state=shown(entry.get("state"))[:20],
        place=place,
    )


def _tensors(sizes: Any, types: Any) -> str:
    shapes = []
    for size in list(sizes)[:8] if isinstance(sizes, list | tuple) else ():
        parts = [str(_number(part)) for part in size[:8]] if isinstance(size, list | tuple) else ["?"]
        shapes.append(f"[{', '.join(parts)}]")
    names = [shown(name)[:20] for name in list(types)[:8]] if isinstance(types, list | tuple) else []
    return " ".join([", ".join(shapes), ", ".join(dict.fromkeys(names))]).strip() or "?"


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    return list(value.items())[:MOST_GROUPS] if isinstance(value, Mapping) else ()


def _number(value: Any) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,15}", value):
        value = int(value)
    sound = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53
    return value if sound else None


def _ranks(value: Any) -> tuple[int, ...]:
    """`"[0, 1]"`, or a list."""
    if isinstance(value, str):
        found = [int(word) for word in re.findall(r"[0-9]{1,7}", value[:20_000])]
    elif isinstance(value, list | tuple):
        found = [number for one in list(value)[:MOST_RANKS] if (number := _number(one)) is not None]
    else:
        found = []
    return tuple(sorted(set(found)))[:MOST_RANKS]


def _span(ranks: Sequence[int]) -> str:
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"[{ranks[0]}-{ranks[-1]}]"
    shown = ", ".join(map(str, ranks[:16]))
    return f"[{shown}{', ...' if len(ranks) > 16 else ''}]" if ranks else ""


def _who(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {_span(ranks).strip('[]')}" if ranks else "nobody"
