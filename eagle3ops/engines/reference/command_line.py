"""What is the reference engine told when it is started, and what does it say when it is ready?"""

import argparse
from pathlib import Path

READY = "The reference engine is ready at "


def parser(kind: type[argparse.ArgumentParser] = argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The command line; names as SGLang's, where it has them."""
    p = kind(
        prog="python -m eagle3ops.engines.reference",
        description="Serves a target, with a drafter or without, greedily or sampled; for proofs rather than speed.",
    )
    p.add_argument("--model-path", type=Path, required=True)
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, required=True)
    p.add_argument("--dtype", choices=("auto", "bfloat16", "float32", "float16"), default="bfloat16")
    p.add_argument("--device", default="auto", help="auto, cpu or cuda")
    p.add_argument("--speculative-algorithm", choices=("EAGLE3",))
    p.add_argument("--speculative-draft-model-path", type=Path)
    p.add_argument("--speculative-num-steps", type=int, default=3)
    p.add_argument("--speculative-eagle-topk", type=int, default=1)
    p.add_argument("--speculative-num-draft-tokens", type=int, default=4)
    p.add_argument("--aux-layers", help="override the drafter's layer ids: CONVENTION:ID,ID,ID, as boundary:2,15,27")
    p.add_argument("--max-running-requests", type=int, default=32)
    p.add_argument("--context-length", type=int)
    p.add_argument("--enable-return-hidden-states", action="store_true")
    p.add_argument("--random-seed", type=int, default=0)
    return p
