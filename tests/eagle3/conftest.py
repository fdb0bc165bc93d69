"""The toy target and drafter as fixtures."""

from collections.abc import Callable

import pytest
from toy_drafter import make_document, make_drafter, make_head, make_row

from eagle3ops.eagle3.drafter import Drafter
from eagle3ops.eagle3.packing import Document
from eagle3ops.eagle3.target_head import TargetHead
from eagle3ops.features import FeatureRow


@pytest.fixture
def head() -> TargetHead:
    return make_head()


@pytest.fixture
def head_of() -> Callable[..., TargetHead]:
    return make_head


@pytest.fixture
def drafter_of() -> Callable[..., Drafter]:
    return make_drafter


@pytest.fixture
def document_of() -> Callable[..., Document]:
    return make_document


@pytest.fixture
def row_of() -> Callable[..., FeatureRow]:
    return make_row
