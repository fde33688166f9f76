/*
 * tbccl.h: collective communication for Macs and PCs that are wired together.
 *
 * Names and shapes are those of nccl.h; in the place of the stream is a request, which may be NULL: then the call is done
 * when it returns. ffi/README.md says what programs may rely on.
 *
 * Pointers are NULL where that is said to be good, or point to what their type says while the call lasts; memory that a call
 * works on, until the call is done. Handles may be anything: what is none is told from one.
 *
 * Written from the sources by ffi/tests/header.rs: change those, not this.
 */

#ifndef TBCCL_H_
#define TBCCL_H_

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#define TBCCL_VERSION(X, Y, Z) ((X) * 10000 + (Y) * 100 + (Z))

#define TBCCL_COMM_NULL NULL
#define TBCCL_REQUEST_NULL NULL
#define TBCCL_CONFIG_UNDEF_PTR NULL

/**
 * What most functions return. Numbers below 1000 are those of nccl.h.
 */
typedef enum {
  tbcclSuccess = 0,
  tbcclUnhandledDeviceError = 1,
  tbcclUnhandledCudaError = 1,
  tbcclSystemError = 2,
  tbcclInternalError = 3,
  tbcclInvalidArgument = 4,
  tbcclInvalidUsage = 5,
  tbcclRemoteError = 6,
  tbcclInProgress = 7,
  tbcclTimeout = 8,
  tbcclPeerDied = 1000,
  tbcclPeerLeft = 1001,
  tbcclMismatch = 1002,
  tbcclIllegalOperation = 1003,
  tbcclUnknownName = 1004,
  tbcclNoPlan = 1005,
  tbcclTransportError = 1006,
  tbcclBootstrapError = 1007,
  tbcclLauncherGone = 1008,
  tbcclAborted = 1009,
  tbcclNumResults = 9,
} tbcclResult_t;

/**
 * The types of elements. Numbers below 1000 are those of nccl.h.
 */
typedef enum {
  tbcclInt8 = 0,
  tbcclChar = 0,
  tbcclUint8 = 1,
  tbcclInt32 = 2,
  tbcclInt = 2,
  tbcclUint32 = 3,
  tbcclInt64 = 4,
  tbcclUint64 = 5,
  tbcclFloat16 = 6,
  tbcclHalf = 6,
  tbcclFloat32 = 7,
  tbcclFloat = 7,
  tbcclFloat64 = 8,
  tbcclDouble = 8,
  tbcclBfloat16 = 9,
  tbcclInt16 = 1000,
  tbcclUint16 = 1001,
  tbcclBool = 1002,
  tbcclComplex64 = 1003,
  tbcclNumTypes = 10,
} tbcclDataType_t;

/**
 * What contributions are combined by. Numbers below 1000 are those of nccl.h;
 * tbcclRedOpCreatePreMulSum makes others.
 */
typedef enum {
  tbcclSum = 0,
  tbcclProd = 1,
  tbcclMax = 2,
  tbcclMin = 3,
  tbcclAvg = 4,
  tbcclBitAnd = 1000,
  tbcclBitOr = 1001,
  tbcclBitXor = 1002,
  tbcclNumOps = 5,
  tbcclMaxRedOp = 2147483647,
} tbcclRedOp_t;

/**
 * How tbcclAllReduceQuantized packs elements: in blocks of 128 or so many, or by half.
 */
typedef enum {
  tbcclCodecInt8 = 1,
  tbcclCodecInt8Block64 = 2,
  tbcclCodecInt8Block256 = 3,
  tbcclCodecBf16 = 4,
} tbcclCodec_t;

/**
 * Where the scalar of tbcclRedOpCreatePreMulSum is. It is read at once.
 */
typedef enum {
  tbcclScalarDevice = 0,
  tbcclScalarHostImmediate = 1,
} tbcclScalarResidence_t;

#define TBCCL_CONFIG_INITIALIZER \
  { sizeof(tbcclConfig_t), TBCCL_CONFIG_MAGIC, TBCCL_VERSION_CODE, TBCCL_CONFIG_UNDEF_INT, TBCCL_CONFIG_UNDEF_INT, 0, NULL, NULL }

