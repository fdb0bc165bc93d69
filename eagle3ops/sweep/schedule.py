"""What will a sweep come to? Server starts, waves of them, and requests, if nothing fails."""

from collections.abc import Mapping
from dataclasses import dataclass

from eagle3ops.sweep.halving import Halving
from eagle3ops.sweep.measurement import block_prompts


@dataclass(frozen=True, slots=True)
class Schedule:
    """A forecast."""

    field: tuple[int, ...]
    """Points at each rung."""
    starts: int
    """Servers that are started, the baselines among them."""
    waves: int
    """How often some are started side by side, one lane's after another."""
    requests: int
    """Timed requests, of points and baselines."""
    sequential_requests: float
    """Requests that one lane waits for one after another; c of them at once count as one."""
    lanes: int


def prompts_needed(halving: Halving, final_pairs: int, concurrency: int) -> int:
    """Held-out prompts that it takes for the final to be on prompts that had no part in choosing its point."""
    return (sum(halving.pairs(rung) for rung in range(halving.rungs)) + final_pairs) * block_prompts(concurrency)


def schedule(
    points: Mapping[int, int], settings: int, halving: Halving, *, final_pairs: int, lanes: int, room: int
) -> Schedule:
    """Forecast a sweep.

    Args:
        points: how many there are at each concurrency.
        settings: how many servers they need.
        halving: the rungs.
        final_pairs: of the last measurement, of three servers.
        lanes: parts of the machine that measure side by side.
        room: settings that may be up at once on a lane.
    """
    field = [0] * halving.rungs
    requests = sequential = 0.0
    for concurrency, count in points.items():
        each = block_prompts(concurrency)
        for rung, size in enumerate(halving.field_from(0, count)):
            field[rung] += size
            requests += 2 * size * halving.pairs(rung) * each
            sequential += 2 * size * halving.pairs(rung) * each / concurrency / lanes
        requests += 3 * final_pairs * each
        sequential += 3 * final_pairs * each / concurrency
    starts, waves = lanes, 0
    for rung, size in enumerate(field):
        # Those of a rung are up already where all that were left at the rung before had room at once.
        needed = min(size, settings)
        if rung == 0 or field[rung - 1] > lanes * room:
            starts += needed
            waves += -(-needed // (lanes * room))
    if settings > lanes * room:
        starts, waves = starts + 1, waves + 1
    return Schedule(tuple(field), starts, waves, int(requests), sequential, lanes)
