/* names.h: every name that MPItrampoline's client in jaxlib looks up: 371 functions and 260
 * constants of MPItrampoline's ABI, version 2.10. A name that is missing here ends the process when
 * jaxlib loads the library, and `strings` of jaxlib's shared object shows them all (MPIABI_*). */
#ifndef TRAMPOLINE_NAMES_H
#define TRAMPOLINE_NAMES_H

/* clang-format off */

/* Constants that have a meaning here: C(name, value). A datatype is PMPI_DTYPE_*, an operation
 * PMPI_REDUCE_*, so that they need no table. Error classes have the numbers of the MPI-5 ABI, as
 * pmpi_error.mpi_class has. */
#define TRAMPOLINE_CONSTANTS(C) \
	C(BYTE, PMPI_DTYPE_UINT8) C(CHAR, PMPI_DTYPE_INT8) C(CXX_BOOL, PMPI_DTYPE_BOOL) \
	C(CXX_DOUBLE_COMPLEX, PMPI_DTYPE_COMPLEX128) C(CXX_FLOAT_COMPLEX, PMPI_DTYPE_COMPLEX64) \
	C(C_BOOL, PMPI_DTYPE_BOOL) C(C_COMPLEX, PMPI_DTYPE_COMPLEX64) \
	C(C_DOUBLE_COMPLEX, PMPI_DTYPE_COMPLEX128) C(C_FLOAT_COMPLEX, PMPI_DTYPE_COMPLEX64) \
	C(DOUBLE, PMPI_DTYPE_FLOAT64) C(ERR_ACCESS, 20) C(ERR_AMODE, 21) C(ERR_ARG, 13) \
	C(ERR_ASSERT, 22) C(ERR_BAD_FILE, 23) C(ERR_BASE, 24) C(ERR_BUFFER, 1) C(ERR_COMM, 5) \
	C(ERR_CONVERSION, 25) C(ERR_COUNT, 2) C(ERR_DIMS, 12) C(ERR_DISP, 26) C(ERR_DUP_DATAREP, 27) \
	C(ERR_FILE, 30) C(ERR_FILE_EXISTS, 28) C(ERR_FILE_IN_USE, 29) C(ERR_GROUP, 9) C(ERR_INFO, 34) \
	C(ERR_INFO_KEY, 31) C(ERR_INFO_NOKEY, 32) C(ERR_INFO_VALUE, 33) C(ERR_INTERN, 17) \
	C(ERR_IN_STATUS, 19) C(ERR_IO, 35) C(ERR_KEYVAL, 36) C(ERR_LASTCODE, 0x3fff) \
	C(ERR_LOCKTYPE, 37) C(ERR_NAME, 38) C(ERR_NOT_SAME, 40) C(ERR_NO_MEM, 39) C(ERR_NO_SPACE, 41) \
	C(ERR_NO_SUCH_FILE, 42) C(ERR_OP, 10) C(ERR_OTHER, 16) C(ERR_PENDING, 18) C(ERR_PORT, 43) \
	C(ERR_QUOTA, 45) C(ERR_RANK, 6) C(ERR_READ_ONLY, 46) C(ERR_REQUEST, 7) C(ERR_RMA_ATTACH, 47) \
	C(ERR_RMA_CONFLICT, 48) C(ERR_RMA_FLAVOR, 52) C(ERR_RMA_RANGE, 49) C(ERR_RMA_SHARED, 50) \
	C(ERR_RMA_SYNC, 51) C(ERR_ROOT, 8) C(ERR_SERVICE, 53) C(ERR_SIZE, 55) C(ERR_SPAWN, 56) \
	C(ERR_TAG, 4) C(ERR_TOPOLOGY, 11) C(ERR_TRUNCATE, 15) C(ERR_TYPE, 3) C(ERR_UNKNOWN, 14) \
	C(ERR_UNSUPPORTED_DATAREP, 57) C(ERR_UNSUPPORTED_OPERATION, 58) C(ERR_WIN, 60) \
	C(FLOAT, PMPI_DTYPE_FLOAT32) C(INT, PMPI_DTYPE_INT32) C(INT16_T, PMPI_DTYPE_INT16) \
	C(INT32_T, PMPI_DTYPE_INT32) C(INT64_T, PMPI_DTYPE_INT64) C(INT8_T, PMPI_DTYPE_INT8) \
	C(LONG, PMPI_DTYPE_INT64) C(LONG_LONG, PMPI_DTYPE_INT64) C(LONG_LONG_INT, PMPI_DTYPE_INT64) \
	C(MAX, PMPI_REDUCE_MAX) C(MIN, PMPI_REDUCE_MIN) C(PROD, PMPI_REDUCE_PRODUCT) \
	C(SHORT, PMPI_DTYPE_INT16) C(SIGNED_CHAR, PMPI_DTYPE_INT8) C(SUCCESS, 0) \
	C(SUM, PMPI_REDUCE_SUM) C(UINT16_T, PMPI_DTYPE_UINT16) C(UINT32_T, PMPI_DTYPE_UINT32) \
	C(UINT64_T, PMPI_DTYPE_UINT64) C(UINT8_T, PMPI_DTYPE_UINT8) C(UNSIGNED, PMPI_DTYPE_UINT32) \
	C(UNSIGNED_CHAR, PMPI_DTYPE_UINT8) C(UNSIGNED_LONG, PMPI_DTYPE_UINT64) \
	C(UNSIGNED_LONG_LONG, PMPI_DTYPE_UINT64) C(UNSIGNED_SHORT, PMPI_DTYPE_UINT16) C(COMM_WORLD, 1) \
	C(COMM_NULL, 0) C(REQUEST_NULL, 0) C(UNDEFINED, -32766) C(IN_PLACE, -1) C(STATUS_IGNORE, 0) \
	C(STATUSES_IGNORE, 0) C(THREAD_SINGLE, 0) C(THREAD_FUNNELED, 1) C(THREAD_SERIALIZED, 2) \
	C(THREAD_MULTIPLE, 3) C(ANY_SOURCE, -1) C(ANY_TAG, -1) C(PROC_NULL, -2)

