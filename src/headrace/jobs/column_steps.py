"""The steps of a columnar run: reading, inference and writing of row blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from headrace.jobs.block_parts import BlockPartWriter, DurableBlockPartWriter
from headrace.jobs.block_reading import cut_by_time, has_blocks, read_blocks
from headrace.jobs.blocks import Block, batching_over_blocks, over_blocks
from headrace.jobs.files import Source
from headrace.jobs.job import Job
from headrace.jobs.json_lines import JsonEncodeError
from headrace.jobs.prefetch import prefetch
from headrace.jobs.resume import load_done
from headrace.jobs.row_ranges import RowRanges
from headrace.jobs.rows import fields_of
from headrace.jobs.steps import DeadLetterWriter, RowReader, RunSteps, SkippedWriter, WriterWithLetters, unwritten


def in_columns(job: Job, folder: str, names: tuple[str, ...]) -> RunSteps | None:
    """The steps for a handler that ``takes_columns``; None if the columns ``names`` do not hold numbers.

    Args:
        job: what to run.
        folder: of the parts.
        names: the model's columns.
    """
    if not has_blocks(job.sources, job.numbers, names):
        return None
    resume = job.resume is not None
    return RunSteps(
        BlockReader(job.numbers, folder, names, resume=resume),
        over_blocks(job.handler, job.examples, job.reserved),
        batching_over_blocks(job.handler, job.batch_sizes),
        BlockWriter(folder, job.keep, resume=resume),
        BlockDeadLetterWriter(folder, resume=resume),
        SkippedWriter(folder, resume=resume),  # never used: rows in columns cannot be skipped
    )


class BlockReader(RowReader):
    """Reads files into blocks of rows."""

    def __init__(self, numbers: Mapping[str, type], folder: str, names: tuple[str, ...], *, resume: bool) -> None:
        super().__init__(numbers, folder, resume=resume)
        self._names = names

    def rows(self, index: int, source: Source) -> Iterator[Any]:
        """The blocks of a file."""
        done = load_done(self._folder) if self._resume else RowRanges()
        with closing(prefetch(read_blocks(source, index, self.numbers, self._names, done))) as blocks:
            yield from cut_by_time(blocks) if self._resume else blocks


class BlockWriter(WriterWithLetters):
    """Writes blocks with their predictions."""

    def _new_part(self) -> Any:
        writer = DurableBlockPartWriter if self._resume else BlockPartWriter
        return writer(self._folder, self._keep)

    def write(self, result: Any) -> None:
        """Writes the rows of a block."""
        self._write(result.example, result.inference, result.model_id)

    def _write(self, block: Block, predictions: Any, model_id: str | None) -> None:
        """Writes rows; if that fails, halves the block until only the rows that cannot be written are left."""
        try:
            self._part.write(block, predictions, model_id)
        except JsonEncodeError as error:
            middle = len(block) // 2
            if middle:
                self._write(block[:middle], predictions[:middle], model_id)
                self._write(block[middle:], predictions[middle:], model_id)
                return
            if isinstance(predictions, list):
                model_id = fields_of(predictions[0]).get("model_id")
            self._letters.write_row(block.rows()[0], unwritten(error, model_id), block.place)


class BlockDeadLetterWriter(DeadLetterWriter):
    """Writes a dead letter for each row of a failed block."""

    def write(self, letter: Any) -> None:
        """Writes a line for each row."""
        for place, row in enumerate(letter.element.rows(), self.place(letter.element)):
            self.write_row(row, letter, place)
