"""``headrace run``: rows from files, through a handler, to files of predictions and dead letters, all or nothing.

run.py   Run.execute(Job from job.py), in the user's process: prepare the output, drive the steps, publish
  |
  |- drivers of the same steps:  loop.py  one process, without Beam
  |                              beam_pipeline.py  Beam's workers, on any runner
  |- steps (steps.py: row by row)
  |    read     files.py -> compression.py, pipes.py, storage.py -> reading.py: csv_rows.py, parquet_rows.py, text.py;
  |             retry.py (dead letters as input)
  |    predict  rows.py wraps the handler: row -> example -> (row, prediction)
  |    write    json_lines.py -> parts.py, or durable.py with --resume
  |- or in columns (column_steps.py), if the handler predicts the same from columns
  |    read     block_reading.py (block_csv.py), one batch ahead (prefetch.py);  predict  blocks.py;
  |    write    block_output.py -> block_parts.py
  '- output.py joins the parts (parquet.py: types of columns); publishing.py moves the files into place
     resume.py keeps the parts of a killed run for the next one (row_ranges.py: which rows are done)

rows.py and blocks.py also run in model hosts. values.py, durations.py, messages.py: helpers.
"""
