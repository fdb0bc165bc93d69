"""Does the engine compute what the drafter's trainer meant: norms, biases, tied heads, windows?"""

from eagle3ops.wiring.lint.case import AUTHOR, Case, whole

_SWITCHES = ("norm_before_residual", "norm_before_fc", "norm_output", "fc_norm", "use_aux_norm", "bias",
             "attention_bias", "mlp_bias", "tie_word_embeddings")  # fmt: skip


def switches(case: Case) -> None:
    """What changes the numbers without changing a shape."""
    config, engine = case.config, case.engine
    on = {name for name in _SWITCHES if config.get(name)}
    for name in _SWITCHES:
        if case.eagle.get(name) and name not in on and name != "norm_before_fc":
            case.error(
                "switch-not-read",
                f"config.json: eagle_config.{name}",
                "is on",
                f"{case.name} reads {name} at the top level only, and goes without it",
                f'write "{name}" at the top level',
            )
    fc_before = bool(case.eagle.get("norm_before_fc", config.get("norm_before_fc")))
    if engine == "reference":
        for name in sorted(on | ({"norm_before_fc"} if fc_before else set())):
            case.error(
                "switch-unsupported",
                f"config.json: {name}",
                "is on",
                "the reference engine has no such variant",
                "serve it with another engine",
            )
        return
    if fc_before and case.family == "latent":
        case.error(
            "fc-not-normed",
            "config.json: norm_before_fc",
            "is on",
            f"{case.name} has no such switch for a drafter with a compressed cache (MLA)",
            "train it without, or with fc_norm",
        )
    if engine == "sglang":
        if "norm_before_residual" in on:
            case.error(
                "residual-not-normed",
                "config.json: norm_before_residual",
                "is on",
                f"{case.name} has no such switch: it adds the state as it is, without a word",
                "serve it with vLLM, or train it without",
            )
        if fc_before and case.family != "latent" and case.older_than("0.5.23"):
            case.error(
                "fc-not-normed",
                "config.json: norm_before_fc",
                "is on",
                f"{case.name} is not known to have such a switch: 0.5.14 has none, 0.5.23 has it",
                "use SGLang 0.5.23, or train it without",
            )
        if config.get("tie_word_embeddings"):
            case.error(
                "head-tied",
                "config.json: tie_word_embeddings",
                "is on",
                f"{case.name} takes the embedding for lm_head, whatever lm_head.weight says",
                'write "tie_word_embeddings": false',
            )
        if whole(config.get("sliding_window")) is not None and config.get("use_sliding_window") is not False:
            case.warn(
                "window-not-read",
                "config.json: sliding_window",
                f"is {config['sliding_window']}",
                f"{case.name} does not read it: the drafter attends to everything",
                f"add --speculative-draft-window-size {config['sliding_window']}",
            )
    elif "use_aux_norm" in on and not config.get("fc_norm"):
        case.error(
            "aux-norm-not-read",
            "config.json: use_aux_norm",
            "is on",
            f"{case.name} reads fc_norm only",
            'write "fc_norm": true, and name the tensors fc_norm.0 to fc_norm.2',
        )
    if "norm_output" in on:
        case.warn(
            "norm-output",
            "config.json: norm_output",
            "is on",
            f"{case.name} then feeds the state AFTER the norm to the next step; SpecForge writes the same word and "
            "trains with the state before it, speculators with the state after it",
            AUTHOR,
        )
    if config.get("hidden_act", "silu") != "silu":
        case.error(
            "activation-unknown",
            "config.json: hidden_act",
            f"is {config['hidden_act']!r}",
            f"{case.name} computes silu and refuses others",
            "train it with silu",
        )
    case.flags = {
        "fc_norm": bool(config.get("fc_norm") or (engine == "sglang" and config.get("use_aux_norm"))),
        "norm_before_fc": fc_before,
        "fc_bias": bool(config.get("bias")) and engine == "sglang",
        "qkv_bias": bool(config.get("attention_bias")) and engine == "vllm",
        "output_bias": bool(config.get("attention_bias") or config.get("bias")) and case.family == "llama",
        "mlp_bias": bool(config.get("mlp_bias")) and engine == "vllm" and case.family == "llama",
    }
