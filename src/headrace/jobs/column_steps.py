"""The steps of a run in columns: reading, inference and writing of blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from headrace.jobs.block_parts import BlockPartWriter, DurableBlockPartWriter
from headrace.jobs.block_reading import has_blocks, paced, read_blocks
from headrace.jobs.blocks import Block, batching_over_blocks, over_blocks
from headrace.jobs.files import Source
from headrace.jobs.json_lines import NoJsonError
from headrace.jobs.output import Output
from headrace.jobs.resume import load_done
from headrace.jobs.row_ranges import RowRanges
from headrace.jobs.rows import fields_of
from headrace.jobs.steps import Read, RunSteps, WithLetters, WriteLetters, WriteSkipped, unwritten

if TYPE_CHECKING:
    from headrace.jobs.run import Job


def in_columns(job: Job, output: Output, names: tuple[str, ...]) -> RunSteps | None:
    """The steps, for a handler that ``takes_columns``; None where the columns ``names`` are not of numbers."""
    if not has_blocks(job.sources, job.numbers, names):
        return None
    resume = job.resume is not None
    return RunSteps(
        ReadBlocks(job.numbers, output.folder, names, resume=resume),
        over_blocks(job.handler, job.examples, job.reserved),
        batching_over_blocks(job.handler, job.batch_sizes),
        WriteBlocks(output.folder, job.keep, resume=resume),
        WriteBlockLetters(output.folder, resume=resume),
        WriteSkipped(output.folder, resume=resume),  # of which there are none: rows of columns cannot be skipped
    )


class ReadBlocks(Read):
    """Files to blocks of rows."""

    def __init__(self, numbers: Mapping[str, type], folder: str, names: tuple[str, ...], *, resume: bool) -> None:
        super().__init__(numbers, folder, resume=resume)
        self._names = names

    def rows(self, index: int, source: Source) -> Iterator[Any]:
        """Blocks."""
        if not self._resume:
            return read_blocks(source, index, self.numbers, self._names, RowRanges())
        return paced(read_blocks(source, index, self.numbers, self._names, load_done(self._folder)))


class WriteBlocks(WithLetters):
    """Writes blocks with their predictions."""

    def start_bundle(self) -> None:
        """Begins the parts."""
        super().start_bundle()
        writer = DurableBlockPartWriter if self._resume else BlockPartWriter
        self._part = writer(self._folder, self._keep)

    def process(self, result: Any) -> None:
        """Writes rows."""
        self._write(result.example, result.inference, result.model_id)

    def _write(self, block: Block, predictions: Any, model_id: str | None) -> None:
        """Writes rows; if that fails its halves, down to the rows that cannot be written."""
        try:
            self._part.write(block, predictions, model_id)
        except NoJsonError as error:
            middle = len(block) // 2
            if middle:
                self._write(block[:middle], predictions[:middle], model_id)
                self._write(block[middle:], predictions[middle:], model_id)
                return
            if isinstance(predictions, list):
                model_id = fields_of(predictions[0]).get("model_id")
            self._letters.write_row(block.rows()[0], unwritten(error, model_id), block.place)


class WriteBlockLetters(WriteLetters):
    """Writes dead letters of blocks, which fail as wholes where no search for the bad rows is made."""

    def process(self, letter: Any) -> None:
        """Writes a line for each row."""
        for place, row in enumerate(letter.element.rows(), self.place(letter.element)):
            self.write_row(row, letter, place)
