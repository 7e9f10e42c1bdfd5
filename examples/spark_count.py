#!/usr/bin/env python3
"""Counts a corpus on a Spark cluster: `draftfast count --stdin --emit tsv` is the mapper, addition the reducer.

    spark-submit examples/spark_count.py --tokenizer tokenizer.json --input 's3a://bucket/corpus/*.jsonl.gz' --output out/
    draftfast merge out/part-* --tokenizer tokenizer.json --domain web -o web.counts

Every executor needs the binary and the tokenizer under the paths given (`--files tokenizer.json` and a binary baked
into the image, or both on a shared file system). The sum equals the counts of one machine, id by id: a partition is
whole lines, a line is a document, and counts add.
"""

import argparse
import operator
import shlex

from pyspark.sql import SparkSession


def count(spark, binary, tokenizer, lines, n_partitions=None):
    """(id, count) pairs of an RDD of jsonl lines, ids ascending."""
    command = [binary, "--quiet", "--threads", "1", "count", tokenizer, "--stdin", "--format", "jsonl", "--emit", "tsv"]
    counted = lines.pipe(shlex.join(command), checkCode=True).filter(lambda line: line)
    pairs = counted.map(lambda line: tuple(int(part) for part in line.split("\t")))
    return pairs.reduceByKey(operator.add, n_partitions).sortByKey()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draftfast", default="draftfast", help="the binary, as the executors find it")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--input", required=True, help="jsonl files (.gz too), a path or glob that Spark reads")
    parser.add_argument("--output", required=True, help="the directory of `id<TAB>count` parts to write")
    args = parser.parse_args()
    spark = SparkSession.builder.appName("draftfast count").getOrCreate()
    lines = spark.sparkContext.textFile(args.input)
    counts = count(spark, args.draftfast, args.tokenizer, lines)
    counts.map(lambda pair: f"{pair[0]}\t{pair[1]}").saveAsTextFile(args.output)
    spark.stop()


if __name__ == "__main__":
    main()
