"""What did the engine feed its drafter? The hidden states of an answer, as a tensor."""

import torch
from torch import Tensor

from eagle3ops.errors import Eagle3opsError


def prompt_states(hidden_states: object) -> Tensor:
    """The states of the prompt's tokens, float32 `[T, 3H]`.

    Args:
        hidden_states: `meta_info.hidden_states` as SGLang and the reference engine send it: first a list of T rows
            for the prompt, then one row for each further token.

    Raises:
        Eagle3opsError: there are none, or they are not T rows of numbers.
    """
    if not isinstance(hidden_states, list) or not hidden_states or not isinstance(hidden_states[0], list):
        raise Eagle3opsError(
            "the engine returned no hidden states", remedy="start it with --enable-return-hidden-states"
        )
    try:
        states = torch.tensor(hidden_states[0], dtype=torch.float32)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise Eagle3opsError(f"the engine's hidden states are not rows of numbers: {error}") from error
    if states.ndim != 2:
        raise Eagle3opsError(f"the engine's hidden states have the shape {list(states.shape)}, not [tokens, width]")
    return states