#define TBCCL_CALL_OPTIONS_INITIALIZER \
  { sizeof(tbcclCallOptions_t), TBCCL_CALL_OPTIONS_MAGIC, TBCCL_VERSION_CODE, 0, NULL, 0, TBCCL_CONFIG_UNDEF_INT }

#define TBCCL_ERROR_INFO_INITIALIZER \
  { sizeof(tbcclErrorInfo_t), TBCCL_ERROR_INFO_MAGIC, TBCCL_VERSION_CODE, tbcclSuccess, -1, -1, {0}, {0}, {0}, {0}, {0} }

#define TBCCL_STATS_INITIALIZER \
  { sizeof(tbcclStats_t), TBCCL_STATS_MAGIC, TBCCL_VERSION_CODE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, 0, 0, 0 }

#define TBCCL_LINK_STATS_INITIALIZER \
  { sizeof(tbcclLinkStats_t), TBCCL_LINK_STATS_MAGIC, TBCCL_VERSION_CODE, 0, 0, 0, 0, 0, 0, 0 }


/**
 * The first number of this version.
 */
#define TBCCL_MAJOR 0

/**
 * Its second number.
 */
#define TBCCL_MINOR 1

/**
 * Its third number.
 */
#define TBCCL_PATCH 0

/**
 * All three, as TBCCL_VERSION makes one number of them.
 */
#define TBCCL_VERSION_CODE (((TBCCL_MAJOR * 10000) + (TBCCL_MINOR * 100)) + TBCCL_PATCH)

/**
 * What a tbcclErrorInfo_t has in its magic.
 */
#define TBCCL_ERROR_INFO_MAGIC 2076970497

/**
 * The color of a rank that takes part in a split and gets no communicator.
 */
#define TBCCL_SPLIT_NOCOLOR -1

/**
 * Shrink as things are.
 */
#define TBCCL_SHRINK_DEFAULT 0

/**
 * Abort what is in progress first.
 */
#define TBCCL_SHRINK_ABORT 1

/**
 * A number that is not set.
 */
#define TBCCL_CONFIG_UNDEF_INT INT32_MIN

/**
 * Contributions are combined in whatever order is quickest.
 */
#define TBCCL_NUMERICS_FAST 0

/**
 * They are combined in one order: the same bits for every algorithm, size and transport.
 */
#define TBCCL_NUMERICS_REPRODUCIBLE 1

/**
 * What a tbcclConfig_t has in its magic.
 */
#define TBCCL_CONFIG_MAGIC 2076969985

/**
 * What a tbcclCallOptions_t has in its magic.
 */
#define TBCCL_CALL_OPTIONS_MAGIC 2076969473

/**
 * What a tbcclStats_t has in its magic.
 */
#define TBCCL_STATS_MAGIC 2076968193

/**
 * What a tbcclLinkStats_t has in its magic.
 */
#define TBCCL_LINK_STATS_MAGIC 2076968194

/**
 * Bytes of a unique id.
 */
#define TBCCL_UNIQUE_ID_BYTES 128

/**
 * What a tbcclComm_t points to: nothing. It is a number.
 */
typedef struct tbcclComm tbcclComm;

/**
 * What a tbcclRequest_t points to: nothing. It is a number.
 */
typedef struct tbcclRequest tbcclRequest;

/**
 * A communicator, as one of its ranks.
 */
typedef struct tbcclComm *tbcclComm_t;

/**
 * A call that was issued, and may be in progress.
 */
typedef struct tbcclRequest *tbcclRequest_t;

/**
 * Names a job to all of its ranks. It holds the job's secret: whoever has it can join, so pass it on as one.
 */
typedef struct tbcclUniqueId {
  /**
   * Nothing to look at.
   */
  char internal[TBCCL_UNIQUE_ID_BYTES];
} tbcclUniqueId;

/**
 * What a communicator is to be like. Begin with TBCCL_CONFIG_INITIALIZER, and set what you want to be otherwise.
 */
