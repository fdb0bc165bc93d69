"""How is the reference engine started? `python -m eagle3ops.engines.reference --model-path DIR --port N`."""

import argparse
import asyncio
import dataclasses
import logging
import os
import signal
import sys
from pathlib import Path

from eagle3ops.eagle3.layers import CONVENTIONS, AuxLayers, Convention
from eagle3ops.engines.reference.command_line import READY, parser
from eagle3ops.errors import Eagle3opsError, ExitCode, RequestError

log = logging.getLogger("eagle3ops.engines.reference")


def parse_aux_layers(text: str, num_layers: int) -> AuxLayers:
    """`boundary:2,15,27` -> AuxLayers; a list without its convention is refused. Raises RequestError."""
    convention, colon, numbers = text.partition(":")
    if not colon or convention not in CONVENTIONS:
        raise RequestError(
            f"--aux-layers {text!r} does not say how its ids count",
            remedy="write CONVENTION:ID,ID,ID with one of: " + ", ".join(CONVENTIONS),
        )
    known: Convention = next(c for c in CONVENTIONS if c == convention)
    try:
        return AuxLayers.from_ids([int(k) for k in numbers.split(",")], known, num_layers)
    except ValueError as error:
        raise RequestError(f"--aux-layers {text!r}: {error}") from error


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code."""
    # Read by OpenMP when torch is imported, below. Threads that spin while they wait starve the thread they wait for
    # as soon as anything else wants a core: on two busy cores decoding fell from 20 to 1.4 tokens a second.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    logging.basicConfig(level=logging.INFO, format="[%(asctime)s] %(message)s", stream=sys.stderr, force=True)
    logging.getLogger("aiohttp").setLevel(logging.WARNING)
    args = parser().parse_args(argv)
    try:
        asyncio.run(_serve(args))
    except Eagle3opsError as error:
        log.error("Error: %s", error)
        return error.exit_code
    except OSError as error:
        log.error("Error: %s:%d: %s", args.host, args.port, error)
        return ExitCode.FAILED
    return ExitCode.DONE


async def _serve(args: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    # Loading holds the loop's thread, and nothing is served before it: until then SIGTERM ends the process at once.
    worker, runner = _build(args)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    from aiohttp import web

    await runner.setup()
    worker.start()
    try:
        await web.TCPSite(runner, args.host, args.port).start()
        log.info("%shttp://%s:%d", READY, args.host, args.port)
        await stop.wait()
        log.info("Phase: shutting down")
    finally:
        worker.stop()
        await runner.cleanup()


def _build(args: argparse.Namespace):  # type: ignore[no-untyped-def]  # its types need torch, imported inside
    log.info("Phase: importing torch")
    import torch
    from aiohttp import web

    from eagle3ops.eagle3.arithmetic import widen_products
    from eagle3ops.eagle3.checkpoint import load_drafter
    from eagle3ops.engines.reference.drafting import SpecSettings, Speculator
    from eagle3ops.engines.reference.engine import Engine
    from eagle3ops.engines.reference.model import Target, eos_ids, pick_device
    from eagle3ops.engines.reference.server import Server
    from eagle3ops.engines.reference.worker import Worker
    from eagle3ops.engines.tokenizer import ChatTokenizer

    if args.max_running_requests < 1:
        raise RequestError("--max-running-requests must be at least 1")
    dtype = torch.bfloat16 if args.dtype == "auto" else getattr(torch, args.dtype)
    device = pick_device(args.device)
    log.info("Phase: loading weights")
    target = Target.load(args.model_path, dtype, device)
    speculator = None
    if args.speculative_algorithm is not None:
        if args.speculative_draft_model_path is None:
            raise RequestError("--speculative-algorithm needs --speculative-draft-model-path")
        drafter = load_drafter(args.speculative_draft_model_path, target.config.num_layers, dtype, device)
        widen_products(drafter)
        if args.aux_layers is not None:
            aux = parse_aux_layers(args.aux_layers, target.config.num_layers)
            if len(aux.boundary) != len(drafter.config.aux_layers.boundary):
                raise RequestError(f"--aux-layers: the drafter reads {len(drafter.config.aux_layers.boundary)} layers")
            drafter.config = dataclasses.replace(drafter.config, aux_layers=aux)
        if drafter.config.target_hidden_size != target.config.hidden_size:
            raise RequestError(
                f"the drafter is made for a target of hidden size {drafter.config.target_hidden_size}, not "
                f"{target.config.hidden_size}"
            )
        if drafter.config.vocab_size != target.config.vocab_size:
            raise RequestError(
                f"the drafter is made for a vocabulary of {drafter.config.vocab_size}, not {target.config.vocab_size}"
            )
        settings = SpecSettings(
            args.speculative_num_steps, args.speculative_eagle_topk, args.speculative_num_draft_tokens
        )
        speculator = Speculator(drafter, target, settings, args.max_running_requests)
    engine = Engine(
        target,
        speculator=speculator,
        stops=eos_ids(args.model_path),
        max_running=args.max_running_requests,
        seed=args.random_seed,
    )
    tokenizer = None
    if any((args.model_path / name).exists() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        log.info("Phase: loading the tokenizer")
        tokenizer = ChatTokenizer(args.model_path)
    info = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    info |= {
        "served_model_name": str(args.model_path),
        "device": str(device),
        "torch_version": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "aux_boundaries": None if speculator is None else list(speculator.drafter.config.aux_layers.boundary),
        "vocab_size": target.config.vocab_size,
        "num_hidden_layers": target.config.num_layers,
    }
    limit = target.config.max_position_embeddings
    worker = Worker(engine)
    server = Server(
        worker,
        tokenizer,
        model=str(args.model_path),
        context=min(args.context_length or limit, limit),
        info=info,
        hidden=args.enable_return_hidden_states,
    )
    return worker, web.AppRunner(server.app(), handler_cancellation=True, access_log=None, shutdown_timeout=2.0)


if __name__ == "__main__":
    sys.exit(main())
