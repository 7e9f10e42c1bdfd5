#!/usr/bin/env python3
"""The Spark example on local[2] equals one machine, id by id.

    python3 examples/test_spark_count.py BINARY TOKENIZER JSONL...

Needs pyspark and Java 17.
"""

import pathlib
import subprocess
import sys
import tempfile

from pyspark.sql import SparkSession

from spark_count import count


def one_machine(binary, tokenizer, files):
    """(id, count) pairs by one process."""
    corpora = [part for file in files for part in ("--corpus", file)]
    command = [binary, "--quiet", "count", tokenizer, *corpora, "--emit", "tsv"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [tuple(int(part) for part in line.split("\t")) for line in printed.splitlines()]


def main():
    binary, tokenizer, *files = (str(pathlib.Path(arg).resolve()) for arg in sys.argv[1:])
    with tempfile.TemporaryDirectory() as scratch:
        spark = (
            SparkSession.builder.master("local[2]")
            .appName("draftfast test")
            .config("spark.ui.enabled", "false")
            .config("spark.local.dir", scratch)
            .getOrCreate()
        )
        lines = spark.sparkContext.textFile(",".join(files), minPartitions=5)
        spread = count(spark, binary, tokenizer, lines).collect()
        spark.stop()
    single = one_machine(binary, tokenizer, files)
    assert spread, "nothing was counted"
    assert spread == single, f"{len(set(spread) ^ set(single))} pairs differ"
    print(f"equal: {len(spread)} ids, {sum(n for _, n in spread)} tokens")


if __name__ == "__main__":
    main()
