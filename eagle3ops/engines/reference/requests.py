"""What is a request to the reference engine, and what is known of it while it runs and when it ends?"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen and when to stop."""

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = -1
    ignore_eos: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    seed: int | None = None

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.temperature <= 0 or self.top_k == 1


@dataclass(slots=True)
class SpecStats:
    """Accept statistics of one request.

    `correct` counts accepted drafts, the bonus token not among them, so accept length = 1 + correct / verify steps.
    A step that is cut by a stop token or the token limit emits e tokens and counts e - 1 as correct: its last emitted
    token stands in the bonus's place. Thus completion tokens = 1 (from the prefill) + sum over steps of (1 + correct),
    exactly. (SGLang counts all drafts that were right in such a step, also those that it does not emit.)
    """

    verify_steps: int = 0
    correct: int = 0
    proposed: int = 0
    histogram: list[int] = field(default_factory=list)

    def add(self, correct: int, proposed: int) -> None:
        """One verification step."""
        self.verify_steps += 1
        self.correct += correct
        self.proposed += proposed
        self.histogram[correct] += 1


@dataclass(frozen=True, slots=True)
class Event:
    """News of a request: all tokens so far, and the end when there is one."""

    output_ids: list[int]
    finish: dict[str, Any] | None
    error: str | None = None


@dataclass(slots=True, eq=False)
class Request:
    """One prompt to be answered; lives from submission to its last event.

    Attributes:
        notify: called in the engine's thread; must return at once.
        cancelled: set by anyone; the request's row is free after the current step.
        stream: events after every step, not only at the end.
    """

    id: str
    prompt: list[int]
    sampling: SamplingParams
    notify: Callable[[Event], None]
    want_hidden: bool = False
    stream: bool = False
    cancelled: bool = False
    created: float = field(default_factory=time.monotonic)
    started: float = 0.0
    finished: float = 0.0
    output: list[int] = field(default_factory=list)
    finish: dict[str, Any] | None = None
    stats: SpecStats | None = None
    hidden: list[Tensor] = field(default_factory=list)
    # Of the engine alone:
    row: int = -1
    seen: int = 0
    generator: torch.Generator | None = None
    state: Tensor | None = None

    def accept(self, tokens: list[int], stops: frozenset[int]) -> int:
        """Append new tokens up to the stop token or the limit; returns how many were taken, and sets `finish`."""
        params = self.sampling
        for taken, token in enumerate(tokens, 1):
            self.output.append(token)
            if token in params.stop_token_ids or (token in stops and not params.ignore_eos):
                self.finish = {"type": "stop", "matched": token}
            elif len(self.output) >= params.max_new_tokens:
                self.finish = {"type": "length", "length": params.max_new_tokens}
            if self.finish is not None:
                return taken
        return len(tokens)
