"""Matrices over several devices: cut by rows, with a halo that travels while the devices multiply their own columns.

matrix         the sharded matrix                        build          shard and shard_from_rows
basis          unknowns in pieces of equal size          row_partition  which device has which rows
local          the shard and the product of one device   common_format  one format for all shards
halo           what devices need, and its exchange       padding        shards of equal shape
placement      arrays from the host to their devices     processes      agreement while a matrix is built
entries        the entries in canonical order            delivery       messages from shard to shard on the host
pieces         rows of each shard on the host            files          a matrix in a folder, read by rows
"""

from jaxsparse_fmt.distributed.build import shard, shard_from_rows
from jaxsparse_fmt.distributed.files import save_rows, saved_rows
from jaxsparse_fmt.distributed.matrix import ShardedMatrix
from jaxsparse_fmt.distributed.row_partition import boxes

__all__ = ["ShardedMatrix", "boxes", "save_rows", "saved_rows", "shard", "shard_from_rows"]
