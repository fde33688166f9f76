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
 * First number of the version.
 */
#define TBCCL_MAJOR 0

/**
 * Second number of the version.
 */
#define TBCCL_MINOR 1

/**
 * Third number of the version.
 */
#define TBCCL_PATCH 0

/**
 * All three as one number, as the macro TBCCL_VERSION makes it.
 */
#define TBCCL_VERSION_CODE (((TBCCL_MAJOR * 10000) + (TBCCL_MINOR * 100)) + TBCCL_PATCH)

/**
 * Value of a tbcclErrorInfo_t's magic.
 */
#define TBCCL_ERROR_INFO_MAGIC 2076970497

/**
 * The color of a rank that takes part in a split and gets no communicator.
 */
#define TBCCL_SPLIT_NOCOLOR -1

/**
 * Shrink without aborting calls.
 */
#define TBCCL_SHRINK_DEFAULT 0

/**
 * Abort calls in progress first.
 */
#define TBCCL_SHRINK_ABORT 1

/**
 * A number that is not set.
 */
#define TBCCL_CONFIG_UNDEF_INT INT32_MIN

/**
 * Contributions are combined in the order that is quickest.
 */
#define TBCCL_NUMERICS_FAST 0

/**
 * Contributions are combined in one order: the same bits for every algorithm, size and transport.
 */
#define TBCCL_NUMERICS_REPRODUCIBLE 1

/**
 * Value of a tbcclConfig_t's magic.
 */
#define TBCCL_CONFIG_MAGIC 2076969985

/**
 * Value of a tbcclCallOptions_t's magic.
 */
#define TBCCL_CALL_OPTIONS_MAGIC 2076969473

/**
 * Value of a tbcclStats_t's magic.
 */
#define TBCCL_STATS_MAGIC 2076968193

/**
 * Value of a tbcclLinkStats_t's magic.
 */
#define TBCCL_LINK_STATS_MAGIC 2076968194

/**
 * Bytes of a unique id.
 */
#define TBCCL_UNIQUE_ID_BYTES 128

/**
 * Target of a tbcclComm_t: nothing. The pointer is a number.
 */
typedef struct tbcclComm tbcclComm;

/**
 * Target of a tbcclRequest_t: nothing. The pointer is a number.
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
 * Names a job for all of its ranks. It contains the job's secret: a process that has it can join, so keep it
 * secret.
 */
typedef struct tbcclUniqueId {
  /**
   * Opaque.
   */
  char internal[TBCCL_UNIQUE_ID_BYTES];
} tbcclUniqueId;

/**
 * Options of a communicator. Begin with TBCCL_CONFIG_INITIALIZER, and set those that are to differ from the
 * default.
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
   * 1, the default: calls without a request block. 0 is refused; use requests instead.
   */
  int blocking;
  /**
   * TBCCL_NUMERICS_FAST or TBCCL_NUMERICS_REPRODUCIBLE
   */
  int numerics;
  /**
   * Milliseconds that a call may wait without progress, and that ranks wait for each other at the start.
   */
  int64_t timeoutMs;
  /**
   * The transport: "auto", "shm", "tcp", "verbs", "shm+tcp", "shm+verbs", "shm+auto".
   */
  const char *netName;
  /**
   * Options by name, as "TIMEOUT=5;ALGO=ring". tbcclParamDumpAll lists them.
   */
  const char *options;
} tbcclConfig_t;

/**
 * An error in parts. Texts are empty and numbers -1 where a part is not known. Begin with
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
   * Result of the function.
   */
  tbcclResult_t result;
  /**
   * The rank that reports.
   */
  int32_t rank;
  /**
   * The rank that the error is about.
   */
  int32_t peer;
  /**
   * Host of that rank.
   */
  char host[64];
  /**
   * The device, or the cable with the devices at both ends.
   */
  char device[128];
  /**
   * The call in progress, as "all_reduce of 8 f32, op sum".
   */
  char call[128];
  /**
   * The step that the call waited for, as `tbccl plan show` names it.
   */
  char step[128];
  /**
   * The whole error as a sentence.
   */
  char text[1024];
} tbcclErrorInfo_t;

/**
 * Options of calls. Begin with TBCCL_CALL_OPTIONS_INITIALIZER, and set those that are to differ from the
 * communicator's. All ranks of a call pass the same, except for the timeout.
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
   * Milliseconds that a call may wait without progress; 0 for the communicator's timeout.
   */
  int64_t timeoutMs;
  /**
   * The algorithm, as "ring"; a list, as "ring,mesh", of which the first that can do a call is taken; or
   * excluded ones, as "^ring,mesh". Calls that do not have the algorithm choose for themselves. NULL for
   * the communicator's choice.
   */
  const char *algSelection;
  /**
   * Segments per chunk; 0 for the automatic choice.
   */
  int segments;
  /**
   * TBCCL_NUMERICS_FAST or TBCCL_NUMERICS_REPRODUCIBLE
   */
  int numerics;
} tbcclCallOptions_t;

