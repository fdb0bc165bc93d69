"""What has the engine done since it started? Numbers for /metrics and /server_info."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Written by the engine's thread only; readers may see numbers of two neighbouring moments."""

    requests: int = 0
    prompted: int = 0
    generated: int = 0
    passes: int = 0
    verify_steps: int = 0
    correct: int = 0
    proposed: int = 0
    throughput: float = 0.0

    def verified(self, correct: int, proposed: int) -> None:
        """One row's verification."""
        self.verify_steps += 1
        self.correct += correct
        self.proposed += proposed

    @property
    def accept_length(self) -> float | None:
        """Tokens a verification step, the bonus token included; None before the first."""
        return 1 + self.correct / self.verify_steps if self.verify_steps else None
