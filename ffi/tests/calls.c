/* Every call, compared with its expected result. The ranks are threads of this process, or processes of a
 * launcher. Element i of the data that rank r sends is 7 * r + i, so that all sums are exact in every type.
 *
 * calls [RANKS]: RANKS is the number of threads. Without it, this process is a rank that a launcher
 * started. */
#include <pthread.h>
#include <stdint.h>

#include "check.h"

enum { COUNT = 37, MAX_RANKS = 8 };

static int size_of_type(tbcclDataType_t type) {
  switch ((int)type) {
    case tbcclInt32: case tbcclUint32: case tbcclFloat32: return 4;
    case tbcclInt64: case tbcclUint64: case tbcclFloat64: return 8;
    case tbcclInt16: case tbcclUint16: return 2;
    default: return 1;
  }
}

static void put(void* at, tbcclDataType_t type, size_t index, int value) {
  switch ((int)type) {
    case tbcclInt8: ((int8_t*)at)[index] = (int8_t)value; break;
    case tbcclUint8: ((uint8_t*)at)[index] = (uint8_t)value; break;
    case tbcclInt16: ((int16_t*)at)[index] = (int16_t)value; break;
    case tbcclUint16: ((uint16_t*)at)[index] = (uint16_t)value; break;
    case tbcclInt32: ((int32_t*)at)[index] = value; break;
    case tbcclUint32: ((uint32_t*)at)[index] = (uint32_t)value; break;
    case tbcclInt64: ((int64_t*)at)[index] = value; break;
    case tbcclUint64: ((uint64_t*)at)[index] = (uint64_t)value; break;
    case tbcclFloat32: ((float*)at)[index] = (float)value; break;
    case tbcclFloat64: ((double*)at)[index] = value; break;
    default: FAIL("no test has type %d", (int)type);
  }
}

/* Checks that an element equals the value that put() would write. */
static void expect(const char* what, const void* at, tbcclDataType_t type, size_t index, int value) {
  char wanted[8];
  int bytes = size_of_type(type);
  put(wanted, type, 0, value);
  if (memcmp(wanted, (const char*)at + index * (size_t)bytes, (size_t)bytes) != 0)
    FAIL("%s, type %d: element %zu is not %d", what, (int)type, index, value);
}

static int value(int rank, int index) { return 7 * rank + index; }

static int sum(int ranks, int index) {
  int all = 0;
  for (int r = 0; r < ranks; ++r) all += value(r, index);
  return all;
}

struct job {
  tbcclComm_t comm;
  int rank, size;
  char *send, *recv;
};

static void fill(struct job* job, tbcclDataType_t type, int blocks) {
  memset(job->recv, 0xee, (size_t)MAX_RANKS * COUNT * 8);
  for (int i = 0; i < blocks * COUNT; ++i) put(job->send, type, (size_t)i, value(job->rank, i % COUNT));
}

static void without_root(struct job* job, tbcclDataType_t type) {
  tbcclComm_t comm = job->comm;
  size_t bytes = (size_t)size_of_type(type);
  int n = job->size, me = job->rank;
  fill(job, type, 1);
  CHECK(tbcclAllReduce(job->send, job->recv, COUNT, type, tbcclSum, comm, NULL));
  for (int i = 0; i < COUNT; ++i) expect("AllReduce", job->recv, type, (size_t)i, sum(n, i));
  CHECK(tbcclAllReduce(job->send, job->send, COUNT, type, tbcclMax, comm, NULL));
  for (int i = 0; i < COUNT; ++i) expect("AllReduce in place", job->send, type, (size_t)i, value(n - 1, i));

  fill(job, type, 1);
  CHECK(tbcclAllGather(job->send, job->recv, COUNT, type, comm, NULL));
  for (int i = 0; i < n * COUNT; ++i)
    expect("AllGather", job->recv, type, (size_t)i, value(i / COUNT, i % COUNT));
  memset(job->recv, 0, (size_t)(n * COUNT) * bytes);
  char* block = job->recv + (size_t)(me * COUNT) * bytes;
  memcpy(block, job->send, COUNT * bytes);
  CHECK(tbcclAllGather(block, job->recv, COUNT, type, comm, NULL));
  for (int i = 0; i < n * COUNT; ++i)
    expect("AllGather in place", job->recv, type, (size_t)i, value(i / COUNT, i % COUNT));

  fill(job, type, n);
  CHECK(tbcclReduceScatter(job->send, job->recv, COUNT, type, tbcclSum, comm, NULL));
  for (int i = 0; i < COUNT; ++i) expect("ReduceScatter", job->recv, type, (size_t)i, sum(n, i));
  block = job->send + (size_t)(me * COUNT) * bytes;
  CHECK(tbcclReduceScatter(job->send, block, COUNT, type, tbcclSum, comm, NULL));
  for (int i = 0; i < COUNT; ++i) expect("ReduceScatter in place", block, type, (size_t)i, sum(n, i));

  for (int i = 0; i < n * COUNT; ++i) put(job->send, type, (size_t)i, value(me, i / COUNT));
  CHECK(tbcclAlltoAll(job->send, job->recv, COUNT, type, comm, NULL));
  for (int i = 0; i < n * COUNT; ++i) expect("AlltoAll", job->recv, type, (size_t)i, value(i / COUNT, me));

  fill(job, type, 1);
  CHECK(tbcclScan(job->send, job->recv, COUNT, type, tbcclSum, comm, NULL));
  for (int i = 0; i < COUNT; ++i) expect("Scan", job->recv, type, (size_t)i, sum(me + 1, i));
  CHECK(tbcclExclusiveScan(job->send, job->recv, COUNT, type, tbcclSum, comm, NULL));
  for (int i = 0; me > 0 && i < COUNT; ++i) expect("ExclusiveScan", job->recv, type, (size_t)i, sum(me, i));
  CHECK(tbcclBarrier(comm, NULL));
}