/**
 * Counters of a communicator as this rank, since it was made. Begin with TBCCL_STATS_INITIALIZER.
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
   * Calls begun; each call of a group counts.
   */
  uint64_t begun;
  /**
   * Calls carried out.
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
   * Bytes that this rank copied, beside moving them.
   */
  uint64_t copiedBytes;
  /**
   * Messages and pieces that were lost or damaged, and sent again.
   */
  uint64_t repeated;
  /**
   * Connections that were replaced.
   */
  uint64_t renewed;
  /**
   * Requests that a device refused although it had announced room.
   */
  uint64_t refused;
  /**
   * Polls of completion queues.
   */
  uint64_t polls;
  /**
   * Polls that found no completion.
   */
  uint64_t emptyPolls;
  /**
   * Polls that found 1, 2, ..., 16 or more completions.
   */
  uint64_t pollBatches[16];
  /**
   * Most completions that were pending at a time.
   */
  uint64_t depthHighWater;
  /**
   * Asynchronous events of devices.
   */
  uint64_t asyncEvents;
  /**
   * Sleeps of this rank that its device ended.
   */
  uint64_t wakeUps;
} tbcclStats_t;

/**
 * Counters of the links between this rank and a peer. Begin with TBCCL_LINK_STATS_INITIALIZER.
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
   * Bytes that this rank copied, beside moving them.
   */
  uint64_t copiedBytes;
  /**
   * Messages and pieces that were lost or damaged, and sent again.
   */
  uint64_t repeated;
  /**
   * Connections that were replaced.
   */
  uint64_t renewed;
  /**
   * Requests that a device refused although it had announced room.
   */
  uint64_t refused;
} tbcclLinkStats_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Reduces count elements of sendbuff by op over all ranks and stores the result in every rank's recvbuff. In
 * place if sendbuff equals recvbuff.
 */
tbcclResult_t tbcclAllReduce(const void *sendbuff,
                             void *recvbuff,
                             size_t count,
                             tbcclDataType_t datatype,
                             tbcclRedOp_t op,
                             tbcclComm_t comm,
                             tbcclRequest_t *request);

/**
 * As tbcclAllReduce of floats by tbcclSum or tbcclAvg, with packed messages: a quarter of the bytes, or
 * half. All ranks get the same bits; docs/collectives.md has the bound on the error.
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
 * Reduces count elements of sendbuff by op over all ranks and stores the result in recvbuff of rank root.
 * Other ranks' recvbuff may be NULL. In place if sendbuff equals recvbuff.
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
 * Copies count elements of rank root's buff to every other rank's buff.
 */
tbcclResult_t tbcclBcast(void *buff,
                         size_t count,
                         tbcclDataType_t datatype,
                         int root,
                         tbcclComm_t comm,
                         tbcclRequest_t *request);

/**
 * Copies count elements of rank root's sendbuff to every rank's recvbuff. Other ranks' sendbuff may be NULL.
 * In place if sendbuff equals recvbuff.
 */
tbcclResult_t tbcclBroadcast(const void *sendbuff,
                             void *recvbuff,
                             size_t count,
                             tbcclDataType_t datatype,
                             int root,
                             tbcclComm_t comm,
                             tbcclRequest_t *request);

/**
 * Gathers sendcount elements of every rank's sendbuff, in rank order, in every rank's recvbuff. In place if
 * sendbuff is the block of this rank in recvbuff.
 */
tbcclResult_t tbcclAllGather(const void *sendbuff,
                             void *recvbuff,
                             size_t sendcount,
                             tbcclDataType_t datatype,
                             tbcclComm_t comm,
                             tbcclRequest_t *request);

/**
 * Reduces blocks of recvcount elements, one per rank in sendbuff, by op over all ranks and stores each
 * rank's block in its recvbuff. In place if recvbuff is the block of this rank in sendbuff, whose other
 * blocks are undefined afterwards.
 */
tbcclResult_t tbcclReduceScatter(const void *sendbuff,
                                 void *recvbuff,
                                 size_t recvcount,
                                 tbcclDataType_t datatype,
                                 tbcclRedOp_t op,
                                 tbcclComm_t comm,
                                 tbcclRequest_t *request);

