"""Batch jobs of the command: input files -> result files, each row exactly once, resumable after an interruption.

read/       text, JSONL, CSV, Parquet -> rows -> chunks
send        chunks -> requests -> results
write       results -> one part file a chunk -> the output
directory   what is done, and whether a run starts, resumes or refuses
spec        the job as the user gave it
run         all of the above, in one process or on a Ray cluster
"""