typedef struct tbcclConfig_t {
  /**
   * Bytes of this structure.
   */
  size_t size;
  /**
   * TBCCL_CONFIG_MAGIC
   */
  uint32_t magic;
  /**
   * TBCCL_VERSION_CODE
   */
  uint32_t version;
  /**
   * 1, which is the default: calls without a request block. 0 is refused; requests are what NCCL has it for.
   */
  int blocking;
  /**
   * TBCCL_NUMERICS_FAST or TBCCL_NUMERICS_REPRODUCIBLE
   */
  int numerics;
  /**
   * Milliseconds that a call may wait without progress, and ranks for each other at the start.
   */
  int64_t timeoutMs;
  /**
   * What moves the bytes: "auto", "shm", "tcp", "verbs", "shm+tcp", "shm+verbs", "shm+auto".
   */
  const char *netName;
  /**
   * Any options by name, as "TIMEOUT=5;ALGO=ring": those that tbcclParamDumpAll lists.
   */
  const char *options;
} tbcclConfig_t;

/**
 * What failed, and where. Texts are empty and numbers -1 where that is not known. Begin with
 * TBCCL_ERROR_INFO_INITIALIZER.
 */
typedef struct tbcclErrorInfo_t {
  /**
   * Bytes of this structure.
   */
  size_t size;
  /**
   * TBCCL_ERROR_INFO_MAGIC
   */
  uint32_t magic;
  /**
   * TBCCL_VERSION_CODE
   */
  uint32_t version;
  /**
   * What the function returned.
   */
  tbcclResult_t result;
  /**
   * The rank that reports.
   */
  int32_t rank;
  /**
   * The rank that it is about.
   */
  int32_t peer;
  /**
   * The name of that rank's host.
   */
  char host[64];
  /**
   * The device, or the cable with the devices at both ends.
   */
  char device[128];
  /**
   * The call that was carried out, as "all_reduce of 8 f32, op sum".
   */
  char call[128];
  /**
   * The step that it waited for, as `tbccl plan show` names it.
   */
  char step[128];
  /**
   * All of it as a sentence.
   */
  char text[1024];
} tbcclErrorInfo_t;

/**
 * What calls are to be like. Begin with TBCCL_CALL_OPTIONS_INITIALIZER, and set what you want to be otherwise than the
 * communicator has it. But for the time limit, all ranks of a call want the same.
 */
typedef struct tbcclCallOptions_t {
  /**
   * Bytes of this structure.
   */
  size_t size;
  /**
   * TBCCL_CALL_OPTIONS_MAGIC
   */
  uint32_t magic;
  /**
   * TBCCL_VERSION_CODE
   */
  uint32_t version;
  /**
   * Milliseconds that a call may wait without progress; 0 for those of the communicator.
   */
  int64_t timeoutMs;
  /**
   * The algorithm of calls that have it, as "ring", the first of "ring,mesh" that can do a call, or none of those in
   * "^ring,mesh"; NULL for the communicator's choice.
   */
  const char *algSelection;
  /**
   * The segments that an algorithm cuts its chunks into; 0 for as many as suit.
   */
  int segments;
  /**
   * TBCCL_NUMERICS_FAST or TBCCL_NUMERICS_REPRODUCIBLE
   */
  int numerics;
} tbcclCallOptions_t;

/**
 * What a communicator has done as this rank, since it was made. Begin with TBCCL_STATS_INITIALIZER.
 */
