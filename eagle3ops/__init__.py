"""eagle3ops: the operations console for EAGLE-3 speculative decoding."""

__version__ = "0.1.0"
