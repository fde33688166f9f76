/* Every call with every bad argument. One table lists the calls with the arguments that they have, the
 * other the faults of an argument. Each call is first made with good arguments. A refusal changes nothing:
 * at the end all calls succeed on the same communicator. */
#include <limits.h>
#include <stdint.h>

#include "check.h"

/* Arguments of a call, as bits. */
enum {
  SEND = 1 << 0,
  RECV = 1 << 1,
  COUNT = 1 << 2,
  TYPE = 1 << 3,
  OP = 1 << 4,
  ROOT = 1 << 5,
  COMM = 1 << 6,
  COUNTS = 1 << 7,
  MORE_COUNTS = 1 << 8,
  CODEC = 1 << 9,
  PEER = 1 << 10,
  /* Takes an operation of tbcclRedOpCreatePreMulSum. */
  SCALES = 1 << 11
};

#define PAIR (SEND | RECV | TYPE | COMM)

struct arguments {
  const void* send;
  void* recv;
  size_t count;
  tbcclDataType_t type;
  tbcclRedOp_t op;
  int root;
  tbcclComm_t comm;
  const size_t* counts;
  const size_t* more_counts;
  tbcclCodec_t codec;
  tbcclRequest_t* request;
};

typedef tbcclResult_t (*call_fn)(const struct arguments*);

#define CALL(name, ...)                                                                            \
  static tbcclResult_t name##_(const struct arguments* a) { return tbccl##name(__VA_ARGS__); }

CALL(AllReduce, a->send, a->recv, a->count, a->type, a->op, a->comm, a->request)
CALL(AllReduceQuantized, a->send, a->recv, a->count, a->type, a->op, a->codec, a->comm, a->request)
CALL(Reduce, a->send, a->recv, a->count, a->type, a->op, a->root, a->comm, a->request)
CALL(Bcast, a->recv, a->count, a->type, a->root, a->comm, a->request)
CALL(Broadcast, a->send, a->recv, a->count, a->type, a->root, a->comm, a->request)
CALL(AllGather, a->send, a->recv, a->count, a->type, a->comm, a->request)
CALL(ReduceScatter, a->send, a->recv, a->count, a->type, a->op, a->comm, a->request)
CALL(AlltoAll, a->send, a->recv, a->count, a->type, a->comm, a->request)
CALL(Gather, a->send, a->recv, a->count, a->type, a->root, a->comm, a->request)
CALL(Scatter, a->send, a->recv, a->count, a->type, a->root, a->comm, a->request)
CALL(Send, a->send, a->count, a->type, a->root, a->comm, a->request)
CALL(Recv, a->recv, a->count, a->type, a->root, a->comm, a->request)
CALL(Scan, a->send, a->recv, a->count, a->type, a->op, a->comm, a->request)
CALL(ExclusiveScan, a->send, a->recv, a->count, a->type, a->op, a->comm, a->request)
CALL(Barrier, a->comm, a->request)
CALL(AllGatherV, a->send, a->recv, a->counts, a->type, a->comm, a->request)
CALL(ReduceScatterV, a->send, a->recv, a->counts, a->type, a->op, a->comm, a->request)
CALL(GatherV, a->send, a->recv, a->counts, a->type, a->root, a->comm, a->request)
CALL(ScatterV, a->send, a->recv, a->counts, a->type, a->root, a->comm, a->request)
CALL(AlltoAllV, a->send, a->counts, a->recv, a->more_counts, a->type, a->comm, a->request)

struct call {
  const char* name;
  unsigned has;
  call_fn make;
};

