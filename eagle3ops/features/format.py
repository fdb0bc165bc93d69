"""How do hidden-state features lie on disk, and which lines of their manifest can be trusted?

    header.json       which target, which layers, which dtype
    manifest.jsonl    one line a finished shard, appended after the shard is durable; the last line for a name wins
    NAME.safetensors  rows packed end to end: token_ids, loss_mask, aux, final, offsets; in eight bits also aux_scale
                      and final_scale, one number a token and boundary
    quarantine/       files that did not verify, moved away so that nothing reads them

Every manifest line carries a checksum of itself, so a damaged line is told from a true one without its neighbours.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.errors import Eagle3opsError

FORMAT = 1
COMPACT_FORMAT = 2
"""Of features in eight bits, or with final states of taught positions only: versions before these cannot read them."""
HEADER = "header.json"
MANIFEST = "manifest.jsonl"
QUARANTINE = "quarantine"
SHARD_SUFFIX = ".safetensors"

Dtype = Literal["bfloat16", "float32", "float8_e4m3fn"]
FinalTokens = Literal["all", "taught"]
ProblemKind = Literal["missing", "truncated", "checksum", "unreadable", "unlisted", "manifest", "header"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_SEAL = "seal"


class FeatureError(Eagle3opsError):
    """A folder of features cannot be read or written as it is."""


class NoSoundRow(FeatureError):
    """Every row of a shard was rejected by the scan."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that does not verify, by name."""

    shard: str
    kind: ProblemKind
    detail: str

    def __str__(self) -> str:
        return f"{self.shard}: {self.kind}: {self.detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureHeader:
    """What every shard of a folder has in common."""

    target_fingerprint: str
    aux_layers: AuxLayers
    hidden_size: int
    dtype: Dtype
    final_state: Literal["pre_norm"] = "pre_norm"
    """The last boundary is stored before the target's final norm; the trainer applies the norm itself."""
    final_tokens: FinalTokens = "all"
    """`taught`: only positions whose next token the target wrote have their final state; others read as NaN."""

    @property
    def aux_size(self) -> int:
        """Width of the concatenated aux states."""
        return self.hidden_size * len(self.aux_layers.boundary)

    def bytes_per_token(self) -> int:
        """Disk bytes for the hidden states of a token that has them all."""
        return state_bytes(self.hidden_size, len(self.aux_layers.boundary) + 1, self.dtype)

    def render(self) -> dict[str, Any]:
        """For `header.json`."""
        compact = self.dtype == "float8_e4m3fn" or self.final_tokens != "all"
        return {
            "format": COMPACT_FORMAT if compact else FORMAT,
            "target_fingerprint": self.target_fingerprint,
            "aux_boundaries": list(self.aux_layers.boundary),
            "target_layers": self.aux_layers.num_layers,
            "hidden_size": self.hidden_size,
            "dtype": self.dtype,
            "final_state": self.final_state,
            **({"final_tokens": self.final_tokens} if compact else {}),
        }

    @classmethod
    def parse(cls, text: str | bytes, where: str = HEADER) -> "FeatureHeader":
        """Read `header.json`; raises FeatureError."""
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FeatureError(f"{where}: not JSON: {error}", remedy="extract the features again") from error
        try:
            if raw["format"] not in (FORMAT, COMPACT_FORMAT):
                raise FeatureError(
                    f"{where}: format {raw['format']!r} is not {FORMAT} or {COMPACT_FORMAT}, which this version reads"
                )
            boundaries, size = raw["aux_boundaries"], raw["hidden_size"]
            if type(size) is not int or size <= 0 or not all(type(k) is int for k in boundaries):
                raise FeatureError(f"{where}: hidden_size and aux_boundaries must be whole numbers")
            if raw["dtype"] not in get_args(Dtype) or raw["final_state"] != "pre_norm":
                raise FeatureError(f"{where}: dtype {raw['dtype']!r} with final state {raw['final_state']!r}")
            final_tokens = raw.get("final_tokens", "all")
            if final_tokens not in get_args(FinalTokens):
                raise FeatureError(f"{where}: final_tokens {final_tokens!r} is not known")
            return cls(
                target_fingerprint=str(raw["target_fingerprint"]),
                aux_layers=AuxLayers(tuple(boundaries), int(raw["target_layers"])),
                hidden_size=size,
                dtype=raw["dtype"],
                final_tokens=final_tokens,
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise FeatureError(f"{where}: {type(error).__name__}: {error}") from error


def state_bytes(hidden_size: int, states: int, dtype: Dtype) -> int:
    """Bytes of a token's hidden states, of which there are `states`."""
    # In eight bits every state has its own scale, a float32.
    number, scale = {"bfloat16": (2, 0), "float32": (4, 0), "float8_e4m3fn": (1, 4)}[dtype]
    return states * (hidden_size * number + scale)


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that the scan kept out of its shard."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRecord:
    """One line of the manifest."""

    shard: str
    rows: int
    tokens: int
    bytes: int
    sha256: str
    dropped: tuple[BadRow, ...] = ()
    """Rows with NaN, infinity or all-zero states; they are not in the shard."""

    @property
    def file(self) -> str:
        """Name of the shard's file."""
        return self.shard + SHARD_SUFFIX


def check_name(name: str) -> str:
    """The name itself, if it is fit for a file on every system; raises FeatureError."""
    if not _NAME.match(name):
        raise FeatureError(f"shard name {name!r}: letters, digits, '.', '_' and '-' only, at most 100")
    return name


def _seal(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def render_record(record: ShardRecord) -> bytes:
    """A record as one line, newline included."""
    body = asdict(record)
    body["dropped"] = [asdict(bad) for bad in record.dropped]
    return json.dumps({**body, _SEAL: _seal(body)}).encode() + b"\n"


def parse_record(line: bytes) -> ShardRecord | None:
    """One line of the manifest; None where it is not exactly what `render_record` wrote."""
    try:
        body = json.loads(line)
        seal = body.pop(_SEAL)
        if seal != _seal(body):
            return None
        dropped = tuple(BadRow(str(bad["id"]), str(bad["reason"])) for bad in body.pop("dropped"))
        record = ShardRecord(dropped=dropped, **body)
        check_name(record.shard)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, FeatureError):
        return None
    sizes = (record.rows, record.tokens, record.bytes)
    return record if all(type(n) is int and n >= 0 for n in sizes) else None


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a manifest says.

    Attributes:
        records: the last sound line of every shard, in order of first appearance.
        damaged: 1-based numbers of lines that do not verify, the torn last one left out.
        torn: whether the last line was cut short, as a kill in mid-write leaves it.
        sound_bytes: length up to and including the last line that is not torn.
    """

    records: dict[str, ShardRecord]
    damaged: tuple[int, ...]
    torn: bool
    sound_bytes: int


def parse_manifest(data: bytes) -> Manifest:
    """Read a manifest; never raises, whatever the bytes are."""
    records: dict[str, ShardRecord] = {}
    damaged: list[int] = []
    whole, newline, rest = data.rpartition(b"\n")
    for number, line in enumerate(whole.split(b"\n") if newline else [], start=1):
        record = parse_record(line)
        if record is None:
            damaged.append(number)
        else:
            records[record.shard] = record
    return Manifest(records, tuple(damaged), bool(rest), len(whole) + len(newline))
