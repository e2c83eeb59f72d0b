"""Batch jobs of the command: files in, results out, each row exactly once.

text, JSONL, CSV, Parquet -> rows -> chunks -> requests -> results -> parts -> one file, or a folder of parts
"""
