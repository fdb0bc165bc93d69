"""Small engines in the shapes that real ones have, written out below a folder. They are read, never imported."""

from pathlib import Path

VLLM = {
    "__init__.py": "",
    "_version.py": "version: str\n__version__ = version = '0.99.1'\n",
    "platforms/__init__.py": "current_platform = None\n",
    "model_executor/models/interfaces.py": """
from typing import ClassVar, Literal, Protocol, runtime_checkable

class SupportsEagleBase(Protocol):
    has_own_lm_head: bool = False

class EagleModelMixin:
    aux_hidden_state_layers: tuple[int, ...] = ()
    def _set_aux_hidden_state_layers(self, layers): ...
    def _maybe_add_hidden_state(self, aux, index, hidden_states, residual): ...

@runtime_checkable
class SupportsEagle3(SupportsEagleBase, Protocol):
    supports_eagle3: ClassVar[Literal[True]] = True
    def set_aux_hidden_state_layers(self, layers):
        'Set which layers should output.'
        holder = self.get_language_model().model if hasattr(self, "get_language_model") else self.model
        assert isinstance(holder, EagleModelMixin)
        holder._set_aux_hidden_state_layers(layers)
    def get_eagle3_default_aux_hidden_state_layers(self): ...

class SupportsMultiModal(Protocol):
    def get_language_model(self):
        for name in self._language_model_names:
            return getattr(self, name)
""",
    "model_executor/models/adapters.py": """
def _pooling(original):
    class ModelForPooling(original):
        pass
    return ModelForPooling

def as_embedding_model(cls):
    if is_pooling_model(cls):
        return cls
    class ModelForEmbedding(_pooling(cls)):
        pass
    return ModelForEmbedding
""",
    "model_executor/models/utils.py": """
def init_vllm_registered_model(vllm_config, *, prefix="", hf_config=None, architectures=None): ...

def initialize(config, *, model_class=None):
    if model_class is None:
        model_class = get_architecture(config)
    model = model_class(config)
    return model
""",
    "model_executor/models/llama.py": '''
import torch.nn as nn
from .interfaces import EagleModelMixin, SupportsEagle3
from .adapters import as_embedding_model

class LlamaModel(nn.Module, EagleModelMixin):
    def forward(self, hidden_states):
        aux = self._maybe_add_hidden_state([], 0, hidden_states, None)
        return hidden_states, aux

class LlamaForCausalLM(nn.Module, SupportsEagle3):
    def __init__(self, *, vllm_config, prefix="", layer_type=None):
        super().__init__()
        self.model = self._init_model(vllm_config)
    def _init_model(self, vllm_config):
        return LlamaModel(vllm_config)

class PhiModel(nn.Module):
    def forward(self, hidden_states):
        return hidden_states

class PhiForCausalLM(LlamaForCausalLM):
    """Inherits the flag; its decoder captures nothing."""
    def _init_model(self, vllm_config):
        return PhiModel(vllm_config)

LlamaEmbedding = LlamaForCausalLM
LlamaEmbedding = as_embedding_model(LlamaEmbedding)
''',
    "model_executor/models/deepseek.py": """
from torch import nn
from vllm.model_executor.models import interfaces
from vllm.model_executor.models.interfaces import EagleModelMixin as Mixin

class DeepseekModel(nn.Module, Mixin):
    def forward(self, x):
        self._maybe_add_hidden_state([], 0, x, None)

class DeepseekForCausalLM(nn.Module, interfaces.SupportsEagle3):
    model_cls = DeepseekModel
    def __init__(self, *, vllm_config):
        super().__init__()
        self.model = self.model_cls(vllm_config)
    def set_aux_hidden_state_layers(self, layers):
        self.model.aux_hidden_state_layers = layers
    def get_eagle3_aux_hidden_state_layers(self):
        return (1, 2, 3)

class DeepseekV3ForCausalLM(DeepseekForCausalLM):
    pass
""",
    "model_executor/models/wrappers.py": """
import torch.nn as nn
from .interfaces import SupportsEagle3, SupportsMultiModal
from .utils import init_vllm_registered_model, initialize
from .llama import LlamaForCausalLM

class KimiForConditionalGeneration(nn.Module, SupportsMultiModal, SupportsEagle3):
    def __init__(self, *, vllm_config):
        super().__init__()
        with self._mark_language_model(vllm_config):
            self.language_model = init_vllm_registered_model(vllm_config, architectures=["DeepseekV3ForCausalLM"])
    def set_aux_hidden_state_layers(self, layers):
        self.language_model.set_aux_hidden_state_layers(layers)

class OldForConditionalGeneration(nn.Module, SupportsMultiModal):
    def __init__(self, *, vllm_config):
        super().__init__()
        with self._mark_language_model(vllm_config):
            self.text = init_vllm_registered_model(vllm_config, architectures=["DeepseekForCausalLM"])

class AnyForConditionalGeneration(nn.Module, SupportsMultiModal, SupportsEagle3):
    def __init__(self, *, vllm_config):
        super().__init__()
        self.language_model = init_vllm_registered_model(vllm_config, hf_config=vllm_config.text_config)

class MarkedForConditionalGeneration(nn.Module, SupportsMultiModal, SupportsEagle3):
    def __init__(self, *, vllm_config):
        super().__init__()
        with self._mark_language_model(vllm_config):
            self.decoder = initialize(vllm_config, model_class=LlamaForCausalLM)

class BrokenForConditionalGeneration(nn.Module, SupportsMultiModal, SupportsEagle3):
    def __init__(self, *, vllm_config):
        super().__init__()
        self.language_model = init_vllm_registered_model(vllm_config, architectures=["PhiForCausalLM"])
    def get_language_model(self):
        return self.language_model

class StructuralForCausalLM(nn.Module):
    has_own_lm_head = False
    supports_eagle3 = True
    def __init__(self):
        super().__init__()
        self.inner = LlamaForCausalLM()
    def set_aux_hidden_state_layers(self, layers):
        self.inner.set_aux_hidden_state_layers(layers)
    def get_eagle3_default_aux_hidden_state_layers(self):
        return ()

class HalfForCausalLM(nn.Module):
    def set_aux_hidden_state_layers(self, layers): ...

class OddForCausalLM(make_base("at run time")):
    pass
""",
    "models/__init__.py": "",
    "models/split/__init__.py": """
from typing import TYPE_CHECKING
from vllm.platforms import current_platform
if TYPE_CHECKING or not current_platform.is_rocm():
    from .nvidia import SplitForCausalLM
else:
    from .amd import SplitForCausalLM
""",
    "models/split/nvidia.py": "from vllm.model_executor.models.llama import LlamaForCausalLM\n"
    "class SplitForCausalLM(LlamaForCausalLM): ...\n",
    "models/split/amd.py": "import torch.nn as nn\nclass SplitForCausalLM(nn.Module): ...\n",
    "models/lazy/__init__.py": """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from .nowhere import LazyForCausalLM
__all__ = ["LazyForCausalLM", "OtherForCausalLM"]
_MODULES = {"OtherForCausalLM": ".impl"}

def __getattr__(name):
    if name == "LazyForCausalLM":
        from vllm.platforms import current_platform
        if current_platform.is_xpu():
            raise NotImplementedError("CUDA only")
        from . import impl as found
        return found.LazyForCausalLM
    if name in __all__:
        import importlib
        return getattr(importlib.import_module(_MODULES[name], __name__), name)
    raise AttributeError(name)
""",
    "models/lazy/impl.py": "from ...model_executor.models.llama import *\n"
    "class LazyForCausalLM(LlamaForCausalLM): ...\n"
    "class OtherForCausalLM(LlamaModel): ...\n",
    "model_executor/models/registry.py": """
_TEXT = {
    "LlamaForCausalLM": ("llama", "LlamaForCausalLM"),
    "PhiForCausalLM": ("llama", "PhiForCausalLM"),
    "DeepseekForCausalLM": ("deepseek", "DeepseekForCausalLM"),
    "DeepseekV3ForCausalLM": ("deepseek", "DeepseekV3ForCausalLM"),
    "SplitForCausalLM": ("vllm.models.split", "SplitForCausalLM"),
    "LazyForCausalLM": ("vllm.models.lazy", "LazyForCausalLM"),
    "OtherForCausalLM": ("vllm.models.lazy", "OtherForCausalLM"),
    "StructuralForCausalLM": ("wrappers", "StructuralForCausalLM"),
    "HalfForCausalLM": ("wrappers", "HalfForCausalLM"),
    "OddForCausalLM": ("wrappers", "OddForCausalLM"),
    "GoneForCausalLM": ("nowhere", "GoneForCausalLM"),
    "NoSuchForCausalLM": ("wrappers", "NoSuchForCausalLM"),
}
_EMBEDDING = {"LlamaModel": ("llama", "LlamaEmbedding"), **{k: v for k, v in _TEXT.items()}}
_MULTIMODAL = {
    "KimiForConditionalGeneration": ("wrappers", "KimiForConditionalGeneration"),
    "OldForConditionalGeneration": ("wrappers", "OldForConditionalGeneration"),
    "AnyForConditionalGeneration": ("wrappers", "AnyForConditionalGeneration"),
    "MarkedForConditionalGeneration": ("wrappers", "MarkedForConditionalGeneration"),
    "BrokenForConditionalGeneration": ("wrappers", "BrokenForConditionalGeneration"),
}
_SPECULATIVE_DECODING_MODELS = {"EagleLlama": ("llama", "PhiForCausalLM")}
_VLLM_MODELS = {**_TEXT, **_EMBEDDING, **_MULTIMODAL, **_SPECULATIVE_DECODING_MODELS}
_PREVIOUSLY_SUPPORTED_MODELS = {"BloomyForCausalLM": "0.9.2"}
""",
}

