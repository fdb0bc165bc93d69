"""What does `eagle3ops layers` print? The tensors that an engine will really capture, by every numbering."""

from argparse import Namespace

from eagle3ops.commands.output import write, write_json
from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.errors import ExitCode, RequestError
from eagle3ops.wiring.captured import MOST_LAYERS, Captured, captured

MOST_IDS = 1000


def parse_ids(text: str) -> list[int]:
    """`2,30,58` -> the numbers; an empty text is an empty list.

    Raises:
        RequestError: it is no list of whole numbers.
    """
    try:
        found = [int(each) for each in text.replace(" ", "").split(",")] if text.strip() else []
    except ValueError as error:
        raise RequestError(
            f"--ids {text[:200]!r} is no list of layer numbers", remedy="such as --ids 2,30,58"
        ) from error
    if len(found) > MOST_IDS or any(abs(each) > MOST_LAYERS for each in found):
        raise RequestError(f"--ids: at most {MOST_IDS} numbers, none above {MOST_LAYERS}")
    return found


def layers(args: Namespace, *, json: bool) -> int:
    """Print them.

    Raises:
        RequestError: how that engine counts is not known, or the ids are none.
    """
    if args.runner is not None and args.engine.lower() != "vllm":
        raise RequestError("--runner means vLLM's model runner", remedy="leave it out")
    found = captured(
        args.engine,
        args.engine_version,
        args.model_class,
        args.num_layers,
        None if args.ids is None else parse_ids(args.ids),
        args.key_at,
        args.runner,
    )
    if json:
        write_json(found.as_json())
    else:
        _tell(found)
    return ExitCode.DONE


def _tell(found: Captured) -> None:
    numbers = found.as_json()
    for at, k in enumerate(found.boundary):
        hf = numbers["hf_hidden_states"][at]
        write(
            f"segment {at}: {AuxLayers.describe(k, found.num_layers)}; hf hidden_states "
            f"{'has none such' if hf is None else hf}; layer output {k - 1}"
        )
    for note in found.notes:
        write(f"  {note}")
