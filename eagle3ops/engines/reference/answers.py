"""How does the reference engine put its answers into SGLang's and OpenAI's shapes?"""

import time
from typing import Any

from eagle3ops.engines.reference.counters import Counters
from eagle3ops.engines.reference.requests import Event, Request


def meta_info(request: Request, event: Event) -> dict[str, Any]:
    """`meta_info` of `/generate`; the accept statistics are there once the request has ended."""
    meta: dict[str, Any] = {
        "id": request.id,
        "finish_reason": event.finish,
        "prompt_tokens": len(request.prompt),
        "completion_tokens": len(event.output_ids),
        "cached_tokens": 0,
        "weight_version": "default",
        "queue_time": max(0.0, request.started - request.created),
    }
    if event.finish is None:
        return meta
    meta["e2e_latency"] = max(0.0, request.finished - request.created)
    stats = request.stats
    if stats is not None:
        steps = stats.verify_steps
        meta |= {
            "spec_verify_ct": steps,
            "spec_num_correct_drafts": stats.correct,
            "spec_num_proposed_drafts": stats.proposed,
            "spec_correct_drafts_histogram": stats.histogram,
            "spec_accept_length": 1 + stats.correct / steps if steps else 1.0,
            "spec_accept_rate": stats.correct / stats.proposed if stats.proposed else 0.0,
        }
    if request.want_hidden:
        # The prompt's rows come as one list of rows, every further token's row by itself, as SGLang sends them.
        meta["hidden_states"] = [rows.float().tolist() for rows in request.hidden]
    return meta


def generated(request: Request, event: Event, text: str) -> dict[str, Any]:
    """One object of `/generate`."""
    return {"text": text, "output_ids": event.output_ids, "meta_info": meta_info(request, event)}


def chat_answer(request: Request, event: Event, text: str, model: str, *, prompt_ids: bool = False) -> dict[str, Any]:
    """A `chat.completion`; `prompt_ids` adds the prompt's token ids to its choice."""
    return {
        "id": request.id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "logprobs": None,
                "finish_reason": finish_word(event),
                **({"prompt_token_ids": list(request.prompt)} if prompt_ids else {}),
            }
        ],
        "usage": usage(request, event),
    }


def chat_chunk(request: Request, model: str, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    """A `chat.completion.chunk`."""
    return {
        "id": request.id,
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
    }


def finish_word(event: Event) -> str | None:
    """OpenAI's word for the end."""
    return None if event.finish is None else str(event.finish["type"])


def usage(request: Request, event: Event) -> dict[str, int]:
    """Tokens in and out."""
    prompt, completion = len(request.prompt), len(event.output_ids)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def metrics(counters: Counters, running: int, waiting: int, model: str, settings: tuple[int, int] | None) -> str:
    """The Prometheus text of `/metrics`, under the names that SGLang uses for the same things.

    Args:
        settings: (steps, draft tokens) of the speculation, None without.
    """
    label = '{model_name="' + model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"}'
    values: list[tuple[str, str, float]] = [
        ("num_running_reqs", "gauge", running),
        ("num_queue_reqs", "gauge", waiting),
        ("num_requests_total", "counter", counters.requests),
        ("prompt_tokens_total", "counter", counters.prompted),
        ("generation_tokens_total", "counter", counters.generated),
        ("forward_passes_total", "counter", counters.passes),
        ("gen_throughput", "gauge", counters.throughput if running else 0.0),
    ]
    if settings is not None:
        values += [
            ("spec_verify_calls_total", "counter", counters.verify_steps),
            ("spec_correct_drafts_total", "counter", counters.correct),
            ("spec_proposed_drafts_total", "counter", counters.proposed),
            ("spec_accept_length", "gauge", counters.accept_length or 0.0),
            ("spec_accept_rate", "gauge", counters.correct / counters.proposed if counters.proposed else 0.0),
            ("spec_num_steps", "gauge", settings[0]),
            ("spec_num_draft_tokens", "gauge", settings[1]),
        ]
    return "".join(f"# TYPE sglang:{name} {kind}\nsglang:{name}{label} {value}\n" for name, kind, value in values)
