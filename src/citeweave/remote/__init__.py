"""Artifacts on object storage: `s3://bucket/name` and `gs://bucket/name` wherever a folder can be named.

    fetch("s3://lab/corpus")            a folder in the cache: what is there already does not travel again
    push("index", "s3://lab/index")     only what the storage does not have travels; one object, put last, makes it whole
    copy("s3://lab/corpus", "corpus")   either way

pyarrow speaks to the storage; it is imported when the first address is used. Does not lock an address against a second
writer: object storage has no locks.
"""
