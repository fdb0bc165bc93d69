"""Further loads of a benchmark in the room: the best setting of each, every server's arrivals, whatever the host says."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from eagle3ops.outputs.benchloads import parse_loads
from eagle3ops.screens.bench.loads import load_facts, load_lines
from eagle3ops.screens.widgets.glyphs import Glyphs

GLYPHS = Glyphs(ascii_only=False)