/* Constants that stand for nothing here: N(name). No function takes them. */
#define TRAMPOLINE_UNUSED(N) \
	N(2DOUBLE_PRECISION) N(2INT) N(2INTEGER) N(2REAL) N(AINT) N(APPNUM) N(ARGVS_NULL) N(ARGV_NULL) \
	N(BAND) N(BOR) N(BOTTOM) N(BSEND_OVERHEAD) N(BXOR) N(CART) N(CHARACTER) N(COMBINER_CONTIGUOUS) \
	N(COMBINER_DARRAY) N(COMBINER_DUP) N(COMBINER_F90_COMPLEX) N(COMBINER_F90_INTEGER) \
	N(COMBINER_F90_REAL) N(COMBINER_HINDEXED) N(COMBINER_HINDEXED_BLOCK) N(COMBINER_HVECTOR) \
	N(COMBINER_INDEXED) N(COMBINER_INDEXED_BLOCK) N(COMBINER_NAMED) N(COMBINER_RESIZED) \
	N(COMBINER_STRUCT) N(COMBINER_SUBARRAY) N(COMBINER_VECTOR) N(COMM_DUP_FN) N(COMM_NULL_COPY_FN) \
	N(COMM_NULL_DELETE_FN) N(COMM_SELF) N(COMM_TYPE_SHARED) N(COMPLEX) N(COMPLEX16) N(COMPLEX32) \
	N(COMPLEX8) N(CONGRUENT) N(CONVERSION_FN_NULL) N(COUNT) N(CXX_LONG_DOUBLE_COMPLEX) \
	N(C_LONG_DOUBLE_COMPLEX) N(DATATYPE_NULL) N(DISPLACEMENT_CURRENT) N(DISTRIBUTE_BLOCK) \
	N(DISTRIBUTE_CYCLIC) N(DISTRIBUTE_DFLT_DARG) N(DISTRIBUTE_NONE) N(DIST_GRAPH) \
	N(DOUBLE_COMPLEX) N(DOUBLE_INT) N(DOUBLE_PRECISION) N(DUP_FN) N(ERRCODES_IGNORE) \
	N(ERRHANDLER_NULL) N(ERRORS_ARE_FATAL) N(ERRORS_RETURN) N(FILE_NULL) N(FLOAT_INT) \
	N(F_STATUSES_IGNORE) N(F_STATUS_IGNORE) N(GRAPH) N(GROUP_EMPTY) N(GROUP_NULL) N(HOST) N(IDENT) \
	N(INFO_ENV) N(INFO_NULL) N(INTEGER) N(INTEGER1) N(INTEGER2) N(INTEGER4) N(INTEGER8) N(IO) \
	N(KEYVAL_INVALID) N(LAND) N(LASTUSEDCODE) N(LOCK_EXCLUSIVE) N(LOCK_SHARED) N(LOGICAL) \
	N(LONG_DOUBLE) N(LONG_DOUBLE_INT) N(LONG_INT) N(LOR) N(LXOR) N(MAXLOC) N(MESSAGE_NO_PROC) \
	N(MESSAGE_NULL) N(MINLOC) N(MODE_APPEND) N(MODE_CREATE) N(MODE_DELETE_ON_CLOSE) N(MODE_EXCL) \
	N(MODE_NOCHECK) N(MODE_NOPRECEDE) N(MODE_NOPUT) N(MODE_NOSTORE) N(MODE_NOSUCCEED) \
	N(MODE_RDONLY) N(MODE_RDWR) N(MODE_SEQUENTIAL) N(MODE_UNIQUE_OPEN) N(MODE_WRONLY) N(NO_OP) \
	N(NULL_COPY_FN) N(NULL_DELETE_FN) N(OFFSET) N(OP_NULL) N(ORDER_C) N(ORDER_FORTRAN) N(PACKED) \
	N(REAL) N(REAL16) N(REAL4) N(REAL8) N(REPLACE) N(ROOT) N(SEEK_CUR) N(SEEK_END) N(SEEK_SET) \
	N(SHORT_INT) N(SIMILAR) N(TAG_UB) N(TYPECLASS_COMPLEX) N(TYPECLASS_INTEGER) N(TYPECLASS_REAL) \
	N(TYPE_DUP_FN) N(TYPE_NULL_COPY_FN) N(TYPE_NULL_DELETE_FN) N(UNEQUAL) N(UNIVERSE_SIZE) \
	N(UNWEIGHTED) N(WCHAR) N(WEIGHTS_EMPTY) N(WIN_BASE) N(WIN_CREATE_FLAVOR) N(WIN_DISP_UNIT) \
	N(WIN_DUP_FN) N(WIN_FLAVOR_ALLOCATE) N(WIN_FLAVOR_CREATE) N(WIN_FLAVOR_DYNAMIC) \
	N(WIN_FLAVOR_SHARED) N(WIN_MODEL) N(WIN_NULL) N(WIN_NULL_COPY_FN) N(WIN_NULL_DELETE_FN) \
	N(WIN_SEPARATE) N(WIN_SIZE) N(WIN_UNIFIED) N(WTIME_IS_GLOBAL)

