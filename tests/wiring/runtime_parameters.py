"""Which parameters does an engine build for a drafter? Run by the Python of that engine; writes JSON, by class.

    PYTHON runtime_parameters.py sglang|vllm STORE CONFIG

The classes are built alone, on the CPU, in a world of one process, with attention itself left out where it wants a GPU.
"""

import json
import os
import sys
from typing import Any

os.environ |= {"SGLANG_USE_CPU_ENGINE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
ENGINE, STORE, GIVEN = sys.argv[1], f"file://{sys.argv[2]}", json.loads(sys.argv[3])


class Loose:
    """Has every attribute; those that nobody set are None."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def configured(kind: Any) -> Any:
    config = kind(**GIVEN)
    for key in ("draft_vocab_size", "fc_norm", "target_hidden_size", "rope_theta"):
        setattr(config, key, GIVEN[key])
    config.rope_parameters = {"rope_type": "default", "rope_theta": GIVEN["rope_theta"]}
    return config


def shapes(model: Any) -> dict[str, list[int]]:
    return {name: list(one.shape) for name, one in model.named_parameters()}


def of_sglang() -> dict[str, Any]:
    from sglang.srt import server_args  # type: ignore
    from sglang.srt.distributed import parallel_state  # type: ignore
    from sglang.srt.layers import dp_attention  # type: ignore
    from sglang.srt.models.kimi_k25_eagle3 import Eagle3DeepseekV2ForCausalLM  # type: ignore
    from sglang.srt.models.llama_eagle3 import LlamaForCausalLMEagle3  # type: ignore
    from transformers import DeepseekV3Config, LlamaConfig

    server_args._global_server_args = Loose()
    parallel_state.init_distributed_environment(
        world_size=1, rank=0, local_rank=0, backend="gloo", distributed_init_method=STORE
    )
    parallel_state.initialize_model_parallel()
    for name, value in (("SIZE", 1), ("RANK", 0)):
        setattr(dp_attention, f"_ATTN_TP_{name}", value)
        setattr(dp_attention, f"_ATTN_DP_{name}", value)
    dp_attention._ENABLE_DP_ATTENTION_FLAG = False
    return {
        "llama": shapes(LlamaForCausalLMEagle3(configured(LlamaConfig))),
        "latent": shapes(Eagle3DeepseekV2ForCausalLM(configured(DeepseekV3Config))),
    }


def of_vllm() -> dict[str, Any]:
    import torch
    from transformers import DeepseekV3Config, LlamaConfig, Qwen3Config
    from vllm.config import VllmConfig, set_current_vllm_config  # type: ignore
    from vllm.distributed import init_distributed_environment, initialize_model_parallel  # type: ignore
    from vllm.model_executor.models import deepseek_v2, llama, qwen3  # type: ignore
    from vllm.model_executor.models.deepseek_eagle3 import Eagle3DeepseekV2ForCausalLM  # type: ignore
    from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM  # type: ignore
    from vllm.model_executor.models.qwen3_eagle3 import Eagle3Qwen3ForCausalLM  # type: ignore

    class Nothing(torch.nn.Module):
        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__()

    llama.Attention = qwen3.Attention = deepseek_v2.MultiHeadLatentAttentionWrapper = Nothing
    found = {}
    for name, of, kind in (
        ("llama", Eagle3LlamaForCausalLM, LlamaConfig),
        ("qwen3", Eagle3Qwen3ForCausalLM, Qwen3Config),
        ("latent", Eagle3DeepseekV2ForCausalLM, DeepseekV3Config),
    ):
        engine, config = VllmConfig(), configured(kind)
        with set_current_vllm_config(engine):
            if not torch.distributed.is_initialized():
                init_distributed_environment(1, 0, STORE, 0, "gloo")
                initialize_model_parallel()
            drafter = Loose(hf_config=config, dtype=torch.float32)
            target = Loose(
                hf_config=config, dtype=torch.float32, get_total_num_hidden_layers=lambda: 4,
                get_vocab_size=lambda: GIVEN["vocab_size"], use_mla=name == "latent",
            )  # fmt: skip
            object.__setattr__(engine, "speculative_config", Loose(draft_model_config=drafter))
            object.__setattr__(engine, "model_config", target)
            found[name] = shapes(of(vllm_config=engine))
    return found


if __name__ == "__main__":
    told = of_sglang() if ENGINE == "sglang" else of_vllm()
    sys.stdout.write("\n" + json.dumps(told) + "\n")
