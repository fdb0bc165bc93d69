"""Inside vLLM, by its own `--worker-extension-cls`: hand over what its drafter is given.

The server speculates with a drafter made from the drafter's config, so what reaches the drafter's `propose` is what
this version of the engine, with the model runner it chose, really captures for this class of target. The drafter's
weights change nothing of that and are not loaded.
"""

import inspect
from typing import Any


class Capture:
    """Joins the bases of vLLM's worker class; its methods are called by name over `/collective_rpc`."""

    model_runner: Any

    def eagle3ops_watch(self) -> dict[str, str] | None:
        """From now on keep what the drafter is given; says who runs the model, or None where there is no drafter."""
        # `drafter` belongs to the first model runner, `speculator` to V2.
        drafter = getattr(self.model_runner, "drafter", None) or getattr(self.model_runner, "speculator", None)
        if drafter is None:
            return None
        if getattr(self, "_eagle3ops_pieces", None) is None:
            self._eagle3ops_pieces: list[tuple[Any, Any]] = []
            inner = drafter.propose
            signature = inspect.signature(inner)

            def propose(*args: Any, **kwargs: Any) -> Any:
                given = signature.bind(*args, **kwargs).arguments
                if not given.get("dummy_run"):
                    self._eagle3ops_pieces.append(_given(given))
                return inner(*args, **kwargs)

            drafter.propose = propose
        return {"runner": type(self.model_runner).__module__, "drafter": type(drafter).__name__}

    def eagle3ops_captured(self) -> list[list[Any]] | None:
        """What it was given since the last time: token ids and rows of states, call by call."""
        pieces = getattr(self, "_eagle3ops_pieces", None)
        if pieces is None:
            return None
        found = [[ids.tolist(), states.float().tolist()] for ids, states in pieces]
        pieces.clear()
        return found


def _given(arguments: dict[str, Any]) -> tuple[Any, Any]:
    """Token ids `[T]` and states `[T, A * H]` beside them, copied: the engine uses its buffers again."""
    import torch  # type: ignore[import-not-found,unused-ignore]

    if "target_hidden_states" in arguments:
        ids, states = arguments["target_token_ids"], arguments["target_hidden_states"]
    else:
        batch, aux = arguments["input_batch"], arguments["aux_hidden_states"]
        ids = batch.input_ids[: batch.num_tokens]
        states = torch.cat(aux, dim=-1) if aux else arguments["last_hidden_states"]
        states = states[: batch.num_tokens]
    return ids.to("cpu", copy=True), states.detach().to("cpu", copy=True)
