"""Does every tensor find its place, and does the draft vocabulary say what it should?"""

from array import array
from itertools import pairwise

from eagle3ops.targets.headers import FLOATS, SIZES, TensorInfo
from eagle3ops.targets.headers import floats as numbers
from eagle3ops.wiring.lint.case import Case
from eagle3ops.wiring.lint.parameters import SKIPPED, canonical, computed, parameters

MOST = 6
"""Names in one finding."""
SAMPLED = 64
"""Rows of the embedding that are compared."""
_SHARED = ("num_hidden_layers", "hidden_size", "vocab_size")
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "tok_embeddings.weight", "word_embeddings.weight")


def names_and_shapes(case: Case) -> dict[str, TensorInfo]:
    """Hold the checkpoint's tensors against the engine's; returns those that found their place, by canonical name."""
    assert case.sizes is not None
    assert case.drafter.tensors is not None
    wanted = parameters(case.engine, case.sizes, case.flags)
    placed: dict[str, TensorInfo] = {}
    unknown, twice = [], []
    for name, tensor in case.drafter.tensors.items():
        real = canonical(name, case.engine, latent=case.sizes.latent is not None)
        if real not in wanted:
            if not computed(name):
                unknown.append(name)
        elif real in placed:
            twice.append(f"{placed[real].name} and {name}")
        else:
            placed[real] = tensor
    missing = [name for name, one in wanted.items() if not one.optional and name not in placed]
    where = "*.safetensors"
    if twice:
        case.error(
            "tensor-twice",
            where,
            f"the same parameter under two names: {_list(twice)}",
            "which one is served depends on the order of the files",
            "keep one of them",
        )
    if "d2t" in missing:
        missing.remove("d2t")
        case.error(
            "d2t-missing",
            where,
            f"no d2t, with a draft vocabulary of {case.sizes.draft_vocab} of {case.sizes.vocab}",
            f"{case.name} takes the drafter's ids for the target's own",
            "export it again, with its buffers",
        )
    if missing:
        cause = f"{case.name} serves what memory held there, without a word"
        if case.engine == "vllm" and missing == ["lm_head.weight"]:
            cause = f"{case.name} takes the target's, which has {case.sizes.vocab} rows, not {case.sizes.draft_vocab}"
        case.error(
            "tensor-missing",
            where,
            f"missing: {_list(missing)}",
            cause,
            "export it again, whole",
        )
    if unknown:
        cause = "refuses to load them" if case.engine == "vllm" else "skips them without a word"
        if case.engine == "vllm" and set(unknown) == {"input_norm.weight"} and case.sizes.latent is None:
            cause = "skips it without a word"
        case.error(
            "tensor-unknown",
            where,
            f"not of this class: {_list(unknown)}",
            f"{case.name} {cause}",
            "a switch in config.json that belongs to them is off or not read, or the names are another engine's",
        )
    if case.engine == "vllm" and "d2t" in placed and case.sizes.draft_vocab == case.target.size("vocab_size"):
        case.error(
            "d2t-unwanted",
            where,
            "a d2t, with the whole vocabulary of the target",
            f"{case.name} has no parameter for it then, and refuses to load it",
            "leave it out of the checkpoint",
        )
    if case.engine == "sglang" and not case.sizes.head and "lm_head.weight" in placed:
        case.error(
            "head-replaced",
            "config.json: draft_vocab_size",
            "is null, and the checkpoint has an lm_head of its own",
            f"{case.name} puts the target's in its place, without a word",
            f'write "draft_vocab_size": {case.sizes.vocab}, or leave lm_head.weight out',
        )
    for name, tensor in placed.items():
        shape = wanted[name].shape
        if tensor.shape == shape:
            continue
        code = "fc-width" if name == "fc.weight" and tensor.shape[:1] == shape[:1] else "tensor-shape"
        cause = f"{case.name} cannot load it"
        if code == "fc-width":
            cause = f"{case.name} hands over {case.sizes.aux} states of {case.sizes.target_hidden}"
        case.error(
            code,
            f"{tensor.file.name}: {tensor.name}",
            f"is {list(tensor.shape)}, not {list(shape)}",
            cause,
            "make config.json say what it was trained with, or export it again",
        )
    return {name: tensor for name, tensor in placed.items() if tensor.shape == wanted[name].shape}


