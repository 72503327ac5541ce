"""The tests of tests/ranks/core that take a kind of tensors, with tensors in device memory.

They cover every operation, dtype and reduce op; contiguous tensors, views with elements of every
size, scalars and empty tensors; calls in place and not, with lists, uneven; and messages.
"""

from __future__ import annotations

import test_all_gather
import test_all_reduce
import test_all_to_all
import test_gather
import test_p2p
import test_prepared
import test_reduce_scatter
from test_broadcast import test_broadcast
from test_reduce import test_reduce
from test_scan import test_scan

__all__ = ["test_broadcast", "test_reduce", "test_scan"]

test_reduces_everywhere = test_all_reduce.test_all_reduce
test_coalesced = test_all_reduce.test_coalesced
test_gathers_everywhere = test_all_gather.test_all_gather
test_gathers_into_tensor = test_all_gather.test_into_tensor
test_gathers_uneven = test_all_gather.test_uneven
test_gathers_other_layouts = test_all_gather.test_one_layout_into_another
test_gathers = test_gather.test_gather
test_scatters = test_gather.test_scatter
test_reduce_scatters = test_reduce_scatter.test_list
test_reduce_scatters_tensor = test_reduce_scatter.test_tensor
test_exchanges = test_all_to_all.test_list
test_exchanges_tensor = test_all_to_all.test_single
test_exchanges_splits = test_all_to_all.test_single_with_splits
test_exchanges_strided_splits = test_all_to_all.test_single_strided_with_splits
test_prepared_calls = test_prepared.test_kinds
test_ring = test_p2p.test_ring
test_sendrecv = test_p2p.test_sendrecv
test_isend_irecv = test_p2p.test_isend_irecv