typedef struct tbcclStats_t {
  /**
   * Bytes of this structure.
   */
  size_t size;
  /**
   * TBCCL_STATS_MAGIC
   */
  uint32_t magic;
  /**
   * TBCCL_VERSION_CODE
   */
  uint32_t version;
  /**
   * Calls that were begun; each call of a group counts.
   */
  uint64_t begun;
  /**
   * Calls that were carried out.
   */
  uint64_t finished;
  /**
   * Messages handed over for sending.
   */
  uint64_t sentMessages;
  /**
   * Messages received completely.
   */
  uint64_t receivedMessages;
  /**
   * Bytes that arrived here.
   */
  uint64_t movedBytes;
  /**
   * Bytes that this rank copied beside moving them.
   */
  uint64_t copiedBytes;
  /**
   * Messages and pieces that were lost or damaged and sent again.
   */
  uint64_t repeated;
  /**
   * Connections that were made new.
   */
  uint64_t renewed;
  /**
   * How often a device took less work than it had said.
   */
  uint64_t refused;
  /**
   * Polls of completion queues.
   */
  uint64_t polls;
  /**
   * Those that found nothing.
   */
  uint64_t emptyPolls;
  /**
   * Those that found 1, 2, ..., 16 or more completions.
   */
  uint64_t pollBatches[16];
  /**
   * The most completions that were due at a time.
   */
  uint64_t depthHighWater;
  /**
   * Events of devices.
   */
  uint64_t asyncEvents;
  /**
   * How often this rank slept and its device woke it.
   */
  uint64_t wakeUps;
} tbcclStats_t;

/**
 * What the links between this rank and a peer have done. Begin with TBCCL_LINK_STATS_INITIALIZER.
 */
typedef struct tbcclLinkStats_t {
  /**
   * Bytes of this structure.
   */
  size_t size;
  /**
   * TBCCL_LINK_STATS_MAGIC
   */
  uint32_t magic;
  /**
   * TBCCL_VERSION_CODE
   */
  uint32_t version;
  /**
   * Messages handed over for sending.
   */
  uint64_t sentMessages;
  /**
   * Messages received completely.
   */
  uint64_t receivedMessages;
  /**
   * Bytes that arrived here.
   */
  uint64_t movedBytes;
  /**
   * Bytes that this rank copied beside moving them.
   */
  uint64_t copiedBytes;
  /**
   * Messages and pieces that were lost or damaged and sent again.
   */
  uint64_t repeated;
  /**
   * Connections that were made new.
   */
  uint64_t renewed;
  /**
   * How often a device took less work than it had said.
   */
  uint64_t refused;
} tbcclLinkStats_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Reduces count elements of sendbuff by op over all ranks; every rank's recvbuff gets the result. In place if sendbuff equals
 * recvbuff.
 */
tbcclResult_t tbcclAllReduce(const void *sendbuff,
                             void *recvbuff,
                             size_t count,
                             tbcclDataType_t datatype,
                             tbcclRedOp_t op,
                             tbcclComm_t comm,
                             tbcclRequest_t *request);

/**
 * As tbcclAllReduce of floats for tbcclSum and tbcclAvg, with messages that travel packed: a quarter of the bytes or half of
 * them. All ranks get the same bits, off by what docs/collectives.md says.
 */
tbcclResult_t tbcclAllReduceQuantized(const void *sendbuff,
                                      void *recvbuff,
                                      size_t count,
                                      tbcclDataType_t datatype,
                                      tbcclRedOp_t op,
                                      tbcclCodec_t codec,
                                      tbcclComm_t comm,
                                      tbcclRequest_t *request);

/**
 * Reduces count elements of sendbuff by op over all ranks; recvbuff of rank root gets the result, and may be NULL on others.
 * In place if sendbuff equals recvbuff.
 */
tbcclResult_t tbcclReduce(const void *sendbuff,
                          void *recvbuff,
                          size_t count,
                          tbcclDataType_t datatype,
                          tbcclRedOp_t op,
                          int root,
                          tbcclComm_t comm,
                          tbcclRequest_t *request);

/**
 * Copies count elements of rank root's buff to that of all others.
 */
tbcclResult_t tbcclBcast(void *buff,
                         size_t count,
                         tbcclDataType_t datatype,
                         int root,
                         tbcclComm_t comm,
                         tbcclRequest_t *request);

/**
 * Copies count elements of rank root's sendbuff to every rank's recvbuff. Others' sendbuff may be NULL. In place if sendbuff
 * equals recvbuff.
 */
tbcclResult_t tbcclBroadcast(const void *sendbuff,
                             void *recvbuff,
                             size_t count,
                             tbcclDataType_t datatype,
                             int root,
                             tbcclComm_t comm,
                             tbcclRequest_t *request);

