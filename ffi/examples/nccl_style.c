/* A program for nccl.h in the style of its documentation and of nccl-tests. One thread plays several ranks in
 * groups. The program runs all collectives, in and out of place, with several types and operations and with
 * sizes from 8 bytes to 1 MiB. It checks the results and measures the time.
 *
 * For tbccl only the names and the stream argument change:
 *
 *   sed -e 's/nccl/tbccl/g; s/NCCL/TBCCL/g; s/, stream)/, NULL)/' nccl_style.c > tbccl_style.c
 *   cc tbccl_style.c $(pkg-config --cflags --libs tbccl) -o tbccl_style && ./tbccl_style */
#define _POSIX_C_SOURCE 200809L
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NCCLCHECK(cmd)                                                                             \
  do {                                                                                             \
    ncclResult_t res = cmd;                                                                        \
    if (res != ncclSuccess) {                                                                      \
      printf("%s:%d: NCCL failure %s / %s\n", __FILE__, __LINE__, ncclGetErrorString(res),         \
             ncclGetLastError(NULL));                                                              \
      exit(EXIT_FAILURE);                                                                          \
    }                                                                                              \
  } while (0)

enum { nGpus = 4, maxBytes = 1 << 20 };

static ncclComm_t comms[nGpus];
static void *sendbuffs[nGpus], *recvbuffs[nGpus], *expected[nGpus];
static void *sendRegHandles[nGpus], *recvRegHandles[nGpus];

static const ncclDataType_t test_types[] = {ncclInt8,  ncclUint8,  ncclInt32, ncclUint32,
                                            ncclInt64, ncclUint64, ncclFloat, ncclDouble};
static const char* test_typenames[] = {"int8",  "uint8",  "int32", "uint32",
                                       "int64", "uint64", "float", "double"};
static const ncclRedOp_t test_ops[] = {ncclSum, ncclProd, ncclMax, ncclMin};
static const char* test_opnames[] = {"sum", "prod", "max", "min"};

static size_t wordSize(ncclDataType_t type) {
  switch (type) {
    case ncclChar:
    case ncclUint8:
      return 1;
    case ncclHalf:
    case ncclBfloat16:
      return 2;
    case ncclInt:
    case ncclUint32:
    case ncclFloat:
      return 4;
    default:
      return 8;
  }
}

static void setWord(void* buff, size_t i, ncclDataType_t type, int value) {
  char* at = (char*)buff + i * wordSize(type);
  float f = (float)value;
  double d = value;
  long long l = value;
  switch (type) {
    case ncclFloat: memcpy(at, &f, sizeof f); break;
    case ncclDouble: memcpy(at, &d, sizeof d); break;
    /* All machines that this runs on are little-endian. */
    default: memcpy(at, &l, wordSize(type)); break;
  }
}

/* Small numbers, whose results do not depend on the order of operations. */
static int word(int rank, size_t i) { return (int)((i + (size_t)rank) % 3) + 1; }

static int reduced(int op, size_t i) {
  int all = word(0, i);
  for (int r = 1; r < nGpus; r++) {
    int next = word(r, i);
    if (op == 0) all += next;
    if (op == 1) all *= next;
    if (op == 2 && next > all) all = next;
    if (op == 3 && next < all) all = next;
  }
  return all;
}

static void initData(void* buff, size_t count, ncclDataType_t type, int rank) {
  for (size_t i = 0; i < count; i++) setWord(buff, i, type, word(rank, i));
}

