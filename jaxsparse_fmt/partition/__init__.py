"""Matrices over several devices: cut by rows, with a halo that travels while the interior is multiplied.

rows        which device gets which rows
halo        who needs which unknowns from whom
spread      the basis: unknowns in pieces of equal size
alike       shards of one format, made equal in shape
shards      what one device holds and does
sharded     the matrix
build       from a matrix on the host, or from its rows in pieces
one_format  chosen for all shards, converted on the host
processes   what several processes tell each other meanwhile
saved       a matrix in a folder, read in pieces
predict     counts of a partition that is not built
"""

from jaxsparse_fmt.partition.build import shard, shard_from_rows
from jaxsparse_fmt.partition.saved import save_rows, saved_rows
from jaxsparse_fmt.partition.sharded import ShardedMatrix

__all__ = ["ShardedMatrix", "save_rows", "saved_rows", "shard", "shard_from_rows"]
