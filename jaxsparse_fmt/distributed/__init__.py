"""Matrices over several devices: cut by rows, with a halo that travels while the devices multiply their own columns.

matrix         the sharded matrix                        build          shard and shard_from_rows
distribution   arrays over a mesh axis, and shard_map    row_partition  which device has which rows
basis          vectors in pieces of equal size           common_format  one format for all shards
local          the shard and the product of one device   padding        shards of equal shape
halo           what devices need, and its exchange       processes      agreement between processes
entries        the entries, on devices and on the host   delivery       what travels from shard to shard on the host
algebra        sums, scalings and shifts                 messages       from host to host, by TCP
"""

from jaxsparse_fmt.distributed.build import shard, shard_from_rows
from jaxsparse_fmt.distributed.matrix import ShardedMatrix
from jaxsparse_fmt.distributed.row_partition import boxes

__all__ = ["ShardedMatrix", "boxes", "shard", "shard_from_rows"]