/**
 * Sends a block of count elements of sendbuff to each rank, and receives a block of each in recvbuff, in
 * rank order. Not in place.
 */
tbcclResult_t tbcclAlltoAll(const void *sendbuff,
                            void *recvbuff,
                            size_t count,
                            tbcclDataType_t datatype,
                            tbcclComm_t comm,
                            tbcclRequest_t *request);

/**
 * Gathers count elements of every rank's sendbuff, in rank order, in rank root's recvbuff. Other ranks'
 * recvbuff may be NULL. In place if sendbuff is the block of the root in recvbuff.
 */
tbcclResult_t tbcclGather(const void *sendbuff,
                          void *recvbuff,
                          size_t count,
                          tbcclDataType_t datatype,
                          int root,
                          tbcclComm_t comm,
                          tbcclRequest_t *request);

/**
 * Sends each rank its block of count elements of rank root's sendbuff, in rank order. Other ranks' sendbuff
 * may be NULL. In place if recvbuff is the block of the root in sendbuff.
 */
tbcclResult_t tbcclScatter(const void *sendbuff,
                           void *recvbuff,
                           size_t count,
                           tbcclDataType_t datatype,
                           int root,
                           tbcclComm_t comm,
                           tbcclRequest_t *request);

/**
 * Sends count elements to rank peer, which receives them by tbcclRecv. Messages in both directions, or to
 * this rank itself, need a group.
 */
tbcclResult_t tbcclSend(const void *sendbuff,
                        size_t count,
                        tbcclDataType_t datatype,
                        int peer,
                        tbcclComm_t comm,
                        tbcclRequest_t *request);

/**
 * Receives count elements from rank peer, which sends them by tbcclSend.
 */
tbcclResult_t tbcclRecv(void *recvbuff,
                        size_t count,
                        tbcclDataType_t datatype,
                        int peer,
                        tbcclComm_t comm,
                        tbcclRequest_t *request);

/**
 * Reduces count elements of sendbuff by op over the ranks up to and with this one and stores the result in
 * recvbuff. In place if sendbuff equals recvbuff.
 */
tbcclResult_t tbcclScan(const void *sendbuff,
                        void *recvbuff,
                        size_t count,
                        tbcclDataType_t datatype,
                        tbcclRedOp_t op,
                        tbcclComm_t comm,
                        tbcclRequest_t *request);

/**
 * As tbcclScan, over the ranks before this one. Rank 0's recvbuff stays as it is.
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
 * Makes a communicator of nranks ranks, which all call this with the same id; this one is number rank. Waits
 * for the others. Within a group, one thread may make those of several ranks.
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
 * Makes a communicator of ndev ranks that are all in this process, and writes each rank's handle to comms.
 * Each handle is for a thread of its own; one thread may use several within groups. devlist is ignored and
 * may be NULL.
 */
tbcclResult_t tbcclCommInitAll(tbcclComm_t *comms,
                               int ndev,
                               const int *devlist);

/**
 * Makes the communicator of the job whose launcher has started this process: `tbccl run`, torchrun, mpirun
 * of Open MPI and MPICH, or Slurm. The config may be NULL. Waits for the other ranks.
 */
tbcclResult_t tbcclCommInitFromEnv(tbcclComm_t *comm,
                                   struct tbcclConfig_t *config);

/**
 * Waits until all issued calls are done, and closes the communicator: no more calls after that. Returns the
 * error that it had failed with, if it had. The handle is still to be destroyed.
 */
tbcclResult_t tbcclCommFinalize(tbcclComm_t comm);

/**
 * Ends a communicator, after its issued calls are done, and its handle. Does not wait for other ranks, with
 * one exception: if the ranks of a communicator met in this process, the last communicator of the process
 * waits until the others have ended theirs, within the timeout.
 */
tbcclResult_t tbcclCommDestroy(tbcclComm_t comm);

/**
 * Aborts a communicator, promptly and from any thread: calls in progress and all later ones return
 * tbcclAborted here, and an error on the other ranks. The handle is still to be destroyed; until then
 * tbcclCommShrink makes a new communicator from it.
 */
tbcclResult_t tbcclCommAbort(tbcclComm_t comm);

/**
 * Tells the error that the communicator has failed with; tbcclSuccess if it has not. It becomes this
 * thread's latest error, for tbcclGetLastError.
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
 * Tells the library's version as one number, TBCCL_VERSION_CODE of its header.
 */
tbcclResult_t tbcclGetVersion(int *version);

/**
 * Returns the meaning of a result, for people. The text is valid forever.
 */
