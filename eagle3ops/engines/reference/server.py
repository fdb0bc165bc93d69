"""How is the reference engine asked over HTTP? SGLang's native API and OpenAI's chat, as far as the jobs use them."""

import json
import logging
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import torch
from aiohttp import web

from eagle3ops.engines.reference import answers
from eagle3ops.engines.reference.protocol import (
    BadRequest,
    ChatBody,
    GenerateBody,
    ProfileBody,
    SamplingBody,
    check_prompt,
    parse,
    prompts_of,
)
from eagle3ops.engines.reference.requests import Event, SamplingParams
from eagle3ops.engines.reference.worker import ProfileRequest, Ticket, Worker
from eagle3ops.engines.tokenizer import ChatTokenizer, TokenizerError

log = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_BODY_LIMIT = 64 * 2**20


class EngineFailed(Exception):
    """The engine broke while it answered; status 500."""


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every refusal as JSON with a sentence in it."""
    try:
        return await handler(request)
    except BadRequest as error:
        return _error(400, str(error))
    except EngineFailed as error:
        return _error(500, str(error))
    except web.HTTPException as error:
        return _error(error.status, f"{request.method} {request.path}: {error.reason}")


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "code": status}}, status=status)


class Server:
    """The routes over one worker.

    Args:
        model: the name the model answers to.
        context: longest prompt and answer together, in tokens.
        info: how the server was started, for `/server_info`.
        hidden: whether `return_hidden_states` is allowed.
    """

    def __init__(
        self,
        worker: Worker,
        tokenizer: ChatTokenizer | None,
        *,
        model: str,
        context: int,
        info: dict[str, Any],
        hidden: bool,
    ) -> None:
        self.worker = worker
        self.tokenizer = tokenizer
        self.model = model
        self.context = context
        self.info = info
        self.hidden = hidden

    def app(self) -> web.Application:
        """The application, to be run by the caller."""
        app = web.Application(middlewares=[_errors], client_max_size=_BODY_LIMIT)
        app.add_routes(
            [
                web.post("/generate", self.generate),
                web.get("/health", self.health),
                web.get("/health_generate", self.health_generate),
                web.get("/model_info", self.model_info),
                web.get("/get_model_info", self.model_info),
                web.get("/server_info", self.server_info),
                web.get("/get_server_info", self.server_info),
                web.get("/metrics", self.metrics),
                web.post("/start_profile", self.start_profile),
                web.get("/v1/models", self.models),
                web.post("/v1/chat/completions", self.chat),
            ]
        )
        return app

    # -- native API

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """POST /generate."""
        body = parse(GenerateBody, await _json(request))
        raw, single = prompts_of(body)
        prompts = [self._encode(p) if isinstance(p, str) else p for p in raw]
        given = body.sampling_params if body.sampling_params is not None else SamplingBody()
        bodies = given if isinstance(given, list) else [given] * len(prompts)
        if len(bodies) != len(prompts):
            raise BadRequest(f"sampling_params: {len(bodies)} for {len(prompts)} prompts")
        sampling = [one.params(k) for k, one in enumerate(bodies)]
        if body.return_hidden_states and not self.hidden:
            raise BadRequest("this server does not return hidden states; start it with --enable-return-hidden-states")
        self._check(prompts, sampling)
        names = [uuid.uuid4().hex for _ in prompts]
        if body.rid is not None and single:
            names = [body.rid]
        stream = body.stream
        with self.worker.submitted(
            prompts, sampling, names, hidden=body.return_hidden_states, stream=stream
        ) as tickets:
            if stream:
                if not single:
                    raise BadRequest("stream: only a single prompt can be streamed")
                return await self._stream_generate(request, tickets[0])
            done = [answers.generated(t.request, event, self._decode(event)) for t in tickets
                    for event in [await _ended(t)]]  # fmt: skip
        return web.json_response(done[0] if single else done)

    async def _stream_generate(self, request: web.Request, ticket: Ticket) -> web.StreamResponse:
        response = await _sse(request)
        async for event in ticket.events():
            if event.error is not None:
                await _send(response, {"error": {"message": event.error, "code": 500}})
            else:
                await _send(response, answers.generated(ticket.request, event, self._decode(event)))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def health(self, _request: web.Request) -> web.Response:
        """GET /health: the engine's thread lives."""
        return web.Response(status=200 if self.worker.alive else 503)

    async def health_generate(self, _request: web.Request) -> web.Response:
        """GET /health_generate: one token comes out of the engine."""
        params = SamplingParams(max_new_tokens=1, temperature=0.0)
        with self.worker.submitted([[0]], [params], [uuid.uuid4().hex]) as tickets:
            await _ended(tickets[0])
        return web.Response()

    async def model_info(self, _request: web.Request) -> web.Response:
        """GET /model_info."""
        config = self.worker.engine.target.config
        return web.json_response(
            {
                "model_path": self.model,
                "tokenizer_path": self.model,
                "is_generation": True,
                "weight_version": "default",
                "model_type": config.model_type,
                "architectures": ["LlamaForCausalLM"],
            }
        )

    async def server_info(self, _request: web.Request) -> web.Response:
        """GET /server_info: how it was started, and `internal_states`."""
        engine = self.worker.engine
        state: dict[str, Any] = {
            "last_gen_throughput": engine.counters.throughput,
            "memory_usage": {"kvcache": engine.cache.nbytes / 1e9},
            "num_running_reqs": engine.at_work,
            "num_queue_reqs": len(engine.waiting),
        }
        if engine.speculator is not None:
            state["avg_spec_accept_length"] = engine.counters.accept_length
        return web.json_response({**self.info, "internal_states": [state]})

    async def metrics(self, _request: web.Request) -> web.Response:
        """GET /metrics, for Prometheus."""
        engine = self.worker.engine
        settings = None if engine.speculator is None else engine.speculator.settings
        shape = None if settings is None else (settings.steps, settings.draft_tokens)
        text = answers.metrics(engine.counters, engine.at_work, len(engine.waiting), self.model, shape)
        return web.Response(text=text, content_type="text/plain")

    async def start_profile(self, request: web.Request) -> web.Response:
        """POST /start_profile: write a trace of the next steps, as SGLang does."""
        body = parse(ProfileBody, await _json(request))
        activity = torch.profiler.ProfilerActivity
        known = {"CPU": activity.CPU, "GPU": activity.CUDA}
        self.worker.profile(
            ProfileRequest(Path(body.output_dir), body.num_steps, tuple(known[name] for name in body.activities))
        )
        return web.Response(text="Start profiling.\n")

    # -- OpenAI API

    async def models(self, _request: web.Request) -> web.Response:
        """GET /v1/models."""
        entry = {"id": self.model, "object": "model", "owned_by": "eagle3ops", "max_model_len": self.context}
        return web.json_response({"object": "list", "data": [entry]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        body = parse(ChatBody, await _json(request))
        if self.tokenizer is None:
            raise BadRequest("this model has no tokenizer; ask /generate with input_ids")
        try:
            ids = self.tokenizer.encode_chat([{"role": m.role, "content": m.content} for m in body.messages])
        except TokenizerError as error:
            raise BadRequest(str(error)) from error
        params = body.params(self.context - len(ids))
        self._check([ids], [params])
        model = body.model or self.model
        with self.worker.submitted([ids], [params], ["chatcmpl-" + uuid.uuid4().hex], stream=body.stream) as (ticket,):
            if body.stream:
                usage = body.stream_options is not None and body.stream_options.include_usage
                return await self._stream_chat(request, ticket, model, usage)
            event = await _ended(ticket)
            text, told = self._decode(event), body.return_prompt_token_ids
            return web.json_response(answers.chat_answer(ticket.request, event, text, model, prompt_ids=told))

    async def _stream_chat(self, request: web.Request, ticket: Ticket, model: str, usage: bool) -> web.StreamResponse:
        response = await _sse(request)
        await _send(response, answers.chat_chunk(ticket.request, model, {"role": "assistant", "content": ""}))
        sent = ""
        async for event in ticket.events():
            if event.error is not None:
                await _send(response, {"error": {"message": event.error, "code": 500}})
                break
            text = self._decode(event)
            if event.finish is None:
                # A character whose bytes are not all there yet shows as U+FFFD; it waits for the next token.
                text = text.rstrip("\ufffd")
            if len(text) > len(sent):
                await _send(response, answers.chat_chunk(ticket.request, model, {"content": text[len(sent) :]}))
                sent = text
            if event.finish is not None:
                await _send(response, answers.chat_chunk(ticket.request, model, {}, answers.finish_word(event)))
                if usage:
                    last = answers.chat_chunk(ticket.request, model, {})
                    await _send(response, {**last, "choices": [], "usage": answers.usage(ticket.request, event)})
        await response.write(b"data: [DONE]\n\n")
        return response

    # -- helpers

    def _encode(self, text: str) -> list[int]:
        if self.tokenizer is None:
            raise BadRequest("this model has no tokenizer; send input_ids")
        return self.tokenizer.encode(text)

    def _decode(self, event: Event) -> str:
        return "" if self.tokenizer is None else self.tokenizer.decode(event.output_ids)

    def _check(self, prompts: list[list[int]], sampling: list[SamplingParams]) -> None:
        for ids, params in zip(prompts, sampling, strict=True):
            check_prompt(ids, params, self.worker.engine.target.config.vocab_size, self.context)


async def _json(request: web.Request) -> object:
    try:
        return json.loads(await request.read())
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from error


async def _ended(ticket: Ticket) -> Event:
    event = await ticket.last()
    if event.error is not None:
        raise EngineFailed(f"the engine failed while it answered: {event.error}")
    return event


async def _sse(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    return response


async def _send(response: web.StreamResponse, item: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(item).encode() + b"\n\n")