static void with_root(struct job* job, tbcclDataType_t type, int root) {
  tbcclComm_t comm = job->comm;
  int n = job->size, me = job->rank, is_root = me == root;
  fill(job, type, 1);
  CHECK(tbcclReduce(job->send, is_root ? job->recv : NULL, COUNT, type, tbcclSum, root, comm, NULL));
  for (int i = 0; is_root && i < COUNT; ++i) expect("Reduce", job->recv, type, (size_t)i, sum(n, i));
  CHECK(tbcclBroadcast(is_root ? job->send : NULL, job->recv, COUNT, type, root, comm, NULL));
  for (int i = 0; i < COUNT; ++i) expect("Broadcast", job->recv, type, (size_t)i, value(root, i));
  fill(job, type, 1);
  CHECK(tbcclBcast(job->send, COUNT, type, root, comm, NULL));
  for (int i = 0; i < COUNT; ++i) expect("Bcast", job->send, type, (size_t)i, value(root, i));
  fill(job, type, 1);
  CHECK(tbcclGather(job->send, is_root ? job->recv : NULL, COUNT, type, root, comm, NULL));
  for (int i = 0; is_root && i < n * COUNT; ++i)
    expect("Gather", job->recv, type, (size_t)i, value(i / COUNT, i % COUNT));
  for (int i = 0; i < n * COUNT; ++i) put(job->send, type, (size_t)i, i % 100);
  CHECK(tbcclScatter(is_root ? job->send : NULL, job->recv, COUNT, type, root, comm, NULL));
  for (int i = 0; i < COUNT; ++i) expect("Scatter", job->recv, type, (size_t)i, (me * COUNT + i) % 100);
}

/* Vector collectives, in which rank r has r + 1 elements. */
static void vectors(struct job* job, tbcclDataType_t type, int root) {
  tbcclComm_t comm = job->comm;
  int n = job->size, me = job->rank, is_root = me == root;
  size_t counts[MAX_RANKS], ours[MAX_RANKS];
  for (int r = 0; r < n; ++r) counts[r] = (size_t)r + 1, ours[r] = (size_t)me + 1;
  fill(job, type, n);
  CHECK(tbcclAllGatherV(job->send, job->recv, counts, type, comm, NULL));
  for (int r = 0, at = 0; r < n; ++r)
    for (int i = 0; i <= r; ++i, ++at) expect("AllGatherV", job->recv, type, (size_t)at, value(r, i));
  CHECK(tbcclReduceScatterV(job->send, job->recv, counts, type, tbcclSum, comm, NULL));
  for (int i = 0; i <= me; ++i)
    expect("ReduceScatterV", job->recv, type, (size_t)i, sum(n, (me * (me + 1) / 2 + i) % COUNT));
  CHECK(tbcclGatherV(job->send, is_root ? job->recv : NULL, counts, type, root, comm, NULL));
  for (int r = 0, at = 0; is_root && r < n; ++r)
    for (int i = 0; i <= r; ++i, ++at) expect("GatherV", job->recv, type, (size_t)at, value(r, i));
  CHECK(tbcclScatterV(is_root ? job->send : NULL, job->recv, counts, type, root, comm, NULL));
  for (int i = 0; i <= me; ++i)
    expect("ScatterV", job->recv, type, (size_t)i, value(root, (me * (me + 1) / 2 + i) % COUNT));
  /* Rank r sends r + 1 elements to every rank, and so receives s + 1 from rank s. */
  for (int i = 0; i < n * (me + 1); ++i) put(job->send, type, (size_t)i, value(me, i / (me + 1)));
  CHECK(tbcclAlltoAllV(job->send, ours, job->recv, counts, type, comm, NULL));
  for (int r = 0, at = 0; r < n; ++r)
    for (int i = 0; i <= r; ++i, ++at) expect("AlltoAllV", job->recv, type, (size_t)at, value(r, me));
}

