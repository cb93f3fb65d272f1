"""Segments: the log of a shard as immutable objects in a file system or a bucket, for Spark, DuckDB and auditors.

    connecting.connect(address, options)      an `ObjectStore`; proves at once that a put has one winner
    writer.SegmentWriter(Archive(store, shard)).append(frames)
                                              whole frames become one segment, listed and durable when it returns
    upkeep.compact / expire / sweep           small segments merged, old ones dropped, what nobody lists removed
    reader.SegmentReader(store, shard)        .manifest(), .segments(first, last), .frames(first, last) checked against
                                              the chain, .batches(first, last) as Arrow; `shards_in(store)`
    verification.verify(store, shard)         a report, or SegmentsDamaged naming the first bad segment and event
    arrow.to_arrow(events) / frames_to_arrow(frames, region)
                                              events as Arrow, in the schema of `schema.arrow_schema()`
    parquet.encode_parquet(frames, region) / lines.encode_lines(frames, region)
                                              the bytes of one segment, for files that stand by themselves
    exporting.exporter(kind, file, first, last)
                                              a stretch of a log as one file: Parquet, Arrow or lines
    backups.put_backup / fetch_backup         the files of a copied log in a store, every part proved
    finding.logs_at(store)                    which shards have segments, a backup or a log there
    restores.reserve_generation(store, shard, highest, now)
                                              keeps the fences of repeated restores apart

Nothing here is imported by `omnirelay` itself; pyarrow and obstore come with the extra `segments`.
"""
