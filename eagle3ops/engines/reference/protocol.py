"""What may a client ask for? Bodies of the HTTP API, checked before they come near the engine.

A wrong id or a wrong type ends here with a sentence for the client; inside a forward pass it would be an index error
in the middle of everybody's batch.
"""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from eagle3ops.engines.reference.requests import SamplingParams
from eagle3ops.errors import RequestError

_Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
_Finite = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Share = Annotated[float, Field(gt=0, le=1)]
_Ids = list[Annotated[int, Field(ge=0, le=2**31 - 1)]]
_Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]


class BadRequest(RequestError):
    """Status 400."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class SamplingBody(_Strict):
    """`sampling_params` of `/generate`, with SGLang's names and defaults."""

    max_new_tokens: _Count = 128
    temperature: _Finite = 1.0
    top_p: _Share = 1.0
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] = -1
    ignore_eos: bool = False
    stop_token_ids: _Ids | None = None
    sampling_seed: _Seed | None = None

    def params(self, offset: int = 0) -> SamplingParams:
        """`offset` sets the rows of one batch apart, which would else draw the same numbers."""
        return SamplingParams(
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            ignore_eos=self.ignore_eos,
            stop_token_ids=frozenset(self.stop_token_ids or ()),
            seed=None if self.sampling_seed is None else (self.sampling_seed + offset) % 2**63,
        )


class GenerateBody(_Strict):
    """Body of `/generate`."""

    text: str | list[str] | None = None
    input_ids: _Ids | list[_Ids] | None = None
    sampling_params: SamplingBody | list[SamplingBody] | None = None
    stream: bool = False
    return_hidden_states: bool = False
    rid: str | None = None


class ProfileBody(_Strict):
    """Body of `/start_profile`: what SGLang takes, as far as it is done."""

    output_dir: Annotated[str, Field(pattern=r"^/[^\x00]*$")]
    num_steps: Annotated[int, Field(ge=1, le=1000)]
    activities: Annotated[list[Literal["CPU", "GPU"]], Field(min_length=1)]
    with_stack: Literal[False] = False
    record_shapes: Literal[False] = False


class Message(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(strict=True, frozen=True)
    role: str
    content: str


class StreamOptions(_Strict):
    """`stream_options` of the OpenAI API."""

    include_usage: bool = False


class ChatBody(_Strict):
    """Body of `/v1/chat/completions`: the subset that is computed."""

    model: str = ""
    messages: Annotated[list[Message], Field(min_length=1)]
    temperature: _Finite = 1.0
    top_p: _Share = 1.0
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] = -1
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    n: Annotated[int, Field(ge=1, le=1)] = 1
    seed: _Seed | None = None
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_prompt_token_ids: bool = False
    """As SGLang has it: the answer says what the chat template made of the messages."""
    user: str | None = None

    def params(self, room: int) -> SamplingParams:
        """`room`: tokens left in the context, the default limit."""
        return SamplingParams(
            max_new_tokens=self.max_completion_tokens or self.max_tokens or max(1, room),
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            ignore_eos=self.ignore_eos,
            seed=None if self.seed is None else self.seed % 2**63,
        )


Body = TypeVar("Body", bound=BaseModel)


def parse(kind: type[Body], raw: object) -> Body:
    """Raises BadRequest with one line for each thing that is wrong."""
    if not isinstance(raw, dict):
        raise BadRequest("the body must be a JSON object")
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise BadRequest("; ".join(_explain(kind, item) for item in error.errors()[:8])) from error
    except RecursionError as error:
        raise BadRequest("the body is nested too deeply") from error


def _explain(kind: type[BaseModel], item: Any) -> str:
    where = ".".join(str(part) for part in item["loc"]) or "body"
    if item["type"] == "extra_forbidden":
        known = SamplingBody if "sampling_params" in item["loc"] else kind
        return f"{where}: unknown parameter; known are {', '.join(known.model_fields)}"
    return f"{where}: {item['msg']} (got {str(item['input'])[:60]!r})"


def prompts_of(body: GenerateBody) -> tuple[list[str] | list[list[int]], bool]:
    """The prompts as texts or ids, and whether the client sent one rather than a list; raises BadRequest."""
    if (body.text is None) == (body.input_ids is None):
        raise BadRequest("either text or input_ids must be given" + (", not both" if body.text is not None else ""))
    if body.text is not None:
        if isinstance(body.text, str):
            return [body.text], True
        if not body.text:
            raise BadRequest("text: the list is empty")
        return body.text, False
    ids = body.input_ids
    assert ids is not None
    if not ids:
        raise BadRequest("input_ids: the list is empty")
    if isinstance(ids[0], int):
        return [[k for k in ids if isinstance(k, int)]], True
    return [row for row in ids if isinstance(row, list)], False


def check_prompt(ids: list[int], params: SamplingParams, vocab_size: int, context: int) -> None:
    """Refuse what the model cannot compute; raises BadRequest."""
    if not ids:
        raise BadRequest("a prompt is empty")
    if (worst := max(ids)) >= vocab_size:
        raise BadRequest(f"token id {worst} is out of the vocabulary of {vocab_size}")
    if len(ids) + params.max_new_tokens > context:
        raise BadRequest(
            f"the prompt of {len(ids)} tokens and max_new_tokens {params.max_new_tokens} exceed the context of "
            f"{context} tokens"
        )
