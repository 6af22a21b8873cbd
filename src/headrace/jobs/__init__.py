"""``headrace run``: rows from files, through a handler, to files of predictions and dead letters, all or nothing.

run.py   Run.execute(Job from job.py), in the user's process: prepare the output, drive the steps, publish
  |
  |- drivers of the same steps (steps.py):  Loop there, one process without Beam
  |                                         workers.py, processes of this machine
  |                                         beam_pipeline.py, Beam's workers, on any runner
  |    read     files.py -> opening.py, pipes.py, storage.py -> reading.py: blocks of rows, record batches where pyarrow
  |             is exact, else records. csv_blocks.py, csv_records.py, json_lines.py; letters.py: dead letters as input
  |    predict  a bundle of the runtime takes rows, each tagged with its place in its block. headrace.rows wraps the
  |             handler: row -> example; columns.py for blocks, if it predicts the same from columns
  |    write    output_batches.py: record batches of rows and predictions -> parts.py
  '- output.py joins the parts as JSON lines or CSV (text_tables.py) or Parquet (parquet_tables.py), in the order of the
     input (stored_rows.py); publishing.py moves the files into place; letters.py: dead letters, and where their rows
     belong; into.py puts them there; resume.py keeps the parts of a killed run for the next one; folder.py: an
     output for each input; earlier.py: predictions of an earlier output for rows that have not changed

predict_table.py, arrow_predictions.py: of a table in memory, the same predictions as columns.
"""
