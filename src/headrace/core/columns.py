"""What a handler takes of a block of rows, in place of the rows one by one."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple


class Form(Enum):
    """The form in which ``run_columns`` gets the rows of a block."""

    MATRIX = auto()
    """A mapping of column names to arrays of finite numbers, of lists of numbers to matrices: parts of one matrix."""
    ARRAYS = auto()
    """As ``MATRIX``; each array is the input of its name, and may hold texts as objects."""
    TEXTS = auto()
    """An array of the texts in the only column, as objects."""
    FRAME = auto()
    """A data frame, or an Arrow record batch whose numbers have 64 bits. Rows, as mappings, are examples as well."""


class Takes(NamedTuple):
    """What a handler declares, as its attribute ``takes``; one that has ``run_columns`` and declares nothing: this."""

    form: Form = Form.MATRIX
    missing: bool = False
    """Whether missing numbers may be NaN; else their rows are examples, one by one."""
    limits: Callable[[str], tuple[float, float]] | None = None
    """The least and the largest number that ``ARRAYS`` of a name may hold, whole ones if these are integers, and no
    texts. None: 32-bit floats, and texts."""