static void messages(struct job* job, tbcclDataType_t type) {
  int n = job->size, me = job->rank, next = (me + 1) % n, last = (me + n - 1) % n;
  fill(job, type, 1);
  CHECK(tbcclGroupStart());
  CHECK(tbcclSend(job->send, COUNT, type, next, job->comm, NULL));
  CHECK(tbcclRecv(job->recv, COUNT, type, last, job->comm, NULL));
  CHECK(tbcclGroupEnd());
  for (int i = 0; i < COUNT; ++i) expect("Send and Recv", job->recv, type, (size_t)i, value(last, i));
}

/* Contributions are multiplied by 2 on even ranks and by 3 on odd ranks. */
static void scaled(struct job* job) {
  int n = job->size, me = job->rank;
  float factor = me % 2 ? 3 : 2;
  float *send = (float*)(void*)job->send, *recv = (float*)(void*)job->recv;
  tbcclRedOp_t op;
  CHECK(tbcclRedOpCreatePreMulSum(&op, &factor, tbcclFloat, tbcclScalarHostImmediate, job->comm));
  fill(job, tbcclFloat, n);
  float wanted[COUNT];
  for (int i = 0; i < COUNT; ++i) {
    wanted[i] = 0;
    for (int r = 0; r < n; ++r) wanted[i] += (float)((r % 2 ? 3 : 2) * value(r, i));
  }
  CHECK(tbcclAllReduce(send, recv, COUNT, tbcclFloat, op, job->comm, NULL));
  for (int i = 0; i < COUNT; ++i) EXPECT(recv[i] == wanted[i]);
  CHECK(tbcclReduce(send, recv, COUNT, tbcclFloat, op, n - 1, job->comm, NULL));
  for (int i = 0; me == n - 1 && i < COUNT; ++i) EXPECT(recv[i] == wanted[i]);
  CHECK(tbcclReduceScatter(send, recv, COUNT, tbcclFloat, op, job->comm, NULL));
  for (int i = 0; i < COUNT; ++i) EXPECT(recv[i] == wanted[i]);
  CHECK(tbcclRedOpDestroy(op, job->comm));
  for (int codec = tbcclCodecInt8; codec <= tbcclCodecBf16; ++codec) {
    fill(job, tbcclFloat, 1);
    CHECK(tbcclAllReduceQuantized(send, recv, COUNT, tbcclFloat, tbcclSum, (tbcclCodec_t)codec, job->comm,
                                  NULL));
    for (int i = 0; i < COUNT; ++i) {
      float off = recv[i] - (float)sum(n, i);
      if (off > 16 || off < -16) FAIL("codec %d: element %d is off by %f", codec, i, (double)off);
    }
  }
}

/* Several calls in flight finish in the order of issue. */
static void requests(struct job* job) {
  enum { CALLS = 16 };
  static const int elements = 64;
  tbcclRequest_t all[CALLS];
  float* data = (float*)malloc(sizeof(float) * CALLS * (size_t)elements);
  EXPECT(data);
  for (int i = 0; i < CALLS * elements; ++i) data[i] = (float)(i % 10 + job->rank);
  for (int c = 0; c < CALLS; ++c) {
    float* at = data + c * elements;
    CHECK(tbcclAllReduce(at, at, (size_t)elements, tbcclFloat, tbcclSum, job->comm, &all[c]));
  }
  /* This blocking call finishes after all of them. */
  float one = 1, ones = 0;
  CHECK(tbcclAllReduce(&one, &ones, 1, tbcclFloat, tbcclSum, job->comm, NULL));
  EXPECT(ones == (float)job->size);
  for (int c = 0; c < CALLS; ++c) {
    int done = 0;
    CHECK(tbcclRequestTest(all[c], &done));
    EXPECT(done == 1);
    CHECK(tbcclRequestWait(all[c], -1));
    CHECK(tbcclRequestFree(all[c]));
  }
  float ranks = (float)job->size;
  for (int i = 0; i < CALLS * elements; ++i)
    EXPECT(data[i] == ranks * (float)(i % 10) + ranks * (ranks - 1) / 2);
  free(data);
}

