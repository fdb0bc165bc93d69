"""Does the engine have the class that the drafter's config names, and can it load that config?"""

from eagle3ops.wiring.lint.case import FAMILIES, OTHER, SPECULATORS, Case


def architecture(case: Case) -> bool:
    """Whether the engine has this architecture, and its parameters are known here."""
    value = case.config.get("architectures")
    names = [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
    families = FAMILIES[case.engine]
    known = sorted(families)
    if not names:
        case.error(
            "architecture-missing",
            "config.json: architectures",
            "names no class",
            f"{case.name} looks the class up by it",
            f'write "architectures": ["{known[-1]}"]',
        )
        return False
    name = names[0]
    if name in families:
        case.family = families[name]
        return True
    if name in OTHER[case.engine]:
        case.warn(
            "architecture-unchecked",
            "config.json: architectures",
            f"{name} is known to {case.name}, and its tensors are not known here",
            "neither they nor sizes, switches and layer ids are checked",
            "hold it against a measurement: eagle3ops verify",
        )
    elif name in SPECULATORS or "transformer_layer_config" in case.config:
        case.error(
            "speculators-form",
            "config.json",
            f"{name} is the form of speculators, with a nested config",
            f"{case.name} does not read it",
            f"eagle3ops convert --to {case.engine if case.engine == 'vllm' else 'sglang'}",
        )
    else:
        case.error(
            "architecture-unknown",
            "config.json: architectures",
            f"{case.name} has no drafter class {name!r}",
            "it refuses to start, or loads it as something else",
            f"it has {', '.join(known)}; eagle3ops convert writes the right name, and turns ids that count otherwise",
        )
    return False


def model_type(case: Case) -> None:
    """Both engines load the config through transformers, which picks its class by `model_type`."""
    value = case.config.get("model_type")
    unfolded = case.config is not case.drafter.config
    if case.engine == "reference" or (isinstance(value, str) and value) or unfolded:
        return
    like = {"latent": "deepseek_v3"}.get(case.family, case.family)
    case.error(
        "model-type-missing",
        "config.json: model_type",
        "is missing" if value is None else f"is {value!r}"[:200],
        f"{case.name} cannot tell what config it is, and does not start",
        f'write "model_type": "{like}"',
    )