/**
 * Gathers sendcount elements of every rank's sendbuff, in the order of ranks, in every rank's recvbuff. In place if sendbuff
 * is the block of this rank in recvbuff.
 */
tbcclResult_t tbcclAllGather(const void *sendbuff,
                             void *recvbuff,
                             size_t sendcount,
                             tbcclDataType_t datatype,
                             tbcclComm_t comm,
                             tbcclRequest_t *request);

/**
 * Reduces blocks of recvcount elements, one for each rank in sendbuff, by op over all ranks; recvbuff of each rank gets its
 * own. In place if recvbuff is the block of this rank in sendbuff, whose other blocks are undefined afterwards.
 */
tbcclResult_t tbcclReduceScatter(const void *sendbuff,
                                 void *recvbuff,
                                 size_t recvcount,
                                 tbcclDataType_t datatype,
                                 tbcclRedOp_t op,
                                 tbcclComm_t comm,
                                 tbcclRequest_t *request);

/**
 * Sends a block of count elements of sendbuff to each rank, and receives one of each in recvbuff, in the order of ranks. Not
 * in place.
 */
tbcclResult_t tbcclAlltoAll(const void *sendbuff,
                            void *recvbuff,
                            size_t count,
                            tbcclDataType_t datatype,
                            tbcclComm_t comm,
                            tbcclRequest_t *request);

/**
 * Gathers count elements of every rank's sendbuff, in the order of ranks, in rank root's recvbuff; others' may be NULL. In
 * place if sendbuff is the block of the root in recvbuff.
 */
tbcclResult_t tbcclGather(const void *sendbuff,
                          void *recvbuff,
                          size_t count,
                          tbcclDataType_t datatype,
                          int root,
                          tbcclComm_t comm,
                          tbcclRequest_t *request);

/**
 * Sends each rank its block of count elements of rank root's sendbuff, in the order of ranks; others' may be NULL. In place
 * if recvbuff is the block of the root in sendbuff.
 */
tbcclResult_t tbcclScatter(const void *sendbuff,
                           void *recvbuff,
                           size_t count,
                           tbcclDataType_t datatype,
                           int root,
                           tbcclComm_t comm,
                           tbcclRequest_t *request);

/**
 * Sends count elements to a rank, which receives them by tbcclRecv. Messages in both directions, or to this rank, go within a
 * group.
 */
tbcclResult_t tbcclSend(const void *sendbuff,
                        size_t count,
                        tbcclDataType_t datatype,
                        int peer,
                        tbcclComm_t comm,
                        tbcclRequest_t *request);

/**
 * Receives count elements of a rank, which sends them by tbcclSend.
 */
tbcclResult_t tbcclRecv(void *recvbuff,
                        size_t count,
                        tbcclDataType_t datatype,
                        int peer,
                        tbcclComm_t comm,
                        tbcclRequest_t *request);

/**
 * Reduces count elements of sendbuff by op over the ranks up to this one; recvbuff gets the result. In place if sendbuff
 * equals recvbuff.
 */
tbcclResult_t tbcclScan(const void *sendbuff,
                        void *recvbuff,
                        size_t count,
                        tbcclDataType_t datatype,
                        tbcclRedOp_t op,
                        tbcclComm_t comm,
                        tbcclRequest_t *request);

/**
 * As tbcclScan over the ranks before this one. That of rank 0 stays as it is.
 */
tbcclResult_t tbcclExclusiveScan(const void *sendbuff,
                                 void *recvbuff,
                                 size_t count,
                                 tbcclDataType_t datatype,
                                 tbcclRedOp_t op,
                                 tbcclComm_t comm,
                                 tbcclRequest_t *request);

/**
 * Waits until all ranks have called it.
 */
tbcclResult_t tbcclBarrier(tbcclComm_t comm, tbcclRequest_t *request);

/**
 * Makes a communicator of nranks ranks, which all call this with the same id; this is the one of number rank. Waits for
 * the others. One thread may make those of several ranks within a group.
 */
tbcclResult_t tbcclCommInitRank(tbcclComm_t *comm,
                                int nranks,
                                struct tbcclUniqueId commId,
                                int rank);

