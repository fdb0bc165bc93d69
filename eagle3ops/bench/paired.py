"""Is one setting really faster than its baseline? Ratios of paired, interleaved measurements with an interval."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

RESAMPLES = 2000


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
    generator = random.Random(seed)
    count = len(setting)
    resampled = []
    for _ in range(RESAMPLES):
        picks = generator.choices(range(count), k=count)
        resampled.append(throughput([setting[i] for i in picks]) / throughput([baseline[i] for i in picks]))
    resampled.sort()
    tail = (1.0 - confidence) / 2.0
    low = resampled[int(tail * RESAMPLES)]
    high = resampled[min(RESAMPLES - 1, int((1.0 - tail) * RESAMPLES))]
    return Ratio(throughput(setting) / throughput(baseline), low, high, count)
