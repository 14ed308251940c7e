"""Object storage (`s3://bucket/name`, `gs://bucket/name` wherever a folder can be named) and Ray clusters.

    fetch("s3://lab/corpus")            a folder in the cache; files that are already there are not downloaded again
    push("index", "s3://lab/index")     uploads only what the storage lacks; one object, written last, commits it
    copy("s3://lab/corpus", "corpus")   either way

pyarrow speaks to the storage; it is imported when the first address is used. Does not lock an address against a second
writer: object storage has no locks.
"""