SGLANG = {
    "__init__.py": "",
    "version.py": '__version__ = "0.98.0"\n',
    "srt/models/registry.py": "def import_model_classes(package_name): ...\n",
    "srt/models/llama.py": """
from typing import List, Optional
from torch import nn
from sglang.srt.utils import is_hip

class LlamaModel(nn.Module):
    def forward(self, hidden_states):
        for i in range(3):
            if i in self.layers_to_capture:
                aux_hidden_states.append(hidden_states)

class LlamaForCausalLM(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.model = self._init_model(config)
        self.logits_processor = LogitsProcessor(config)
    def _init_model(self, config):
        return LlamaModel(config)
    def forward(self, input_ids):
        hidden_states, aux_hidden_states = self.model(input_ids)
    def get_embed_and_head(self): ...
    def set_eagle3_layers_to_capture(self, layer_ids: Optional[List[int]] = None):
        self.capture_aux_hidden_states = True
        self.model.layers_to_capture = [val + 1 for val in layer_ids]

class PhiForCausalLM(LlamaForCausalLM):
    pass

class PlainModel(nn.Module):
    def forward(self, hidden_states): ...

class PlainForCausalLM(LlamaForCausalLM):
    def _init_model(self, config):
        return PlainModel(config)

class MarkedModel(nn.Module):
    def forward(self, hidden_states):
        for layer in self.layers:
            if getattr(layer, "_is_layer_to_capture", False):
                aux_hidden_states.append(hidden_states)

class MarkedForCausalLM(LlamaForCausalLM):
    # Its decoder looks at marks, and the setter that it inherits sets none.
    def _init_model(self, config):
        return MarkedModel(config)

class NothingForCausalLM(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.model = PlainModel(config)

EntryClass = [
    LlamaForCausalLM,
    MarkedForCausalLM,
    PhiForCausalLM,
    PlainForCausalLM,
    NothingForCausalLM,
]
""",
    "srt/models/wrap.py": '''
from torch import nn
from sglang.srt.models.llama import LlamaForCausalLM, NothingForCausalLM

class KimiForConditionalGeneration(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.language_model = None
        if not config.encoder_only:
            self.language_model = LlamaForCausalLM(config)
    def get_embed_and_head(self): ...
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        if self.language_model is None or not hasattr(self.language_model, "set_eagle3_layers_to_capture"):
            raise AttributeError("language_model does not support EAGLE3")
        self.language_model.set_eagle3_layers_to_capture(layer_ids)

class SilentForConditionalGeneration(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.language_model = NothingForCausalLM(config)
    def get_embed_and_head(self): ...
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        if hasattr(self.language_model, "set_eagle3_layers_to_capture"):
            self.language_model.set_eagle3_layers_to_capture(layer_ids)

class OuterForConditionalGeneration(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.language_model = LlamaForCausalLM(config)

class ChoiceForConditionalGeneration(nn.Module):
    def __init__(self, config, language_model_cls=NothingForCausalLM):
        super().__init__()
        self.model = language_model_cls(config)
    def get_embed_and_head(self): ...
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        self.model.set_eagle3_layers_to_capture(layer_ids)

class ChosenForConditionalGeneration(ChoiceForConditionalGeneration):
    def __init__(self, config):
        super().__init__(config, language_model_cls=LlamaForCausalLM)

class PlacedForConditionalGeneration(ChoiceForConditionalGeneration):
    def __init__(self, config, language_model_cls=LlamaForCausalLM):
        super().__init__(config, language_model_cls)

class UnsharedForCausalLM(nn.Module):
    """Has the setter, and not the other method that is called on a target."""
    def __init__(self, config):
        super().__init__()
        self.language_model = LlamaForCausalLM(config)
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        self.language_model.set_eagle3_layers_to_capture(layer_ids)

EntryClass = [KimiForConditionalGeneration, SilentForConditionalGeneration, OuterForConditionalGeneration,
              ChoiceForConditionalGeneration, ChosenForConditionalGeneration, PlacedForConditionalGeneration,
              UnsharedForCausalLM]
''',
    "srt/models/alias.py": "\ufefffrom sglang.srt.models.llama import PhiForCausalLM as Base\n"
    "class Renamed(Base): ...\nclass Renamed(Renamed): ...\nAlias = Renamed\nEntryClass = Alias\n",
    "srt/models/llama_eagle3.py": "from sglang.srt.models.llama import LlamaForCausalLM\n"
    "class LlamaForCausalLMEagle3(LlamaForCausalLM): ...\nEntryClass = LlamaForCausalLMEagle3\n",
    "srt/models/torn.py": "class TornForCausalLM(:\nEntryClass = TornForCausalLM\n",
}
ALL = {"vllm": VLLM, "sglang": SGLANG}


def write_tree(folder: Path, engine: str, files: dict[str, str] | None = None) -> Path:
    """Lay an engine out below a folder, as below `site-packages`."""
    for name, text in (ALL[engine] if files is None else files).items():
        file = folder / engine / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder
