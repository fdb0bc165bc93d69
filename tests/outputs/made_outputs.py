"""A run whose stages have left their outputs, made without a target, an engine or torch."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from eagle3ops.answers import AnswerRow, write_jsonl
from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.features.format import FeatureHeader, ShardRecord, render_record
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.files import write_json
from eagle3ops.wiring.fingerprint import SegmentMatch
from eagle3ops.wiring.verdict import judge, worst_of

RUN = "20261130-054512-demo-bbbb"
HIDDEN = 4
WORDS = {256: " the", 257: " drafter"}
SPECIAL = {258: "<|im_start|>", 259: "<|im_end|>", 260: "<think>", 261: "</think>"}
VOCAB = 262


def byte_alphabet() -> dict[int, str]:
    """GPT-2's: bytes that print stand for themselves, the others for characters from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + at) for at, byte in enumerate(rest)}


def tokenizer_json() -> dict[str, Any]:
    """A byte-level vocabulary: a token a byte, two words, four special ones."""
    alphabet = byte_alphabet()
    vocab = {alphabet[byte]: byte for byte in range(256)}
    vocab |= {word.replace(" ", alphabet[32]): k for k, word in WORDS.items()}
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": k,
                "content": text,
                "special": "im_" in text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
            for k, text in SPECIAL.items()
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }


def encoded(text: str) -> list[int]:
    """A text as ids, special tokens and words of the vocabulary first."""
    ids: list[int] = []
    pieces = {**{text: k for k, text in SPECIAL.items()}, **{word: k for k, word in WORDS.items()}}
    while text:
        known = next((piece for piece in pieces if text.startswith(piece)), None)
        if known is not None:
            ids.append(pieces[known])
            text = text[len(known) :]
        else:
            ids += text[0].encode()
            text = text[1:]
    return ids


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt with its answer."""

    id: str
    prompt: str
    answer: str
    finish_reason: str = "stop"


TRAIN = (
    Row("coffee/words", "<|im_start|>Name words.<|im_end|>", "Beans and the drafter.<|im_end|>"),
    Row("snow/说明", "<|im_start|>Think.<|im_end|>", "<think>hm 你</think>\n[@click=app.quit]x[/] \x1b[31m.", "length"),
    Row("tea/long", "<|im_start|>Tell me all about tea.<|im_end|>", "Tea."),
)
HELDOUT = (Row("held/one", "<|im_start|>Hi<|im_end|>", "Hello the drafter"),)


def made_run(
    root: Path,
    *,
    layers: int = 8,
    trained: Sequence[int] = (2, 4, 5),
    stored: Sequence[int] | None = None,
    served: Sequence[int] | None = None,
    error: float = 0.01,
    agreement: float = 1.0,
    checks: Sequence[Mapping[str, Any]] = (),
    causes: Mapping[str, Any] | None = None,
    serve: Mapping[str, Any] | None = None,
    stages: Sequence[str] = ("fetch", "generate", "extract", "train", "serve", "verify"),
    max_tokens: int = 200,
    run_id: str = RUN,
) -> RunDirectory:
    """A finished run below `root`; `stages` that are left out have not run."""
    run = RunDirectory(root / "runs" / run_id)
    run.path.mkdir(parents=True)
    say(run.path / "request.json", {"job": "pipeline", "stages": list(stages), "cache": "", "source": "x"})
    spec = {
        "schema": 1,
        "engine": {"name": "reference"},
        "stages": {
            "extract": {"aux_layers": None, "max_tokens": max_tokens},
            "serve": {"aux_layers": dict(serve) if serve else None},
            "verify": {"probes": 3, "probe_tokens": 48, "min_greedy_agreement": 0.95},
        },
    }
    run.spec_file.write_text(json.dumps(spec))
    outs = {name: root / "stages" / f"{name}-{at:016x}" for at, name in enumerate(stages)}
    for folder in outs.values():
        folder.mkdir(parents=True)
        say(folder / "done.json", {"finished": time.time() - 600, "inputs": {}})
    state = {name: {"status": "done", "seconds": 1.0, "out": str(out)} for name, out in outs.items()}
    verdict_fails = served is not None and tuple(served) != tuple(trained)
    code = 3 if verdict_fails else 0
    say(run.path / "state.json", {"status": "done", "exit_code": code, "job": "pipeline", "stages": state})
    if "fetch" in outs:
        make_target(outs["fetch"], root / "target", layers)
    if "generate" in outs:
        write_jsonl(
            outs["generate"] / "answers.jsonl", [answer_row(row, s) for s, rows in SPLITS.items() for row in rows]
        )
    if "extract" in outs:
        for split, rows in SPLITS.items():
            make_features(outs["extract"] / split, rows, AuxLayers(tuple(stored or trained), layers), max_tokens)
    if "train" in outs:
        make_drafter(outs["train"] / "drafter", trained)
    if "serve" in outs:
        facts = {"server_info": {"aux_boundaries": list(served or trained)}, "launch_line": "python -m x"}
        say(outs["serve"] / "serve.json", facts)
    if "verify" in outs:
        make_verdict(
            outs["verify"], AuxLayers(tuple(trained), layers), stored, served, error, agreement, checks, causes
        )
    return run


SPLITS = {"heldout": HELDOUT, "train": TRAIN}


def say(path: Path, data: Mapping[str, Any]) -> None:
    """Write a JSON file."""
    write_json(path, dict(data), sync=False)


def make_target(out: Path, folder: Path, layers: int) -> None:
    """A target that is only a tokenizer."""
    folder.mkdir(exist_ok=True)
    say(folder / "tokenizer.json", tokenizer_json())
    info = {"path": str(folder), "name": "tiny-random", "fingerprint": "e299f9af" * 8, "source": "made",
            "num_layers": layers, "hidden_size": HIDDEN, "vocab_size": VOCAB, "files": []}  # fmt: skip
    say(out / "target.json", info)


def answer_row(row: Row, split: Any) -> AnswerRow:
    """A row as generate leaves it."""
    return AnswerRow(
        id=row.id,
        split=split,
        messages=[{"role": "user", "content": row.prompt}],
        prompt_ids=encoded(row.prompt),
        output_ids=encoded(row.answer),
        finish_reason=row.finish_reason,
    )


def make_features(folder: Path, rows: Sequence[Row], layers: AuxLayers, max_tokens: int) -> None:
    """Shards of two rows each."""
    folder.mkdir(parents=True, exist_ok=True)
    header = FeatureHeader(target_fingerprint="e299f9af" * 8, aux_layers=layers, hidden_size=HIDDEN, dtype="float32")
    say(folder / "header.json", header.render())
    manifest = b""
    for first in range(0, len(rows), 2):
        name, chunk = f"{first // 2:05d}", rows[first : first + 2]
        texts = [(encoded(row.prompt) + encoded(row.answer))[:max_tokens] for row in chunk]
        masks = [
            [at >= len(encoded(row.prompt)) for at in range(len(ids))] for row, ids in zip(chunk, texts, strict=True)
        ]
        total = sum(map(len, texts))
        tensors = {
            "token_ids": np.array([k for ids in texts for k in ids], dtype=np.int32),
            "loss_mask": np.array([m for mask in masks for m in mask], dtype=bool),
            "aux": np.zeros((total, header.aux_size), dtype=np.float32),
            "final": np.zeros((total, HIDDEN), dtype=np.float32),
            "offsets": np.cumsum([0, *map(len, texts)]).astype(np.int64),
        }
        path = folder / f"{name}.safetensors"
        save_file(tensors, path, metadata={"ids": json.dumps([row.id for row in chunk])})
        record = ShardRecord(shard=name, rows=len(chunk), tokens=total, bytes=path.stat().st_size, sha256="0" * 64)
        manifest += render_record(record)
    (folder / "manifest.jsonl").write_bytes(manifest)


def make_drafter(folder: Path, trained: Sequence[int]) -> None:
    """A drafter that can propose every token but ` drafter`."""
    folder.mkdir(parents=True)
    say(folder / "config.json", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [k - 1 for k in trained]}})
    known = [k for k in range(VOCAB) if WORDS.get(k) != " drafter"]
    offsets = np.array([k - at for at, k in enumerate(known)], dtype=np.int64)
    save_file({"d2t": offsets}, folder / "model.safetensors")


def make_verdict(
    folder: Path,
    trained: AuxLayers,
    stored: Sequence[int] | None,
    served: Sequence[int] | None,
    error: float,
    agreement: float,
    checks: Sequence[Mapping[str, Any]] = (),
    causes: Mapping[str, Any] | None = None,
) -> None:
    """`verdict.json`, judged as verify does it."""

    def matched(boundaries: Sequence[int], error: float) -> Any:
        def one(at: int, k: int) -> SegmentMatch:
            # Boundaries that are neither the nearest nor the next lie farther still.
            far = [1.0] * (trained.num_layers + 1)
            far[k], far[(k + 1) % len(far)] = error, 0.6
            return SegmentMatch(at, k, error, 0.999, k + 1, 0.6, 1.0, (), tuple(far))

        return [[one(at, k) for at, k in enumerate(boundaries)]]

    sides = [judge("stored features", trained, matched(stored or trained.boundary, 0.01)),
             judge("engine reference", trained, matched(served or trained.boundary, error))]  # fmt: skip
    allowed = {side.side: {"error": 0.06, "margin": 5.0} for side in sides}
    outcome = worst_of([side.verdict for side in sides])
    if agreement < 0.95:
        outcome = "FAIL"
    reason = "; ".join(side.reason for side in sides if side.verdict == outcome) or "the final states disagree"
    record = {"passed": outcome == "PASS", "verdict": outcome, "reason": reason, "greedy_agreement": agreement}
    say(
        folder / "verdict.json",
        record
        | {
            "sides": [side.as_dict() for side in sides],
            "checks": list(checks),
            "causes": causes or {},
            "limits": allowed,
        },
    )