/**
 * As tbcclCommInitRank, with options; NULL for none.
 */
tbcclResult_t tbcclCommInitRankConfig(tbcclComm_t *comm,
                                      int nranks,
                                      struct tbcclUniqueId commId,
                                      int rank,
                                      struct tbcclConfig_t *config);

/**
 * Makes a communicator of ndev ranks that are all in this process, and writes the handle of each rank to comms. Each is for
 * a thread of its own; one thread may use several within groups. The list of devices is not looked at, and may be NULL.
 */
tbcclResult_t tbcclCommInitAll(tbcclComm_t *comms,
                               int ndev,
                               const int *devlist);

/**
 * Makes the communicator of the job that a launcher has started this process for: `tbccl run`, torchrun, mpirun of Open
 * MPI and MPICH, Slurm. The config may be NULL. Waits for the other ranks.
 */
tbcclResult_t tbcclCommInitFromEnv(tbcclComm_t *comm,
                                   struct tbcclConfig_t *config);

/**
 * Waits until all that was issued is done, and closes the communicator: no more calls after that. Returns what it had
 * failed with, if it had. The handle is still to be destroyed.
 */
tbcclResult_t tbcclCommFinalize(tbcclComm_t comm);

/**
 * Ends a communicator, after what was issued on it is done, and its handle. Does not wait for other ranks, but for this: if
 * the ranks of some communicator have met in this process, the last of the process to be ended waits until they have ended theirs,
 * too, within the time limit.
 */
tbcclResult_t tbcclCommDestroy(tbcclComm_t comm);

/**
 * Aborts a communicator, from any thread and promptly: calls in progress and all later ones return tbcclAborted here, and
 * an error on the other ranks. The handle is still to be destroyed; until then tbcclCommShrink makes a new communicator
 * of it.
 */
tbcclResult_t tbcclCommAbort(tbcclComm_t comm);

/**
 * Tells whether the communicator has failed, and with what; tbcclSuccess if not. It is then what failed last on this
 * thread, for tbcclGetLastError.
 */
tbcclResult_t tbcclCommGetAsyncError(tbcclComm_t comm,
                                     tbcclResult_t *asyncError);

/**
 * Tells the number of ranks.
 */
tbcclResult_t tbcclCommCount(tbcclComm_t comm, int *count);

/**
 * Tells which rank this is.
 */
tbcclResult_t tbcclCommUserRank(tbcclComm_t comm, int *rank);

/**
 * Tells the version of the library as one number, TBCCL_VERSION_CODE of its header.
 */
tbcclResult_t tbcclGetVersion(int *version);

/**
 * What a result means, for people. The text is there for ever.
 */
const char *tbcclGetErrorString(tbcclResult_t result);

/**
 * What failed last on this thread, for people; an empty text if nothing has. A communicator that has failed on another
 * thread is told of where nothing has failed on this one; NULL is good, too. The text is there until something else
 * fails on this thread.
 */
const char *tbcclGetLastError(tbcclComm_t comm);

/**
 * What failed last on this thread, in parts. If nothing has, its result is tbcclSuccess.
 */
tbcclResult_t tbcclGetLastErrorInfo(struct tbcclErrorInfo_t *info);

/**
 * Begins a group on this thread: calls are collected until tbcclGroupEnd, and then go together. Groups may be nested; the
 * outermost counts.
 */
tbcclResult_t tbcclGroupStart(void);

/**
 * Ends a group: makes its communicators, issues its calls, and waits for those on communicators on which one has no
 * request. Returns what failed first. If a call was refused when it was made, none is carried out.
 */
tbcclResult_t tbcclGroupEnd(void);

/**
 * Makes new communicators of one, of all ranks of a color each, in the order of their keys, and of their ranks where keys
 * are equal. All ranks call it. Those of TBCCL_SPLIT_NOCOLOR get NULL. The config may be NULL.
 */
tbcclResult_t tbcclCommSplit(tbcclComm_t comm,
                             int color,
                             int key,
                             tbcclComm_t *newcomm,
                             struct tbcclConfig_t *config);