def types(case: Case, placed: dict[str, TensorInfo]) -> None:
    """Floats of one kind, and whole numbers for the vocabulary."""
    floats = {name: one for name, one in placed.items() if name not in {"d2t", *SKIPPED}}
    wrong = [f"{one.name} is {one.dtype}" for one in floats.values() if one.dtype not in FLOATS]
    if wrong and not case.config.get("quantization_config"):
        case.error(
            "tensor-type",
            "*.safetensors",
            _list(wrong),
            "these are no weights that an engine can multiply with",
            "export it in bfloat16, or write its quantization_config",
        )
    kinds = {one.dtype for one in floats.values() if one.dtype in FLOATS}
    if len(kinds) > 1:
        case.warn(
            "tensor-types-mixed",
            "*.safetensors",
            f"floats of several types: {', '.join(sorted(kinds))}",
            "they are all converted to one, with another rounding than in training",
            "export it in one type",
        )


def vocabulary(case: Case, placed: dict[str, TensorInfo]) -> None:
    """`d2t` holds, for each draft id, what is to be added to get the target's id; `t2d` marks the same ids."""
    assert case.sizes is not None
    tensor = placed.get("d2t")
    if tensor is None:
        return
    where, vocab, count = f"{tensor.file.name}: d2t", case.sizes.vocab, case.sizes.draft_vocab
    if tensor.dtype != "I64":
        case.error("d2t-type", where, f"is {tensor.dtype}, not I64", "ids are taken from it", "export it as int64")
        return
    offsets = array("q", tensor.read())
    ids = [offset + at for at, offset in enumerate(offsets)]
    marked = _marked(placed.get("t2d"))
    ascending = all(a < b for a, b in pairwise(ids))
    if count < vocab and not any(offsets):
        case.error(
            "d2t-zero",
            where,
            "is all zeros",
            f"every draft id means the target's id of the same number: the first {count}",
            "the mapping was lost on the way; export it again from the trainer",
        )
    elif (marked is not None and marked == list(offsets) and count < vocab) or (
        ids
        and max(ids) >= vocab
        and all(0 <= one < vocab for one in offsets)
        and all(a < b for a, b in pairwise(offsets))
    ):
        case.error(
            "d2t-ids",
            where,
            "holds the target's ids themselves",
            "engines add the draft id to it",
            "write d2t[i] - i in place of d2t[i]",
        )
    elif ids and (min(ids) < 0 or max(ids) >= vocab):
        case.error(
            "d2t-range",
            where,
            f"leads to ids from {min(ids)} to {max(ids)}, in a vocabulary of {vocab}",
            "engines read outside of the vocabulary",
            "export it again from the trainer",
        )
    elif not ascending:
        case.error(
            "d2t-order",
            where,
            "does not lead to distinct ids in ascending order",
            "two draft ids mean one token, or rows of lm_head are permuted",
            "export it again from the trainer",
        )
    elif marked is not None and marked != ids:
        case.error(
            "t2d-differs",
            f"{tensor.file.name}: t2d",
            "does not mark the ids that d2t leads to",
            "the two are of different vocabularies, and one of them is wrong",
            "export it again from the trainer",
        )


def _marked(tensor: TensorInfo | None) -> list[int] | None:
    if tensor is None or tensor.dtype not in ("BOOL", "U8"):
        return None
    return [at for at, one in enumerate(tensor.read()) if one]


