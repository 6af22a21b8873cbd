"""The steps of a run in columns: reading, inference and writing of blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from headrace.beam.job.block_output import BlockPartWriter
from headrace.beam.job.block_reading import has_blocks, read_blocks
from headrace.beam.job.blocks import batching_over_blocks, over_blocks
from headrace.beam.job.files import Source
from headrace.beam.job.output import Output
from headrace.beam.job.row_steps import Read, Way, WriteLetters, WriteParts

if TYPE_CHECKING:
    from headrace.beam.job.pipeline import Job


def in_columns(job: Job, output: Output, names: tuple[str, ...]) -> Way | None:
    """The steps, for a handler that ``takes_columns``; None where the columns ``names`` are not of numbers."""
    if not has_blocks(job.sources, job.numbers, names):
        return None
    return Way(
        ReadBlocks(job.numbers, output.folder, names),
        over_blocks(job.handler, job.examples),
        batching_over_blocks(job.handler, job.batch_sizes),
        WriteBlocks(output.folder, job.keep),
        WriteBlockLetters(output.folder, resume=False),
    )


class ReadBlocks(Read):
    """Files to blocks of rows."""

    def __init__(self, numbers: Mapping[str, type], folder: str, names: tuple[str, ...]) -> None:
        super().__init__(numbers, folder, resume=False)
        self._names = names

    def rows(self, index: int, source: Source) -> Iterator[Any]:
        """Blocks."""
        return read_blocks(source, index, self.numbers, self._names)


class WriteBlocks(WriteParts):
    """Writes blocks with their predictions."""

    def __init__(self, folder: str, keep: tuple[str, ...] | None) -> None:
        super().__init__(folder, resume=False)
        self._keep = keep

    def start_bundle(self) -> None:
        """Begins a part."""
        self._part = BlockPartWriter(self._folder, self._keep)

    def process(self, result: Any) -> None:
        """Writes rows."""
        self._part.write(result.example, result.inference, result.model_id)


class WriteBlockLetters(WriteLetters):
    """Writes dead letters of blocks, which fail as wholes where no search for the bad rows is made."""

    def process(self, letter: Any) -> None:
        """Writes a line for each row."""
        for row in letter.element.rows():
            self.write_row(row, letter)
