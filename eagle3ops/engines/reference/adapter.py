"""How is the reference engine started, and how does its log read?"""

import argparse
import re
import shlex
import sys
from typing import NoReturn

from eagle3ops.engines.base import LogFact, ServeSpec, speculation_flags
from eagle3ops.engines.reference.command_line import READY, parser
from eagle3ops.errors import RequestError

_DECODE = re.compile(
    r"Decode batch, #running-req: (?P<running>\d+).*?"
    r"(?:accept len: (?P<accept_len>[\d.]+).*?)?gen throughput \(token/s\): (?P<throughput>[\d.]+)"
)
_PHASE = re.compile(r"Phase: (?P<phase>.+)$")
_ERROR = re.compile(r"Error: (?P<message>.+)$")


_HELP = (
    "python -m eagle3ops.engines.reference --help shows what it takes; arguments of SGLang are for engine.name: sglang"
)


class Refusing(argparse.ArgumentParser):
    """Says what is wrong to its caller, where argparse would end the process."""

    def error(self, message: str) -> NoReturn:
        """Raises ValueError."""
        raise ValueError(message)


class ReferenceAdapter:
    """The engine of this package."""

    name = "reference"

    def require(self, spec: ServeSpec) -> None:
        """See `Adapter.require`: what cannot be served is said by the engine itself, from the target's config; here
        only what its command line does not take."""
        if not spec.arguments:
            return
        try:
            _, unknown = parser(Refusing).parse_known_args(self.argv(spec)[3:])
        except ValueError as error:
            raise RequestError(f"engine.arguments: the reference engine says: {error}", remedy=_HELP) from error
        if unknown:
            raise RequestError(f"engine.arguments: the reference engine knows no {unknown[0]}", remedy=_HELP)

    def environment(self, spec: ServeSpec) -> dict[str, str]:
        """See `Adapter.environment`."""
        return dict(spec.variables)

    def argv(self, spec: ServeSpec) -> list[str]:
        """See `Adapter.argv`."""
        argv = [
            sys.executable, "-m", "eagle3ops.engines.reference",
            "--model-path", str(spec.model),
            "--host", spec.host,
            "--port", str(spec.port),
            "--dtype", spec.dtype,
            "--device", spec.device,
            "--max-running-requests", str(spec.max_running_requests),
            "--random-seed", str(spec.seed),
        ]  # fmt: skip
        if spec.context_length is not None:
            argv += ["--context-length", str(spec.context_length)]
        if spec.return_hidden_states:
            argv.append("--enable-return-hidden-states")
        argv += speculation_flags(spec)
        if spec.aux_layers is not None:
            argv += ["--aux-layers", "boundary:" + ",".join(map(str, spec.aux_layers.ids("boundary")))]
        return [*argv, *spec.arguments]

    def parse_log(self, line: str) -> LogFact | None:
        """See `Adapter.parse_log`."""
        if READY in line:
            return LogFact("ready", {"url": line.split(READY, 1)[1].strip()})
        if found := _DECODE.search(line):
            data: dict[str, float | str] = {
                key: number for key, value in found.groupdict().items() if (number := _number(value)) is not None
            }
            return LogFact("decode", data) if data else None
        for kind, pattern in (("phase", _PHASE), ("error", _ERROR)):
            if found := pattern.search(line):
                return LogFact(kind, dict(found.groupdict()))
        return None

    def launch_line(self, spec: ServeSpec) -> str:
        """See `Adapter.launch_line`."""
        return shlex.join(["python", *self.argv(spec)[1:]])


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