/**
 * Makes a new communicator of one, without some of its ranks. The others call it, with the same list; also after the
 * communicator has failed or was aborted. The config may be NULL.
 */
tbcclResult_t tbcclCommShrink(tbcclComm_t comm,
                              int *excludeRanksList,
                              int excludeRanksCount,
                              tbcclComm_t *newcomm,
                              struct tbcclConfig_t *config,
                              int shrinkFlags);

/**
 * Makes an id with which a communicator grows: one of its ranks makes it, gives it to tbcclCommGrow, and passes it on to
 * the new ranks, which do the same. An id is for one growth.
 */
tbcclResult_t tbcclCommGetUniqueId(tbcclComm_t comm,
                                   struct tbcclUniqueId *uniqueId);

/**
 * Makes a new communicator of nRanks ranks: those of one, which keep their numbers, and new ones. The ranks that are there
 * call it with their communicator and rank -1, one of them with the id and the others with NULL. The new ones call it
 * with comm NULL, the id, and their rank. All give the same config, which may be NULL.
 */
tbcclResult_t tbcclCommGrow(tbcclComm_t comm,
                            int nRanks,
                            const struct tbcclUniqueId *uniqueId,
                            int rank,
                            tbcclComm_t *newcomm,
                            struct tbcclConfig_t *config);

/**
 * Allocates memory that is worth registering: of whole pages, zero when new. A size of 0 gives NULL. It is freed by
 * tbcclMemFree.
 */
tbcclResult_t tbcclMemAlloc(void **ptr,
                            size_t size);

/**
 * Allocates memory of a communicator, zero when new: whatever the transport, calls on it move it without copies. A size of 0
 * gives NULL. It is freed by tbcclMemFree, also after the communicator has ended.
 */
tbcclResult_t tbcclCommMemAlloc(tbcclComm_t comm,
                                void **ptr,
                                size_t size);

/**
 * Frees memory of tbcclMemAlloc or tbcclCommMemAlloc, which no call in progress uses and which is not registered any more. NULL
 * is good, and nothing happens.
 */
tbcclResult_t tbcclMemFree(void *ptr);

/**
 * Lets devices know memory of the program's own, so that calls on it copy nothing on the way where the transport and its
 * devices allow that. The memory stays until it is deregistered. The handle is for tbcclCommDeregister.
 */
tbcclResult_t tbcclCommRegister(tbcclComm_t comm,
                                void *buff,
                                size_t size,
                                void **handle);

/**
 * Ends a registration of this communicator. No call in progress uses the memory.
 */
tbcclResult_t tbcclCommDeregister(tbcclComm_t comm, void *handle);

/**
 * Makes another handle of a communicator, whose calls have these options: pass it wherever a communicator is asked
 * for. It is a communicator as that one is, with the same ranks, links and order of calls. tbcclCommDestroy ends the handle
 * alone; when the first one is destroyed, this one is good for nothing but that.
 */
tbcclResult_t tbcclCommWithOptions(tbcclComm_t comm,
                                   const struct tbcclCallOptions_t *options,
                                   tbcclComm_t *newcomm);

/**
 * Sets an option for communicators that this process makes from now on; the environment's value counts no more. A
 * NULL value undoes that. Nothing has changed when the value can't be.
 */
tbcclResult_t tbcclParamSet(const char *key,
                            const char *value);

/**
 * Tells the value that an option has for communicators that are made now, as text, and its length. Either place
 * may be NULL. The text is there until the next such call on this thread.
 */
tbcclResult_t tbcclParamGet(const char *key,
                            const char **value,
                            int *valueLen);

/**
 * Writes all options with their values to the standard error output, one a line as the environment has them, and what
 * they are.
 */
void tbcclParamDumpAll(void);

/**
 * Makes an operation that multiplies each rank's contribution by the rank's own scalar, and sums. It is for that
 * communicator and element type, and for tbcclAllReduce, tbcclReduce and tbcclReduceScatter. The scalar is one element,
 * read at once, wherever it is said to reside.
 */