static const struct call CALLS[] = {
    {"AllReduce", PAIR | COUNT | OP | SCALES, AllReduce_},
    {"AllReduceQuantized", PAIR | COUNT | OP | CODEC, AllReduceQuantized_},
    {"Reduce", PAIR | COUNT | OP | ROOT | SCALES, Reduce_},
    {"Bcast", RECV | TYPE | COMM | COUNT | ROOT, Bcast_},
    {"Broadcast", PAIR | COUNT | ROOT, Broadcast_},
    {"AllGather", PAIR | COUNT, AllGather_},
    {"ReduceScatter", PAIR | COUNT | OP | SCALES, ReduceScatter_},
    {"AlltoAll", PAIR | COUNT, AlltoAll_},
    {"Gather", PAIR | COUNT | ROOT, Gather_},
    {"Scatter", PAIR | COUNT | ROOT, Scatter_},
    {"Send", SEND | TYPE | COMM | COUNT | ROOT | PEER, Send_},
    {"Recv", RECV | TYPE | COMM | COUNT | ROOT | PEER, Recv_},
    {"Scan", PAIR | COUNT | OP, Scan_},
    {"ExclusiveScan", PAIR | COUNT | OP, ExclusiveScan_},
    {"Barrier", COMM, Barrier_},
    {"AllGatherV", PAIR | COUNTS, AllGatherV_},
    {"ReduceScatterV", PAIR | COUNTS | OP, ReduceScatterV_},
    {"GatherV", PAIR | COUNTS | ROOT, GatherV_},
    {"ScatterV", PAIR | COUNTS | ROOT, ScatterV_},
    {"AlltoAllV", PAIR | COUNTS | MORE_COUNTS, AlltoAllV_},
};
enum { NUM_CALLS = sizeof(CALLS) / sizeof(CALLS[0]) };

enum { COUNT_GOOD = 8 };
static const size_t GOOD[1] = {COUNT_GOOD};
static const size_t HUGE_[1] = {SIZE_MAX / 2};
static float from[2 * COUNT_GOOD], to[2 * COUNT_GOOD];
static tbcclComm_t good, other, freed, view_of_freed, aborted, finalized;
static tbcclRequest_t request;
static tbcclRedOp_t scaling, scaling_of_other, scaling_double, scaling_freed;

#define SPOIL(name, statement)                                                                     \
  static void name(struct arguments* a) { statement; }

SPOIL(comm_null, a->comm = NULL)
SPOIL(comm_small, a->comm = (tbcclComm_t)(uintptr_t)0x1234)
SPOIL(comm_all_ones, a->comm = (tbcclComm_t)UINTPTR_MAX)
SPOIL(comm_memory, a->comm = (tbcclComm_t)(void*)from)
SPOIL(comm_near, a->comm = (tbcclComm_t)((uintptr_t)good ^ ((uintptr_t)1 << 24)))
SPOIL(comm_beyond, a->comm = (tbcclComm_t)((uintptr_t)good ^ ((uintptr_t)1 << 22)))
SPOIL(comm_freed, a->comm = freed)
SPOIL(comm_view_of_freed, a->comm = view_of_freed)
SPOIL(comm_is_request, a->comm = (tbcclComm_t)(void*)request)
SPOIL(comm_aborted, a->comm = aborted)
SPOIL(comm_finalized, a->comm = finalized)
SPOIL(send_null, a->send = NULL)
SPOIL(send_misaligned, a->send = (const char*)from + 1)
SPOIL(send_high, a->send = (const void*)(UINTPTR_MAX - 7))
SPOIL(recv_null, a->recv = NULL)
SPOIL(recv_misaligned, a->recv = (char*)to + 2)
SPOIL(recv_high, a->recv = (void*)(UINTPTR_MAX - 7))
SPOIL(overlap, (a->send = from, a->recv = from + 1))
SPOIL(overlap_before, (a->send = from + 1, a->recv = from))
SPOIL(count_minus_one, a->count = (size_t)-1)
SPOIL(count_wraps, a->count = SIZE_MAX / sizeof(float) + 2)
SPOIL(count_half, a->count = SIZE_MAX / 2)
SPOIL(type_negative, a->type = (tbcclDataType_t)-1)
SPOIL(type_float8, a->type = (tbcclDataType_t)10)
SPOIL(type_999, a->type = (tbcclDataType_t)999)
SPOIL(type_int_max, a->type = (tbcclDataType_t)INT_MAX)
SPOIL(op_negative, a->op = (tbcclRedOp_t)-1)
SPOIL(op_num_ops, a->op = tbcclNumOps)
SPOIL(op_999, a->op = (tbcclRedOp_t)999)
SPOIL(op_max, a->op = tbcclMaxRedOp)
SPOIL(op_freed, a->op = scaling_freed)
SPOIL(op_of_other, a->op = scaling_of_other)
SPOIL(op_of_double, a->op = scaling_double)
SPOIL(op_scaling, a->op = scaling)
SPOIL(op_bits_of_float, a->op = tbcclBitAnd)
SPOIL(mean_of_bool, (a->op = tbcclAvg, a->type = tbcclBool))
SPOIL(root_negative, a->root = -1)
SPOIL(root_beyond, a->root = 1)
SPOIL(root_int_max, a->root = INT_MAX)
SPOIL(root_int_min, a->root = INT_MIN)
SPOIL(counts_null, a->counts = NULL)
SPOIL(counts_huge, a->counts = HUGE_)
SPOIL(counts_misaligned, a->counts = (const size_t*)(const void*)((const char*)GOOD + 1))
SPOIL(more_counts_null, a->more_counts = NULL)
SPOIL(codec_zero, a->codec = (tbcclCodec_t)0)
SPOIL(codec_99, a->codec = (tbcclCodec_t)99)
SPOIL(codec_of_double, a->type = tbcclDouble)
SPOIL(codec_of_max, a->op = tbcclMax)

struct fault {
  const char* name;
  /* The fault is for calls that have all arguments of `of` and none of `unless`. */
  unsigned of, unless;
  void (*spoil)(struct arguments*);
  tbcclResult_t code;
};

static const struct fault FAULTS[] = {
    {"comm is NULL", COMM, 0, comm_null, tbcclInvalidArgument},
    {"comm is a small number", COMM, 0, comm_small, tbcclInvalidArgument},
    {"comm is all ones", COMM, 0, comm_all_ones, tbcclInvalidArgument},
    {"comm is an address", COMM, 0, comm_memory, tbcclInvalidArgument},
    {"comm is of another generation", COMM, 0, comm_near, tbcclInvalidArgument},
    {"comm has an index beyond the table", COMM, 0, comm_beyond, tbcclInvalidArgument},
    {"comm was destroyed", COMM, 0, comm_freed, tbcclInvalidArgument},
    {"comm is another handle of a destroyed communicator", COMM, 0, comm_view_of_freed, tbcclInvalidArgument},
    {"comm is a request", COMM, 0, comm_is_request, tbcclInvalidArgument},
    {"comm was aborted", COMM, 0, comm_aborted, tbcclAborted},
    {"comm was finalized", COMM, 0, comm_finalized, tbcclInvalidArgument},
    {"send is NULL", SEND, 0, send_null, tbcclInvalidArgument},
    {"send is misaligned", SEND, 0, send_misaligned, tbcclInvalidArgument},
    {"send is at the end of memory", SEND, 0, send_high, tbcclInvalidArgument},
    {"recv is NULL", RECV, 0, recv_null, tbcclInvalidArgument},
    {"recv is misaligned", RECV, 0, recv_misaligned, tbcclInvalidArgument},
    {"recv is at the end of memory", RECV, 0, recv_high, tbcclInvalidArgument},
    {"recv overlaps send", SEND | RECV, 0, overlap, tbcclInvalidArgument},
    {"send overlaps recv", SEND | RECV, 0, overlap_before, tbcclInvalidArgument},
    {"count is -1", COUNT, 0, count_minus_one, tbcclInvalidArgument},
    {"count wraps around", COUNT, 0, count_wraps, tbcclInvalidArgument},
    {"count is half of SIZE_MAX", COUNT, 0, count_half, tbcclInvalidArgument},
    {"type is negative", TYPE, 0, type_negative, tbcclInvalidArgument},
    {"type is float8", TYPE, 0, type_float8, tbcclInvalidArgument},
    {"type is 999", TYPE, 0, type_999, tbcclInvalidArgument},
    {"type is INT_MAX", TYPE, 0, type_int_max, tbcclInvalidArgument},
    {"op is negative", OP, 0, op_negative, tbcclInvalidArgument},
    {"op is tbcclNumOps", OP, 0, op_num_ops, tbcclInvalidArgument},
    {"op is 999", OP, 0, op_999, tbcclInvalidArgument},
    {"op is tbcclMaxRedOp", OP, 0, op_max, tbcclInvalidArgument},
    {"op was destroyed", OP, 0, op_freed, tbcclInvalidArgument},
    {"op is of another communicator", OP, 0, op_of_other, tbcclInvalidArgument},
    {"op is of another type", OP, 0, op_of_double, tbcclInvalidArgument},
    {"op multiplies first", OP, SCALES, op_scaling, tbcclInvalidArgument},
    {"op is bitwise and type is float", OP, CODEC, op_bits_of_float, tbcclIllegalOperation},
    {"op is the mean and type is bool", OP | SCALES, 0, mean_of_bool, tbcclIllegalOperation},
    {"root is negative", ROOT, 0, root_negative, tbcclInvalidArgument},
    {"root is the number of ranks", ROOT, 0, root_beyond, tbcclInvalidArgument},
    {"root is INT_MAX", ROOT, 0, root_int_max, tbcclInvalidArgument},
    {"root is INT_MIN", ROOT, 0, root_int_min, tbcclInvalidArgument},
    {"counts is NULL", COUNTS, 0, counts_null, tbcclInvalidArgument},
    {"counts is huge", COUNTS, 0, counts_huge, tbcclInvalidArgument},
    {"counts is misaligned", COUNTS, 0, counts_misaligned, tbcclInvalidArgument},
    {"the other counts are NULL", MORE_COUNTS, 0, more_counts_null, tbcclInvalidArgument},
    {"codec is 0", CODEC, 0, codec_zero, tbcclInvalidArgument},
    {"codec is 99", CODEC, 0, codec_99, tbcclInvalidArgument},
    {"codec is for floats and type is double", CODEC, 0, codec_of_double, tbcclInvalidArgument},
    {"codec has no maximum", CODEC, 0, codec_of_max, tbcclInvalidArgument},
};
enum { NUM_FAULTS = sizeof(FAULTS) / sizeof(FAULTS[0]) };

static struct arguments good_arguments(void) {
  struct arguments a;
  memset(&a, 0, sizeof a);
  a.send = from;
  a.recv = to;
  a.count = COUNT_GOOD;
  a.type = tbcclFloat;
  a.op = tbcclSum;
  a.comm = good;
  a.counts = GOOD;
  a.more_counts = GOOD;
  a.codec = tbcclCodecBf16;
  return a;
}

/* Makes all calls with good arguments. The message to the rank itself is in a group. */
static void check_good_calls(void) {
  for (int i = 0; i < NUM_CALLS; ++i) {
    struct arguments a = good_arguments();
    if (CALLS[i].has & PEER) continue;
    memset(to, 0, sizeof to);
    for (int k = 0; k < COUNT_GOOD; ++k) from[k] = (float)k;
    CHECK(CALLS[i].make(&a));
    if ((CALLS[i].has & PAIR) == PAIR && CALLS[i].make != ExclusiveScan_) {
      if (memcmp(from, to, COUNT_GOOD * sizeof(float)) != 0) FAIL("%s: wrong result", CALLS[i].name);
    }
  }
  memset(to, 0, sizeof to);
  CHECK(tbcclGroupStart());
  CHECK(tbcclSend(from, COUNT_GOOD, tbcclFloat, 0, good, NULL));
  CHECK(tbcclRecv(to, COUNT_GOOD, tbcclFloat, 0, good, NULL));
  CHECK(tbcclGroupEnd());
  EXPECT(memcmp(from, to, COUNT_GOOD * sizeof(float)) == 0);
}

static void refused(const struct call* call, const struct fault* fault, int with_request, int in_group) {
  struct arguments a = good_arguments();
  tbcclRequest_t given = (tbcclRequest_t)(void*)from;
  fault->spoil(&a);
  a.request = with_request ? &given : NULL;
  if (in_group) CHECK(tbcclGroupStart());
  tbcclResult_t result = call->make(&a);
  if (in_group) {
    /* The fault shows at once or at the end of the group. The group ends in either case. */
    tbcclResult_t ended = tbcclGroupEnd();
    if (result == tbcclSuccess) result = ended;
    else if (ended != result) FAIL("%s, %s: the group ends with %d", call->name, fault->name, ended);
  }
  if (with_request && given != NULL) {
    tbcclResult_t waited = tbcclRequestWait(given, 10000);
    if (result == tbcclSuccess) result = waited;
    CHECK(tbcclRequestFree(given));
  }
  const char* how = in_group ? ", in a group" : with_request ? ", with a request" : "";
  if (result != fault->code)
    FAIL("%s, %s%s: %d instead of %d: %s", call->name, fault->name, how, (int)result, (int)fault->code,
         tbcclGetLastError(NULL));
  if (tbcclGetLastError(NULL)[0] == 0) FAIL("%s, %s%s: no error message", call->name, fault->name, how);
  tbcclErrorInfo_t info = TBCCL_ERROR_INFO_INITIALIZER;
  CHECK(tbcclGetLastErrorInfo(&info));
  if (info.result != fault->code)
    FAIL("%s, %s%s: the last error is %d", call->name, fault->name, how, info.result);
}

static void calls(void) {
  int tried = 0;
  for (int c = 0; c < NUM_CALLS; ++c) {
    for (int f = 0; f < NUM_FAULTS; ++f) {
      if ((CALLS[c].has & FAULTS[f].of) != FAULTS[f].of || (CALLS[c].has & FAULTS[f].unless)) continue;
      for (int way = 0; way < 4; ++way, ++tried) refused(&CALLS[c], &FAULTS[f], way & 1, way >> 1);
    }
  }
  /* Detects a table that has lost its rows. */
  EXPECT(tried > 4 * 400);
}

/* Refuses bad arguments of functions that are no collectives and no messages. */
static void other_functions(void) {
  tbcclComm_t none = good;
  tbcclUniqueId id, no_id;
  tbcclConfig_t config = TBCCL_CONFIG_INITIALIZER;
  tbcclCallOptions_t options = TBCCL_CALL_OPTIONS_INITIALIZER;
  int number = 0;
  void* memory = NULL;
  float factor = 2;
  memset(&no_id, 7, sizeof no_id);
  memset(&id, 0, sizeof id);
  struct arguments bad[5];
  void (*spoils[])(struct arguments*) = {comm_null, comm_all_ones, comm_memory, comm_freed, comm_is_request};
  for (int i = 0; i < 5; ++i) {
    bad[i] = good_arguments();
    spoils[i](&bad[i]);
    tbcclComm_t comm = bad[i].comm;
    tbcclResult_t code = tbcclInvalidArgument, state = tbcclSuccess;
    tbcclStats_t stats = TBCCL_STATS_INITIALIZER;
    REFUSED(code, tbcclCommCount(comm, &number));
    REFUSED(code, tbcclCommUserRank(comm, &number));
    REFUSED(code, tbcclCommGetAsyncError(comm, &state));
    REFUSED(code, tbcclCommFinalize(comm));
    REFUSED(code, tbcclCommDestroy(comm));
    REFUSED(code, tbcclCommAbort(comm));
    REFUSED(code, tbcclCommStats(comm, &stats));
    tbcclLinkStats_t link = TBCCL_LINK_STATS_INITIALIZER;
    REFUSED(code, tbcclCommLinkStats(comm, 0, &link));
    REFUSED(code, tbcclCommLinkStats(good, i - 5, &link));
    REFUSED(code, tbcclCommLinkStats(good, i + 1, &link));
    REFUSED(code, tbcclCommDump(comm, NULL));
    REFUSED(code, tbcclCommSplit(comm, 0, 0, &none, NULL));
    REFUSED(code, tbcclCommShrink(comm, NULL, 0, &none, NULL, TBCCL_SHRINK_DEFAULT));
    REFUSED(code, tbcclCommGetUniqueId(comm, &id));
    REFUSED(code, tbcclCommGrow(comm, 2, NULL, -1, &none, NULL));
    REFUSED(code, tbcclCommWithOptions(comm, &options, &none));
    EXPECT(none == NULL);
    REFUSED(code, tbcclCommMemAlloc(comm, &memory, 64));
    REFUSED(code, tbcclCommRegister(comm, from, sizeof from, &memory));
    REFUSED(code, tbcclCommDeregister(comm, memory));
    REFUSED(code,
            tbcclRedOpCreatePreMulSum(&scaling_freed, &factor, tbcclFloat, tbcclScalarHostImmediate, comm));
    REFUSED(code, tbcclRedOpDestroy(scaling, comm));
    EXPECT(tbcclGetLastError(comm) != NULL);
  }
  REFUSED(tbcclInvalidArgument, tbcclGetVersion(NULL));
  REFUSED(tbcclInvalidArgument, tbcclGetUniqueId(NULL));
  REFUSED(tbcclInvalidArgument, tbcclGetLastErrorInfo(NULL));
  REFUSED(tbcclInvalidArgument, tbcclCommCount(good, NULL));
  REFUSED(tbcclInvalidArgument, tbcclCommUserRank(good, NULL));
  REFUSED(tbcclInvalidArgument, tbcclCommGetAsyncError(good, NULL));
  REFUSED(tbcclInvalidArgument, tbcclCommStats(good, NULL));
  REFUSED(tbcclInvalidArgument, tbcclCommWithOptions(good, NULL, &none));
  REFUSED(tbcclInvalidArgument, tbcclCommWithOptions(good, &options, NULL));
  REFUSED(tbcclInvalidArgument, tbcclCommSplit(good, -2, 0, &none, NULL));
  REFUSED(tbcclInvalidArgument, tbcclCommSplit(good, 0, 0, NULL, NULL));
  REFUSED(tbcclInvalidArgument, tbcclCommShrink(good, NULL, 1, &none, NULL, 0));
  REFUSED(tbcclInvalidArgument, tbcclCommShrink(good, &number, -1, &none, NULL, 0));
  REFUSED(tbcclInvalidArgument, tbcclCommShrink(good, &number, INT_MAX, &none, NULL, 0));
  REFUSED(tbcclInvalidArgument, tbcclCommShrink(good, &number, 0, &none, NULL, 77));
  REFUSED(tbcclInvalidArgument, tbcclCommGetUniqueId(good, NULL));
  REFUSED(tbcclInvalidArgument, tbcclCommGrow(good, -1, NULL, -1, &none, NULL));
  REFUSED(tbcclInvalidArgument, tbcclCommGrow(good, 1, NULL, -1, &none, NULL));
  REFUSED(tbcclInvalidArgument, tbcclCommGrow(good, 2, NULL, 1, &none, NULL));
  REFUSED(tbcclInvalidArgument, tbcclCommGrow(good, 2, &no_id, -1, &none, NULL));
  REFUSED(tbcclInvalidArgument, tbcclCommGrow(NULL, 2, NULL, 1, &none, NULL));
  REFUSED(tbcclInvalidArgument, tbcclCommGrow(good, 2, NULL, -1, NULL, NULL));
  REFUSED(tbcclSystemError, tbcclCommDump(good, "/nowhere/at/all"));
  EXPECT(strstr(tbcclGetErrorString((tbcclResult_t)12345), "unknown") != NULL);

  /* Communicators with impossible numbers of ranks, or without a valid id. */
  REFUSED(tbcclInvalidArgument, tbcclCommInitRank(NULL, 1, no_id, 0));
  REFUSED(tbcclInvalidArgument, tbcclCommInitRank(&none, 1, no_id, 0));
  EXPECT(none == NULL);
  CHECK(tbcclGetUniqueId(&id));
  int pairs[][2] = {{0, 0}, {-1, 0}, {1, 1}, {1, -1}, {INT_MIN, INT_MIN}, {2, INT_MAX}};
  for (int i = 0; i < 6; ++i)
    REFUSED(tbcclInvalidArgument, tbcclCommInitRank(&none, pairs[i][0], id, pairs[i][1]));
  REFUSED(tbcclInvalidArgument, tbcclCommInitRank(NULL, 1, id, 0));
  REFUSED(tbcclInvalidArgument, tbcclCommInitAll(NULL, 1, NULL));
  REFUSED(tbcclInvalidArgument, tbcclCommInitAll(&none, 0, NULL));
  REFUSED(tbcclInvalidArgument, tbcclCommInitAll(&none, -5, NULL));
  REFUSED(tbcclInvalidArgument, tbcclCommInitAll(&none, INT_MAX, NULL));
  REFUSED(tbcclInvalidArgument, tbcclCommInitFromEnv(NULL, NULL));

  /* Structures that are not initialized or have invalid values. */
  tbcclConfig_t wrong;
  memset(&wrong, 0, sizeof wrong);
  REFUSED(tbcclInvalidArgument, tbcclCommInitRankConfig(&none, 1, id, 0, &wrong));
  wrong = config, wrong.size += 8;
  REFUSED(tbcclInvalidArgument, tbcclCommInitRankConfig(&none, 1, id, 0, &wrong));
  wrong = config, wrong.blocking = 0;
  REFUSED(tbcclInvalidArgument, tbcclCommInitRankConfig(&none, 1, id, 0, &wrong));
  wrong = config, wrong.numerics = 9;
  REFUSED(tbcclInvalidArgument, tbcclCommInitRankConfig(&none, 1, id, 0, &wrong));
  wrong = config, wrong.timeoutMs = -1;
  REFUSED(tbcclInvalidArgument, tbcclCommInitRankConfig(&none, 1, id, 0, &wrong));
  wrong = config, wrong.netName = "pigeons";
  REFUSED(tbcclInvalidArgument, tbcclCommInitRankConfig(&none, 1, id, 0, &wrong));
  wrong = config, wrong.options = "TIMEOUT";
  REFUSED(tbcclInvalidArgument, tbcclCommInitRankConfig(&none, 1, id, 0, &wrong));
  wrong = config, wrong.options = "TIMEOUTS=5";
  REFUSED(tbcclUnknownName, tbcclCommInitRankConfig(&none, 1, id, 0, &wrong));
  wrong = config, wrong.options = "\xff\xfe";
  REFUSED(tbcclInvalidArgument, tbcclCommInitRankConfig(&none, 1, id, 0, &wrong));
  tbcclCallOptions_t odd = options;
  odd.magic = 1;
  REFUSED(tbcclInvalidArgument, tbcclCommWithOptions(good, &odd, &none));
  odd = options, odd.algSelection = "rinf";
  REFUSED(tbcclUnknownName, tbcclCommWithOptions(good, &odd, &none));
  odd = options, odd.segments = -3;
  REFUSED(tbcclInvalidArgument, tbcclCommWithOptions(good, &odd, &none));
  odd = options, odd.timeoutMs = INT64_MIN;
  REFUSED(tbcclInvalidArgument, tbcclCommWithOptions(good, &odd, &none));
  tbcclErrorInfo_t info = TBCCL_ERROR_INFO_INITIALIZER;
  info.size = 3;
  REFUSED(tbcclInvalidArgument, tbcclGetLastErrorInfo(&info));

  /* Memory, operations, requests, groups, parameters. */
  REFUSED(tbcclInvalidArgument, tbcclMemAlloc(NULL, 64));
  REFUSED(tbcclInvalidArgument, tbcclMemAlloc(&memory, SIZE_MAX));
  REFUSED(tbcclInvalidArgument, tbcclMemAlloc(&memory, SIZE_MAX / 2 + 2));
  REFUSED(tbcclInvalidArgument, tbcclMemFree(from));
  CHECK(tbcclMemAlloc(&memory, 100));
  REFUSED(tbcclInvalidArgument, tbcclMemFree((char*)memory + 1));
  CHECK(tbcclMemFree(memory));
  REFUSED(tbcclInvalidArgument, tbcclMemFree(memory));
  CHECK(tbcclMemFree(NULL));
  CHECK(tbcclMemAlloc(&memory, 0));
  EXPECT(memory == NULL);
  REFUSED(tbcclTransportError, tbcclCommMemAlloc(good, &memory, (size_t)1 << 40));
  REFUSED(tbcclInvalidArgument, tbcclCommRegister(good, NULL, 64, &memory));
  REFUSED(tbcclInvalidArgument, tbcclCommRegister(good, from, 0, &memory));
  REFUSED(tbcclInvalidArgument, tbcclCommRegister(good, from, SIZE_MAX, &memory));
  REFUSED(tbcclInvalidArgument, tbcclCommRegister(good, from, sizeof from, NULL));
  CHECK(tbcclCommRegister(good, from, sizeof from, &memory));
  REFUSED(tbcclInvalidArgument, tbcclCommDeregister(other, memory));
  REFUSED(tbcclInvalidArgument, tbcclCommDeregister(good, NULL));
  REFUSED(tbcclInvalidArgument, tbcclCommDeregister(good, from));
  CHECK(tbcclCommDeregister(good, memory));
  REFUSED(tbcclInvalidArgument, tbcclCommDeregister(good, memory));
  tbcclRedOp_t made;
  REFUSED(tbcclInvalidArgument,
          tbcclRedOpCreatePreMulSum(NULL, &factor, tbcclFloat, tbcclScalarDevice, good));
  REFUSED(tbcclInvalidArgument, tbcclRedOpCreatePreMulSum(&made, NULL, tbcclFloat, tbcclScalarDevice, good));
  REFUSED(tbcclInvalidArgument,
          tbcclRedOpCreatePreMulSum(&made, &factor, (tbcclDataType_t)77, tbcclScalarDevice, good));
  REFUSED(tbcclInvalidArgument,
          tbcclRedOpCreatePreMulSum(&made, &factor, tbcclFloat, (tbcclScalarResidence_t)2, good));
  REFUSED(tbcclInvalidArgument, tbcclRedOpDestroy(tbcclSum, good));
  REFUSED(tbcclInvalidArgument, tbcclRedOpDestroy(scaling_freed, good));
  REFUSED(tbcclInvalidArgument, tbcclRedOpDestroy(scaling_of_other, good));
  REFUSED(tbcclInvalidArgument, tbcclRequestTest(NULL, &number));
  REFUSED(tbcclInvalidArgument, tbcclRequestTest(request, NULL));
  REFUSED(tbcclInvalidArgument, tbcclRequestTest((tbcclRequest_t)(void*)good, &number));
  REFUSED(tbcclInvalidArgument, tbcclRequestWait(NULL, 0));
  REFUSED(tbcclInvalidArgument, tbcclRequestFree((tbcclRequest_t)(void*)from));
  REFUSED(tbcclInvalidUsage, tbcclGroupEnd());
  const char* text = NULL;
  REFUSED(tbcclInvalidArgument, tbcclParamGet(NULL, &text, NULL));
  REFUSED(tbcclInvalidArgument, tbcclParamGet("NOTHING_LIKE_IT", &text, NULL));
  REFUSED(tbcclInvalidArgument, tbcclParamSet(NULL, "1"));
  REFUSED(tbcclInvalidArgument, tbcclParamSet("TIMEOUT", "soon"));
  REFUSED(tbcclInvalidArgument, tbcclParamSet("TIMEOUTS", "5"));

  /* The id of the refused calls is still valid. */
  CHECK(tbcclCommInitRank(&none, 1, id, 0));
  CHECK(tbcclCommDestroy(none));
  REFUSED(tbcclInvalidArgument, tbcclCommDestroy(none));
}

int main(void) {
  float factor = 1;
  double wide = 1;
  CHECK(tbcclCommInitAll(&good, 1, NULL));
  CHECK(tbcclCommInitAll(&other, 1, NULL));
  CHECK(tbcclCommInitAll(&freed, 1, NULL));
  CHECK(tbcclCommInitAll(&aborted, 1, NULL));
  CHECK(tbcclCommInitAll(&finalized, 1, NULL));
  tbcclCallOptions_t options = TBCCL_CALL_OPTIONS_INITIALIZER;
  CHECK(tbcclCommWithOptions(freed, &options, &view_of_freed));
  CHECK(tbcclCommDestroy(freed));
  CHECK(tbcclCommAbort(aborted));
  CHECK(tbcclCommFinalize(finalized));
  CHECK(tbcclBarrier(good, &request));
  CHECK(tbcclRedOpCreatePreMulSum(&scaling, &factor, tbcclFloat, tbcclScalarHostImmediate, good));
  CHECK(tbcclRedOpCreatePreMulSum(&scaling_freed, &factor, tbcclFloat, tbcclScalarHostImmediate, good));
  CHECK(tbcclRedOpDestroy(scaling_freed, good));
  CHECK(tbcclRedOpCreatePreMulSum(&scaling_of_other, &factor, tbcclFloat, tbcclScalarHostImmediate, other));
  CHECK(tbcclRedOpCreatePreMulSum(&scaling_double, &wide, tbcclDouble, tbcclScalarHostImmediate, good));

  check_good_calls();
  calls();
  other_functions();
  check_good_calls();

  CHECK(tbcclRequestWait(request, 10000));
  CHECK(tbcclRequestFree(request));
  REFUSED(tbcclInvalidArgument, tbcclRequestFree(request));
  CHECK(tbcclRedOpDestroy(scaling, good));
  CHECK(tbcclRedOpDestroy(scaling_double, good));
  CHECK(tbcclRedOpDestroy(scaling_of_other, other));
  CHECK(tbcclCommDestroy(view_of_freed));
  CHECK(tbcclCommDestroy(finalized));
  CHECK(tbcclCommDestroy(aborted));
  CHECK(tbcclCommDestroy(other));
  CHECK(tbcclCommDestroy(good));
  puts("ok");
  return 0;
}
