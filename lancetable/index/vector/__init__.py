"""Vector indexes: partitions of vectors around centroids (IVF), quantized or not, with or without graphs (HNSW).

index.idx        centroids; graphs of the partitions for HNSW
auxiliary.idx    row and code of each vector, ordered by partition; the quantizer in the metadata
"""