tbcclResult_t tbcclRedOpCreatePreMulSum(tbcclRedOp_t *op,
                                        void *scalar,
                                        tbcclDataType_t datatype,
                                        int residence,
                                        tbcclComm_t comm);

/**
 * Ends an operation that was made for this communicator. Calls that were issued with it are not concerned.
 */
tbcclResult_t tbcclRedOpDestroy(tbcclRedOp_t op,
                                tbcclComm_t comm);

/**
 * Tells whether a call is done: done becomes 1 or 0. When it is done this returns what the call came to. Never waits.
 */
tbcclResult_t tbcclRequestTest(tbcclRequest_t request,
                               int *done);

/**
 * Waits until a call is done, and returns what it came to; tbcclInProgress if it is not done after so many milliseconds.
 * Negative ones wait as long as the call takes, which has a time limit of its own.
 */
tbcclResult_t tbcclRequestWait(tbcclRequest_t request,
                               int64_t timeoutMs);

/**
 * Ends the handle of a request. A call that is still in progress goes on, and needs its memory until it is done.
 */
tbcclResult_t tbcclRequestFree(tbcclRequest_t request);

/**
 * Tells what a communicator has done as this rank. Does not wait for calls in progress.
 */
tbcclResult_t tbcclCommStats(tbcclComm_t comm, struct tbcclStats_t *stats);

/**
 * Tells what the links between this rank and a peer have done: nothing where there is none, as to the rank itself. Does not
 * wait for calls in progress.
 */
tbcclResult_t tbcclCommLinkStats(tbcclComm_t comm,
                                 int peer,
                                 struct tbcclLinkStats_t *stats);

/**
 * Writes the last calls of this rank, one a line as JSON, to the end of a file, or with NULL to the standard error output. Does
 * not wait for calls in progress, and tells where they are.
 */
tbcclResult_t tbcclCommDump(tbcclComm_t comm,
                            const char *path);

/**
 * Makes an id for a new job, and opens the place in this process where its ranks will meet. Give the id to all
 * of them; one of them must be this process.
 */
tbcclResult_t tbcclGetUniqueId(struct tbcclUniqueId *uniqueId);

/**
 * As tbcclAllGather, with `counts[r]` elements of rank r. All ranks give the same counts.
 */
tbcclResult_t tbcclAllGatherV(const void *sendbuff,
                              void *recvbuff,
                              const size_t *counts,
                              tbcclDataType_t datatype,
                              tbcclComm_t comm,
                              tbcclRequest_t *request);

/**
 * As tbcclReduceScatter, with `counts[r]` elements for rank r. All ranks give the same counts.
 */
tbcclResult_t tbcclReduceScatterV(const void *sendbuff,
                                  void *recvbuff,
                                  const size_t *counts,
                                  tbcclDataType_t datatype,
                                  tbcclRedOp_t op,
                                  tbcclComm_t comm,
                                  tbcclRequest_t *request);

/**
 * As tbcclGather, with `counts[r]` elements of rank r. All ranks give the same counts.
 */
tbcclResult_t tbcclGatherV(const void *sendbuff,
                           void *recvbuff,
                           const size_t *counts,
                           tbcclDataType_t datatype,
                           int root,
                           tbcclComm_t comm,
                           tbcclRequest_t *request);

/**
 * As tbcclScatter, with `counts[r]` elements for rank r. All ranks give the same counts.
 */
tbcclResult_t tbcclScatterV(const void *sendbuff,
                            void *recvbuff,
                            const size_t *counts,
                            tbcclDataType_t datatype,
                            int root,
                            tbcclComm_t comm,
                            tbcclRequest_t *request);

/**
 * As tbcclAlltoAll, with `sendcounts[r]` elements to rank r and `recvcounts[r]` elements of it: as many as it sends here.
 */
tbcclResult_t tbcclAlltoAllV(const void *sendbuff,
                             const size_t *sendcounts,
                             void *recvbuff,
                             const size_t *recvcounts,
                             tbcclDataType_t datatype,
                             tbcclComm_t comm,
                             tbcclRequest_t *request);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TBCCL_H_ */