def embedding(case: Case, placed: dict[str, TensorInfo]) -> None:
    """Is the embedding that the drafter brings the target's?"""
    assert case.sizes is not None
    own, theirs = placed.get("embed_tokens.weight"), _embedding_of_target(case)
    if own is None or case.sizes.target_hidden != case.sizes.hidden:
        return
    why = _incomparable(case, own, theirs)
    if theirs is None or why:
        case.note(
            "embedding-not-compared",
            f"{own.file.name}: {own.name}",
            f"is not held against the target's: {why}",
            "an embedding that is not the target's would not be noticed",
            "name a folder of the target with its weights, or leave the embedding out of the checkpoint",
        )
        return
    step = max(1, own.shape[0] // SAMPLED)
    looked = range(0, own.shape[0], step)
    differ = [at for at in looked if not _same_row(own, theirs, at)]
    if not differ:
        return
    cause = (
        f"{case.name} overwrites it with the target's: not what it was trained with"
        if case.engine != "vllm"
        else f"{case.name} uses the drafter's own where it differs"
    )
    case.error(
        "embedding-differs",
        f"{own.file.name}: {own.name}",
        f"{len(differ)} of {len(looked)} rows looked at are not the target's",
        cause,
        "leave it out of the checkpoint, if it was trained on the target's; otherwise train it on that",
    )


def _incomparable(case: Case, own: TensorInfo, theirs: TensorInfo | None) -> str:
    """Why two embeddings cannot be compared; empty where they can."""
    if theirs is None:
        return "it has none by a known name" if case.target.tensors.tensors else "its weights are not there"
    # A target's may have rows to spare.
    if len(own.shape) != 2 or own.shape[1:] != theirs.shape[1:] or own.shape[0] > theirs.shape[0]:
        return f"that is {list(theirs.shape)}, and this {list(own.shape)}"
    unread = {own.dtype, theirs.dtype} - FLOATS
    return f"its numbers are {', '.join(sorted(unread))}" if unread else ""


def _embedding_of_target(case: Case) -> TensorInfo | None:
    """The shortest name: layers for multi-token prediction, and encoders, have embeddings of their own."""
    tensors = case.target.tensors.tensors or {}
    found = sorted((name for name in tensors if name.endswith(_EMBEDDINGS)), key=len)
    return tensors[found[0]] if found else None


def _same_row(one: TensorInfo, other: TensorInfo, at: int) -> bool:
    """Whether a row of two matrices is the same; of two types up to the rounding of the coarser one."""
    raw = [tensor.read(*(k * tensor.shape[1] * SIZES[tensor.dtype] for k in (at, at + 1))) for tensor in (one, other)]
    if one.dtype == other.dtype:
        return raw[0] == raw[1]
    # BF16 keeps 8 bits, F16 11, and below 6e-5 fewer.
    coarse = 2.0**-8 if "BF16" in (one.dtype, other.dtype) else 2.0**-11
    values = (numbers(raw[0], one.dtype), numbers(raw[1], other.dtype))
    return all(abs(a - b) <= coarse * max(abs(a), abs(b)) + 1e-7 for a, b in zip(*values, strict=True))


def against_target(case: Case) -> None:
    """Sizes that the drafter shares with its target."""
    assert case.sizes is not None
    vocab, hidden = case.target.size("vocab_size"), case.target.size("hidden_size")
    unsaid = [name for name in _SHARED if case.target.size(name) is None]
    if unsaid:
        case.warn(
            "target-unknown",
            "config.json of the target",
            f"does not say {' and '.join(unsaid)}",
            "what the drafter's config and its layer ids say is not held against that",
            "name the folder of the target itself, with its whole config",
        )
    if vocab is not None and vocab != case.sizes.vocab:
        case.error(
            "vocab-differs",
            "config.json: vocab_size",
            f"is {case.sizes.vocab}; of the target it is {vocab}",
            "it drafts ids of another vocabulary",
            "this drafter belongs to another target, or the number is wrong",
        )
    if hidden is not None and hidden != case.sizes.target_hidden:
        key = "target_hidden_size" if "target_hidden_size" in case.config else "hidden_size"
        case.error(
            "hidden-differs",
            f"config.json: {key}",
            f"is {case.sizes.target_hidden}; of the target it is {hidden}",
            "fc cannot read the target's states",
            "this drafter belongs to another target, or the number is wrong",
        )
    if case.engine == "sglang" and case.target.latent and case.sizes.latent is None:
        case.warn(
            "attention-backend",
            "config.json: architectures",
            "a drafter with plain attention, for a target with a compressed cache (MLA)",
            f"{case.name} may give the drafter the target's attention backend, and fail at the start",
            "add --speculative-draft-attention-backend, such as triton or trtllm_mha",
        )


def _list(names: list[str]) -> str:
    more = len(names) - MOST
    return ", ".join(names[:MOST]) + (f", and {more} more" if more > 0 else "")