/* Other handles of the communicator, whose calls have other options. */
static void views(struct job* job) {
  tbcclCallOptions_t options = TBCCL_CALL_OPTIONS_INITIALIZER;
  tbcclComm_t view;
  options.timeoutMs = 20000;
  options.algSelection = "ring";
  options.segments = 2;
  options.numerics = TBCCL_NUMERICS_FAST;
  CHECK(tbcclCommWithOptions(job->comm, &options, &view));
  int size = 0, rank = -1;
  CHECK(tbcclCommCount(view, &size));
  CHECK(tbcclCommUserRank(view, &rank));
  EXPECT(size == job->size && rank == job->rank);
  float x = 1, y = 0;
  CHECK(tbcclAllReduce(&x, &y, 1, tbcclFloat, tbcclSum, view, NULL));
  EXPECT(y == (float)size);
  options.algSelection = NULL;
  options.numerics = TBCCL_NUMERICS_REPRODUCIBLE;
  tbcclComm_t exact;
  CHECK(tbcclCommWithOptions(view, &options, &exact));
  CHECK(tbcclCommDestroy(view));
  REFUSED(tbcclInvalidArgument, tbcclBarrier(view, NULL));
  CHECK(tbcclAllReduce(&x, &y, 1, tbcclFloat, tbcclSum, exact, NULL));
  EXPECT(y == (float)size);
  CHECK(tbcclCommDestroy(exact));
}

static void stats(struct job* job) {
  tbcclStats_t stats = TBCCL_STATS_INITIALIZER;
  CHECK(tbcclCommStats(job->comm, &stats));
  EXPECT(stats.begun > 50 && stats.finished > 50);
  EXPECT(job->size == 1 || (stats.sentMessages > 0 && stats.movedBytes > 0));
  uint64_t moved = 0;
  for (int peer = 0; peer < job->size; ++peer) {
    tbcclLinkStats_t link = TBCCL_LINK_STATS_INITIALIZER;
    CHECK(tbcclCommLinkStats(job->comm, peer, &link));
    moved += link.movedBytes;
  }
  EXPECT(moved == stats.movedBytes);
  tbcclResult_t state = tbcclInternalError;
  CHECK(tbcclCommGetAsyncError(job->comm, &state));
  EXPECT(state == tbcclSuccess);
}

static void* play(void* argument) {
  struct job* job = (struct job*)argument;
  static const tbcclDataType_t types[] = {tbcclInt8,   tbcclUint8, tbcclInt16, tbcclUint16,  tbcclInt32,
                                          tbcclUint32, tbcclInt64, tbcclUint64, tbcclFloat32, tbcclFloat64};
  CHECK(tbcclCommUserRank(job->comm, &job->rank));
  CHECK(tbcclCommCount(job->comm, &job->size));
  EXPECT(job->size <= MAX_RANKS);
  job->send = (char*)malloc((size_t)MAX_RANKS * COUNT * 8);
  job->recv = (char*)malloc((size_t)MAX_RANKS * COUNT * 8);
  EXPECT(job->send && job->recv);
  for (size_t t = 0; t < sizeof types / sizeof types[0]; ++t) {
    int is_small = size_of_type(types[t]) == 1;
    /* Sums over more ranks do not fit in a byte. */
    if (!is_small || job->size <= 2) without_root(job, types[t]);
    if (!is_small || job->size <= 2) with_root(job, types[t], (int)t % job->size);
    if (!is_small || job->size <= 2) vectors(job, types[t], (int)t % job->size);
    messages(job, types[t]);
  }
  scaled(job);
  requests(job);
  views(job);
  stats(job);
  CHECK(tbcclCommFinalize(job->comm));
  CHECK(tbcclCommDestroy(job->comm));
  free(job->send);
  free(job->recv);
  return NULL;
}

int main(int argc, char** argv) {
  struct job jobs[MAX_RANKS];
  tbcclComm_t comms[MAX_RANKS];
  pthread_t threads[MAX_RANKS];
  memset(jobs, 0, sizeof jobs);
  if (argc < 2) {
    CHECK(tbcclCommInitFromEnv(&jobs[0].comm, NULL));
    play(&jobs[0]);
  } else {
    int ranks = atoi(argv[1]);
    EXPECT(ranks >= 1 && ranks <= MAX_RANKS);
    CHECK(tbcclCommInitAll(comms, ranks, NULL));
    for (int r = 0; r < ranks; ++r) jobs[r].comm = comms[r];
    for (int r = 0; r < ranks; ++r) EXPECT(pthread_create(&threads[r], NULL, play, &jobs[r]) == 0);
    for (int r = 0; r < ranks; ++r) EXPECT(pthread_join(threads[r], NULL) == 0);
  }
  puts("ok");
  return 0;
}
