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
        Eagle3opsError: there are none, they are not T rows of numbers, or some are NaN or infinite.
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
    _require_finite(states)
    return states


def answer_states(hidden_states: object) -> tuple[Tensor, Tensor]:
    """The states of the prompt's tokens `[T, 3H]`, and of the tokens that were decoded after it `[N, 3H]`.

    Args:
        hidden_states: as for `prompt_states`; an engine that speculates may send several rows in one item.

    Raises:
        Eagle3opsError: they are not rows of numbers, or of another width than the prompt's.
    """
    prompt = prompt_states(hidden_states)
    assert isinstance(hidden_states, list)
    rows: list[Tensor] = []
    for item in hidden_states[1:]:
        try:
            states = torch.tensor(item, dtype=torch.float32)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise Eagle3opsError(f"the engine's hidden states are not rows of numbers: {error}") from error
        if states.numel() == 0:
            continue
        if states.ndim not in (1, 2) or states.shape[-1] != prompt.shape[1]:
            raise Eagle3opsError(
                f"a decoded token's hidden states have the shape {list(states.shape)}, and the prompt's are "
                f"{prompt.shape[1]} wide"
            )
        rows.append(states.view(-1, prompt.shape[1]))
    decoded = torch.cat(rows) if rows else prompt.new_zeros(0, prompt.shape[1])
    _require_finite(decoded)
    return prompt, decoded


def _require_finite(states: Tensor) -> None:
    """What is no number compares as neither near nor far, and would pass as easily as it fails."""
    if torch.isfinite(states).all():
        return
    rows = (~torch.isfinite(states)).any(-1).nonzero().flatten().tolist()
    raise Eagle3opsError(
        f"the engine's hidden states of {len(rows)} of {states.shape[0]} tokens hold NaN or infinity, first of them "
        f"token {rows[0]}",
        remedy="serve in bfloat16 or float32; what overflows in the engine reaches the drafter as well",
    )