const char *tbcclGetErrorString(tbcclResult_t result);

/**
 * Returns this thread's latest error, for people; an empty text if there is none. With a communicator, and
 * without an error of this thread, returns the error that the communicator has failed with on another
 * thread. comm may be NULL. The text is valid until the next error of this thread.
 */
const char *tbcclGetLastError(tbcclComm_t comm);

/**
 * Tells this thread's latest error in parts. Its result is tbcclSuccess if there is none.
 */
tbcclResult_t tbcclGetLastErrorInfo(struct tbcclErrorInfo_t *info);

/**
 * Begins a group on this thread: its calls are collected until tbcclGroupEnd, and then go together. Groups
 * may be nested; the outermost one counts.
 */
tbcclResult_t tbcclGroupStart(void);

/**
 * Ends a group: makes its communicators, issues its calls, and waits for all calls on communicators of which
 * a call has no request. Returns the first error. None of the calls is carried out if one was refused when
 * it was made.
 */
tbcclResult_t tbcclGroupEnd(void);

/**
 * Splits a communicator: makes one of the ranks of each color, ordered by key, and by rank where keys are
 * equal. All ranks call it. Ranks of color TBCCL_SPLIT_NOCOLOR get NULL. The config may be NULL.
 */
tbcclResult_t tbcclCommSplit(tbcclComm_t comm,
                             int color,
                             int key,
                             tbcclComm_t *newcomm,
                             struct tbcclConfig_t *config);

/**
 * Makes a communicator from another one, without some of its ranks. The other ranks call it with the same
 * list, also after the communicator has failed or was aborted. The config may be NULL.
 */
tbcclResult_t tbcclCommShrink(tbcclComm_t comm,
                              int *excludeRanksList,
                              int excludeRanksCount,
                              tbcclComm_t *newcomm,
                              struct tbcclConfig_t *config,
                              int shrinkFlags);

/**
 * Makes an id with which a communicator grows. One of its ranks makes the id, passes it to tbcclCommGrow,
 * and sends it to the new ranks, which do the same. An id is for one growth.
 */
tbcclResult_t tbcclCommGetUniqueId(tbcclComm_t comm,
                                   struct tbcclUniqueId *uniqueId);

/**
 * Makes a communicator of nRanks ranks: those of another one, which keep their numbers, and new ones.
 * Existing ranks call it with their communicator and rank -1, one of them with the id and the others with
 * NULL. New ranks call it with comm NULL, the id, and their rank. All pass the same config, which may be
 * NULL.
 */
tbcclResult_t tbcclCommGrow(tbcclComm_t comm,
                            int nRanks,
                            const struct tbcclUniqueId *uniqueId,
                            int rank,
                            tbcclComm_t *newcomm,
                            struct tbcclConfig_t *config);

/**
 * Allocates memory to be registered: whole pages, zeroed. A size of 0 gives NULL. tbcclMemFree frees it.
 */
tbcclResult_t tbcclMemAlloc(void **ptr,
                            size_t size);

/**
 * Allocates memory of a communicator, zeroed; calls on it move it without copies on every transport. A size
 * of 0 gives NULL. tbcclMemFree frees it, also after the communicator has ended.
 */
tbcclResult_t tbcclCommMemAlloc(tbcclComm_t comm,
                                void **ptr,
                                size_t size);

/**
 * Frees memory of tbcclMemAlloc or tbcclCommMemAlloc that no call in progress uses and that is not
 * registered. NULL is ignored.
 */
tbcclResult_t tbcclMemFree(void *ptr);

/**
 * Registers memory of the program with the communicator's devices, so that calls on it make no copies, where
 * transport and devices allow that. The memory must stay until tbcclCommDeregister is called with the
 * handle.
 */
tbcclResult_t tbcclCommRegister(tbcclComm_t comm,
                                void *buff,
                                size_t size,
                                void **handle);

/**
 * Ends a registration of this communicator. No call in progress may use the memory.
 */
tbcclResult_t tbcclCommDeregister(tbcclComm_t comm, void *handle);

/**
 * Makes another handle of a communicator, whose calls have these options. It can be passed wherever a
 * communicator can, and has the same ranks, links and order of calls. tbcclCommDestroy ends only this
 * handle. After the first handle is destroyed, this one can only be destroyed.
 */
tbcclResult_t tbcclCommWithOptions(tbcclComm_t comm,
                                   const struct tbcclCallOptions_t *options,
                                   tbcclComm_t *newcomm);

/**
 * Sets an option for communicators that this process makes from now on, in place of the environment's value.
 * A NULL value undoes that. Nothing changes if the value is invalid.
 */
