"""Is one setting really faster than its baseline? Ratios of paired, interleaved measurements with an interval."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

RESAMPLES = 2000
UNKNOWN = 1e5
"""Upper end of an interval of which nothing is known."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One request: tokens that came back and the seconds it took."""

    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """Throughput of a setting over its baseline's, with a bootstrap interval over the pairs."""

    value: float
    low: float
    high: float
    pairs: int

    @property
    def beyond_noise(self) -> bool:
        """The whole interval lies above 1."""
        return self.low > 1.0


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float
    samples: int


def throughput(samples: Sequence[Sample]) -> float:
    """Tokens per second over all samples."""
    seconds = sum(sample.seconds for sample in samples)
    return sum(sample.tokens for sample in samples) / seconds if seconds > 0 else 0.0


def ratio(setting: Sequence[Sample], baseline: Sequence[Sample], *, confidence: float = 0.95, seed: int = 0) -> Ratio:
    """Throughput ratio of paired samples and its percentile bootstrap interval (Efron, 1979), resampling pairs.

    Args:
        setting: samples of the setting, one per prompt and repetition.
        baseline: samples of the baseline for the same prompts, measured in turn with it.

    Raises:
        ValueError: the two are not paired, or there are none.
    """
    if len(setting) != len(baseline) or not setting:
        raise ValueError(f"paired samples are needed, got {len(setting)} and {len(baseline)}")
    count = len(setting)

    def of(picks: Sequence[int]) -> float:
        return _over(throughput([setting[i] for i in picks]), throughput([baseline[i] for i in picks]))

    if count == 1:
        # One pair says nothing about noise.
        return Ratio(of(range(1)), 0.0, UNKNOWN, 1)
    low, high = bootstrap(of, count, confidence=confidence, seed=seed)
    return Ratio(of(range(count)), low, high, count)


def throughput_interval(samples: Sequence[Sample], *, confidence: float = 0.95, seed: int = 0) -> Interval:
    """Tokens per second over all samples, with a percentile bootstrap interval over them.

    Raises:
        ValueError: there are none.
    """
    if not samples:
        raise ValueError("a throughput needs samples")
    low, high = bootstrap(lambda picks: throughput([samples[i] for i in picks]), len(samples), confidence, seed)
    return Interval(throughput(samples), low, high, len(samples))


def bootstrap(
    of: Callable[[Sequence[int]], float], count: int, confidence: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval (Efron, 1979) of a figure over `count` samples, drawn by index with replacement."""
    generator = random.Random(seed)
    resampled = sorted(of(generator.choices(range(count), k=count)) for _ in range(RESAMPLES))
    tail = (1.0 - confidence) / 2.0
    return resampled[int(tail * RESAMPLES)], resampled[min(RESAMPLES - 1, int((1.0 - tail) * RESAMPLES))]


def _over(one: float, other: float) -> float:
    return one / other if other > 0 else 0.0
