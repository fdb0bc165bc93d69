"""Do the pictures of the documentation show the screen, without what belongs to the machine that they are made on?"""

import asyncio
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pictures
import pytest
from rich.segment import Segment
from rich.style import Style
from stage import DONE, canned_root
from svg import svg

from eagle3ops.errors import RequestError
from eagle3ops.screens.rooms import ROOMS

NAMESPACE = "{http://www.w3.org/2000/svg}"


async def test_a_picture_of_a_run(tmp_path: Path) -> None:
    root, out = canned_root(tmp_path), tmp_path / "out"
    out.mkdir()
    wanted = [picture for picture in pictures.pictures() if picture.name == "overview"]
    samples = pictures._samples(pictures.RECORDING)
    assert len(samples) > 100
    await pictures.take(root, DONE, samples, wanted, out)
    text = await asyncio.to_thread((out / "overview.svg").read_text, encoding="utf-8")
    assert len(text) < pictures.MOST_BYTES
    assert str(tmp_path) not in text
    assert str(Path.home()) not in re.sub("base64,[^)]*", "", text)
    assert "http" not in text.replace("http://www.w3.org/2000/svg", ""), "a picture loads nothing"
    written = [element.text or "" for element in ElementTree.fromstring(text).iter(f"{NAMESPACE}text")]
    assert any("tiny" in one for one in written)


def test_every_room_has_one() -> None:
    names = [picture.name for picture in pictures.pictures()]
    assert set(names) > {entry.name for entry in ROOMS}
    assert len(names) == len(set(names))


def test_no_run_no_picture(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no run that has ended"):
        pictures._find(tmp_path, "last")


def test_text_keeps_its_place_and_grounds_are_joined() -> None:
    blue, bold = Style.parse("white on blue"), Style.parse("bold red on blue")
    rows = [[Segment("  a <b>", blue), Segment("  ", bold), Segment("& ", bold)], [Segment(" " * 11, blue)]]
    text = svg(rows, 11, "<t>", "#000000")
    assert text == svg(rows, 11, "<t>", "#000000")
    tree = ElementTree.fromstring(text)
    first, second = tree.iter(f"{NAMESPACE}text")
    assert (first.text, second.text) == ("a <b>", "&")
    assert float(first.get("x", "")) < float(second.get("x", ""))
    grounds = [one for one in tree.iter(f"{NAMESPACE}rect") if one.get("y") is not None]
    assert len(grounds) == 3
