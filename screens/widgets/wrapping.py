"""How is a text broken into lines of a given width?"""

from rich.cells import cell_len


def wrapped(text: str, width: int, *, indent: int = 0, most: int = 99) -> list[str]:
    """The text in pieces of at most `width` cells, broken at blanks where there are some."""
    lines: list[str] = []
    left, room = " " * indent, max(8, width)
    line = ""
    for piece in text.split(" "):
        while cell_len(piece) > room - indent:
            head = _front(piece, room - max(cell_len(line) + 1, indent) if line else room - indent)
            if head and line:
                line, piece = f"{line} {head}", piece[len(head) :]
            elif head:
                line, piece = left * bool(lines) + head, piece[len(head) :]
            lines.append(line)
            line = ""
        joined = f"{line} {piece}" if line else left * bool(lines) + piece
        if cell_len(joined) > room and line:
            lines.append(line)
            joined = left + piece
        line = joined
    lines.append(line)
    if len(lines) > most:
        lines = [*lines[: most - 1], f"{_front(lines[most - 1], room - 4).rstrip()} ..."]
    return lines


def _front(text: str, width: int) -> str:
    """As much of the front as `width` cells hold."""
    used = 0
    for at, character in enumerate(text):
        used += cell_len(character)
        if used > width:
            return text[:at]
    return text