tbcclResult_t tbcclParamSet(const char *key,
                            const char *value);

/**
 * Tells an option's value for communicators that are made now, as text, and its length. Either place may be
 * NULL. The text is valid until the next such call on this thread.
 */
tbcclResult_t tbcclParamGet(const char *key,
                            const char **value,
                            int *valueLen);

/**
 * Writes all options to the standard error output, one a line, with values and descriptions.
 */
void tbcclParamDumpAll(void);

/**
 * Makes an operation that multiplies each rank's contribution by the rank's own scalar, and sums. It is for
 * this communicator and element type, and for tbcclAllReduce, tbcclReduce and tbcclReduceScatter. The scalar
 * is one element, read at once; residence does not matter.
 */
tbcclResult_t tbcclRedOpCreatePreMulSum(tbcclRedOp_t *op,
                                        void *scalar,
                                        tbcclDataType_t datatype,
                                        int residence,
                                        tbcclComm_t comm);

/**
 * Ends an operation of this communicator. Calls that were issued with it go on.
 */
tbcclResult_t tbcclRedOpDestroy(tbcclRedOp_t op, tbcclComm_t comm);

/**
 * Tells whether a call is done: done becomes 1 or 0. Returns the call's result when it is done. Never waits.
 */
tbcclResult_t tbcclRequestTest(tbcclRequest_t request,
                               int *done);

/**
 * Waits until a call is done, and returns its result; tbcclInProgress if it is not done after timeoutMs
 * milliseconds. A negative timeoutMs waits as long as the call takes, which has a timeout of its own.
 */
tbcclResult_t tbcclRequestWait(tbcclRequest_t request,
                               int64_t timeoutMs);

/**
 * Ends the handle of a request. A call in progress goes on, and needs its memory until it is done.
 */
tbcclResult_t tbcclRequestFree(tbcclRequest_t request);

/**
 * Tells the counters of a communicator as this rank. Does not wait for calls in progress.
 */
tbcclResult_t tbcclCommStats(tbcclComm_t comm, struct tbcclStats_t *stats);

/**
 * Tells the counters of the links between this rank and a peer: zeros where there is no link, as to the rank
 * itself. Does not wait for calls in progress.
 */
tbcclResult_t tbcclCommLinkStats(tbcclComm_t comm,
                                 int peer,
                                 struct tbcclLinkStats_t *stats);

/**
 * Appends the last calls of this rank to a file, one a line as JSON; NULL writes to the standard error
 * output. Does not wait for calls in progress, and tells how far they are.
 */
tbcclResult_t tbcclCommDump(tbcclComm_t comm,
                            const char *path);

/**
 * Makes an id for a new job, and opens the rendezvous of its ranks in this process. Pass the id to all
 * ranks; one of them must be in this process.
 */
tbcclResult_t tbcclGetUniqueId(struct tbcclUniqueId *uniqueId);

/**
 * As tbcclAllGather, with `counts[r]` elements of rank r. All ranks pass the same counts.
 */
tbcclResult_t tbcclAllGatherV(const void *sendbuff,
                              void *recvbuff,
                              const size_t *counts,
                              tbcclDataType_t datatype,
                              tbcclComm_t comm,
                              tbcclRequest_t *request);

/**
 * As tbcclReduceScatter, with `counts[r]` elements for rank r. All ranks pass the same counts.
 */
tbcclResult_t tbcclReduceScatterV(const void *sendbuff,
                                  void *recvbuff,
                                  const size_t *counts,
                                  tbcclDataType_t datatype,
                                  tbcclRedOp_t op,
                                  tbcclComm_t comm,
                                  tbcclRequest_t *request);

/**
 * As tbcclGather, with `counts[r]` elements of rank r. All ranks pass the same counts.
 */
tbcclResult_t tbcclGatherV(const void *sendbuff,
                           void *recvbuff,
                           const size_t *counts,
                           tbcclDataType_t datatype,
                           int root,
                           tbcclComm_t comm,
                           tbcclRequest_t *request);

/**
 * As tbcclScatter, with `counts[r]` elements for rank r. All ranks pass the same counts.
 */
tbcclResult_t tbcclScatterV(const void *sendbuff,
                            void *recvbuff,
                            const size_t *counts,
                            tbcclDataType_t datatype,
                            int root,
                            tbcclComm_t comm,
                            tbcclRequest_t *request);

/**
 * As tbcclAlltoAll, with `sendcounts[r]` elements to rank r and `recvcounts[r]` elements from it, which must
 * equal the sendcounts that rank r has for this one.
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
