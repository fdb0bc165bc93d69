"""Can this SGLang serve what is asked? Found out before anything starts, with what to do where it cannot."""

from eagle3ops.engines.base import ServeSpec, on_gpu
from eagle3ops.engines.installed import interpreter, numbers
from eagle3ops.engines.sglang.installation import Installation, installation
from eagle3ops.errors import RequestError

OLDEST, BEFORE = (0, 5, 14), (0, 6)
"""Versions that may be known: this one or newer, and older than that one."""
READ: tuple[tuple[int, ...], ...] = ((0, 5, 14), (0, 5, 23))
"""Those whose source was read. Others between them are taken by what their own source says that they know."""
ON_CPU = (0, 5, 14)
"""The one version known to serve on a CPU as it is installed: later ones want kernels that no package on PyPI has."""

_INSTALL = "python3 -m venv /opt/sglang && /opt/sglang/bin/pip install sglang==0.5.14"


def check(spec: ServeSpec) -> Installation:
    """What would serve.

    Raises:
        RequestError: it cannot; with the reason and what to do.
    """
    path = interpreter(spec.python)
    here = installation(spec.python, spec.variables)
    if here is None:
        raise RequestError(
            f"engine sglang: not installed for {path}",
            remedy=f"install it ({_INSTALL}) and name that Python: engine.python: /opt/sglang/bin/python",
        )
    version, number = here.version, numbers(here.version)
    if not OLDEST <= number < BEFORE:
        raise RequestError(
            f"engine sglang: version {version} of {path} is not known to eagle3ops",
            remedy=f"use 0.5.14 or a later 0.5 ({_INSTALL}), and name its Python as engine.python",
        )
    speculates = spec.drafter is not None and not spec.return_hidden_states
    if on_gpu(spec.device):
        _on_gpu(here, spec, speculates)
    else:
        _on_cpu(here, spec, speculates)
    if spec.aux_layers is not None:
        raise RequestError(
            "engine sglang: it feeds the drafter the layers that the drafter's config names, and no others",
            remedy="leave stages.serve.aux_layers out, or set engine.name: reference",
        )
    return here


def _on_cpu(here: Installation, spec: ServeSpec, speculates: bool) -> None:
    version = here.version
    if numbers(version) != ON_CPU:
        raise RequestError(
            f"engine sglang: version {version} does not serve on a CPU as it is installed",
            remedy=f"use 0.5.14 there ({_INSTALL}), or a machine with a GPU",
        )
    if speculates:
        raise RequestError(
            f"engine sglang: {version} cannot speculate on a CPU: its EAGLE-3 workers launch Triton and CUDA kernels",
            remedy="run --job fetch, generate, extract and train one after the other; for stages with a drafter say "
            "engine.name: reference, or use a machine with a GPU",
        )
    if spec.nodes > 1:
        raise RequestError(
            "engine sglang: several nodes without GPUs are not supported", remedy="leave out engine.nodes"
        )


def _on_gpu(here: Installation, spec: ServeSpec, speculates: bool) -> None:
    if here.lacks_flashinfer:
        raise RequestError(
            f"engine sglang: {here.version} imports flashinfer on a GPU, and {here.python} has none",
            remedy=f"{here.python} -m pip install flashinfer-python",
        )
    if speculates and spec.temperature > 0 and here.flashinfer is None:
        raise RequestError(
            f"engine sglang: temperature {spec.temperature:g} with a drafter needs flashinfer, which "
            f"{here.no_flashinfer}: the first such request would end the server",
            remedy="ask greedily (temperature 0), install flashinfer, or serve without the drafter",
        )
    if spec.nodes > 1 and spec.coordinator is None:
        raise RequestError("engine sglang: several nodes need engine.nodes.coordinator", remedy="HOST:PORT of node 0")
