"""Which layers does each side of a run read, and what did verify say about them?

Three sides declare layers: the stored features (`header.json`), the drafter (its `config.json`) and the running engine
(what it said of itself in `serve.json`). The fingerprints in `verdict.json` say which layers they really are.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle3ops.eagle3.layers import CONVENTIONS, AuxLayers
from eagle3ops.errors import Eagle3opsError
from eagle3ops.features.format import HEADER, FeatureHeader
from eagle3ops.outputs.stages import setting, spec_of, stage_output
from eagle3ops.outputs.wiring_advice import advise
from eagle3ops.runs.directory import RunDirectory, find_run
from eagle3ops.runs.files import read_json
from eagle3ops.targets.info import read_target_info
from eagle3ops.wiring.verdict import MAX_ERROR, MIN_MARGIN
from eagle3ops.words import outcome_of, outcome_word

VERDICT = "verdict.json"
SIDES, SEGMENTS, CHECKS = 8, 64, 32
"""More than any verdict has; the rest of a garbled one is left out."""
TEXT = 2000


def wiring_of(root: Path, run: str) -> dict[str, Any]:
    """The layers of every side by every convention, the fingerprints, the verdict, and what to do.

    Raises:
        RequestError: there is no such run.
    """
    found = find_run(root, run)
    spec = spec_of(found)
    target = _target(found)
    stored = _stored(found, target.get("layers"))
    layers = target.get("layers") or stored.pop("layers")
    stored.pop("layers", None)
    sides = [stored, _drafter(found, layers), _engine(found, layers)]
    verdict, words, judged = _verdict(found)
    answer = {
        "run": found.run_id,
        "target": target,
        "layers": layers,
        "sides": sides,
        "asked": {
            "extract": _layers_asked(setting(spec, "stages", "extract", "aux_layers")),
            "serve": _layers_asked(setting(spec, "stages", "serve", "aux_layers")),
        },
        "verdict": verdict,
        "words": words,
        "judged": judged,
        "needed": {
            "margin": _allowed(verdict, "margin", MIN_MARGIN),
            "error": _allowed(verdict, "error", MAX_ERROR),
            "greedy_agreement": number(setting(spec, "stages", "verify", "min_greedy_agreement")),
            "probes": number(setting(spec, "stages", "verify", "probes")),
            "probe_tokens": number(setting(spec, "stages", "verify", "probe_tokens")),
        },
    }
    return answer | {"advice": advise(answer)}


def _allowed(verdict: Mapping[str, Any] | None, name: str, now: float) -> float:
    """By which limit a segment counted as matched: as the verdict says, or by what is known now."""
    said = [side["limits"][name] for side in verdict["sides"] if side["limits"][name] is not None] if verdict else []
    return max(said, default=now)


def number(value: object) -> float | int | None:
    """A finite number, or None."""
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return value if known and abs(value) < 2**63 and math.isfinite(value) else None  # type: ignore[arg-type,return-value]


def _target(run: RunDirectory) -> dict[str, Any]:
    fetched = stage_output(run, "fetch")
    if not fetched.done or fetched.folder is None:
        return {"words": fetched.words}
    try:
        info = read_target_info(fetched.folder)
    except Eagle3opsError as error:
        return {"words": error.what}
    return {
        "words": "",
        "name": info.name,
        "layers": info.num_layers,
        "hidden_size": info.hidden_size,
        "vocab_size": info.vocab_size,
        "fingerprint": info.fingerprint,
    }


def _side(side: str, label: str, words: str, layers: AuxLayers | None = None, source: str = "") -> dict[str, Any]:
    return {
        "side": side,
        "label": label,
        "words": words,
        "source": source,
        "boundaries": list(layers.boundary) if layers else None,
        "names": names_of(layers) if layers else {},
    }


def names_of(layers: AuxLayers) -> dict[str, list[int] | None]:
    """The same layers by every convention; None where a convention has no number for one of them."""
    found: dict[str, list[int] | None] = {}
    for convention in CONVENTIONS:
        try:
            found[convention] = layers.ids(convention)
        except ValueError:
            found[convention] = None
    return found


def _stored(run: RunDirectory, known: int | None) -> dict[str, Any]:
    extracted = stage_output(run, "extract")
    folder = extracted.folder
    header, where = None, None
    for split in ("heldout", "train"):
        if folder is not None and header is None:
            where = folder / split / HEADER
            try:
                header = FeatureHeader.parse(where.read_bytes(), HEADER)
            except OSError:
                continue
            except Eagle3opsError as error:
                return _side("stored", "stored features", error.what) | {"layers": None}
    if header is None:
        words = extracted.words or "the features have no header.json"
        return _side("stored", "stored features", words) | {"layers": None}
    words = ""
    if known is not None and header.aux_layers.num_layers != known:
        words = f"they are of a target with {header.aux_layers.num_layers} layers, not {known}"
    side = _side("stored", "stored features", words, header.aux_layers, str(where))
    return side | {"layers": header.aux_layers.num_layers}


def _drafter(run: RunDirectory, layers: int | None) -> dict[str, Any]:
    trained = stage_output(run, "train")
    if trained.folder is None:
        return _side("trained", "drafter", trained.words)
    path = trained.folder / "drafter" / "config.json"
    config = read_json(path)
    if config is None:
        return _side("trained", "drafter", trained.words or "its config.json is missing or damaged")
    ids = setting(config, "eagle_config", "eagle_aux_hidden_state_layer_ids")
    return _declared("trained", "drafter", ids, "layer_outputs", layers, path)


def _engine(run: RunDirectory, layers: int | None) -> dict[str, Any]:
    served = stage_output(run, "serve")
    name = str(setting(spec_of(run), "engine", "name") or "engine")[:80]
    label = f"engine {name}"
    if served.folder is None:
        return _side("served", label, served.words)
    path = served.folder / "serve.json"
    facts = read_json(path)
    if facts is None:
        return _side("served", label, served.words or "serve.json is missing or damaged")
    ids = setting(facts, "server_info", "aux_boundaries")
    if ids is None:
        return _side("served", label, "the engine does not say which layers it reads; the fingerprint finds out")
    return _declared("served", label, ids, "boundary", layers, path)


def _declared(side: str, label: str, ids: object, convention: Any, layers: int | None, path: Path) -> dict[str, Any]:
    if not isinstance(ids, list) or not all(type(k) is int for k in ids) or len(ids) > SEGMENTS:
        return _side(side, label, f"{path.name} holds no list of layer ids")
    if layers is None:
        return _side(side, label, "how many layers the target has is not known")
    try:
        return _side(side, label, "", AuxLayers.from_ids(ids, convention, layers), str(path))
    except ValueError as error:
        return _side(side, label, str(error)[:TEXT])


def _layers_asked(value: object) -> dict[str, Any] | None:
    if not isinstance(value, dict) or value.get("convention") not in CONVENTIONS:
        return None
    ids = value.get("ids")
    return {"convention": value["convention"], "ids": [k for k in ids if type(k) is int][:SEGMENTS]} if ids else None


def _verdict(run: RunDirectory) -> tuple[dict[str, Any] | None, str, float | None]:
    """The verdict, why there is none, and when it was given."""
    verified = stage_output(run, "verify")
    if verified.folder is None or not (verified.folder / VERDICT).exists():
        return None, verified.words or "verify left no verdict.json", None
    verdict = parse_verdict(read_json(verified.folder / VERDICT))
    if verdict is None:
        return None, "verdict.json is damaged, or of an older format", None
    done = read_json(verified.folder / "done.json") or {}
    return verdict, "", number(done.get("finished"))


def parse_verdict(raw: object) -> dict[str, Any] | None:
    """What `verdict.json` says, with every value of the type it should have; None for what is no verdict."""
    if not isinstance(raw, dict) or not isinstance(raw.get("passed"), bool):
        return None
    sides, checks = raw.get("sides"), raw.get("checks")
    limits, causes = raw.get("limits"), raw.get("causes")
    return {
        **_outcome(raw),
        "reason": _text(raw.get("reason")),
        "greedy_agreement": number(raw.get("greedy_agreement")),
        "sides": [
            _judged(side, limits if isinstance(limits, dict) else {}, causes if isinstance(causes, dict) else {})
            for side in (sides if isinstance(sides, list) else [])[:SIDES]
            if isinstance(side, dict)
        ],
        "checks": [
            _check(check) for check in (checks if isinstance(checks, list) else [])[:CHECKS] if isinstance(check, dict)
        ],
    }


def _outcome(record: dict[str, Any]) -> dict[str, Any]:
    """`passed` and `verdict`, also of records from before there was UNDECIDED."""
    passed = outcome_of(record)
    return {"passed": passed is True, "verdict": outcome_word(passed)}


def _check(check: dict[str, Any]) -> dict[str, Any]:
    between = check.get("between")
    said = check.get("verdict")
    return {
        "name": _text(check.get("name"))[:80],
        "between": [_text(side)[:40] for side in (between if isinstance(between, list) else [])[:2]],
        "verdict": said if said in ("PASS", "FAIL", "UNDECIDED") else "not made",
        "reason": _text(check.get("reason")),
        "kind": _text(check.get("kind"))[:80],
        "fix": _text(check.get("fix")),
    }


def _judged(side: dict[str, Any], limits: dict[str, Any], causes: dict[str, Any]) -> dict[str, Any]:
    segments = side.get("segments")
    allowed = limits.get(str(side.get("side")))
    known = allowed if isinstance(allowed, dict) else {}
    cause = causes.get(str(side.get("side")))
    return {
        "side": _text(side.get("side")),
        **_outcome(side),
        "reason": _text(side.get("reason")),
        "decides": _text(side.get("decides")),
        "cause": {name: _text(cause.get(name)) for name in ("kind", "words", "fix")}
        if isinstance(cause, dict)
        else None,
        "limits": {name: number(known.get(name)) for name in ("error", "margin")},
        "segments": [
            _segment(segment)
            for segment in (segments if isinstance(segments, list) else [])[:SEGMENTS]
            if isinstance(segment, dict)
        ],
    }


def _segment(segment: dict[str, Any]) -> dict[str, Any]:
    whole = {name: value if type(value := segment.get(name)) is int and abs(value) < 2**31 else None
             for name in ("segment", "trained", "served", "runner_up")}  # fmt: skip
    return {
        **whole,
        "error": number(segment.get("error")),
        # JSON knows no infinity; an error of 0 makes the margin one.
        "margin": number(segment.get("margin")),
        "cosine": number(segment.get("cosine")),
        **_outcome(segment),
        "reason": _text(segment.get("reason")),
    }


def _text(value: object) -> str:
    return value[:TEXT] if isinstance(value, str) else ""
