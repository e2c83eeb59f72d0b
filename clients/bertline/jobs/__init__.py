"""Batch jobs of the command: input files -> result files, each row exactly once, resumable after an interruption.

spec        the job as the user gave it; makes what follows
sources     files, standard input, arguments -> rows in chunks (rows; formats: text, JSONL, CSV; parquet)
send        chunks -> requests -> results
write       results and pass-through columns -> one part file a chunk -> the output (parquet, tables)
directory   which chunks are done, and whether a run starts, resumes or refuses
run         all of the above, in this process or on a Ray cluster
"""
