"""What is the smallest model on which every stage can be tried? A random Llama of eight layers, made in a second.

Its weights are drawn large enough that every layer changes the hidden states visibly: a wiring check has to be able to
tell neighbouring layers apart. It has learnt nothing; accept lengths measured on it say nothing about real models.
"""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

from eagle3ops.prompts import bundled_prompts
from eagle3ops.targets.gguf_llama import write_tokenizer_config

LAYERS, HIDDEN, HEADS, KV_HEADS, INTERMEDIATE, VOCABULARY, CONTEXT = 8, 64, 4, 2, 128, 512, 2048
END = 2
BRANCH_GAIN = 0.7
"""How far attention and MLP move the hidden states from the embedding."""
END_GAIN = 2.0
"""Makes the end token likelier than the others, so that some answers end by themselves."""
_SEED = 20240731
_SPECIAL = ("<|pad|>", "<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_tiny(folder: Path) -> None:
    """Write the model into `folder`: the same bytes every time."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": END,
        "pad_token_id": 0,
        "head_dim": HIDDEN // HEADS,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "initializer_range": 0.02,
        "intermediate_size": INTERMEDIATE,
        "max_position_embeddings": CONTEXT,
        "mlp_bias": False,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": VOCABULARY,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")
    _write_weights(folder)
    _write_tokenizer(folder)


def _write_weights(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(_SEED)

    def drawn(rows: int, columns: int, gain: float) -> torch.Tensor:
        scale = float(gain * columns**-0.5)
        return (torch.randn(rows, columns, generator=generator) * scale).to(torch.bfloat16)

    width = HIDDEN // HEADS
    tensors = {"model.embed_tokens.weight": drawn(VOCABULARY, HIDDEN, HIDDEN**0.5)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        tensors |= {
            f"{prefix}self_attn.q_proj.weight": drawn(HEADS * width, HIDDEN, 1.5),
            f"{prefix}self_attn.k_proj.weight": drawn(KV_HEADS * width, HIDDEN, 1.5),
            f"{prefix}self_attn.v_proj.weight": drawn(KV_HEADS * width, HIDDEN, 1.0),
            f"{prefix}self_attn.o_proj.weight": drawn(HIDDEN, HEADS * width, BRANCH_GAIN),
            f"{prefix}mlp.gate_proj.weight": drawn(INTERMEDIATE, HIDDEN, 1.0),
            f"{prefix}mlp.up_proj.weight": drawn(INTERMEDIATE, HIDDEN, 1.0),
            f"{prefix}mlp.down_proj.weight": drawn(HIDDEN, INTERMEDIATE, BRANCH_GAIN),
            f"{prefix}input_layernorm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16),
            f"{prefix}post_attention_layernorm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16),
        }
    tensors["model.norm.weight"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
    # The likeliest next token is mostly a fixed successor of the last one, and at times the context overrules it:
    # something that a drafter can learn in seconds, and not all of it.
    successors = torch.randperm(VOCABULARY, generator=generator)
    head = tensors["model.embed_tokens.weight"][successors].float() * 3.0 * HIDDEN**-0.5
    head[END] *= END_GAIN
    tensors["lm_head.weight"] = head.to(torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _write_tokenizer(folder: Path) -> None:
    """A byte-level BPE over the bundled prompts."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words: Counter[str] = Counter()
    for prompt in bundled_prompts(0):
        words.update(word for word, _ in splitter.pre_tokenize_str(prompt.messages[-1]["content"]))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = learn_merges(words, VOCABULARY - len(alphabet) - len(_SPECIAL))
    tokens = [*_SPECIAL, *alphabet, *("".join(merge) for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={token: k for k, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    pad, bos, eos = _SPECIAL
    write_tokenizer_config(folder, bos=bos, eos=eos, pad=pad, unk=None, context=CONTEXT, template=_TEMPLATE)


def learn_merges(words: Counter[str], count: int) -> list[tuple[str, str]]:
    """The `count` most frequent pairs, one merge after the other (Sennrich et al., 2016); ties go by the alphabet.

    Our own few lines: a trainer's order of ties is its own affair, and this must be the same everywhere and for good.
    """
    pieces = {word: list(word) for word in words}
    merges: list[tuple[str, str]] = []
    made: set[str] = set()
    while len(merges) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in pieces.items():
            for pair in pairwise(parts):
                pairs[pair] += words[word]
        best = min(((-total, pair) for pair, total in pairs.items() if "".join(pair) not in made), default=None)
        if best is None:
            raise ValueError(f"the text has no more than {len(merges)} pairs to merge")
        left, right = best[1]
        merges.append((left, right))
        made.add(left + right)
        for parts in pieces.values():
            at = 0
            while at < len(parts) - 1:
                if parts[at] == left and parts[at + 1] == right:
                    parts[at : at + 2] = [left + right]
                at += 1
    return merges