/* Functions that jaxlib looks up and does not call: R(name). They return an error that says so. */
#define TRAMPOLINE_REFUSED(R) \
	R(Abort) R(Accumulate) R(Add_error_class) R(Add_error_code) R(Add_error_string) R(Aint_add) \
	R(Aint_diff) R(Allgatherv) R(Alloc_mem) R(Alltoall) R(Alltoallv) R(Alltoallw) R(Barrier) \
	R(Bcast) R(Bsend) R(Bsend_init) R(Buffer_attach) R(Buffer_detach) R(Cancel) R(Cart_coords) \
	R(Cart_create) R(Cart_get) R(Cart_map) R(Cart_rank) R(Cart_shift) R(Cart_sub) R(Cartdim_get) \
	R(Close_port) R(Comm_accept) R(Comm_c2f) R(Comm_call_errhandler) R(Comm_compare) \
	R(Comm_connect) R(Comm_create) R(Comm_create_errhandler) R(Comm_create_group) \
	R(Comm_create_keyval) R(Comm_delete_attr) R(Comm_disconnect) R(Comm_dup) R(Comm_dup_with_info) \
	R(Comm_f2c) R(Comm_free_keyval) R(Comm_get_attr) R(Comm_get_errhandler) R(Comm_get_info) \
	R(Comm_get_name) R(Comm_get_parent) R(Comm_group) R(Comm_idup) R(Comm_join) \
	R(Comm_remote_group) R(Comm_remote_size) R(Comm_set_attr) R(Comm_set_errhandler) \
	R(Comm_set_info) R(Comm_set_name) R(Comm_spawn) R(Comm_spawn_multiple) R(Comm_split_type) \
	R(Comm_test_inter) R(Compare_and_swap) R(Dims_create) R(Dist_graph_create) \
	R(Dist_graph_create_adjacent) R(Dist_graph_neighbors) R(Dist_graph_neighbors_count) \
	R(Errhandler_c2f) R(Errhandler_f2c) R(Errhandler_free) R(Exscan) R(Fetch_and_op) R(File_c2f) \
	R(File_call_errhandler) R(File_close) R(File_create_errhandler) R(File_delete) R(File_f2c) \
	R(File_get_amode) R(File_get_atomicity) R(File_get_byte_offset) R(File_get_errhandler) \
	R(File_get_group) R(File_get_info) R(File_get_position) R(File_get_position_shared) \
	R(File_get_size) R(File_get_type_extent) R(File_get_view) R(File_iread) R(File_iread_all) \
	R(File_iread_at) R(File_iread_at_all) R(File_iread_shared) R(File_iwrite) R(File_iwrite_all) \
	R(File_iwrite_at) R(File_iwrite_at_all) R(File_iwrite_shared) R(File_open) R(File_preallocate) \
	R(File_read) R(File_read_all) R(File_read_all_begin) R(File_read_all_end) R(File_read_at) \
	R(File_read_at_all) R(File_read_at_all_begin) R(File_read_at_all_end) R(File_read_ordered) \
	R(File_read_ordered_begin) R(File_read_ordered_end) R(File_read_shared) R(File_seek) \
	R(File_seek_shared) R(File_set_atomicity) R(File_set_errhandler) R(File_set_info) \
	R(File_set_size) R(File_set_view) R(File_sync) R(File_write) R(File_write_all) \
	R(File_write_all_begin) R(File_write_all_end) R(File_write_at) R(File_write_at_all) \
	R(File_write_at_all_begin) R(File_write_at_all_end) R(File_write_ordered) \
	R(File_write_ordered_begin) R(File_write_ordered_end) R(File_write_shared) R(Free_mem) \
	R(Gather) R(Gatherv) R(Get) R(Get_accumulate) R(Get_address) R(Get_count) R(Get_elements) \
	R(Get_elements_x) R(Get_processor_name) R(Graph_create) R(Graph_get) R(Graph_map) \
	R(Graph_neighbors) R(Graph_neighbors_count) R(Graphdims_get) R(Grequest_complete) \
	R(Grequest_start) R(Group_c2f) R(Group_compare) R(Group_difference) R(Group_excl) R(Group_f2c) \
	R(Group_free) R(Group_incl) R(Group_intersection) R(Group_range_excl) R(Group_range_incl) \
	R(Group_rank) R(Group_size) R(Group_translate_ranks) R(Group_union) R(Iallgather) \
	R(Iallgatherv) R(Iallreduce) R(Ialltoall) R(Ialltoallv) R(Ialltoallw) R(Ibarrier) R(Ibcast) \
	R(Ibsend) R(Iexscan) R(Igather) R(Igatherv) R(Improbe) R(Imrecv) R(Ineighbor_allgather) \
	R(Ineighbor_allgatherv) R(Ineighbor_alltoall) R(Ineighbor_alltoallv) R(Ineighbor_alltoallw) \
	R(Info_c2f) R(Info_create) R(Info_delete) R(Info_dup) R(Info_f2c) R(Info_free) R(Info_get) \
	R(Info_get_nkeys) R(Info_get_nthkey) R(Info_get_valuelen) R(Info_set) R(Init) \
	R(Intercomm_create) R(Intercomm_merge) R(Iprobe) R(Ireduce) R(Ireduce_scatter) \
	R(Ireduce_scatter_block) R(Irsend) R(Iscan) R(Iscatter) R(Iscatterv) R(Issend) R(Lookup_name) \
	R(Message_c2f) R(Message_f2c) R(Mprobe) R(Mrecv) R(Neighbor_allgather) R(Neighbor_allgatherv) \
	R(Neighbor_alltoall) R(Neighbor_alltoallv) R(Neighbor_alltoallw) R(Op_c2f) R(Op_commutative) \
	R(Op_create) R(Op_f2c) R(Op_free) R(Open_port) R(Pack) R(Pack_external) R(Pack_external_size) \
	R(Pack_size) R(Probe) R(Publish_name) R(Put) R(Raccumulate) R(Recv) R(Recv_init) R(Reduce) \
	R(Reduce_local) R(Reduce_scatter_block) R(Register_datarep) R(Request_c2f) R(Request_f2c) \
	R(Request_free) R(Request_get_status) R(Rget) R(Rget_accumulate) R(Rput) R(Rsend) \
	R(Rsend_init) R(Scan) R(Scatter) R(Scatterv) R(Send) R(Send_init) R(Sendrecv_replace) R(Ssend) \
	R(Ssend_init) R(Start) R(Startall) R(Status_c2f) R(Status_f2c) R(Status_set_cancelled) \
	R(Status_set_elements) R(Status_set_elements_x) R(Test) R(Test_cancelled) R(Testall) \
	R(Testany) R(Testsome) R(Topo_test) R(Type_c2f) R(Type_commit) R(Type_contiguous) \
	R(Type_create_darray) R(Type_create_f90_complex) R(Type_create_f90_integer) \
	R(Type_create_f90_real) R(Type_create_hindexed) R(Type_create_hindexed_block) \
	R(Type_create_hvector) R(Type_create_indexed_block) R(Type_create_keyval) \
	R(Type_create_resized) R(Type_create_struct) R(Type_create_subarray) R(Type_delete_attr) \
	R(Type_dup) R(Type_f2c) R(Type_free) R(Type_free_keyval) R(Type_get_attr) R(Type_get_contents) \
	R(Type_get_envelope) R(Type_get_extent) R(Type_get_extent_x) R(Type_get_name) \
	R(Type_get_true_extent) R(Type_get_true_extent_x) R(Type_indexed) R(Type_match_size) \
	R(Type_set_attr) R(Type_set_name) R(Type_size) R(Type_size_x) R(Type_struct) R(Type_vector) \
	R(Unpack) R(Unpack_external) R(Unpublish_name) R(Waitall) R(Waitany) R(Waitsome) \
	R(Win_allocate) R(Win_allocate_shared) R(Win_attach) R(Win_c2f) R(Win_call_errhandler) \
	R(Win_complete) R(Win_create) R(Win_create_dynamic) R(Win_create_errhandler) \
	R(Win_create_keyval) R(Win_delete_attr) R(Win_detach) R(Win_f2c) R(Win_fence) R(Win_flush) \
	R(Win_flush_all) R(Win_flush_local) R(Win_flush_local_all) R(Win_free) R(Win_free_keyval) \
	R(Win_get_attr) R(Win_get_errhandler) R(Win_get_group) R(Win_get_info) R(Win_get_name) \
	R(Win_lock) R(Win_lock_all) R(Win_post) R(Win_set_attr) R(Win_set_errhandler) R(Win_set_info) \
	R(Win_set_name) R(Win_shared_query) R(Win_start) R(Win_sync) R(Win_test) R(Win_unlock) \
	R(Win_unlock_all) R(Win_wait) R(Wtick) R(Wtime)

/* Functions that are carried out, for the test that compares these lists with jaxlib: F(name). */
#define TRAMPOLINE_FUNCTIONS(F) \
	F(Allgather) F(Allreduce) F(Comm_free) F(Comm_rank) F(Comm_size) F(Comm_split) F(Error_class) \
	F(Error_string) F(Finalize) F(Finalized) F(Get_library_version) F(Get_version) F(Init_thread) \
	F(Initialized) F(Irecv) F(Is_thread_main) F(Isend) F(Query_thread) F(Reduce_scatter) \
	F(Sendrecv) F(Wait)

#endif