static void checkData(const char* what, int gpu, const void* buff, size_t bytes) {
  if (memcmp(buff, expected[gpu], bytes) == 0) return;
  printf("%s: wrong result on rank %d\n", what, gpu);
  exit(EXIT_FAILURE);
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void testAllReduce(size_t bytes, int t, int op, int in_place) {
  size_t count = bytes / wordSize(test_types[t]);
  for (int i = 0; i < nGpus; i++) {
    initData(in_place ? recvbuffs[i] : sendbuffs[i], count, test_types[t], i);
    for (size_t k = 0; k < count; k++) setWord(expected[i], k, test_types[t], reduced(op, k));
  }
  double start = seconds();
  NCCLCHECK(ncclGroupStart());
  for (int i = 0; i < nGpus; i++)
    NCCLCHECK(ncclAllReduce((const void*)(in_place ? recvbuffs[i] : sendbuffs[i]), (void*)recvbuffs[i], count,
                            test_types[t], test_ops[op], comms[i], stream));
  NCCLCHECK(ncclGroupEnd());
  double taken = seconds() - start;
  for (int i = 0; i < nGpus; i++) checkData("all_reduce", i, recvbuffs[i], count * wordSize(test_types[t]));
  if (t == 6 && op == 0) {
    double algbw = (double)bytes / taken / 1e9, busbw = algbw * 2 * (nGpus - 1) / nGpus;
    printf("%12zu %12zu %8s %6s %10.1f %8.2f %8.2f  %s\n", bytes, count, test_typenames[t], test_opnames[op],
           taken * 1e6, algbw, busbw, in_place ? "in place" : "");
  }
}

static void testReduceScatterAndAllGather(size_t bytes, int t) {
  size_t count = bytes / nGpus / wordSize(test_types[t]), size = wordSize(test_types[t]);
  if (count == 0) return;
  for (int i = 0; i < nGpus; i++) {
    initData(sendbuffs[i], count * nGpus, test_types[t], i);
    for (size_t k = 0; k < count; k++)
      setWord(expected[i], k, test_types[t], reduced(0, (size_t)i * count + k));
  }
  NCCLCHECK(ncclGroupStart());
  for (int i = 0; i < nGpus; i++)
    NCCLCHECK(ncclReduceScatter(sendbuffs[i], recvbuffs[i], count, test_types[t], ncclSum, comms[i], stream));
  NCCLCHECK(ncclGroupEnd());
  for (int i = 0; i < nGpus; i++) checkData("reduce_scatter", i, recvbuffs[i], count * size);

  for (int i = 0; i < nGpus; i++) {
    /* In place: the part of each rank is in its own block of the result. */
    initData((char*)recvbuffs[i] + (size_t)i * count * size, count, test_types[t], i);
    for (size_t k = 0; k < count * nGpus; k++)
      setWord(expected[i], k, test_types[t], word((int)(k / count), k % count));
  }
  NCCLCHECK(ncclGroupStart());
  for (int i = 0; i < nGpus; i++)
    NCCLCHECK(ncclAllGather((char*)recvbuffs[i] + (size_t)i * count * size, recvbuffs[i], count,
                            test_types[t], comms[i], stream));
  NCCLCHECK(ncclGroupEnd());
  for (int i = 0; i < nGpus; i++) checkData("all_gather", i, recvbuffs[i], count * nGpus * size);
}

static void testRooted(size_t bytes, int t, int root) {
  size_t count = bytes / wordSize(test_types[t]);
  for (int i = 0; i < nGpus; i++) {
    initData(sendbuffs[i], count, test_types[t], i);
    initData(expected[i], count, test_types[t], root);
  }
  NCCLCHECK(ncclGroupStart());
  for (int i = 0; i < nGpus; i++)
    NCCLCHECK(ncclBroadcast(sendbuffs[i], recvbuffs[i], count, test_types[t], root, comms[i], stream));
  NCCLCHECK(ncclGroupEnd());
  for (int i = 0; i < nGpus; i++) checkData("broadcast", i, recvbuffs[i], count * wordSize(test_types[t]));

  NCCLCHECK(ncclGroupStart());
  for (int i = 0; i < nGpus; i++)
    NCCLCHECK(ncclReduce(sendbuffs[i], recvbuffs[i], count, test_types[t], ncclMax, root, comms[i], stream));
  NCCLCHECK(ncclGroupEnd());
  for (size_t k = 0; k < count; k++) setWord(expected[root], k, test_types[t], reduced(2, k));
  checkData("reduce", root, recvbuffs[root], count * wordSize(test_types[t]));
}

/* All to all by messages, as the sendrecv test of nccl-tests does, and by one call. */
static void testSendRecv(size_t bytes, int t) {
  size_t count = bytes / nGpus / wordSize(test_types[t]), rankOffset = count * wordSize(test_types[t]);
  if (count == 0) return;
  for (int i = 0; i < nGpus; i++) {
    initData(sendbuffs[i], count * nGpus, test_types[t], i);
    for (int r = 0; r < nGpus; r++)
      for (size_t k = 0; k < count; k++)
        setWord(expected[i], (size_t)r * count + k, test_types[t], word(r, (size_t)i * count + k));
  }
  NCCLCHECK(ncclGroupStart());
  for (int i = 0; i < nGpus; i++) {
    for (int r = 0; r < nGpus; r++) {
      size_t offset = (size_t)r * rankOffset;
      NCCLCHECK(ncclSend((char*)sendbuffs[i] + offset, count, test_types[t], r, comms[i], stream));
      NCCLCHECK(ncclRecv((char*)recvbuffs[i] + offset, count, test_types[t], r, comms[i], stream));
    }
  }
  NCCLCHECK(ncclGroupEnd());
  for (int i = 0; i < nGpus; i++) checkData("all_to_all by messages", i, recvbuffs[i], rankOffset * nGpus);
  for (int i = 0; i < nGpus; i++) memset(recvbuffs[i], 0, rankOffset * nGpus);
  NCCLCHECK(ncclGroupStart());
  for (int i = 0; i < nGpus; i++)
    NCCLCHECK(ncclAlltoAll(sendbuffs[i], recvbuffs[i], count, test_types[t], comms[i], stream));
  NCCLCHECK(ncclGroupEnd());
  for (int i = 0; i < nGpus; i++) checkData("all_to_all", i, recvbuffs[i], rankOffset * nGpus);
}

/* Sum of contributions that are multiplied by a scalar first. */
static void testPreMulSum(size_t bytes) {
  size_t count = bytes / sizeof(float);
  ncclRedOp_t ops[nGpus];
  float scalar = 0.5f;
  for (int i = 0; i < nGpus; i++) {
    NCCLCHECK(ncclRedOpCreatePreMulSum(&ops[i], &scalar, ncclFloat, ncclScalarHostImmediate, comms[i]));
    for (size_t k = 0; k < count; k++) setWord(sendbuffs[i], k, ncclFloat, 2 * word(i, k));
    for (size_t k = 0; k < count; k++) setWord(expected[i], k, ncclFloat, reduced(0, k));
  }
  NCCLCHECK(ncclGroupStart());
  for (int i = 0; i < nGpus; i++)
    NCCLCHECK(ncclAllReduce(sendbuffs[i], recvbuffs[i], count, ncclFloat, ops[i], comms[i], stream));
  NCCLCHECK(ncclGroupEnd());
  for (int i = 0; i < nGpus; i++) {
    checkData("premulsum", i, recvbuffs[i], count * sizeof(float));
    NCCLCHECK(ncclRedOpDestroy(ops[i], comms[i]));
  }
}

int main(void) {
  int version;
  NCCLCHECK(ncclGetVersion(&version));
  printf("# version %d, %d ranks of one thread\n", version, nGpus);

  ncclUniqueId ncclId;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  NCCLCHECK(ncclGetUniqueId(&ncclId));
  NCCLCHECK(ncclGroupStart());
  for (int i = 0; i < nGpus; i++) NCCLCHECK(ncclCommInitRankConfig(comms + i, nGpus, ncclId, i, &config));
  NCCLCHECK(ncclGroupEnd());
  for (int i = 0; i < nGpus; i++) {
    int count, rank;
    NCCLCHECK(ncclCommCount(comms[i], &count));
    NCCLCHECK(ncclCommUserRank(comms[i], &rank));
    if (count != nGpus || rank != i) return EXIT_FAILURE;
    NCCLCHECK(ncclMemAlloc(&sendbuffs[i], maxBytes));
    NCCLCHECK(ncclMemAlloc(&recvbuffs[i], maxBytes));
    NCCLCHECK(ncclCommRegister(comms[i], sendbuffs[i], maxBytes, &sendRegHandles[i]));
    NCCLCHECK(ncclCommRegister(comms[i], recvbuffs[i], maxBytes, &recvRegHandles[i]));
    expected[i] = malloc(maxBytes);
    if (expected[i] == NULL) return EXIT_FAILURE;
  }

  printf("# %10s %12s %8s %6s %10s %8s %8s\n", "bytes", "count", "type", "op", "us", "algbw", "busbw");
  for (size_t bytes = 8; bytes <= maxBytes; bytes *= 8) {
    for (int t = 0; t < (int)(sizeof(test_types) / sizeof(test_types[0])); t++) {
      for (int op = 0; op < 4; op++) {
        testAllReduce(bytes, t, op, 0);
        testAllReduce(bytes, t, op, 1);
      }
      testReduceScatterAndAllGather(bytes, t);
      testRooted(bytes, t, t % nGpus);
      testSendRecv(bytes, t);
    }
    testPreMulSum(bytes);
  }

  for (int i = 0; i < nGpus; i++) {
    ncclResult_t async;
    NCCLCHECK(ncclCommGetAsyncError(comms[i], &async));
    if (async != ncclSuccess) return EXIT_FAILURE;
    NCCLCHECK(ncclCommDeregister(comms[i], sendRegHandles[i]));
    NCCLCHECK(ncclCommDeregister(comms[i], recvRegHandles[i]));
    NCCLCHECK(ncclMemFree(sendbuffs[i]));
    NCCLCHECK(ncclMemFree(recvbuffs[i]));
    free(expected[i]);
  }
  for (int i = 0; i < nGpus; i++) NCCLCHECK(ncclCommFinalize(comms[i]));
  for (int i = 0; i < nGpus; i++) NCCLCHECK(ncclCommDestroy(comms[i]));
  printf("# all results are right\n");
  return EXIT_SUCCESS;
}
